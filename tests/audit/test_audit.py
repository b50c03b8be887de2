"""The audit of orders and loaders: by value, against the order error itself, and against planted faults."""

import json
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wellorder
from wellorder import audit, balanced, features, order_error
from wellorder._audit.judging import batch_sums, labels_along, norms_along, norms_of, resemblance
from wellorder._audit.watching import parted

N = 1200
DRAW = np.random.default_rng(0)
Y = np.repeat(np.arange(6), N // 6)
X = (DRAW.normal(size=(N, 4, 3)) + Y[:, None, None]).astype(np.float32)
ROWS = features(X, Y)


class Loader:
    """Batches of a list of orders, one an epoch."""

    def __init__(self, *orders, batch=40, what=lambda units: (X[units], Y[units])):
        self.orders, self.batch, self.what, self.epoch_number = orders, batch, what, 0

    def __iter__(self):
        order = self.orders[self.epoch_number % len(self.orders)]
        self.epoch_number += 1
        for at in range(0, len(order), self.batch):
            yield self.what(order[at : at + self.batch])


def shuffled(seed):
    return np.random.default_rng(seed).permutation(N)


def reference(rows, order, every, shuffles=20):
    """The order error relative to full shuffles, by nothing of the audit's."""
    drawn = [
        order_error(rows, np.random.default_rng(s).permutation(len(rows)), every=every)
        for s in range(shuffles)
    ]
    return order_error(rows, order, every=every) / np.mean(drawn)


def buffered(order, size, seed):
    """What a shuffle buffer makes of an order."""
    draw, held, out = np.random.default_rng(seed), list(order[:size]), []
    for unit in order[size:]:
        at = draw.integers(size)
        out.append(held[at])
        held[at] = unit
    return np.array([*out, *draw.permutation(held)])


ORDERS = {
    "a shuffle": shuffled(3),
    "sorted": np.arange(N),
    "a buffer": buffered(np.arange(N), 100, 0),
    "balanced": next(balanced(ROWS)),
}


@pytest.mark.parametrize("every", [1, 40, 7])
@pytest.mark.parametrize("name", ORDERS)
def test_the_ratio_of_an_order_is_that_of_order_errors(name, every):
    found = audit(ORDERS[name], ROWS, every=every)
    assert found.ratio == pytest.approx(reference(ROWS, ORDERS[name], every), rel=0.12)


@pytest.mark.parametrize("name", ORDERS)
def test_a_loader_is_judged_as_its_order_is(name):
    found = audit(Loader(ORDERS[name], shuffled(9)), epochs=1)
    assert found.ratio == pytest.approx(reference(features(X, Y, size=128), ORDERS[name], 40), rel=0.2)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 99), st.booleans())
def test_batch_sums_are_sums_of_batches(sizes, seed, shuffle):
    n = sum(sizes)
    rows = np.random.default_rng(seed).normal(size=(n, 3))
    order = np.random.default_rng(seed).permutation(n) if shuffle else None
    came = rows if order is None else rows[order]
    ends = [0, *np.cumsum(sizes)]
    expected = [came[a:b].sum(axis=0) for a, b in pairwise(ends)]
    np.testing.assert_allclose(batch_sums(rows, order, np.array(sizes)), expected, atol=1e-12)


def test_a_fresh_shuffle_of_every_epoch_is_told_as_one_with_nothing_to_find():
    found = audit([shuffled(s) for s in range(4)], ROWS, every=40, labels=Y)
    assert found.ratio == pytest.approx(1, abs=0.15)
    assert "as good as a full shuffle (4 epochs of 1,200 examples, batches of 40)" in str(found)
    assert found.findings == ()
    assert abs(found.resemblance) < 0.1
    assert found.metrics()["audit/ratio"] == found.ratio


def test_sorted_data_is_a_poor_order_whose_labels_drift():
    found = audit(Loader(np.arange(N)))
    assert found.ratio > 5
    assert "a poor order" in found.sentence
    assert found.label_drift == pytest.approx(5 / 6, abs=0.02)  # one of six labels where all should be
    assert any(text.startswith("Labels drift") for text in found.findings)


