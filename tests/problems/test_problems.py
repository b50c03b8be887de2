"""Problems: gradients are derivatives, fast steps equal slow ones, minimisers minimise."""

import numpy as np
import pytest

from wellorder.problems import gradient, logistic, loop_steps, quadratics, start_of, steps


def made():
    draw = np.random.default_rng(0)
    X = draw.standard_normal((40, 4))
    y = np.sign(X @ draw.standard_normal(4) + draw.standard_normal(40))
    return {"quadratics": quadratics(40, 4, seed=1), "logistic": logistic(X, y, l2=0.05)}


@pytest.mark.parametrize("name", made())
def test_the_mean_of_the_gradients_is_the_derivative_of_the_value(name):
    problem, x = made()[name], np.linspace(-1, 1, 4)
    for k, e in enumerate(np.eye(4)):
        slope = (problem.value(x + 1e-6 * e) - problem.value(x - 1e-6 * e)) / 2e-6
        assert gradient(problem, x)[k] == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("name", made())
def test_curvature_is_the_derivative_of_the_gradients(name):
    problem, x, v = made()[name], np.linspace(-1, 1, 4), np.random.default_rng(3).standard_normal((40, 4))
    units = np.arange(40)[::-1]
    products = problem.curve(units, x, v)
    for i in range(40):
        one = units[i : i + 1]
        slope = (problem.gradients(one, x + 1e-6 * v[i]) - problem.gradients(one, x - 1e-6 * v[i])) / 2e-6
        assert products[i] == pytest.approx(slope[0], abs=1e-6)


@pytest.mark.parametrize("name", made())
def test_fast_steps_equal_one_call_a_unit(name):
    problem, x = made()[name], np.linspace(-1, 1, 4)
    units = np.random.default_rng(5).permutation(40).astype(np.int32)
    for fast, slow in zip(steps(problem, units, x, 0.05), loop_steps(problem, units, x, 0.05), strict=True):
        assert fast == pytest.approx(slow, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", made())
def test_the_minimiser_has_no_gradient(name):
    problem = made()[name]
    assert np.abs(gradient(problem, problem.minimiser)).max() < 1e-10


def test_separable_data_without_penalty_has_no_minimiser():
    assert logistic([[1.0], [2.0], [-1.0]], [1, 1, -1]).minimiser is None


def test_labels_may_be_zero_and_one():
    X, y = [[1.0, 2.0], [0.5, -1.0], [3.0, 1.0]], np.array([1, 0, 1])
    assert logistic(X, y, 0.1).y.tolist() == logistic(X, 2 * y - 1, 0.1).y.tolist() == [1, -1, 1]


def test_quadratics_are_drawn_as_in_figure_1():
    problem = quadratics(200_000, seed=2)
    assert problem.a.mean() == pytest.approx(0.5, abs=0.01)
    assert problem.a.std() == pytest.approx(1.0, abs=0.01)
    assert problem.b.mean() == pytest.approx(0.0, abs=0.01)
    assert problem.b.std() == pytest.approx(1.0, abs=0.01)
    assert problem.start.tolist() == [1.0]


def test_quadratics_can_share_one_curvature_and_always_have_a_minimiser():
    assert (quadratics(10, 3, spread=0.0).a == 0.5).all()
    for seed in range(200):
        assert (quadratics(2, 3, seed=seed).a.mean(axis=0) >= 0.1 - 1e-12).all()


@pytest.mark.parametrize(
    ("call", "cure"),
    [
        (lambda: quadratics(0), "n=0"),
        (lambda: quadratics(5, 0), "dim=0"),
        (lambda: quadratics(5, seed=-1), "seed=-1"),
        (lambda: quadratics(5, spread=-1.0), "spread=-1.0"),
        (lambda: logistic([1.0, 2.0], [1, -1]), "X of shape"),
        (lambda: logistic([[1.0], [np.nan]], [1, -1]), "X of shape"),
        (lambda: logistic([[1.0], [2.0]], [1, 2]), "y of shape"),
        (lambda: logistic([[1.0], [2.0]], [1]), "y of shape"),
        (lambda: logistic([[1.0], [2.0]], [1, -1], l2=-1), "l2=-1"),
        (lambda: start_of(quadratics(5, 2), [1.0]), "start="),
    ],
)
def test_bad_problems_are_refused(call, cure):
    with pytest.raises(ValueError, match=cure):
        call()
