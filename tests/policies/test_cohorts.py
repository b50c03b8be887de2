"""BalancedCohorts: rounds that resemble the whole, from running means of what clients showed."""

import numpy as np
import pytest

from wellorder import BalancedCohorts, Herding, RandomReshuffling, order_error, reorder
from wellorder._order import rng
from wellorder.policies._cohorts import TRIES


def made(rows, cohort, seed, epoch):
    """The order in lists: exchange members at random where sums become shorter, then herd the sums."""
    n = len(rows)
    order = RandomReshuffling().init(n, seed=seed).order.tolist()
    whole = n - n % cohort
    rounds = [order[at : at + cohort] for at in range(0, whole, cohort)]
    centred = rows - rows.mean(axis=0)
    draw = rng(seed, epoch, "cohorts")
    cohorts = draw.integers(len(rounds), size=(TRIES * whole, 2))
    places = draw.integers(cohort, size=(TRIES * whole, 2))
    for (a, b), (i, j) in zip(cohorts, places, strict=True):
        if a == b:
            continue
        before = [np.sum(centred[rounds[r]], axis=0) for r in (a, b)]
        swap = centred[rounds[b][j]] - centred[rounds[a][i]]
        after = [before[0] + swap, before[1] - swap]
        if sum(s @ s for s in after) < sum(s @ s for s in before) - 1e-12:
            rounds[a][i], rounds[b][j] = rounds[b][j], rounds[a][i]
    sums = np.array([centred[own].sum(axis=0) for own in rounds])
    turns = draw.permutation(len(rounds))
    for _ in range(8):
        total, signs = np.zeros(sums.shape[1]), np.zeros(len(rounds), np.int8)
        for turn in turns:
            z = sums[turn] - sums.mean(axis=0)
            signs[turn] = 1 if total @ z < 0 else -1
            total = total + signs[turn] * z
        turns = reorder(turns, signs)
    return [unit for turn in turns for unit in rounds[turn]] + order[whole:]


@pytest.mark.parametrize(("n", "cohort"), [(24, 4), (23, 5), (12, 6)])
def test_it_is_what_its_words_say(n, cohort):
    rows = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
    state = BalancedCohorts(cohort).init(n, seed=3, rows=rows)
    assert state.order.tolist() == made(rows.astype(np.float64), cohort, 3, 0)


def test_its_rounds_are_nearer_to_the_mean_than_those_of_herding():
    rows = np.random.default_rng(0).normal(size=(200, 6))
    for seed in range(3):
        ours, theirs = (p.init(200, seed=seed, rows=rows).order for p in (BalancedCohorts(10), Herding()))
        near, far = (np.square(rows[o].reshape(20, 10, 6).mean(axis=1)).sum() for o in (ours, theirs))
        assert near < far
        assert order_error(rows, ours, every=10) < order_error(rows, theirs, every=10)


@pytest.mark.parametrize("newest", [0.25, 1.0])
def test_a_row_is_a_running_mean_of_what_the_client_showed(newest):
    policy, draw = BalancedCohorts(2, newest=newest), np.random.default_rng(1)
    state, expected = policy.init(6), None
    for _ in range(3):
        shown = draw.normal(size=(6, 2)).astype(np.float32)
        state = policy.observe(state, state.order, shown[state.order])
        expected = shown if expected is None else expected + newest * (shown - expected)
        np.testing.assert_allclose(state.rows, expected, rtol=1e-5)
        state = policy.advance(state)


def test_fewer_clients_than_two_rounds_keep_their_shuffle():
    rows = np.random.default_rng(0).normal(size=(7, 2))
    order = BalancedCohorts(4).init(7, seed=2, rows=rows).order
    np.testing.assert_array_equal(order, RandomReshuffling().init(7, seed=2).order)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cohort": 0}, "cohort=0"),
        ({"cohort": 2.5}, "cohort=2.5"),
        ({"newest": 0.0}, "newest=0.0"),
        ({"newest": 1.5}, "newest=1.5: pass a weight above 0, at most 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        BalancedCohorts(**settings)
