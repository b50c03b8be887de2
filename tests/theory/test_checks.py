"""The theory against real runs: every promise, every method, examples and clients."""

import dataclasses
import math

import numpy as np
import pytest

import wellorder
from wellorder import (
    Arbitrary,
    Deterministic,
    FlipFlop,
    GraB,
    GraBProto,
    IncrementalGradient,
    NicePermutation,
    PairGraB,
    PairGraBProto,
    RandomReshuffling,
    ShuffleOnce,
    Walk,
)
from wellorder.federated import DropOut, LocalSGD, clients, fedavg
from wellorder.problems import Quadratics, gradient, quadratics
from wellorder.theory import (
    METHODS,
    check_assumption,
    check_bound,
    check_drift,
    check_lemmas,
    check_order_errors,
    constants,
    estimate,
    max_step_size,
    method_of,
)

N, EPOCHS, DELTA = 64, 20, 0.01
CLIENTS = dict(cohort=4, local_steps=3, server_step=1.5)


def worst_orders(problem):
    """As bad as we know how: sorted by one coordinate, up and down in turn."""
    order = np.argsort(problem.b[:, 0])
    return Arbitrary(lambda epoch: order[:: 1 if epoch % 2 else -1])


def policies(problem, rule):
    return [
        worst_orders(problem), RandomReshuffling(), FlipFlop(), IncrementalGradient(), ShuffleOnce(),
        NicePermutation(rule=rule), GraBProto(rule), PairGraBProto(rule), GraB(rule), PairGraB(rule),
    ]  # fmt: skip


def walk(problem, local_steps):
    """The walk of the theory for signals as long as any that a run will show."""
    longest = 2 * np.linalg.norm(problem.gradients(np.arange(problem.n), problem.start), axis=1).max()
    return Walk(30 * math.log(problem.dim * problem.n / DELTA) * (2 * local_steps * longest) ** 2)


def trained(problem, policy, seed, shape, scale):
    name = method_of(policy, federated=bool(shape))
    step = scale * max_step_size(name, problem.n, delta=DELTA, **estimate(problem).known, **shape)
    train = fedavg if shape else wellorder.sgd
    return train(problem, policy, step_size=step, epochs=EPOCHS, seed=seed, p=METHODS[name].p, **shape)


def promises(seeds, dim, spread, shape, scale=1.0):
    """Yield every run of the seeds with its checks."""
    for seed in seeds:
        problem = quadratics(N, dim, seed=seed, spread=spread)
        random = policies(problem, walk(problem, shape.get("local_steps", 1)))
        for chosen in (policies(problem, Deterministic()), [p for p in random if hasattr(p, "rule")]):
            for policy in chosen:
                run = trained(problem, policy, seed, shape, scale)
                yield run, check_assumption(run, delta=DELTA), check_drift(run), check_bound(run, delta=DELTA)


def hold(seeds, dim, spread, shape, scale=1.0):
    held = {}
    for run, assumption, drift, theorem in promises(seeds, dim, spread, shape, scale):
        kind = type(run.policy).__name__
        balanced = METHODS[method_of(run.policy, federated=bool(shape))].p == np.inf
        proved = not balanced or run.policy.rule != Deterministic()
        assert assumption.promised == theorem.promised == proved, kind
        assert drift.promised, kind
        assert drift.first_violation is None, kind
        assert theorem.first_violation is None, kind
        assert np.min(run.gradient_norm) ** 2 <= theorem.right[-1]
        held.setdefault((kind, assumption.probability), []).append(assumption.holds)
        if getattr(run.policy, "rule", Deterministic()) == Deterministic():
            assert_lemmas(run, kind)
    for (kind, promised), outcomes in held.items():
        assert np.mean(outcomes) >= promised, kind
    certain = {kind for kind, promised in held if promised == 1.0}
    assert {"Arbitrary", "FlipFlop", "IncrementalGradient", "ShuffleOnce", "NicePermutation"} <= certain
    assert all(np.all(outcomes) for (_, promised), outcomes in held.items() if promised == 1.0)


