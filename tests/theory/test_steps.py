"""The step-size lemma, corrected, and the step size that makes a bound smallest."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellorder.theory import METHODS, bound, constants, max_step_size, step_size_lemma, tuned_step_size

positive = st.floats(-6, 6).map(lambda e: 10.0**e)


def psi(step, r0, T, c):
    return r0 / (step * T) + c * step**2


def numeric_minimum(r0, T, c, d):
    """Ψ is convex in log γ: shrink a bracket around its minimum under γ ≤ 1/d."""
    low, high = np.log(1e-30 / d), np.log(1 / d)
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if psi(np.exp(a), r0, T, c) < psi(np.exp(b), r0, T, c) else (a, high)
    return psi(np.exp((low + high) / 2), r0, T, c)


def good(step, r0, T, c, d):
    """Within 1 % of the numeric minimum, or no worse than the lemma's right side."""
    value = psi(step, r0, T, c)
    right = d * r0 / T + 2 * c ** (1 / 3) * (r0 / T) ** (2 / 3)
    return value <= 1.01 * numeric_minimum(r0, T, c, d) or value <= right * (1 + 1e-9)


@settings(max_examples=1000, deadline=None)
@given(positive, positive, positive, positive)
def test_the_corrected_lemma_holds(r0, T, c, d):
    tuned = step_size_lemma(r0, T, c, d)
    assert tuned.step_size <= 1 / d
    assert tuned.value == pytest.approx(psi(tuned.step_size, r0, T, c))
    assert tuned.value <= tuned.right_side * (1 + 1e-9)
    assert good(tuned.step_size, r0, T, c, d)


def test_the_misprinted_form_fails():
    draws = 10.0 ** np.random.default_rng(0).uniform(-6, 6, (1000, 4))
    printed = [min(1 / d, (c * r0 / T) ** (1 / 3)) for r0, T, c, d in draws]
    kept = [good(step, *draw) for step, draw in zip(printed, draws, strict=True)]
    assert np.mean(kept) < 0.9
    assert all(good(step_size_lemma(*draw).step_size, *draw) for draw in draws)


@settings(max_examples=1000, deadline=None)
@given(
    st.sampled_from(sorted(METHODS)),
    st.integers(1, 10**9),
    st.integers(1, 10**4),
    positive,
    positive,
    positive,
)
def test_the_tuned_step_size_makes_the_bound_smallest(method, epochs, quarter, sigma, gap, smoothness):
    more = dict(cohort=4, local_steps=3, server_step=2.0) if METHODS[method].federated else {}
    known = constants(method, 8 * quarter, sigma=sigma, gap=gap, smoothness=smoothness, **more)
    best = tuned_step_size(known, epochs)
    most = max_step_size(known)
    assert best <= most
    # the bound is r_0/(γT) + cγ²: read both off it
    one = bound(known, most, epochs)
    r0, c = one.descent * most, (one.total - one.descent) / most**2
    value = bound(known, best, epochs).total
    assert value == pytest.approx(psi(best, r0, 1.0, c))
    assert value <= 1.01 * numeric_minimum(r0, 1.0, c, 1 / most)
    assert value <= step_size_lemma(r0, 1.0, max(c, 1e-300), 1 / most).right_side * (1 + 1e-9)


def test_constants_that_are_not_positive_are_refused():
    with pytest.raises(ValueError, match=r"c=0\.0: pass a positive number"):
        step_size_lemma(1.0, 1.0, 0.0, 1.0)
