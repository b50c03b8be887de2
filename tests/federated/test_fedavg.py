"""Algorithm 2: it equals a transcription of the paper, loses no client, and contains Algorithm 1."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wellorder as wo
from wellorder.federated import Always, Diurnal, DropOut, FullGradient, LocalSGD, clients, fedavg
from wellorder.federated._local_steps import Rounds, loop_rounds, rounds
from wellorder.problems import logistic, quadratics

POLICIES = [
    wo.RandomReshuffling(),
    wo.ShuffleOnce(),
    wo.IncrementalGradient(),
    wo.NicePermutation(passes=3),
    wo.Arbitrary(lambda epoch: np.roll(np.arange(61), epoch)),
    wo.FlipFlop(),
    wo.WithReplacement(),
    wo.Greedy(),
    wo.GraB(),
    wo.GraB(wo.Walk(30.0)),
    wo.PairGraB(),
    wo.PairGraB(wo.Walk(30.0)),
    wo.GraBProto(),
    wo.PairGraBProto(),
]


class Plain:
    """A problem's gradients and nothing else: no fast steps."""

    def __init__(self, problem):
        self.problem, self.n, self.dim, self.minimiser = problem, problem.n, problem.dim, problem.minimiser
        self.start = getattr(problem, "start", np.zeros(problem.dim))
        self.gradients, self.value = problem.gradients, problem.value


def paper(problem, policy, step_size, epochs, cohort, local_steps, server_step, seed):
    """Algorithm ``alg:FL`` line by line, a short last round divided by its size: points and orders."""
    state, x, path, orders = policy.init(problem.n, seed=seed), problem.start, [problem.start], []
    for _ in range(epochs):
        w, signals = x, []
        order = state.order.copy()
        for first in range(0, problem.n, cohort):
            movements = []
            for n in order[first : first + cohort]:
                local = w
                for _ in range(local_steps):
                    local = local - step_size * problem.gradients(np.array([n]), local)[0]
                movements.append(w - local)
            w = w - sum(movements) / len(movements)
            signals += movements
        x = x - server_step * (x - w)
        path.append(x)
        orders.append(order)
        if policy.needs.at_visits():
            state = policy.observe(state, order, np.stack(signals))
        state = policy.advance(state)
    return np.stack(path), np.stack(orders)


@pytest.mark.parametrize("policy", [wo.RandomReshuffling(), wo.ShuffleOnce(), wo.GraB(), wo.PairGraB()])
@pytest.mark.parametrize(
    ("n", "cohort", "steps", "server"), [(12, 2, 5, 1.0), (13, 4, 3, 1.5), (7, 7, 1, 0.5)]
)
def test_it_equals_the_papers_algorithm(policy, n, cohort, steps, server):
    problem = quadratics(n, 3, seed=2)
    run = fedavg(
        problem,
        policy,
        step_size=1e-2,
        epochs=6,
        cohort=cohort,
        local_steps=steps,
        server_step=server,
        seed=4,
    )
    path, orders = paper(problem, policy, 1e-2, 6, cohort, steps, server, 4)
    np.testing.assert_allclose(run.x, path, rtol=1e-12, atol=1e-13)
    assert (run.orders == orders).all()
    assert (run.cohort, run.local_steps, run.server_step) == (cohort, steps, server)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: repr(policy)[:30])