def assert_lemmas(run, kind):
    """Lemmas 3–5 in every epoch, for the gradients at its first point and the order it followed."""
    for q, (x, order) in enumerate(zip(run.x, run.orders, strict=False)):
        rows = run.problem.gradients(np.arange(N), x) - gradient(run.problem, x)
        for check in check_lemmas(rows, order, cohort=4, seed=q):
            assert check.first_violation is None, (kind, q, check.what)


@pytest.mark.parametrize("shape", [{}, CLIENTS], ids=["examples", "clients"])
@pytest.mark.parametrize("spread", [0.0, 1.0], ids=["common curvature", "varied curvature"])
@pytest.mark.parametrize("dim", [1, 20])
@pytest.mark.parametrize("scale", [1.0, 0.1], ids=["largest step", "a tenth of it"])
def test_runs_keep_every_promise(dim, spread, shape, scale):
    hold([0], dim, spread, shape, scale)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{}, CLIENTS], ids=["examples", "clients"])
@pytest.mark.parametrize("spread", [0.0, 1.0], ids=["common curvature", "varied curvature"])
@pytest.mark.parametrize("dim", [1, 20])
def test_twenty_seeds_keep_every_promise(dim, spread, shape):
    hold(range(20), dim, spread, shape)


def two_camps(n):
    """Half of the units pull left, half right: the order 0..n-1 is the worst there is."""
    return Quadratics(np.full((n, 1), 0.5), np.repeat([1.0, -1.0], n // 2)[:, None])


def test_a_violation_is_found_and_named():
    run = wellorder.sgd(two_camps(4096), IncrementalGradient(), step_size=1e-6, epochs=3)
    as_if_shuffled = check_assumption(run, "RR", delta=0.5)
    assert as_if_shuffled.first_violation == 0
    assert as_if_shuffled.fraction == 0.0
    assert as_if_shuffled.slack[0] < 0
    assert check_assumption(run, "AP").first_violation is None


def test_the_assumption_is_measured_in_the_methods_norm_whatever_the_run_recorded():
    problem = quadratics(N, 5, spread=0.0)
    twice = [wellorder.sgd(problem, GraB(), step_size=1e-5, epochs=4, p=p) for p in (2, np.inf)]
    left = [check_assumption(run).left for run in twice]
    assert np.allclose(*left)
    assert not np.allclose(twice[0].order_error, twice[1].order_error)


def test_both_sides_are_those_of_assumption_1():
    problem = quadratics(N, 3, spread=0.0)
    run = wellorder.sgd(problem, GraB(), step_size=1e-3, epochs=6, p=np.inf, start=[100.0, -50.0, 20.0])
    check = check_assumption(run, delta=0.5)
    phi, slope = run.order_error, run.gradient_norm
    sigma = np.linalg.norm(problem.b - problem.b.mean(axis=0), axis=1).max()
    C = 30 * math.log(3 * N / 0.5)
    for q in range(2, 6):
        right = 0.6 * phi[q - 1] ** 2 + 0.02 * phi[q - 2] ** 2 + 2 * (C * sigma) ** 2
        right += N**2 / 50 * (slope[q - 1] ** 2 + slope[q - 2] ** 2)
        assert check.right[q] == pytest.approx(right, rel=1e-12)
        assert check.left[q] == pytest.approx(phi[q] ** 2)
    assert check.right[:2] == pytest.approx((N * sigma) ** 2)


def test_a_run_can_be_held_against_constants_of_your_own():
    run = wellorder.sgd(two_camps(100), RandomReshuffling(), step_size=1e-4, epochs=5)
    brave = check_assumption(run, constants("brave", 100, D=1e-6))
    careful = check_assumption(run, constants("careful", 100, D=100.0**2))
    assert brave.first_violation == 0
    assert careful.first_violation is None
    assert check_bound(run, constants("careful", 100, D=100.0**2, gap=0.5)).first_violation is None


def test_one_permutation_is_held_against_its_own_start_and_reach():
    run = wellorder.sgd(two_camps(100), IncrementalGradient(), step_size=1e-4, epochs=5, start=[3.0])
    check = check_assumption(run)
    theta = np.abs(run.x[:-1] - run.x[0]).max()
    assert check.right == pytest.approx(2 * run.order_error[0] ** 2 + 8 * (100 * theta) ** 2)


def least_walk(problem, name, times, moved=0.0):
    """The smallest c that the theory takes for vectors of length ``times`` (ς + moved)."""
    known = constants(name, problem.n, delta=DELTA, **estimate(problem).known).setting
    return known.walk(pairs=METHODS[name].pairs) * (times * (known.sigma + moved)) ** 2


@pytest.mark.parametrize(("policy", "times"), [(GraBProto, 1), (PairGraBProto, 2), (GraB, 1), (PairGraB, 2)])
def test_balancing_is_promised_something_only_with_a_walk_that_suffices(policy, times):
    problem = quadratics(N, 2, spread=0.0)
    name = method_of(policy())
    stale = name in ("GraB", "PairGraB")
    enough = least_walk(problem, name, times, moved=1e-2 if stale else 0.0)

    def checks(rule):
        run = wellorder.sgd(problem, policy(rule), step_size=1e-6, epochs=4, p=np.inf)
        return check_assumption(run, delta=DELTA), check_bound(run, delta=DELTA)

    for rule, promised in ((Deterministic(), False), (Walk(enough), True), (Walk(0.9 * enough), False)):
        assert [check.promised for check in checks(rule)] == [promised] * 2, rule
    plain, wide = checks(Deterministic())[0], checks(Walk(16 * enough))[0]
    assert wide.promised
    assert wide.right[-1] > 15 * plain.right[-1]  # a walk that reaches further is promised less


def test_clients_whose_walk_ignores_their_local_steps_are_promised_nothing():
    problem = quadratics(N, 2, spread=0.0)
    enough = least_walk(problem, "PairGraB", 2 * 3, moved=1e-2)
    for c, promised in ((enough, True), (enough / 3**2, False)):
        run = fedavg(problem, PairGraB(Walk(c)), step_size=1e-6, epochs=3, p=np.inf, **CLIENTS)
        assert check_assumption(run, delta=DELTA).promised == promised


def test_a_step_size_outside_the_theorem_is_not_promised():
    problem = quadratics(N, 2, spread=0.0)
    run = wellorder.sgd(problem, GraB(), step_size=1e-2, epochs=3, p=np.inf)
    assert not check_assumption(run).promised
    assert not check_drift(run).promised
    with pytest.raises(ValueError, match="nothing is proved"):
        check_bound(run)


@pytest.mark.parametrize(
    ("name", "policy", "shape"),
    [
        ("GraB-proto", GraBProto, {}), ("PairGraB-proto", PairGraBProto, {}), ("GraB", GraB, {}),
        ("PairGraB", PairGraB, {}), ("FL-GraB-proto", PairGraBProto, CLIENTS), ("FL-GraB", PairGraB, CLIENTS),
    ],
)  # fmt: skip
def test_a_promise_ends_at_the_largest_step_size(name, policy, shape):
    problem = quadratics(N, 2, spread=0.0)
    rule = Walk(1e9)
    limit = max_step_size(name, N, delta=DELTA, **estimate(problem).known, **shape)
    train = fedavg if shape else wellorder.sgd

    def run_at(step):
        return train(problem, policy(rule), step_size=step, epochs=3, p=METHODS[name].p, **shape)

    at, above = run_at(limit), run_at(1.001 * limit)
    assert check_assumption(at, delta=DELTA).promised
    assert check_bound(at, delta=DELTA).promised
    assert "step_size" in check_assumption(above, delta=DELTA).reasons[0]
    with pytest.raises(ValueError, match=r"step_size=.*nothing is proved"):
        check_bound(above, delta=DELTA)
    visits = shape.get("local_steps", 1) / shape.get("cohort", 1)
    steepest = 1 / (32 * estimate(problem).known["smoothness"] * N * visits)
    for step, promised in ((steepest, True), (1.001 * steepest, False)):
        run = train(problem, policy(rule), step_size=step, epochs=2, p=2, **shape)
        assert check_drift(run).promised == promised


def test_a_walk_for_the_start_alone_is_not_enough_for_signals_from_along_the_way():
    problem = quadratics(N, 2, spread=0.0)
    for policy, proto, times in ((GraB, GraBProto, 1), (PairGraB, PairGraBProto, 2)):
        name = method_of(policy())
        step = max_step_size(name, N, delta=DELTA, **estimate(problem).known)
        rule = Walk(1.0001 * least_walk(problem, name, times))  # for ς, and no way at all
        kept, told = (
            check_assumption(
                wellorder.sgd(problem, one(rule), step_size=step, epochs=3, p=np.inf), delta=DELTA
            )
            for one in (proto, policy)
        )
        assert kept.promised  # its signals are of the epoch's start
        (reason,) = told.reasons
        assert "is proved for deviations up to" in reason


def test_one_order_that_changed_is_promised_nothing():
    run = wellorder.sgd(quadratics(8, spread=0.0), IncrementalGradient(), step_size=1e-4, epochs=3)
    changed = run.orders.copy()
    changed[1] = changed[1][::-1]
    assert check_assumption(run).promised
    for check in (check_assumption, check_bound):
        (reason,) = check(dataclasses.replace(run, orders=changed)).reasons
        assert reason == "IG is about one order for all epochs, and they differ"


def test_orders_that_are_no_permutations_are_promised_nothing():
    run = wellorder.sgd(quadratics(8, spread=0.0), wellorder.WithReplacement(), step_size=1e-4, epochs=3)
    for check in (check_assumption(run, "AP"), check_bound(run, "AP"), check_drift(run)):
        assert check.reasons == ("an order was no permutation of the units",)
    with pytest.raises(ValueError, match="no permutations"):
        check_assumption(run)


class Strange:
    """A problem of which nothing is known but its gradients."""

    n, dim, minimiser, start = 4, 1, None, np.array([0.3])

    def value(self, x):
        return float(np.cos(x).sum())

    def gradients(self, units, x):
        return -np.sin(x + np.arange(4)[units, None])


def test_a_problem_whose_constants_are_guessed_is_promised_nothing():
    run = wellorder.sgd(Strange(), RandomReshuffling(), step_size=1e-4, epochs=2)
    for check in (check_assumption(run), check_bound(run), check_drift(run)):
        assert any("is an estimate" in reason for reason in check.reasons)


def test_drift_knows_the_norms_whose_smoothness_it_knows():
    run = wellorder.sgd(quadratics(8), RandomReshuffling(), step_size=1e-3, epochs=2)
    with pytest.raises(ValueError, match=r"run.p=1.5: .*norms p >= 2"):
        check_drift(dataclasses.replace(run, p=1.5))


@pytest.mark.parametrize("check", [check_assumption, check_drift, check_bound])
def test_rounds_that_the_theorem_does_not_cover_are_refused(check):
    run = fedavg(quadratics(10), PairGraB(), step_size=1e-4, epochs=2, cohort=4, local_steps=2)
    with pytest.raises(ValueError, match=r"cohort=4: .*does not divide n=10"):
        check(run)


def test_the_drift_of_a_short_last_round_is_promised_nothing():
    """Two clients of a last round weigh four times as much as eight: the lemma is false there."""
    settings = dict(step_size=8 / 320, epochs=2, cohort=8, local_steps=1, start=[10.0])
    run = fedavg(quadratics(10, spread=0.0), IncrementalGradient(), **settings)
    right = (
        32
        / 31
        * run.step_size
        / 8
        * (run.order_error + 10 * run.gradient_norm + 8 * estimate(run.problem).sigma)
    )
    assert (run.drift > right).any()
    with pytest.raises(ValueError, match=r"cohort=8: .*does not divide n=10; pass a cohort such as"):
        check_drift(run)


def test_another_policys_row_is_a_comparison():
    run = wellorder.sgd(two_camps(4096), IncrementalGradient(), step_size=1e-6, epochs=3)
    for method in ("RR", constants("RR", 4096, **estimate(run.problem).known)):
        check = check_assumption(run, method)
        assert check.first_violation == 0
        assert not check.promised
        assert check.reasons == ("RR is not the row of IncrementalGradient(), which is IG: a comparison",)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (lambda: constants("RR", 50), r"'RR' with n=50 \(the run: 64\)"),
        (lambda: constants("mine", 50, D=1.0), r"'mine' with n=50"),
        (lambda: constants("FL-RR", 64, cohort=4), r"cohort=4 \(the run: 1\): make the constants"),
        (lambda: constants("FL-mine", 64, D=1.0, local_steps=3), r"local_steps=3 \(the run: 1\)"),
        (lambda: constants("FL-AP", 64, server_step=2.0), r"server_step=2 \(the run: 1\)"),
    ],
)
def test_constants_of_another_shape_are_refused(known, message):
    run = wellorder.sgd(quadratics(N), RandomReshuffling(), step_size=1e-4, epochs=2)
    for check in (check_assumption, check_bound):
        with pytest.raises(ValueError, match=message):
            check(run, known())


