"""What a problem is: a finite sum whose units' gradients can be asked for."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wellorder._measure import at_once
from wellorder._order import Order

Point = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
BLOCK = 256


class Problem(Protocol):
    """f(x) = (1/n)·Σ f_u(x) over the units u.

    Two more methods are used where a problem has them: ``steps(units, x, step_size)``, a fast twin of
    `loop_steps`, and ``curve(units, x, vectors)``, the Hessian–vector products ∇²f_u(x)·v that
    `wellorder.expansion` needs. An attribute ``start`` is the first point (zeros otherwise).
    """

    @property
    def n(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def minimiser(self) -> Point | None: ...

    def gradients(self, units: Order, x: Point) -> Matrix:
        """∇f_u(x) for each of ``units``, one row each."""
        ...

    def value(self, x: Point) -> float:
        """The objective f(x)."""
        ...


def start_of(problem: Problem, start: npt.ArrayLike | None = None) -> Point:
    """Copy the first point: the one given, else the problem's own, else zeros."""
    first = getattr(problem, "start", np.zeros(problem.dim)) if start is None else start
    point = np.array(first, np.float64)
    if point.shape != (problem.dim,) or not np.isfinite(point).all():
        raise ValueError(f"start={point!r}: pass {problem.dim} finite numbers")
    return point


def gradient(problem: Problem, x: Point) -> Point:
    """∇f(x), the mean over all units; O(n·d) time, block by block."""
    total = np.zeros(problem.dim)
    width = at_once(problem.dim)
    for at in range(0, problem.n, width):
        total += problem.gradients(np.arange(at, min(at + width, problem.n)), x).sum(axis=0)
    return total / problem.n


def steps(problem: Problem, units: Order, x: Point, step_size: float) -> tuple[Matrix, Matrix]:
    """Visit ``units`` one after the other by x ← x − γ∇f_u(x).

    Returns the points, (b+1, d) with ``x`` first, and the gradients, (b, d).
    """
    fast: Any = getattr(problem, "steps", None)
    return fast(units, x, step_size) if fast else loop_steps(problem, units, x, step_size)


def loop_steps(problem: Problem, units: Order, x: Point, step_size: float) -> tuple[Matrix, Matrix]:
    """`steps` for any problem, one Python call a unit."""
    points, rows = np.empty((len(units) + 1, problem.dim)), np.empty((len(units), problem.dim))
    points[0] = x
    for t in range(len(units)):
        rows[t] = problem.gradients(units[t : t + 1], points[t])[0]
        points[t + 1] = points[t] - step_size * rows[t]
    return points, rows