def test_balanced_orders_are_better_than_a_shuffle():
    found = audit([order for order, _ in zip(balanced(ROWS), range(2), strict=False)], ROWS, every=40)
    assert found.ratio < 0.3
    assert "better than a full shuffle" in found.sentence


def test_small_rows_first_are_found_though_the_order_error_is_small():
    rows = np.random.default_rng(0).normal(size=(N, 8)) * np.linspace(0.2, 2, N)[:, None]
    found = audit(np.arange(N), rows, every=40)
    assert any("Norms drift" in text for text in found.findings)
    expected = np.linalg.norm(rows - rows.mean(axis=0), axis=1).reshape(10, -1).mean(axis=1)
    np.testing.assert_allclose(found.norms[0], expected / expected.mean(), rtol=1e-5)


def test_the_mix_of_labels_is_its_total_variation():
    labels = np.array([0] * 50 + [1] * 50)
    assert labels_along(labels).tolist() == [0.5] * 10
    assert norms_along(norms_of(np.array([[1.0], [-1.0]] * 20))).tolist() == [1.0] * 10


@pytest.mark.parametrize("seen", [dict(), dict(key=lambda batch: batch[2], xy=lambda batch: batch[:2])])
def test_a_loader_that_repeats_its_order_is_found(seen):
    rich = lambda units: (X[units], Y[units], units) if seen else (X[units], Y[units])  # noqa: E731
    found = audit(Loader(shuffled(0), what=rich), **seen)
    assert found.same_order
    assert found.resemblance == 1
    assert any("same order" in text for text in found.findings)
    assert not audit(Loader(shuffled(0), shuffled(1), what=rich), **seen).same_order


def test_epochs_that_resemble_each_other_are_found():
    found = audit(Loader(*(buffered(np.arange(N), 50, seed) for seed in range(2))))
    assert not found.same_order
    assert found.resemblance > 0.9
    assert any("resemble" in text for text in found.findings)


def test_examples_that_come_twice_or_never_are_counted():
    order = shuffled(0)
    order[:30] = order[30:60]
    found = audit([order, shuffled(1)], ROWS)
    assert (found.twice, found.never) == ((30, 0), (30, 0))
    seen = audit(Loader(order, shuffled(1)))
    assert (seen.twice, seen.never) == ((30, 0), (30, 0))
    assert sum("30" in text for text in seen.findings) == 2
    dropped = audit(Loader(shuffled(0)[:-25], shuffled(1)))
    assert dropped.never == (25, 0)


def test_augmented_examples_are_not_recognised_and_that_is_said():
    noise = np.random.default_rng(5)
    shaken = lambda units: (X[units] + noise.normal(size=X[units].shape), Y[units])  # noqa: E731
    found = audit(Loader(shuffled(0), what=shaken))
    assert found.recognised == 0
    assert found.same_order  # by the labels, which come in the same order
    assert any("pass key=" in text for text in found.findings)


def test_missing_labels_are_warned_of():
    with pytest.warns(UserWarning, match="rows without the label can mislead"):
        found = audit(Loader(np.arange(N), what=lambda units: X[units]))
    assert any("mislead" in text for text in found.findings)
    assert found.label_ratio is None


def test_nobody_is_warned_who_says_that_there_are_no_labels():
    found = audit(Loader(shuffled(0), shuffled(1)), xy=lambda batch: (batch[0], False))
    assert not any("mislead" in text for text in found.findings)