def test_constants_that_claim_less_than_the_run_shows_are_no_promise():
    problem = quadratics(N, 2, spread=0.0)
    run = wellorder.sgd(problem, RandomReshuffling(), step_size=1e-4, epochs=3)
    facts = estimate(problem, run.x[:-1]).known
    enough = constants("RR", N, **facts)
    for known in (enough, enough.tight(), constants("RR", N, **{**facts, "sigma": 9.0})):
        assert check_assumption(run, known).promised
        assert check_bound(run, known).promised
    less = check_assumption(run, constants("RR", N, **{**facts, "sigma": 0.1}))
    assert less.reasons == (f"sigma=0.1: the run showed {facts['sigma']:g}",)
    steep = {**facts, "gap": 0.0}
    assert check_assumption(run, constants("RR", N, **steep)).promised  # F_0 is the theorem's business
    assert "gap=0: the run showed" in check_bound(run, constants("RR", N, **steep)).reasons[0]
    forged = dataclasses.replace(enough, D=0.0)
    assert "not those of RR" in check_assumption(run, forged).reasons[0]
    own = check_assumption(run, constants("mine", N, D=enough.D, **facts))
    assert own.reasons == ("these constants are your own: whether they hold is yours to prove",)


def test_a_proximal_run_is_not_promised_what_it_breaks():
    problem = quadratics(N, 2, spread=0.0)
    step = max_step_size("IG", N, **estimate(problem).known)
    settings = dict(step_size=step, epochs=400, start=[40.0, -40.0])
    run = wellorder.sgd(problem, IncrementalGradient(), proximal=100.0, **settings)
    check = check_bound(run)
    assert check.first_violation is not None
    assert check.reasons == ("proximal=100: the theorems are about runs without a proximal step",)
    for still in (check_assumption(run), check_drift(run)):  # what they say is true whatever ends an epoch
        assert still.promised
        assert still.holds.all()
    balanced = wellorder.sgd(
        problem, GraBProto(Walk(1e6)), step_size=step / 4, epochs=3, proximal=1.0, p=np.inf
    )
    assert "does not know that step" in check_assumption(balanced).reasons[0]
    assert check_bound(wellorder.sgd(problem, IncrementalGradient(), **settings)).promised


