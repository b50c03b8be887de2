"""The measure of how much clients differ is the one that its docstring defines."""

import numpy as np
import pytest

import wellorder as wo
from wellorder._clients.heterogeneity import MOST, Differences
from wellorder.federated import heterogeneity


def stray(rows, order, cohort):
    """Root mean square of ‖Σ (row − mean)‖ over the ends of rounds, by a loop."""
    squares, total = [], np.zeros(rows.shape[1])
    for t, unit in enumerate(order):
        total = total + rows[unit] - rows.mean(axis=0)
        if (t + 1) % cohort == 0 and t + 1 < len(order):
            squares.append(total @ total)
    return np.sqrt(np.mean(squares))


def drawn(lasting, passing, clients=60, seed=0):
    """Updates of two visits about a common mean: a client's own part, and one that comes and goes."""
    draw = np.random.default_rng(seed)
    own = lasting * draw.standard_normal((clients, 4))
    return [0.3 + own + passing * draw.standard_normal(own.shape) for _ in range(2)]


@pytest.mark.parametrize("cohort", [1, 7, 10])
def test_it_is_the_stray_that_orders_of_the_first_visit_take_away_in_the_second(cohort):
    first, second = drawn(1.0, 0.5)
    draw = np.random.default_rng(1)
    shuffles = [stray(second, draw.permutation(60), cohort) for _ in range(2000)]
    orders = [wo.Herding().init(60, seed=seed, rows=first).order for seed in range(4)]
    ordered = [stray(second, order, cohort) for order in orders]
    gained = np.sqrt(np.mean(np.square(shuffles))) - np.sqrt(np.mean(np.square(ordered)))
    expected = gained / np.linalg.norm(second.sum(axis=0))
    assert heterogeneity(first, second, cohort=cohort) == pytest.approx(expected, abs=0.02)


def test_what_does_not_last_does_not_count():
    passing = [heterogeneity(*drawn(0.0, 1.0, clients=400, seed=seed)) for seed in range(10)]
    lasting = [heterogeneity(*drawn(1.0, 0.0, clients=400, seed=seed)) for seed in range(10)]
    assert abs(np.mean(passing)) < 0.02
    assert min(lasting) > 0.04


def test_length_does_not_count():
    first, second = drawn(1.0, 0.5)
    expected = heterogeneity(first, second)
    for scale in (1e-200, 1e-6, 1e200):
        assert heterogeneity(scale * first, second) == pytest.approx(expected, abs=0.02)
        assert heterogeneity(first, scale * second) == pytest.approx(expected, abs=1e-9)


def test_clients_that_are_all_alike_do_not_differ():
    assert heterogeneity(np.ones((40, 5)), np.ones((40, 5))) == 0.0
    assert heterogeneity(np.zeros((40, 5)), np.zeros((40, 5))) == 0.0


def test_gathered_round_by_round_it_is_the_same_whoever_came_when():
    first, second = drawn(1.0, 0.5)
    seen, draw = Differences(), np.random.default_rng(2)
    for epoch, rows in enumerate((first, second)):
        for clients in draw.permutation(60).reshape(12, 5):
            seen.add(epoch, clients.tolist(), list(rows[clients]))
    assert seen.value(5) == pytest.approx(heterogeneity(first, second, cohort=5))
    assert [seen.wants(epoch) for epoch in (-1, 0, 1, 2)] == [False, True, True, False]


def test_no_more_than_a_few_thousand_clients_are_kept():
    seen, one = Differences(), np.ones(1)
    seen.add(0, range(MOST + 5), [one] * (MOST + 5))
    assert len(seen.epochs[0]) == MOST
    assert np.isnan(seen.value(10))  # nobody was seen twice


@pytest.mark.parametrize(
    ("first", "second", "cohort", "words"),
    [
        (np.ones(9), np.ones(9), 2, "first of shape .*2-D array"),
        (np.ones((9, 2)), np.full((9, 2), np.nan), 2, "second of shape .*finite"),
        (np.ones((9, 2)), np.ones((8, 2)), 2, "the same clients"),
        (np.ones((9, 2)), np.ones((9, 2)), 0, "cohort=0"),
        (np.ones((9, 2)), np.ones((9, 2)), 5, "two rounds or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(first, second, cohort, words):
    with pytest.raises(ValueError, match=words):
        heterogeneity(first, second, cohort=cohort)
