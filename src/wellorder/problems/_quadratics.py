"""Quadratics: the problem of Figure 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from wellorder._arguments import real_number, room_for, whole_number
from wellorder._compiled import jit
from wellorder._order import Order, frozen, rng, units_of
from wellorder.problems._problem import Matrix, Point


@dataclass(frozen=True, eq=False)
class Quadratics:
    """f_u(x) = Σ_k a_uk·x_k² + b_uk·x_k."""

    a: Matrix = field(repr=False)
    b: Matrix = field(repr=False)

    @property
    def n(self) -> int:
        return len(self.a)

    @property
    def dim(self) -> int:
        return int(self.a.shape[1])

    @property
    def start(self) -> Point:
        """The first point: ones."""
        return np.ones(self.dim)

    @cached_property
    def minimiser(self) -> Point:
        best: Point = frozen(-self.b.mean(axis=0) / (2 * self.a.mean(axis=0)))
        return best

    def gradients(self, units: Order, x: Point) -> Matrix:
        return 2.0 * self.a[units] * x + self.b[units]

    def curve(self, units: Order, x: Point, vectors: Matrix) -> Matrix:  # noqa: ARG002
        """Hessian–vector products, one row a unit."""
        return 2.0 * self.a[units] * vectors

    def value(self, x: Point) -> float:
        return float(self.a.mean(axis=0) @ x**2 + self.b.mean(axis=0) @ x)

    def steps(self, units: Order, x: Point, step_size: float) -> tuple[Matrix, Matrix]:
        """Fast `wellorder.problems.loop_steps`."""
        points, rows = np.empty((len(units) + 1, self.dim)), np.empty((len(units), self.dim))
        points[0] = x
        _steps(self.a, self.b, units, step_size, points, rows)
        return points, rows


def quadratics(n: int, dim: int = 1, *, seed: int = 0, spread: float = 1.0) -> Quadratics:
    """Draw the quadratics of Figure 1: a ~ N(0.5, ``spread``²), b ~ N(0, 1), independent for all u and k.

    ``spread=0`` gives all units the same curvature, so that gradients differ by constants. A coordinate
    whose mean curvature came out below 0.1 (small n only) is shifted to 0.5, so that a minimiser exists.

    >>> problem = quadratics(1000, seed=3)
    >>> problem.minimiser.round(3), problem.gradients(np.array([7]), problem.minimiser).shape
    (array([0.071]), (1, 1))
    """
    units_of(n, seed)
    whole_number("dim", dim, least=1)
    real_number("spread", spread, least=0)
    draw = rng(seed, 0, "quadratics")
    with room_for("n, dim", (n, dim)):
        a: npt.NDArray[np.float64] = 0.5 + spread * draw.standard_normal((n, dim))
    b = draw.standard_normal((n, dim))
    mean = a.mean(axis=0)
    a = a + np.where(mean < 0.1, 0.5 - mean, 0.0)
    return Quadratics(frozen(a), frozen(b))


@jit
def _steps(a, b, units, step_size, points, rows):  # type: ignore[no-untyped-def]
    for t in range(len(units)):
        unit = units[t]
        for k in range(rows.shape[1]):
            x = points[t, k]
            g = 2.0 * a[unit, k] * x + b[unit, k]
            rows[t, k] = g
            points[t + 1, k] = x - step_size * g