def test_shards_split_the_error_in_two():
    shards = np.repeat(np.arange(N // 50), np.tile([30, 70], N // 100))
    random_shards = np.random.default_rng(0).permutation(N // 50)
    order = np.concatenate([np.flatnonzero(shards == s) for s in random_shards])
    found = audit(order, ROWS, shards=shards, every=40)
    means = np.stack([ROWS[shards == s].mean(axis=0) for s in range(N // 50)])[shards[order]]
    rest = ROWS[order] - means
    base = np.mean([order_error(ROWS, np.random.default_rng(s).permutation(N), every=40) for s in range(20)])
    place = np.arange(N)
    assert found.shard_order == pytest.approx(order_error(means, place, every=40) / base, rel=0.12)
    assert found.inside_shards == pytest.approx(order_error(rest, place, every=40) / base, rel=0.12)
    assert found.shard_order > 2 > found.inside_shards
    loader = Loader(
        order, what=lambda units: {"x": X[units], "y": Y[units], "__url__": shards[units].astype(str)}
    )
    assert audit(loader, epochs=1).shard_order == pytest.approx(found.shard_order, rel=0.25)


def test_the_order_of_shards_alone_explains_nothing_where_they_are_mixed():
    shards = np.random.default_rng(1).permutation(N) // 50
    order = np.argsort(shards, kind="stable")
    found = audit(order, ROWS, shards=shards, every=40)
    assert found.ratio == pytest.approx(1, abs=0.3)
    assert not any("shards" in text for text in found.findings)


def test_global_random_states_are_put_back():
    class Random(Loader):
        def __iter__(self):
            random.random(), np.random.random()
            return super().__iter__()

    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    audit(Random(shuffled(0), shuffled(1)))
    assert (random.random(), np.random.random()) == expected


def test_watching_stops_where_it_is_told():
    def endless():
        draw = np.random.default_rng(0)
        while True:
            units = draw.integers(N, size=40)
            yield X[units], Y[units]

    found = audit(endless, most=400)
    assert found.examples == (400, 400)
    assert any("only the first 400" in text for text in found.findings)


def test_what_was_not_watched_is_not_called_missing():
    found = audit(Loader(shuffled(0), shuffled(1)), most=N // 4)
    assert not found.whole
    assert found.never == (0, 0)
    assert len(found.findings) == 1  # that it stopped
    assert "were watched (most=)" in found.findings[0]


@pytest.mark.parametrize("power", [-100, -70, 70, 100])
def test_rows_of_any_size_are_judged_alike(power):
    found, usual = (audit(shuffled(0), rows.astype(np.float32)) for rows in (ROWS * 2.0**power, ROWS))
    assert found.norm_drift == pytest.approx(usual.norm_drift)
    assert found.ratio == pytest.approx(usual.ratio)


def test_what_was_not_watched_is_not_called_missing_or_changed():
    found = audit(Loader(shuffled(0), shuffled(1)), most=N // 5)
    assert found.never == (0, 0)
    assert [text for text in found.findings if "never came" in text or "augmented" in text] == []
    assert audit(Loader(shuffled(0), shuffled(1)), most=N).whole


BATCHES = {
    "pair": (X[:4], Y[:4]),
    "list": [X[:4], Y[:4].tolist()],
    "dictionary": {"image": X[:4], "label": Y[:4]},
    "uneven fields": {"image": X[:4], "mask": X[:4, 0], "targets": Y[:4]},
    "inputs alone": X[:4],
    "texts": {"text": ["a b", "b", "c a", "d"], "label": [0, 1, 0, 1]},
    "tokens": {"input_ids": np.arange(12).reshape(4, 3), "labels": np.arange(12).reshape(4, 3)},
    "tokens and the next": (np.arange(12).reshape(4, 3), np.arange(12).reshape(4, 3) + 1),
    "images and masks": (X[:4], np.zeros((4, 9, 9), np.int64)),
    "real targets": (X[:4], np.linspace(0, 1, 4)),
    "labels alone": {"name": None, "y": Y[:4]},
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_many_kinds_are_taken_apart(name):
    assert parted(BATCHES[name]).size == 4


@pytest.mark.parametrize(
    "example",
    [(X[0], 3), {"x": X[0].tolist(), "y": 3}, {"text": "a word", "label": "cat"}, (X[0], np.int64(2))],
)
def test_a_single_example_is_told_by_its_label(example):
    part = parted(example)
    assert part.size == 1
    assert len(part.labels) == len(part.inputs) == 1


@pytest.mark.parametrize("example", [{"text": "a word", "url": "x"}, {"input_ids": [4, 5], "labels": [4, 5]}])
def test_a_single_text_needs_no_label(example):
    part = parted(example)
    assert (part.size, part.texts, part.labels) == (1, True, None)
    assert parted("", ("a text", False)).size == 1


@pytest.mark.parametrize("name", ["tokens", "tokens and the next"])
def test_a_language_model_s_labels_are_its_tokens(name):
    part = parted(BATCHES[name])
    assert part.labels is None
    assert part.unlabelled  # nobody is warned: the next token, which is the label, is in the counts


def test_masks_are_kept_as_a_few_numbers():
    masks = np.repeat(np.arange(2), 100)[:, None, None] * np.ones((1, 10, 10), np.int64)
    batches = [(X[u], masks[u]) for u in np.split(np.arange(200), 10)]
    found = audit(batches, epochs=1)
    assert found.ratio > 3
    assert found.label_ratio is None


def test_texts_are_seen_by_their_words():
    words = np.array(["red green", "blue sky", "old tree", "my dog"])
    kinds = np.repeat(np.arange(4), 50)

    def batches(order):
        return [{"text": words[kinds[u]].tolist(), "label": np.zeros(20)} for u in np.split(order, 10)]

    assert audit(batches(np.arange(200))).ratio > 3
    fresh = [batches(np.random.default_rng(s).permutation(200)) for s in range(4)]
    assert audit(lambda: fresh.pop(), epochs=4).ratio == pytest.approx(1, abs=0.3)


BAD = [
    (lambda: audit(np.arange(5)), "order without rows"),
    (lambda: audit([0, 1, 9], ROWS[:3]), "outside 0..2"),
    (lambda: audit(np.ones((2, 2)), ROWS), "dtype float64"),
    (lambda: audit(np.arange(N), ROWS, labels=[1, 2]), "labels of shape"),
    (lambda: audit(np.arange(N), ROWS, shards=[1, 2]), "shards of shape"),
    (lambda: audit(np.arange(N), ROWS, every=0), "every=0"),
    (lambda: audit(np.arange(N), ROWS, shuffles=1), "shuffles=1"),
    (lambda: audit(np.arange(N), ROWS, seed=None), "seed=None"),
    (lambda: audit(np.arange(N), np.full((N, 2), np.nan)), "NaN"),
    (lambda: audit(5), "order=int"),
    (lambda: audit([]), "two or more"),
    (lambda: audit(iter([(X, Y)]), epochs=2), "an iterator, as this order is, gives one"),
    (lambda: audit(Loader(shuffled(0)), xy=3), "xy=3: pass a function"),
    (lambda: audit(Loader(shuffled(0)), xy=lambda batch: batch[0]), "return .inputs, labels."),
    (lambda: audit(Loader(shuffled(0)), shards=[1, 2]), "pass a function from a batch"),
    (lambda: audit(Loader(shuffled(0)), key=lambda batch: [1]), "one for each"),
    (lambda: audit(Loader(shuffled(0)), lambda batch: batch[0][0]), "rows.batch. of shape"),
    (lambda: audit([(X, Y, Y)]), "Pass xy="),
    (lambda: audit([{"a": None}, {"a": None}]), "neither numbers nor labels"),
    (lambda: audit([(X[:4], Y[:4]), (X[:4, :2], Y[:4])]), "inputs of 6 numbers"),
]


@pytest.mark.parametrize(("call", "words"), BAD)
def test_bad_input_is_named_with_its_cure(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_an_iterator_is_watched_once():
    assert audit(iter(Loader(shuffled(0)))).examples == (N,)


def test_json_holds_everything():
    found = audit(Loader(np.arange(N)))
    told = json.loads(found.to_json())
    assert told["sentence"] == found.sentence
    assert told["ratio"] == found.ratio
    assert len(told["curves"]) == 2
    assert max(told["curves"][0]) == pytest.approx(found.ratios[0], rel=0.02)


def test_the_caller_s_arrays_are_left_alone():
    rows, order = ROWS.copy(), shuffled(0)
    audit(order, rows, labels=Y, shards=Y)
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(order, shuffled(0))


def test_places_of_two_epochs_are_compared():
    assert resemblance(np.arange(9), np.arange(9)) == (1.0, 1.0)
    assert resemblance(np.arange(9), np.arange(9) + 9) == (0.0, 0.0)
    assert resemblance(np.array([1, 2, 3, 4]), np.array([3, 4, 5, 6]))[0] == 0.5


def test_it_is_public():
    assert wellorder.audit is audit
    assert isinstance(audit(np.arange(N), ROWS), wellorder.Audit)