def test_clients_may_be_kept_near_the_start_too():
    problem = quadratics(N, 2, spread=0.0)
    settings = dict(step_size=1e-3, epochs=30, start=[9.0, -9.0], **CLIENTS)
    free, kept = (fedavg(problem, ShuffleOnce(), proximal=w, **settings) for w in (0.0, 2.0))
    reach = [np.linalg.norm(run.x - run.x[0], axis=1).max() for run in (free, kept)]
    assert reach[1] < reach[0] / 3
    assert (free.proximal, kept.proximal) == (0.0, 2.0)
    check = check_assumption(kept)  # φ̄_0 and θ alone: the proximal step makes the right side smaller
    assert check.promised
    assert check.holds.all()
    assert check.right[0] < check_assumption(free).right[0]
    assert "without a proximal step" in check_bound(dataclasses.replace(kept, step_size=1e-6)).reasons[0]
    rounds = dict(cohort=1, local_steps=1, server_step=1.0)
    same = fedavg(problem, ShuffleOnce(), step_size=1e-3, epochs=5, proximal=0.5, **rounds)
    assert np.array_equal(
        same.x, wellorder.sgd(problem, ShuffleOnce(), step_size=1e-3, epochs=5, proximal=0.5).x
    )


def test_local_orders_are_not_in_the_theorems():
    problem = clients(quadratics(48), 12)
    settings = dict(step_size=1e-5, epochs=2, cohort=4, local_steps=4)
    run = fedavg(problem, RandomReshuffling(), local=LocalSGD(RandomReshuffling()), **settings)
    assert run.extras == ("local=LocalSGD(policy=RandomReshuffling())",)
    assert any("LocalSGD" in reason for reason in check_assumption(run).reasons)
    assert any("LocalSGD" in reason for reason in check_drift(run).reasons)
    assert fedavg(problem, RandomReshuffling(), **settings).extras == ()
    away = fedavg(problem, RandomReshuffling(), availability=DropOut(0.3), **settings)
    assert any("availability=DropOut" in reason for reason in check_assumption(away, "FL-AP").reasons)


