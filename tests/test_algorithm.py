"""Algorithm 1 is the plain loop, for any problem, and refuses impossible settings."""

from functools import partial

import numpy as np
import pytest

from wellorder import (
    Arbitrary,
    BalancedCohorts,
    GraB,
    Herding,
    NicePermutation,
    PairGraBProto,
    RandomReshuffling,
    ShuffleOnce,
    Steering,
    sgd,
    shuffled,
)
from wellorder.federated import fedavg
from wellorder.problems import quadratics


class Slow:
    """Quadratics without a fast path, a start or a known minimiser."""

    def __init__(self, problem):
        self.inner, self.n, self.dim, self.minimiser = problem, problem.n, problem.dim, None
        self.asked = 0

    def gradients(self, units, x):
        self.asked += len(units)
        return self.inner.gradients(units, x)

    def value(self, x):
        return self.inner.value(x)


def test_sgd_is_the_plain_loop():
    problem = quadratics(20, 3, seed=1)
    run, x = sgd(problem, RandomReshuffling(), step_size=1e-2, epochs=4, seed=3), np.ones(3)
    for epoch in range(4):
        for unit in shuffled(20, 3, epoch):
            x = x - 1e-2 * (2 * problem.a[unit] * x + problem.b[unit])
        assert run.x[epoch + 1] == pytest.approx(x, rel=1e-13)
    assert run.x.shape == (5, 3)
    assert run.orders.shape == (4, 20)
    assert all(len(series) == 4 for series in (run.order_error, run.gradient_norm, run.distance, run.drift))


@pytest.mark.parametrize("policy", [GraB(), PairGraBProto(), NicePermutation()], ids=str)
def test_any_problem_will_do(policy):
    problem = quadratics(300, 2, seed=2)
    fast = sgd(problem, policy, step_size=1e-3, epochs=3, start=[0.5, 0.5])
    slow = sgd(Slow(problem), policy, step_size=1e-3, epochs=3, start=[0.5, 0.5])
    assert slow.orders.tolist() == fast.orders.tolist()
    assert slow.x == pytest.approx(fast.x, rel=1e-12)
    assert np.isnan(slow.distance).all()


def test_fresh_gradients_are_computed_only_for_those_who_ask():
    asked = {}
    for policy in (ShuffleOnce(), NicePermutation(), PairGraBProto()):
        problem = Slow(quadratics(10, seed=1))
        sgd(problem, policy, step_size=1e-3, epochs=3)
        asked[type(policy).__name__] = problem.asked
    assert asked["NicePermutation"] == asked["ShuffleOnce"] + 10
    assert asked["PairGraBProto"] == asked["ShuffleOnce"] + 30


WILD = [RandomReshuffling(), GraB(), PairGraBProto(), NicePermutation()]
WILD += [Herding(), Steering(), BalancedCohorts(5)]  # their rows are in float32


@pytest.mark.parametrize("policy", WILD, ids=str)
@pytest.mark.parametrize("train", [sgd, partial(fedavg, cohort=5, local_steps=1)])
def test_a_run_that_diverges_says_so(policy, train):
    run = train(quadratics(200, seed=1), policy, step_size=50.0, epochs=20)
    assert not np.isfinite(run.x[-1]).any()
    assert not np.isfinite(run.order_error[-1])
    assert not np.isfinite(run.drift[-1])
    assert (np.sort(run.orders, axis=1) == np.arange(200)).all()


def test_arbitrary_orders_need_not_outlast_the_run():
    orders = [[0, 1, 2], [2, 1, 0]]
    assert sgd(quadratics(3), Arbitrary(orders), step_size=1e-2, epochs=2).orders.tolist() == orders


def test_the_proximal_step_keeps_x_near_its_start():
    problem = quadratics(50, seed=3)
    free = sgd(problem, ShuffleOnce(), step_size=1e-2, epochs=5)
    near = sgd(problem, ShuffleOnce(), step_size=1e-2, epochs=5, proximal=1.0)
    assert np.abs(near.x[1] - 1.0) == pytest.approx(np.abs(free.x[1] - 1.0) / 2)
    assert np.abs(near.x - 1.0).max() < np.abs(free.x - 1.0).max()


@pytest.mark.parametrize(
    ("setting", "cure"),
    [
        ({"step_size": 0.0}, "step_size=0.0"),
        ({"step_size": np.nan}, "step_size=nan"),
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 2.5}, "epochs=2.5"),
        ({"proximal": -1.0}, "proximal=-1.0"),
        ({"seed": -1}, "seed=-1"),
        ({"start": [1.0, 2.0]}, "start="),
        ({"p": 0.5}, "p=0.5"),
    ],
)
def test_impossible_settings_are_refused(setting, cure):
    with pytest.raises(ValueError, match=cure):
        sgd(quadratics(5), RandomReshuffling(), **{"step_size": 0.1, "epochs": 1, **setting})
