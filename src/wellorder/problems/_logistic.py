"""Logistic regression with an l2 penalty."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from wellorder._arguments import numbers, real_number
from wellorder._compiled import fast
from wellorder._order import Order, frozen
from wellorder.problems._problem import Matrix, Point, gradient


@dataclass(frozen=True, eq=False)
class Logistic:
    """f_u(x) = log(1 + exp(−y_u⟨X_u, x⟩)) + (l2/2)·‖x‖², with y_u = ±1."""

    X: Matrix = field(repr=False)
    y: Point = field(repr=False)
    l2: float

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def dim(self) -> int:
        return int(self.X.shape[1])

    @cached_property
    def minimiser(self) -> Point | None:
        """The minimiser by Newton's method; None where none is attained (no penalty, separable data)."""
        x = np.zeros(self.dim)
        for _ in range(100):
            p = _sigmoid(self.X @ x)
            hessian = (self.X.T * (p * (1 - p))) @ self.X / self.n + self.l2 * np.eye(self.dim)
            try:
                step = np.linalg.solve(hessian, gradient(self, x))
            except np.linalg.LinAlgError:
                return None
            if np.linalg.norm(step) <= 1e-7 * (1.0 + np.linalg.norm(x)):  # the next is below rounding
                return frozen(x - step)
            scale, here = 1.0, self.value(x)
            while self.value(x - scale * step) > here and scale > 1e-10:
                scale /= 2
            x = x - scale * step
        return None

    def gradients(self, units: Order, x: Point) -> Matrix:
        rows, y = self.X[units], self.y[units]
        return (-y * _sigmoid(-y * (rows @ x)))[:, None] * rows + self.l2 * x

    def curve(self, units: Order, x: Point, vectors: Matrix) -> Matrix:
        """Hessian–vector products, one row a unit."""
        rows = self.X[units]
        p = _sigmoid(rows @ x)
        along: Point = p * (1 - p) * np.sum(rows * vectors, axis=1)
        return along[:, None] * rows + self.l2 * vectors

    def value(self, x: Point) -> float:
        return float(np.logaddexp(0.0, -self.y * (self.X @ x)).mean() + 0.5 * self.l2 * (x @ x))

    def steps(self, units: Order, x: Point, step_size: float) -> tuple[Matrix, Matrix]:
        """Fast `wellorder.problems.loop_steps`."""
        points, rows = np.empty((len(units) + 1, self.dim)), np.empty((len(units), self.dim))
        points[0] = x
        _steps(self.X, self.y, self.l2, units, step_size, points, rows)
        return points, rows


def logistic(X: npt.ArrayLike, y: npt.ArrayLike, l2: float = 0.0) -> Logistic:  # noqa: N803
    """Binary logistic regression on the rows of ``X`` with labels ±1 (or 0 and 1).

    >>> problem = logistic([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], [1, 0, 1], l2=0.1)
    >>> bool(np.abs(problem.gradients(np.arange(3), problem.minimiser).mean(axis=0)).max() < 1e-9)
    True
    """
    rows = np.ascontiguousarray(numbers("X", X, cure="pass a 2-D array (n, d) of finite numbers"))
    labels = numbers("y", y, cure="pass one label, -1 or +1 (or 0 or 1), for each row")
    if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
        raise ValueError(f"X of shape {rows.shape}: pass a 2-D array (n, d) of finite numbers")
    if set(np.unique(labels)) <= {0.0, 1.0}:
        labels = 2 * labels - 1
    if labels.shape != (len(rows),) or not set(np.unique(labels)) <= {-1.0, 1.0}:
        raise ValueError(
            f"y of shape {labels.shape}: pass one label, -1 or +1 (or 0 or 1), for each of {len(rows)} rows"
        )
    real_number("l2", l2, least=0)
    return Logistic(frozen(rows.copy()), frozen(labels.copy()), float(l2))


def _sigmoid(z: Point) -> Point:
    p: Point = 0.5 * (1.0 + np.tanh(0.5 * z))
    return p


@fast
def _steps(X, y, l2, units, step_size, points, rows):  # type: ignore[no-untyped-def]  # noqa: N803
    dim = rows.shape[1]
    for t in range(len(units)):
        unit = units[t]
        margin = 0.0
        for k in range(dim):
            margin += X[unit, k] * points[t, k]
        weight = -y[unit] * 0.5 * (1.0 + np.tanh(-0.5 * y[unit] * margin))
        for k in range(dim):
            g = weight * X[unit, k] + l2 * points[t, k]
            rows[t, k] = g
            points[t + 1, k] = points[t, k] - step_size * g
