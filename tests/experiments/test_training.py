"""Training with a clock is the same training, bit for bit."""

import numpy as np
import pytest

import wellorder as wo
from wellorder.experiments._training import Settings, train
from wellorder.federated import fedavg
from wellorder.problems import quadratics

POLICIES = [
    wo.RandomReshuffling(),
    wo.PairGraB(),
    wo.GraB(),
    wo.GraBProto(),
    wo.NicePermutation(2),
    wo.FlipFlop(),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_it_is_sgd_bit_for_bit(policy):
    problem = quadratics(300, 2, seed=1)
    run = wo.sgd(problem, policy, step_size=1e-3, epochs=4, seed=2)
    found = list(train(problem, policy, Settings(1e-3, 4), 2))
    assert np.stack([moment.x for moment in found]).tobytes() == run.x.tobytes()
    assert (np.stack([moment.order for moment in found[:-1]]) == run.orders).all()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_it_is_fedavg_bit_for_bit(policy):
    problem = quadratics(301, seed=1)
    options = {"cohort": 4, "local_steps": 3, "server_step": 1.5}
    run = fedavg(problem, policy, step_size=1e-3, epochs=4, seed=2, **options)
    found = list(train(problem, policy, Settings(1e-3, 4, **options), 2))
    assert np.stack([moment.x for moment in found]).tobytes() == run.x.tobytes()
    assert (np.stack([moment.order for moment in found[:-1]]) == run.orders).all()


def test_gradients_are_counted_with_those_that_ordering_takes():
    problem = quadratics(10)
    plain = [m.gradients for m in train(problem, wo.PairGraB(), Settings(1e-3, 3), 0)]
    fresh = [m.gradients for m in train(problem, wo.PairGraBProto(), Settings(1e-3, 3), 0)]
    once = [m.gradients for m in train(problem, wo.NicePermutation(2), Settings(1e-3, 3), 0)]
    local = [m.gradients for m in train(problem, wo.PairGraB(), Settings(1e-3, 3, 2, 5), 0)]
    assert plain == [0, 10, 20, 30]
    assert fresh == [0, 20, 40, 60]
    assert once == [0, 20, 30, 40]
    assert local == [0, 50, 100, 150]


def test_seconds_never_fall():
    seconds = [m.seconds for m in train(quadratics(1000), wo.GraB(), Settings(1e-3, 5), 0)]
    assert (np.diff(seconds) > 0).all()


def test_a_run_that_diverges_stops_early_without_an_error():
    found = list(train(quadratics(100), wo.PairGraB(), Settings(1e3, 50), 0))
    assert len(found) < 51
    assert np.isfinite(found[-1].x).all()
