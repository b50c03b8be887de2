"""The order of shards: a permutation, fresh every epoch, weighed by size, and dealt out evenly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellorder import order_error
from wellorder.shards import Survey, ordered_shards
from wellorder.shards._order import dealt
from wellorder.shards._reading import marks_of
from wellorder.shards._shares import cut_to, lengths


def made(rows, sizes=None):
    rows = np.asarray(rows, np.float32)
    sizes = np.ones(len(rows), np.int64) if sizes is None else np.asarray(sizes)
    mean = sizes @ rows.astype(float) / max(sizes.sum(), 1)
    return Survey(rows, sizes, mean, marks_of(range(len(rows))))


def sums_of(survey):
    return (survey.rows - survey.mean) * survey.sizes[:, None]


def in_words(survey, seed, epoch):
    """The rule as the text has it, where all that are left are looked at: any of the best may come next."""
    z = sums_of(survey).astype(np.float32)
    left, total = set(range(len(z))), np.zeros(z.shape[1])
    for chosen in ordered_shards(survey, seed=seed, epoch=epoch).tolist():
        scores = {i: z[i] @ total / max(np.linalg.norm(z[i]), 1e-30) for i in left}
        yield scores[chosen], min(scores.values())
        left.remove(chosen)
        total += z[chosen]


@given(st.integers(2, 60), st.integers(0, 9), st.integers(0, 9))
def test_the_next_shard_is_the_one_that_turns_the_sum_back(n, seed, epoch):
    draw = np.random.default_rng(n)
    survey = made(draw.normal(size=(n, 5)), draw.integers(1, 20, n))
    for score, best in in_words(survey, seed, epoch):
        assert score <= best + 1e-3 * (1 + abs(best))


@given(st.integers(1, 400), st.integers(1, 9), st.integers(0, 3))
def test_every_shard_goes_to_one_stream_once_and_loads_are_level(n, streams, epoch):
    draw = np.random.default_rng(n)
    survey = made(draw.normal(size=(n, 3)), draw.integers(0, 20, n))
    lists = dealt(survey, streams, seed=1, epoch=epoch)
    assert sorted(np.concatenate(lists).tolist()) == list(range(n))
    loads = [survey.sizes[each].sum() for each in lists]
    assert max(loads) - min(loads) <= 20


@pytest.mark.parametrize(("n", "bound"), [(100, 0.6), (500, 0.3), (5000, 0.1)])
def test_it_strays_far_less_than_a_shuffle_and_sizes_stay_level_along_the_epoch(n, bound):
    draw = np.random.default_rng(n)
    rows = np.eye(10)[draw.integers(10, size=n)] + 0.05 * draw.normal(size=(n, 10))
    survey = made(rows, draw.integers(1, 10, n))
    order, sums = ordered_shards(survey, seed=0, epoch=0), sums_of(survey)
    chance = np.mean([order_error(sums, draw.permutation(n)) for _ in range(5)])
    assert order_error(sums, order) < bound * chance
    first, last = survey.sizes[order[: n // 2]].mean(), survey.sizes[order[n // 2 :]].mean()
    assert 0.6 < first / last < 1.6


def test_each_of_many_streams_is_in_a_good_order_too():
    draw = np.random.default_rng(0)
    survey = made(np.eye(10)[draw.integers(10, size=2000)])
    z = sums_of(survey)
    for mine in dealt(survey, 8, seed=0, epoch=0):
        chance = np.mean([order_error(z[mine], draw.permutation(250)) for _ in range(9)])
        assert np.abs(np.cumsum(z[mine], axis=0)).max() < 0.5 * chance


def test_orders_are_fresh_and_functions_of_seed_and_epoch():
    survey = made(np.eye(5)[np.arange(60) % 5])
    orders = {
        (seed, epoch): tuple(ordered_shards(survey, seed=seed, epoch=epoch).tolist())
        for seed in range(3)
        for epoch in range(4)
    }
    assert len(set(orders.values())) == 12
    assert orders[1, 2] == tuple(ordered_shards(survey, seed=1, epoch=2).tolist())
    places = np.argsort([orders[0, epoch] for epoch in range(4)], axis=1)
    assert np.abs(np.corrcoef(places)[np.triu_indices(4, 1)]).max() < 0.5


def test_alike_shards_come_in_random_order():
    survey = made(np.ones((50, 3)))
    firsts = [ordered_shards(survey, seed=0, epoch=epoch)[0] for epoch in range(200)]
    assert len(set(firsts)) > 35


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.integers(1, 5), st.integers(1, 4),
       st.integers(1, 7), st.sampled_from(["repeat", "drop", "keep"]))  # fmt: skip
def test_shares_cover_every_example_once(sizes, ranks, workers, batch, remainder):
    total = sum(sizes)
    wanted, _ = lengths(total, ranks, workers, batch, remainder)
    lists = [np.arange(len(sizes))[i :: ranks * workers] for i in range(ranks * workers)]
    pieces = cut_to(lists, np.array(sizes), wanted)
    assert [sum(p.stop - p.start for p in mine) for mine in pieces] == wanted
    covered = [(p.shard, at) for mine in pieces for p in mine for at in range(p.start, p.stop)]
    assert len(covered) == len(set(covered)) == sum(wanted)
    assert total - sum(wanted) < (ranks if remainder == "drop" else 1)
    by_rank = np.array(wanted).reshape(ranks, workers).sum(axis=1)
    assert by_rank.max() - by_rank.min() <= 1


@pytest.mark.parametrize(
    ("options", "words"), [(dict(seed=None), "seed"), (dict(epoch=-1), "epoch=-1")], ids=["seed", "epoch"]
)
def test_bad_input_is_named_with_its_cure(options, words):
    with pytest.raises(ValueError, match=words):
        ordered_shards(made(np.eye(3)), **options)
    with pytest.raises(ValueError, match="survey=list"):
        ordered_shards([1, 2])