@pytest.mark.parametrize("kind", ["quadratics", "logistic", "any problem"])
def test_one_client_a_round_and_one_step_is_sgd_bit_for_bit(policy, kind):
    problem = quadratics(61, 4, seed=1)
    if kind == "any problem":
        problem = Plain(problem)
    if kind == "logistic":
        draw = wo.rng(0, 0, "test")
        problem = logistic(draw.standard_normal((61, 4)), draw.integers(0, 2, 61), l2=0.1)
    common = {"step_size": 3e-3, "epochs": 7, "seed": 5}
    one, two = wo.sgd(problem, policy, **common), fedavg(problem, policy, **common, cohort=1, local_steps=1)
    for name in ("x", "orders", "order_error", "gradient_norm", "distance", "drift"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes(), name


def test_a_large_epoch_is_cut_where_sgd_cuts_it():
    common = {"step_size": 1e-3, "epochs": 3, "seed": 2}
    one = wo.sgd(quadratics(700), wo.PairGraB(), **common)
    two = fedavg(quadratics(700), wo.PairGraB(), **common, cohort=1, local_steps=1)
    assert one.x.tobytes() == two.x.tobytes()
    assert (one.orders == two.orders).all()


def test_every_epoch_visits_every_client_once_for_1000_random_sizes():
    draw = np.random.default_rng(0)
    policies = [wo.PairGraB(), wo.GraB(), wo.RandomReshuffling(), wo.FlipFlop(), wo.PairGraBProto()]
    for case in range(1000):
        n = int(draw.integers(1, 40))
        cohort = int(draw.integers(1, n + 1))
        run = fedavg(
            quadratics(n, seed=case),
            policies[case % 5],
            step_size=1e-3,
            epochs=3,
            cohort=cohort,
            local_steps=2,
        )
        assert (np.sort(run.orders, axis=1) == np.arange(n)).all(), (n, cohort)


def test_a_short_last_round_averages_over_the_clients_it_has():
    problem = quadratics(5, seed=3)
    run = fedavg(problem, wo.IncrementalGradient(), step_size=0.1, epochs=1, cohort=2, local_steps=1)
    w = problem.start
    for group in ([0, 1], [2, 3], [4]):
        w = w - 0.1 * problem.gradients(np.array(group), w).mean(axis=0)
    np.testing.assert_allclose(run.x[1], w, rtol=1e-14)


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(2, 40),
    dim=st.integers(1, 5),
    cohort=st.integers(1, 60),
    steps=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_the_fast_rounds_equal_the_plain_loop(n, dim, cohort, steps, seed):
    draw = np.random.default_rng(seed)
    plan = Rounds(1e-2, min(cohort, n), steps)
    units, w = draw.permutation(n).astype(np.int32), draw.standard_normal(dim)
    problem = quadratics(n, dim, seed=seed)
    for fast, slow in zip(
        rounds(problem, units, w, plan), loop_rounds(Plain(problem), units, w, plan), strict=True
    ):
        assert fast.tobytes() == slow.tobytes()
    problem = logistic(draw.standard_normal((n, dim)), draw.integers(0, 2, n), l2=0.1)
    for fast, slow in zip(
        rounds(problem, units, w, plan), loop_rounds(Plain(problem), units, w, plan), strict=True
    ):
        np.testing.assert_allclose(fast, slow, rtol=1e-11, atol=1e-13)


def test_the_drift_is_the_farthest_point_at_which_a_client_takes_a_gradient():
    problem = quadratics(6, seed=1)
    run = fedavg(problem, wo.IncrementalGradient(), step_size=0.2, epochs=1, cohort=2, local_steps=3)
    w, far = problem.start, 0.0
    for first in range(0, 6, 2):
        ends = []
        for client in (first, first + 1):
            local = w
            for _ in range(3):
                far = max(far, float(np.abs(local - problem.start).max()))
                local = local - 0.2 * problem.gradients(np.array([client]), local)[0]
            ends.append(local)
        w = np.mean(ends, axis=0)
    far = max(far, float(np.abs(w - problem.start).max()))
    assert run.drift[0] == pytest.approx(far, rel=1e-12)


def test_the_order_error_is_measured_at_round_boundaries():
    problem = quadratics(9, seed=2)
    run = fedavg(problem, wo.ShuffleOnce(), step_size=1e-3, epochs=2, cohort=3, local_steps=2)
    vectors = problem.gradients(np.arange(9), run.x[1])
    assert run.order_error[1] == pytest.approx(wo.order_error(vectors, run.orders[1], every=3))


def test_the_full_gradient_is_the_local_solver_unless_another_is_given():
    common = {"step_size": 1e-2, "epochs": 3, "cohort": 2, "local_steps": 2}
    one = fedavg(quadratics(8), wo.PairGraB(), **common)
    two = fedavg(quadratics(8), wo.PairGraB(), **common, local=FullGradient())
    assert one.x.tobytes() == two.x.tobytes()


@pytest.mark.parametrize(
    "inner", [wo.RandomReshuffling(), wo.PairGraB(), wo.GraBProto(), wo.NicePermutation(2)]
)
def test_local_sgd_visits_a_clients_examples_in_turn_across_rounds(inner):
    problem, seen = clients(quadratics(24, seed=1), 4), []

    class Spy:
        n, dim, minimiser, start = 24, 1, None, np.ones(1)
        value = problem.value

        def gradients(self, units, x):
            return problem.examples.gradients(units, x)

        def steps(self, units, x, step_size):
            seen.append(units.copy())
            return problem.examples.steps(units, x, step_size)

    run = fedavg(
        clients(Spy(), 4),
        wo.ShuffleOnce(),
        step_size=1e-2,
        epochs=3,
        cohort=2,
        local_steps=4,
        local=LocalSGD(inner),
    )
    visits = np.concatenate(seen)
    for client in range(4):
        own = visits[visits // 6 == client]
        assert len(own) == 12
        assert sorted(own[:6]) == sorted(own[6:]) == list(range(6 * client, 6 * client + 6))
    assert np.isfinite(run.x).all()


def test_local_sgd_with_one_example_each_is_plain_steps_on_it():
    problem, common = (
        quadratics(8, 2, seed=3),
        {"step_size": 1e-2, "epochs": 4, "cohort": 3, "local_steps": 5, "seed": 1},
    )
    one = fedavg(problem, wo.PairGraB(), **common)
    two = fedavg(clients(problem, 8), wo.PairGraB(), **common, local=LocalSGD(wo.RandomReshuffling()))
    assert one.x.tobytes() == two.x.tobytes()


def test_clients_average_their_examples():
    base = quadratics(12, 2, seed=5)
    problem = clients(base, [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]])
    x = np.array([0.3, -2.0])
    expected = base.gradients(np.array([1, 4, 7, 10]), x).mean(axis=0)
    np.testing.assert_allclose(problem.gradients(np.array([2, 1]), x)[1], expected)
    assert problem.value(x) == base.value(x)
    assert (problem.minimiser == base.minimiser).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cohort": 0}, "cohort=0: a round takes 1 to 6 of the 6 clients"),
        ({"cohort": 7}, "cohort=7"),
        ({"cohort": 2.5}, "cohort=2.5"),
        ({"local_steps": 0}, "local_steps=0"),
        ({"server_step": 0.0}, "server_step=0.0"),
        ({"step_size": -1.0}, "step_size=-1.0"),
        ({"epochs": 0}, "epochs=0"),
        ({"local": LocalSGD(wo.PairGraB())}, r"wellorder\.federated\.clients"),
    ],
)
def test_impossible_settings_are_refused(wrong, message):
    good = {"step_size": 1e-2, "epochs": 1, "cohort": 2, "local_steps": 1}
    with pytest.raises(ValueError, match=message):
        fedavg(quadratics(6), wo.PairGraB(), **{**good, **wrong})


