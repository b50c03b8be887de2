"""The constants of a problem: exact where they are called exact, honest where not."""

import numpy as np
import pytest

import wellorder
from wellorder.problems import logistic, quadratics
from wellorder.theory import check_assumption, estimate


class Hidden:
    """A problem without a formula, as far as `estimate` can tell."""

    def __init__(self, inner, minimiser):
        self.inner, self.n, self.dim, self.minimiser = inner, inner.n, inner.dim, minimiser

    def gradients(self, units, x):
        return self.inner.gradients(units, x)

    def value(self, x):
        return self.inner.value(x)


def logit(seed=0, n=40, dim=4):
    generator = np.random.default_rng(seed)
    return logistic(generator.standard_normal((n, dim)), generator.integers(0, 2, n), l2=0.1)


def secants(problem, count=300):
    """The largest ratios seen between random points, near and far."""
    generator, units = np.random.default_rng(1), np.arange(problem.n)
    seen = np.zeros(3)
    for _ in range(count):
        x = generator.standard_normal(problem.dim) * 10.0 ** generator.uniform(-2, 1)
        v = generator.choice([-1.0, 0.0, 1.0], problem.dim) * 10.0 ** generator.uniform(-4, 0)
        if not v.any():
            continue
        change = problem.gradients(units, x + v) - problem.gradients(units, x)
        two, top = np.linalg.norm(change, axis=1).max(), np.abs(change).max()
        seen = np.maximum(seen, [two / np.linalg.norm(v), two / np.abs(v).max(), top / np.abs(v).max()])
    return seen


@pytest.mark.parametrize("problem", [quadratics(50, 3), quadratics(50, 3, spread=0.0), logit()], ids=str)
def test_no_secant_is_steeper_than_the_smoothness_found(problem):
    found = estimate(problem)
    known = np.array([found.smoothness, found.smoothness_2inf, found.smoothness_inf])
    seen = secants(problem)
    assert (seen <= known * (1 + 1e-6)).all()
    if found.how["smoothness"] == "exact" and hasattr(problem, "a"):
        assert seen == pytest.approx(known, rel=1e-6)  # attained


def test_common_curvature_makes_every_constant_exact():
    problem = quadratics(100, 5, seed=3, spread=0.0)
    found = estimate(problem, np.random.default_rng(0).standard_normal((3, 5)))
    assert found.exact
    assert found.sigma == pytest.approx(np.linalg.norm(problem.b - problem.b.mean(axis=0), axis=1).max())
    assert estimate(problem).gap == pytest.approx(
        problem.value(problem.start) - problem.value(problem.minimiser)
    )


def test_varied_curvature_takes_sigma_over_the_points_given_and_says_so():
    problem = quadratics(100, 2, seed=3)
    near, far = np.ones((1, 2)), np.array([[1.0, 1.0], [30.0, -30.0]])
    assert estimate(problem, far).sigma > 10 * estimate(problem, near).sigma
    found = estimate(problem, far)
    assert not found.exact
    assert found.how["sigma"] == "the largest on the convex hull of the 2 given points"
    inside = 0.3 * far[0] + 0.7 * far[1]
    rows = problem.gradients(np.arange(100), inside)
    assert np.linalg.norm(rows - rows.mean(axis=0), axis=1).max() <= found.sigma


@pytest.mark.parametrize("inner", [quadratics(30, 4), logit()], ids=str)
def test_a_problem_without_formulas_gets_labelled_estimates_from_below(inner):
    found, exact = estimate(Hidden(inner, inner.minimiser)), estimate(inner, np.zeros(inner.dim))
    assert not found.exact
    assert all("too small" in found.how[name] for name in ("smoothness", "smoothness_2inf", "smoothness_inf"))
    for name in ("smoothness", "smoothness_2inf", "smoothness_inf"):
        assert getattr(exact, name) / 4 <= getattr(found, name) <= getattr(exact, name) * (1 + 1e-6)
    assert found.sigma == pytest.approx(exact.sigma)
    assert found.gap == pytest.approx(exact.gap)


def test_an_unknown_minimum_is_labelled():
    inner = quadratics(30, 4)
    found = estimate(Hidden(inner, None), [np.ones(4), inner.minimiser])
    assert "too small" in found.how["gap"]
    assert found.gap == pytest.approx(inner.value(np.ones(4)) - inner.value(inner.minimiser))


def test_a_run_on_estimated_constants_is_not_promised_anything():
    inner = quadratics(30, 1, spread=0.0)
    problem = Hidden(inner, inner.minimiser)
    run = wellorder.sgd(problem, wellorder.RandomReshuffling(), step_size=1e-4, epochs=2)
    assert not check_assumption(run).promised


def test_points_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"points of shape \(1, 3\)"):
        estimate(quadratics(10, 2), np.zeros(3))
