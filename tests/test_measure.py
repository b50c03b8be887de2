"""The order error, the drift, and the second-order expansion of an epoch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wellorder import IncrementalGradient, RandomReshuffling, drift, expansion, order_error, sgd
from wellorder._measure import at_once
from wellorder.problems import logistic, quadratics


def naive(vectors, order, p, every):
    mean, worst = vectors.mean(axis=0), 0.0
    for n in range(every, len(order) + 1, every):
        worst = max(worst, np.linalg.norm(sum(vectors[u] - mean for u in order[:n]), ord=p))
    return worst


@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(0, 10**6),
    st.sampled_from([1, 1.5, 2, np.inf]),
    st.data(),
)
def test_order_error_is_its_definition(n, dim, seed, p, data):
    draw = np.random.default_rng(seed)
    vectors, order = 3.0 + draw.standard_normal((n, dim)), draw.permutation(n)
    every = data.draw(st.integers(1, n))
    expected = naive(vectors, order, p, every)
    assert order_error(vectors, order, p=p, every=every) == pytest.approx(expected, rel=1e-9, abs=1e-11)


def test_order_error_streams_rows_that_nobody_keeps():
    vectors, order = (
        np.random.default_rng(0).standard_normal((2000, 7)),
        np.random.default_rng(1).permutation(2000),
    )
    asked = []

    def rows_of(units):
        asked.append(len(units))
        return vectors[units]

    assert order_error(rows_of, order) == order_error(vectors, order)
    assert max(asked) <= at_once(7) < 2000


def test_order_error_takes_tensors_and_float32_and_measures_in_float64():
    vectors, order = (
        np.random.default_rng(0).standard_normal((500, 3)).astype(np.float32),
        np.arange(500)[::-1],
    )
    exact = order_error(vectors.astype(np.float64), order)
    assert order_error(vectors, order) == order_error(torch.from_numpy(vectors), order) == exact


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (dict(vectors=np.zeros(3), order=[0, 1, 2]), "2-D"),
        (dict(vectors=np.zeros((3, 1)), order=[0, 1, 3]), "outside 0..2"),
        (dict(vectors=np.zeros((3, 1)), order=[0, 1]), "order of 2 steps for 3 vectors"),
        (dict(vectors=np.zeros((3, 1)), order=[0.0, 1.0, 2.0]), "1-D array of units"),
        (dict(vectors=np.zeros((3, 1)), order=[0, 1, 2], p=0.5), "p=0.5.*p >= 1"),
        (dict(vectors=np.zeros((3, 1)), order=[0, 1, 2], every=0), "every=0.*an int >= 1"),
    ],
)
def test_order_error_refuses_what_has_none(arguments, cure):
    with pytest.raises(ValueError, match=cure):
        order_error(**arguments)


@pytest.mark.parametrize("p", [1, 2, 3, np.inf])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("column", [0, 2])
def test_the_order_error_of_vectors_that_are_not_finite_is_nan(p, bad, column):
    vectors = np.random.default_rng(0).standard_normal((20, 3))
    vectors[7, column] = bad
    assert np.isnan(order_error(vectors, np.arange(20), p=p))


@pytest.mark.parametrize("p", [1.5, 2, 3, 300])
@pytest.mark.parametrize("size", [2.0**-600, 1.0, 2.0**600])
def test_powers_beyond_float64_spoil_no_order_error(p, size):
    vectors = np.random.default_rng(0).standard_normal((200, 3)) * 100
    paths = np.cumsum(vectors - vectors.mean(axis=0), axis=0)
    largest = np.abs(paths).max()
    expected = largest * np.linalg.norm(paths / largest, ord=p, axis=1).max()
    assert order_error(vectors * size, np.arange(200), p=p) == pytest.approx(expected * size, rel=1e-9)


def test_drift_is_the_farthest_point_from_the_first():
    points = np.array([[1.0, 1.0], [4.0, 5.0], [1.0, 0.0]])
    assert drift(points) == 5.0
    assert drift(points, p=np.inf) == 4.0
    with pytest.raises(ValueError, match="2-D"):
        drift([1.0, 2.0])


@pytest.mark.parametrize(
    "make", [lambda: quadratics(60, 3, seed=1), lambda: _logistic(60, 3)], ids=["quadratics", "logistic"]
)
def test_the_expansion_is_exact_up_to_third_order_in_the_step(make):
    """x_{q+1} − x_q − optimisation − error falls like γ³: eight times smaller for half the step."""
    problem, rests = make(), []
    for gamma in (2e-4, 1e-4):
        run = sgd(problem, RandomReshuffling(), step_size=gamma, epochs=1, start=np.full(3, 2.0))
        parts = expansion(problem, run.x[0], run.orders[0], step_size=gamma, smoothness=10.0)
        rests.append(np.linalg.norm(run.x[1] - run.x[0] - parts.optimisation - parts.error))
        assert rests[-1] < 0.2 * np.linalg.norm(parts.error)
    assert np.log2(rests[0] / rests[1]) == pytest.approx(3, abs=0.15)


@pytest.mark.parametrize("cohort", [1, 4, 7])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_the_error_vector_is_at_most_its_bound(cohort, local_steps):
    problem = quadratics(56, 3, seed=5)
    smoothness = float(2 * np.abs(problem.a).max())
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(56)
        parts = expansion(
            problem,
            np.ones(3),
            order,
            step_size=1e-3,
            smoothness=smoothness,
            cohort=cohort,
            local_steps=local_steps,
        )
        assert 0 < np.linalg.norm(parts.error) <= parts.bound
        gradients = problem.gradients(np.arange(56), np.ones(3))
        assert parts.order_error == pytest.approx(order_error(gradients, order, every=cohort), rel=1e-9)


def test_the_federated_expansion_is_exact_up_to_third_order():
    problem, rests = quadratics(24, 2, seed=3), []
    order, S, K = np.arange(24)[::-1], 4, 3
    for gamma in (4e-4, 2e-4):
        w = np.full(2, 2.0)
        for at in range(0, 24, S):
            moved = []
            for unit in order[at : at + S]:
                x = w.copy()
                for _ in range(K):
                    x = x - gamma * problem.gradients(np.array([unit]), x)[0]
                moved.append(w - x)
            w = w - np.mean(moved, axis=0)
        parts = expansion(
            problem, np.full(2, 2.0), order, step_size=gamma, smoothness=9.0, cohort=S, local_steps=K
        )
        rests.append(np.linalg.norm(w - 2.0 - parts.optimisation - parts.error))
    assert np.log2(rests[0] / rests[1]) == pytest.approx(3, abs=0.15)


@pytest.mark.parametrize(
    ("setting", "cure"),
    [
        ({"cohort": 0}, "cohort=0"),
        ({"cohort": 5}, "cohort=5.*pass a divisor of 24"),
        ({"local_steps": 0}, "local_steps=0"),
        ({"order": [0, 0, 9]}, "outside 0..2"),
    ],
)
def test_the_expansion_refuses_impossible_settings(setting, cure):
    given = {"order": np.arange(24), "step_size": 1e-3, "smoothness": 1.0, **setting}
    with pytest.raises(ValueError, match=cure):
        expansion(quadratics(24), [1.0], **given)


def test_the_expansion_says_what_it_needs():
    class NoCurve:
        n, dim = 3, 1

    with pytest.raises(ValueError, match="curve"):
        expansion(NoCurve(), [0.0], [0, 1, 2], step_size=1.0, smoothness=1.0)


def test_recorded_order_errors_and_drifts_are_those_of_the_epoch():
    problem = quadratics(30, 2, seed=4)
    run = sgd(problem, IncrementalGradient(), step_size=1e-2, epochs=3, p=np.inf)
    for q in range(3):
        x, path = run.x[q], [run.x[q]]
        for unit in run.orders[q]:
            path.append(path[-1] - 1e-2 * problem.gradients(np.array([unit]), path[-1])[0])
        gradients = problem.gradients(np.arange(30), x)
        assert run.order_error[q] == pytest.approx(order_error(gradients, run.orders[q], p=np.inf))
        assert run.drift[q] == pytest.approx(drift(path, p=np.inf))
        assert run.gradient_norm[q] == pytest.approx(np.linalg.norm(gradients.mean(axis=0)))
        assert run.distance[q] == pytest.approx(np.linalg.norm(x - problem.minimiser))


def _logistic(n, dim):
    draw = np.random.default_rng(7)
    X = draw.standard_normal((n, dim))
    return logistic(X, np.sign(X @ np.ones(dim) + draw.standard_normal(n)), l2=0.1)