def test_a_run_that_diverged_is_refused_by_name():
    run = wellorder.sgd(quadratics(N), RandomReshuffling(), step_size=50.0, epochs=12)
    for check in (check_assumption, check_drift, check_bound):
        with pytest.raises(ValueError, match="diverged with step_size=50"):
            check(run)


def test_rounding_is_not_taken_for_a_violation():
    """Units that are all alike, from their minimiser: both sides are 0 but for float64."""
    alike = Quadratics(np.full((20, 2), 0.3), np.full((20, 2), 0.1))
    run = wellorder.sgd(alike, RandomReshuffling(), step_size=1e-3, epochs=4, start=alike.minimiser)
    check = check_bound(run)
    assert (check.right == 0).all()
    assert (check.left > 0).any()
    assert check.promised
    assert check.holds.all()
    assert (check.rounding < 1e-25).all()


def test_an_odd_number_of_units_leaves_pairs_with_the_bound_of_any_order():
    run = wellorder.sgd(quadratics(11, 2, spread=0.0), PairGraB(Walk(1e5)), step_size=1e-5, epochs=3)
    assert check_assumption(run).label == "ex:arbitrary permutation"
    assert check_assumption(run).promised
    with pytest.raises(ValueError, match="n=11: PairGraB is proved for an even number"):
        check_assumption(run, "PairGraB")
    rounds = fedavg(quadratics(12), PairGraB(), step_size=1e-5, epochs=2, cohort=3, local_steps=2)
    assert check_bound(rounds).what == "smallest gradient of FL-AP, squared"


