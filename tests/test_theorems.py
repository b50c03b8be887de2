"""What the theory promises of an order is seen in runs: growth with n, and Figure 1."""

import numpy as np
import pytest

from wellorder import GraB, PairGraB, RandomReshuffling, sgd
from wellorder.problems import quadratics

SIZES = (200, 400, 800, 1600, 3200)


def median_error(policy, n):
    errors = []
    for seed in range(10):
        run = sgd(quadratics(n, seed=seed), policy, step_size=0.1 / n, epochs=50, seed=seed)
        errors.append(np.median(run.order_error[-10:]))
    return np.median(errors)


def growth(policy):
    """The exponent r of order error ~ n^r, fitted over sizes."""
    errors = [median_error(policy, n) for n in SIZES]
    return np.polyfit(np.log(SIZES), np.log(errors), 1)[0]


def test_the_order_error_of_reshuffling_grows_like_the_root_of_n():
    assert growth(RandomReshuffling()) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("policy", [GraB(), PairGraB()], ids=str)
def test_the_order_error_of_balanced_orders_hardly_grows_with_n(policy):
    assert growth(policy) < 0.2


def test_figure_1_balanced_orders_end_far_closer_to_the_optimum():
    distance, error = {}, {}
    for policy in (RandomReshuffling(), GraB(), PairGraB()):
        runs = [sgd(quadratics(1000, seed=s), policy, step_size=1e-3, epochs=40, seed=s) for s in range(10)]
        name = type(policy).__name__
        distance[name] = np.median([run.distance[39] for run in runs])
        error[name] = np.median([run.order_error[39] for run in runs])
    for name in ("GraB", "PairGraB"):
        assert distance["RandomReshuffling"] >= 50 * distance[name]
        assert error["RandomReshuffling"] >= 5 * error[name]
