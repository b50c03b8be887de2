"""Tasks: right gradients, fast steps equal to slow ones, rows as promised."""

import numpy as np
import pytest

import wellorder as wo
from wellorder.experiments._tasks import TASKS, problem_task, task_of
from wellorder.experiments._tasks.classifiers import Perceptron, Softmax
from wellorder.experiments._training import Settings
from wellorder.problems import loop_steps, quadratics

EMBEDDED = [name for name, (home, _) in TASKS.items() if ".embedded:" in home]


def small(kind, n=7, width=4, classes=3, hidden=5):
    draw = np.random.default_rng(3)
    X, y = np.column_stack([draw.standard_normal((n, width)), np.ones(n)]), draw.integers(0, classes, n)
    if kind == "softmax":
        return Softmax(X, y, classes, 0.1)
    dim = hidden * (width + 1) + classes * (hidden + 1)
    return Perceptron(X, y, classes, hidden, 0.1, draw.standard_normal(dim))


def one(problem, unit):
    """The objective of one unit alone."""
    if isinstance(problem, Softmax):
        return Softmax(problem.X[[unit]], problem.y[[unit]], problem.classes, problem.l2)
    parts = problem.classes, problem.hidden, problem.l2, problem.start
    return Perceptron(problem.X[[unit]], problem.y[[unit]], *parts)


@pytest.mark.parametrize("kind", ["softmax", "network"])
def test_gradients_are_those_of_the_value(kind):
    problem = small(kind)
    x, h = np.random.default_rng(1).standard_normal(problem.dim), 1e-6
    rows = problem.gradients(np.arange(problem.n), x)
    for unit in range(problem.n):
        alone = one(problem, unit)
        slopes = [(alone.value(x + h * e) - alone.value(x - h * e)) / (2 * h) for e in np.eye(problem.dim)]
        np.testing.assert_allclose(rows[unit], slopes, atol=1e-8)
    assert problem.value(x) == pytest.approx(
        np.mean([one(problem, unit).value(x) for unit in range(problem.n)])
    )


@pytest.mark.parametrize("kind", ["softmax", "network"])
def test_fast_steps_equal_the_loop(kind):
    problem = small(kind)
    units, x = (
        np.random.default_rng(2).integers(0, problem.n, 50),
        np.random.default_rng(3).standard_normal(problem.dim),
    )
    for fast, slow in zip(problem.steps(units, x, 0.05), loop_steps(problem, units, x, 0.05), strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-10, atol=1e-12)


def test_the_softmax_minimiser_is_one():
    problem = small("softmax", n=60)
    best = problem.minimiser
    assert np.abs(problem.gradients(np.arange(60), best).mean(axis=0)).max() < 1e-7
    worse = best + 1e-3 * np.random.default_rng(0).standard_normal(problem.dim)
    assert problem.value(best) < problem.value(worse)


@pytest.mark.parametrize("name", EMBEDDED)
def test_every_task_yields_the_rows_it_promises(name):
    task = task_of(name)
    rows = list(task.train(wo.PairGraB(), 0, Settings(task.step_size, 2)))
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    columns = ["epoch", *(metric.column for metric in task.metrics), "gradients", "seconds"]
    assert all(list(row) == columns for row in rows)
    judged = task.metrics[0].column
    assert rows[2][judged] < rows[0][judged]


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_task_travels_to_another_process(name):
    import pickle

    task = task_of(name)
    assert pickle.loads(pickle.dumps(task)).title == task.title


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    def run(seed):
        rows = task_of("digits-mlp").train(wo.RandomReshuffling(), seed, Settings(0.03, 1))
        return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]

    assert run(0) == run(0)
    assert run(0) != run(1)


def test_a_diverged_run_yields_all_its_rows_with_infinite_losses():
    task = problem_task(quadratics(50), step_size=1e3)
    rows = list(task.train(wo.PairGraB(), 0, Settings(1e3, 60)))
    assert len(rows) == 61
    assert np.isinf(rows[-1]["loss"])


def test_a_problem_of_ones_own_is_a_task():
    class Mine:
        n, dim, minimiser = 5, 2, None

        def gradients(self, units, x):
            return np.ones((len(units), 2)) * x

        def value(self, x):
            return float(x @ x) / 2

    task = problem_task(Mine(), step_size=0.1)
    rows = list(task.train(wo.PairGraB(), 0, Settings(0.1, 3)))
    assert list(rows[0]) == ["epoch", "loss", "order_error", "gradients", "seconds"]