@pytest.mark.parametrize("groups", [4, 0, [[0, 1], [2]], [[0, 1, 2], [3, 4, 4]], [[0, 1, 2], [3, 4, 6]]])
def test_unequal_or_doubled_groups_are_refused(groups):
    with pytest.raises(ValueError, match="groups"):
        clients(quadratics(6), groups)


def test_importing_the_package_loads_no_torch():
    import subprocess
    import sys

    code = "import sys, wellorder.federated; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


WHEN = dict(step_size=1e-3, epochs=5, cohort=4, local_steps=2, server_step=1.5)


@pytest.mark.parametrize(
    "policy",
    [wo.RandomReshuffling(), wo.ShuffleOnce(), wo.FlipFlop(), wo.GraB(), wo.PairGraB(), wo.Herding()],
)
@pytest.mark.parametrize("n", [24, 61])
def test_clients_who_are_always_there_are_those_of_the_paper(policy, n):
    problem = quadratics(n, 3)
    plain = fedavg(problem, policy, **WHEN)
    there = fedavg(problem, policy, availability=Always(), **WHEN)
    assert np.array_equal(plain.orders, there.orders)
    assert np.array_equal(plain.x, there.x)
    assert np.array_equal(plain.drift, there.drift)
    assert there.extras == ("availability=Always()",)


@pytest.mark.parametrize("availability", [DropOut(0.4), Diurnal(groups=3, period=7, awake=0.5)])
@pytest.mark.parametrize("policy", [wo.RandomReshuffling(), wo.GraB(), wo.PairGraB(), wo.Herding()])
def test_clients_who_are_away_come_later_and_nobody_is_lost(availability, policy):
    problem = quadratics(26, 2, seed=3)
    run = fedavg(problem, policy, availability=availability, **WHEN)
    assert all(sorted(order) == list(range(26)) for order in run.orders)
    assert not np.array_equal(run.orders, fedavg(problem, policy, **WHEN).orders)
    assert run.distance[-1] < run.distance[0]
    again = fedavg(problem, policy, availability=availability, **WHEN)
    assert np.array_equal(run.x, again.x)


def test_who_was_missed_comes_first_and_does_not_train():
    class NeverZero:
        def reachable(self, units, turn, seed):
            return np.asarray(units) != 0

    problem = quadratics(6)
    run = fedavg(
        problem, wo.IncrementalGradient(), availability=NeverZero(), **{**WHEN, "cohort": 2, "epochs": 3}
    )
    assert run.orders.tolist() == [[1, 2, 3, 4, 0, 5], [5, 1, 2, 3, 0, 4], [4, 5, 1, 2, 0, 3]]
    w = problem.start
    for cohort in ([1, 2], [3, 4]):
        _, points, _ = FullGradient().rounds(problem, None, np.array(cohort), w, Rounds(1e-3, 2, 2))
        w = points[-1]
    assert np.allclose(run.x[1], problem.start + 1.5 * (w - problem.start))


def test_policies_that_ask_for_everybody_at_once_are_refused():
    for policy in (wo.PairGraBProto(), wo.NicePermutation()):
        with pytest.raises(ValueError, match="gradient at once, and not all can be reached"):
            fedavg(quadratics(8), policy, availability=DropOut(0.1), **WHEN)


@pytest.mark.parametrize("availability", [None, DropOut(0.3)])
def test_the_proximal_step_follows_the_amplified_one(availability):
    chosen = {"step_size": 1e-2, "epochs": 1, "cohort": 2, "local_steps": 2, "server_step": 1.5}
    chosen["availability"], problem = availability, quadratics(10, 2, seed=3)
    free = fedavg(problem, wo.RandomReshuffling(), **chosen)
    near = fedavg(problem, wo.RandomReshuffling(), proximal=0.25, **chosen)
    np.testing.assert_allclose(near.x[1], (free.x[1] + 0.25 * free.x[0]) / 1.25)
