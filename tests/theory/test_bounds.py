"""Theorems 1 and 2 against a transcription, and the exponents of Tables 1 and 2 fitted to the bound."""

import math

import numpy as np
import pytest

from wellorder.theory import (
    METHODS,
    bound,
    constants,
    max_step_size,
    rate,
    rate_table,
    tuned_step_size,
)

FL_SHAPE = dict(cohort=4, local_steps=5, server_step=1.5)


def shape(method):
    return FL_SHAPE if METHODS[method].federated else {}


@pytest.mark.parametrize("method", METHODS)
def test_the_bound_is_the_theorem_term_by_term(method):
    n, Q, F0, sigma, L = 240, 30, 2.5, 0.7, 1.9
    S, K, eta = (4, 5, 1.5) if METHODS[method].federated else (1, 1, 1.0)
    known = constants(method, n, sigma=sigma, gap=F0, smoothness=L, dim=3, **shape(method))
    gamma = max_step_size(known) / 3
    c1, c2, D = known.c1, known.c2, known.D
    L2p = L if known.p == 2 else math.sqrt(3) * L
    first = known.nu * (n * sigma) ** 2
    found = bound(known, gamma, Q)
    assert found.descent == pytest.approx(c1 * F0 / (gamma * eta * K * n / S * Q))
    assert found.first_epochs == pytest.approx(c2 * gamma**2 * L2p**2 * K**2 / S**2 / Q * first)
    local = 2 * c1 * gamma**2 * L2p**2 * K**2 * sigma**2 if METHODS[method].federated else 0.0
    assert found.local == pytest.approx(local)
    assert found.order == pytest.approx(c2 * gamma**2 * L2p**2 * K**2 / S**2 * D)
    assert found.total == found.descent + found.first_epochs + found.local + found.order


@pytest.mark.parametrize("method", METHODS)
def test_step_sizes_that_nothing_is_proved_for_are_refused(method):
    most = max_step_size(method, 240, **shape(method))
    bound(method, most, 10, n=240, **shape(method))
    with pytest.raises(ValueError, match=r"step_size=.*nothing is proved.*max_step_size"):
        bound(method, 1.01 * most, 10, n=240, **shape(method))


def test_a_bound_that_is_not_worth_its_name_says_probability_zero():
    assert bound("RR", 1e-6, 200, n=1000, delta=0.01).probability == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bound("RR", -1.0, 10, n=10), "step_size=-1.0: pass a positive"),
        (lambda: bound("RR", 1e-9, 0, n=10), "epochs=0: pass an int >= 1"),
        (lambda: bound("RR", 1e-9, 10), "n=None: pass the number of units"),
        (lambda: bound(constants("RR", 10), 1e-9, 10, n=10), "brings its own setting"),
        (lambda: tuned_step_size("RR", 10, n=10, gap=0.0), "gap=0"),
        (lambda: rate(constants("mine", 10, A=(0.1,)), 10), "use bound"),
    ],
)
def test_bad_input_is_refused_with_the_cure(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def tuned(method, n, epochs, **setting):
    known = constants(method, n, **setting)
    return bound(known, tuned_step_size(known, epochs), epochs).total


def slope(values, results):
    return np.polyfit(np.log(np.array(values, float)), np.log(results), 1)[0]


def quiet(method, n):
    """Hold the logarithms still, which the tables leave out: log(dN/δ) of the balancing methods, log(8/δ)."""
    walks = method.endswith("NP") or METHODS[method].p == math.inf
    return dict(delta=1e-9 * n if walks else 1e-6, passes=60)


@pytest.mark.parametrize("row", rate_table(), ids=lambda row: row.method)
def test_the_tuned_bound_has_the_exponents_of_the_tables(row):
    more = dict(cohort=2, local_steps=3) if row.table == "tab:FL" else {}
    if row.method.endswith("OP"):
        more["first_error"] = 10.0
    sizes, Q = 2 ** np.arange(8, 17), 10**18
    in_n = slope(sizes, [tuned(row.method, int(n), Q, **more, **quiet(row.method, int(n))) for n in sizes])
    assert in_n == pytest.approx(row.power_of_n, abs=0.01)
    many = [10**k for k in range(15, 22)]
    in_q = slope(many, [tuned(row.method, 1024, q, **more, **quiet(row.method, 1024)) for q in many])
    assert in_q == pytest.approx(row.power_of_q, abs=0.01)
    few = [100, 1000, 10_000]
    smooth = {**more, "sigma": 1e-9, "first_error": 1e-9}
    early = slope(few, [tuned(row.method, 1024, q, **smooth, **quiet(row.method, 1024)) for q in few])
    assert early == pytest.approx(-1, abs=0.01)  # L·F_0/Q leads while ς hardly matters


@pytest.mark.parametrize("row", rate_table(), ids=lambda row: row.method)
def test_rates_have_the_exponents_that_the_table_names(row):
    more = dict(cohort=2) if row.table == "tab:FL" else {}
    if row.method.endswith("OP"):
        more["first_error"] = 10.0
    sizes = 2 ** np.arange(20, 30)
    in_n = slope(sizes, [list(rate(row.method, 100, int(n), **more).terms.values())[-1] for n in sizes])
    assert in_n == pytest.approx(row.power_of_n)
    many = [10**k for k in range(18, 24)]
    assert slope(many, [rate(row.method, q, 1024, **more).total for q in many]) == pytest.approx(
        -2 / 3, abs=0.01
    )


def test_large_cohorts_cost_their_two_thirds_power_and_local_steps_cost_nothing():
    cohorts = 2 ** np.arange(10, 16)
    found = [tuned("FL-RR", 2**16, 10**20, cohort=int(s), delta=0.5) for s in cohorts]
    assert slope(cohorts[3:], found[3:]) == pytest.approx(2 / 3, abs=0.05)
    same = [tuned("FL-GraB", 1024, 1000, cohort=4, local_steps=k) for k in (1, 5, 50)]
    assert same == pytest.approx([same[0]] * 3)


def test_server_steps_above_one_help_the_noise_terms_as_the_examples_say():
    etas = np.array([1.0, 2.0, 4.0])
    found = [tuned("FL-AP", 1024, 10**15, cohort=4, server_step=eta) for eta in etas]
    assert slope(etas, found) == pytest.approx(-2 / 3, abs=0.01)
    terms = [list(rate("FL-AP", 10**15, 1024, cohort=4, server_step=eta).terms.values())[-1] for eta in etas]
    assert slope(etas, terms) == pytest.approx(-2 / 3)


def test_rates_at_eta_one_are_the_tables():
    n, Q, F0, s, S, L, L2, LI = 1024, 77, 1.7, 0.3, 4, 1.1, 2.2, 1.5
    known = dict(gap=F0, sigma=s, smoothness=L, smoothness_2inf=L2, smoothness_inf=LI)
    assert rate("RR", Q, n, **known).total == pytest.approx(
        L * F0 / Q + (L * F0 * n**0.5 * s / (n * Q)) ** (2 / 3)
    )
    assert rate("FL-GraB", Q, n, cohort=S, **known).total == pytest.approx(
        ((L + L2 + LI) * F0 + (L2 * F0 * s) ** (2 / 3)) / Q
        + (L2 * F0 * S * s / (n * Q)) ** (2 / 3)
        + (L2 * F0 * s / (n * Q)) ** (2 / 3)
    )
    assert rate("OP", Q, n, first_error=5.0, theta=0.1, **known).total == pytest.approx(
        L * F0 / Q + ((L * F0 * 5.0 + L**2 * F0 * n * 0.1) / (n * Q)) ** (2 / 3)
    )
