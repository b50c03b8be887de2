"""Herding's constants, step by step as docs/theory.md derives them, and on runs; and RR in expectation."""

import dataclasses
import math

import numpy as np
import pytest

import wellorder
from wellorder import Deterministic, Herding, RandomReshuffling, Steering, Walk
from wellorder._kernels.balance import balance
from wellorder._kernels.reorder import place
from wellorder.federated import fedavg
from wellorder.problems import quadratics
from wellorder.theory import (
    bound,
    check_assumption,
    check_bound,
    constants,
    estimate,
    max_step_size,
    method_of,
    rate,
)

INF = math.inf


def herding_error(z, order):
    return np.abs(np.cumsum(z[order], axis=0)).max()


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_step_1_rows_that_are_behind_add_half_of_n_times_how_far(n):
    """‖Σ_{i<k} (e_i − ē)‖ ≤ 2·k(N − k)/N·max‖e‖ ≤ (N/2)·max‖e‖, attained by two camps."""
    draw = np.random.default_rng(n)
    for _ in range(50):
        e = draw.standard_normal((n, 3)) * 10.0 ** draw.uniform(-1, 1, (n, 1))
        assert herding_error(e - e.mean(axis=0), draw.permutation(n)) <= n / 2 * np.abs(e).max() * (1 + 1e-12)
    camps = np.repeat([[1.0], [-1.0]], [n - n // 2, n // 2], axis=0)
    if n % 2 == 0:
        assert herding_error(camps - camps.mean(axis=0), np.arange(n)) == n / 2


@pytest.mark.parametrize("rule", [Deterministic(), Walk(50.0)])
def test_step_2_passes_halve_what_the_shuffle_left_and_add_what_the_signs_leave(rule):
    """h_{k+1} ≤ h_k/2 + (signed sum of the pass)/2: Lemma 3, P times over the same rows."""
    draw = np.random.default_rng(0)
    for trial in range(30):
        z = draw.standard_normal((40, 2))
        z -= z.mean(axis=0)
        order = draw.permutation(40)
        right = herding_error(z, order)
        for done in range(6):
            signs = balance(z[order], rule, seed=trial, start=40 * done).signs
            right = right / 2 + np.abs(np.cumsum(signs[:, None] * z[order], axis=0)).max() / 2
            order = place(order, signs)
            assert herding_error(z, order) <= right * (1 + 1e-12)


@pytest.mark.parametrize("n", [2, 5, 40])
def test_step_3_a_fresh_shuffle_strays_no_further_than_said(n):
    draw = np.random.default_rng(n)
    z = draw.standard_normal((n, 4))
    z = (z - z.mean(axis=0)) / np.linalg.norm(z - z.mean(axis=0), axis=1).max()
    errors = np.array(
        [np.linalg.norm(np.cumsum(z[draw.permutation(n)], axis=0), axis=1).max() for _ in range(500)]
    )
    assert errors.max() <= n / 2
    for delta in (0.5, 0.1, 0.01):
        assert (errors <= 2 * math.sqrt(n) * math.log(8 / delta)).mean() >= 1 - delta


def test_the_constants_are_the_sum_of_the_three_terms():
    N, P, L2, LI, sigma, rho, delta = 4000, 3, 2.9, 1.7, 0.6, 0.05, 0.02
    C, h = 30 * math.log(7 * N / delta), 2 * math.sqrt(N) * math.log(8 / delta)
    facts = dict(dim=7, smoothness_2inf=L2, smoothness_inf=LI, sigma=sigma, delta=delta, passes=P)
    known = constants("Herding", N, moved=rho, **facts)
    longest = sigma + 2 * L2 * rho
    behind = N / 2 * LI * rho
    assert known.D == pytest.approx((h * longest / 8 + 7 / 8 * C * longest + behind) ** 2)  # noqa: SIM300
    assert (known.p, sum(known.A), sum(known.B), known.nu) == (INF, 0.0, 0.0, 1)
    assert max_step_size(known) == pytest.approx(min(1 / N, 1 / (32 * L2 * N), 1 / (32 * LI * N)))
    assert known.probability(5) == pytest.approx(1 - 5 * (P + 1) * delta)
    given = constants("Herding", N, moved=rho, c=C * 4.0, **facts)  # a walk for rows of length 2
    assert pytest.approx((h * longest / 8 + 7 / 8 * C * 2 + N / 2 * LI * rho) ** 2) == given.D
    few = constants("Herding", 20, moved=rho, **facts)  # so few that N/2 is less than a shuffle is proved for
    assert few.probability(1) == pytest.approx(1 - P * delta)


@pytest.mark.parametrize("age", [1, 4])
@pytest.mark.parametrize(
    "rounds", [{}, dict(cohort=4, local_steps=3, server_step=1.5)], ids=["examples", "clients"]
)
def test_without_a_known_way_the_step_size_bounds_it(age, rounds):
    """With γ at its limit, ρ·((N/2)·L_∞ + 2F·L_{2,∞}) is at most 5/(62a)·Σ(φ̄ + N‖∇f‖ + Sς)."""
    N, P, L2, LI, sigma = 400, 5, 2.9, 1.7, 0.6
    S, K, eta = (4, 3, 1.5) if rounds else (1, 1, 1.0)
    facts = dict(dim=7, smoothness_2inf=L2, smoothness_inf=LI, sigma=sigma, passes=P)
    known = constants("FL-Herding" if rounds else "Herding", N, age=age, **facts, **rounds)
    C, h = 30 * math.log(7 * N / 1e-4), 2 * math.sqrt(N) * math.log(8 / 1e-4)
    F = 2.0**-P * min(h, N / 2) + (1 - 2.0**-P) * C
    gamma = max_step_size(known)
    for curved, count in ((LI, N), (L2, F)):
        assert gamma * curved * count * K / S <= 1 / (32 * age * (1 + eta)) * (1 + 1e-12)
    coefficient = (N / 2 * LI + 2 * F * L2) * (1 + eta) * 32 / 31 * gamma * K / S
    assert coefficient <= 5 / (62 * age) * (1 + 1e-12)
    times = 6 if rounds else 4  # (F + x + y (+ z))² ≤ 2F² + 4x² + 4y², or 6 for three
    assert pytest.approx([times * (5 / 62) ** 2 / age] * age) == known.A
    assert pytest.approx([0, *[times * (5 / 62) ** 2 / age * N**2] * age]) == known.B
    local = times * (5 / 62) ** 2 * (S * sigma) ** 2 if rounds else 0.0
    assert known.D == pytest.approx(2 * (F * sigma) ** 2 + local)  # noqa: SIM300
    assert known.nu == age
    assert known.tight().c2 <= known.c2
    assert known.tight().c1 <= known.c1
    young = dataclasses.replace(known, setting=dataclasses.replace(known.setting, age=1))
    assert rate(known, 100).terms["L̃F₀/Q"] == age * rate(young, 100).terms["L̃F₀/Q"]


class Sometimes:
    """Herding that observes every third epoch, so that rows are up to three epochs old."""

    needs = Herding.needs

    def __init__(self, inner, every):
        self.inner, self.every = inner, every
        self.init, self.advance = inner.init, inner.advance

    def observe(self, state, units, signals):
        return state if state.epoch % self.every else self.inner.observe(state, units, signals)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("dim", [1, 6])
def test_old_rows_keep_the_inequality_with_the_way_since_they_were_seen(every, spread, dim):
    N, P = 128, 4
    problem = quadratics(N, dim, spread=spread, seed=dim)
    sigma = estimate(problem).sigma
    walk = Walk(30 * math.log(dim * N / 1e-4) * (3 * sigma) ** 2)
    for seed in range(5):
        for rule in (walk, Deterministic()):
            policy = Sometimes(Herding(P, rule), every)
            run = wellorder.sgd(problem, policy, step_size=1e-4, epochs=10, seed=seed, p=INF)
            facts = estimate(problem, run.x[:-1]).known
            seen = [(q - 1) // every * every for q in range(1, 10)]
            ways = [np.abs(run.x[q] - run.x[e]).max() + run.drift[e] for q, e in enumerate(seen, start=1)]
            way = max(ways) + 1e-6  # float32
            assert facts["sigma"] + 2 * facts["smoothness_2inf"] * way <= 3 * sigma  # the walk suffices
            known = constants("Herding", N, moved=way, passes=P, c=walk.c, **facts)
            assert (run.order_error[1:] ** 2 <= known.D).all()


@pytest.mark.parametrize(
    "rounds", [{}, dict(cohort=4, local_steps=3, server_step=1.5)], ids=["examples", "clients"]
)
def test_runs_are_promised_it_with_a_walk_that_suffices(rounds):
    N = 64
    problem = quadratics(N, 3, spread=0.0)
    facts = estimate(problem).known
    K = rounds.get("local_steps", 1)
    c = 30 * math.log(3 * N / 1e-4) * (K * 2 * facts["sigma"]) ** 2
    train = fedavg if rounds else wellorder.sgd
    for step in (1e-5, 1e-3):
        run = train(problem, Herding(6, Walk(c)), step_size=step, epochs=8, p=INF, **rounds)
        check = check_assumption(run)
        assert check.label == "docs/theory.md#herding"
        assert check.promised, check.reasons
        assert check.holds.all()
    assert check_bound(train(problem, Herding(6, Walk(c)), step_size=1e-5, epochs=8, **rounds)).promised
    tight = train(problem, Herding(6, Walk(c / 100)), step_size=1e-3, epochs=3, **rounds)
    assert "pass Walk(c) with c of" in check_assumption(tight).reasons[0]
    assert (
        "has no proof"
        in check_assumption(train(problem, Herding(), step_size=1e-3, epochs=3, **rounds)).reasons[0]
    )


def test_more_passes_promise_more_and_older_rows_less():
    def promised(**more):
        return bound(constants("Herding", 10**6, **more), 1e-10, 10**6).order

    assert promised(passes=1) > promised(passes=4) > promised(passes=12)
    assert promised(moved=1e-3) > promised(moved=1e-5)
    assert max_step_size("Herding", 1000, age=8) < max_step_size("Herding", 1000) / 7


def test_steering_is_covered_as_any_order():
    assert method_of(Steering()) == "AP"
    assert method_of(Steering(), federated=True) == "FL-AP"


@pytest.mark.parametrize("dim", [1, 5])
def test_choosing_among_all_that_is_left_keeps_to_the_square_root(dim):
    """What is left of centred rows sums to −s, so one of them has ⟨z, s⟩ ≤ 0, and ‖s_t‖² ≤ Σ‖z‖² ≤ t·a²."""
    draw = np.random.default_rng(dim)
    for _ in range(30):
        z = draw.standard_normal((50, dim)) * draw.uniform(0.1, 3, (50, 1))
        z -= z.mean(axis=0)
        left, s = list(range(50)), np.zeros(dim)
        lengths = np.linalg.norm(z, axis=1)
        for step in range(50):
            along = [z[u] @ s / lengths[u] for u in left]
            assert min(along) <= 1e-9
            s = s + z[left.pop(int(np.argmin(along)))]
            assert s @ s <= (step + 1) * lengths.max() ** 2 * (1 + 1e-9)


@pytest.mark.parametrize("n", [2, 3, 10, 101])
def test_the_mean_of_a_shuffles_squared_order_error_is_within_doobs_bound(n):
    draw = np.random.default_rng(n)
    for z in (draw.standard_normal((n, 3)), np.repeat([[1.0], [-1.0]], [n - n // 2, n // 2], axis=0)):
        rows = z - z.mean(axis=0)
        sigma = np.linalg.norm(rows, axis=1).max()
        squares = [
            np.square(np.linalg.norm(np.cumsum(rows[draw.permutation(n)], axis=0), axis=1)).max()
            for _ in range(400)
        ]
        assert np.mean(squares) <= constants("RR-expected", n, sigma=sigma).D
        single = np.mean(np.linalg.norm(rows, axis=1) ** 2)  # the lemma needs the mean square alone
        assert np.mean(squares) <= 8 * n**2 / (n - 1) * single


def test_reshuffling_is_bounded_in_expectation_without_logarithms():
    known = constants("RR-expected", 1000)
    assert known.expected
    assert known.probability(10**9) == 1.0
    found = bound(known, 1e-6, 10**6)
    assert found.expected
    assert found.order < bound("RR", 1e-6, 10**6, n=1000).order / 10
    problem = quadratics(64, 2, spread=0.0)
    facts = estimate(problem).known
    step = max_step_size("RR-expected", 64, **facts)
    runs = [wellorder.sgd(problem, RandomReshuffling(), step_size=step, epochs=30, seed=s) for s in range(20)]
    checks = [check_bound(run, "RR-expected") for run in runs]
    assert not any(check.promised for check in checks)
    slopes = np.mean([run.gradient_norm**2 for run in runs], axis=0)
    assert (np.minimum.accumulate(slopes) <= checks[0].right).all()