def test_a_quadratic_without_a_minimum_is_promised_no_bound():
    falling = Quadratics(np.full((8, 1), -0.5), np.linspace(-1, 1, 8)[:, None])
    run = wellorder.sgd(falling, RandomReshuffling(), step_size=1e-3, epochs=5)
    assert "gap is an estimate (f may have no minimum" in check_bound(run).reasons[0]
    assert check_assumption(run).promised


def test_one_client_a_round_and_one_step_is_sgd_whichever_theorem_is_asked():
    run = wellorder.sgd(quadratics(N, spread=0.0), RandomReshuffling(), step_size=1e-4, epochs=3)
    for method in ("RR", "FL-RR", constants("FL-RR", N, **estimate(run.problem).known)):
        assert check_bound(run, method).promised
        assert check_bound(run, method).holds.all()


def test_order_errors_from_elsewhere_are_compared_and_promised_nothing():
    problem = quadratics(N, 2, spread=0.0)
    run = wellorder.sgd(problem, PairGraB(), step_size=1e-5, epochs=5, p=np.inf)
    facts = {**estimate(problem).known, "delta": DELTA}
    known = constants("PairGraB", N, **facts)
    whole = check_order_errors(run.order_error, known, run.gradient_norm)
    assert whole.right == pytest.approx(check_assumption(run, "PairGraB", delta=DELTA).right)
    assert (check_order_errors(run.order_error, known).right <= whole.right).all()
    assert not whole.promised
    assert check_order_errors([1e9, 1e9], known).first_violation == 0
    with pytest.raises(ValueError, match=r"gradient_norms of shape \(1,\): pass one for each of 5"):
        check_order_errors(run.order_error, known, [1.0])
    with pytest.raises(ValueError, match="pass finite order errors"):
        check_order_errors([math.nan], known)
