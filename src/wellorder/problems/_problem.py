"""What a problem is: a finite sum whose units' gradients can be asked for."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, numbers, real_number, shown
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


def problem_of(problem: Any) -> Any:
    """Take a problem: an object with n, dim, gradients and value; refuses anything else.

    >>> problem_of(None)
    Traceback (most recent call last):
    ValueError: problem=None: pass a problem with n, dim, gradients(units, x) and value(x), such as ...
    """
    wanted = all(callable(getattr(problem, name, None)) for name in ("gradients", "value"))
    counts = all(
        isinstance(getattr(problem, name, None), int | np.integer) and getattr(problem, name) > 0
        for name in ("n", "dim")
    )
    if isinstance(problem, type) or not wanted or not counts:
        raise ValueError(
            f"problem={shown(problem)}: pass a problem with n, dim, gradients(units, x) and value(x), "
            "such as quadratics(100)"
        )
    return problem


def point_of(problem: Problem, x: Any, name: str = "x") -> Point:
    """Take a point of a problem's space; what is not finite is a point too."""
    cure = f"pass the {problem.dim} numbers of a point, as problem.dim says"
    point = numbers(name, x, cure=cure)
    if point.shape != (problem.dim,):
        raise ValueError(f"{name} of shape {point.shape}: {cure}")
    return point


def units_in(problem: Problem, units: Any) -> Order:
    """Take units of a problem: compiled code indexes by them."""
    cure = f"pass a 1-D array of units 0..{problem.n - 1}, as problem.n says"
    array = array_of("units", units, cure=cure, kinds="iu")
    if array.ndim != 1 or (array.size and not (array.min() >= 0 and array.max() < problem.n)):
        raise ValueError(f"units={shown(array)}: {cure}")
    return array if array.size else np.zeros(0, np.int64)


def start_of(problem: Problem, start: npt.ArrayLike | None = None) -> Point:
    """Copy the first point: the one given, else the problem's own, else zeros."""
    problem_of(problem)
    first = getattr(problem, "start", np.zeros(problem.dim)) if start is None else start
    point = numbers("start", first, cure=f"pass {problem.dim} finite numbers, as problem.dim says")
    if point.shape != (problem.dim,) or not np.isfinite(point).all():
        raise ValueError(f"start={shown(point)}: pass {problem.dim} finite numbers, as problem.dim says")
    return point.copy()


def gradient(problem: Problem, x: Point) -> Point:
    """∇f(x), the mean over all units; O(n·d) time, block by block."""
    x = point_of(problem_of(problem), x)
    total = np.zeros(problem.dim)
    width = at_once(problem.dim)
    for at in range(0, problem.n, width):
        total += problem.gradients(np.arange(at, min(at + width, problem.n)), x).sum(axis=0)
    return total / problem.n


def steps(problem: Problem, units: Order, x: Point, step_size: float) -> tuple[Matrix, Matrix]:
    """Visit ``units`` one after the other by x ← x − γ∇f_u(x).

    Returns the points, (b+1, d) with ``x`` first, and the gradients, (b, d).
    """
    units, x = units_in(problem_of(problem), units), point_of(problem, x)
    step_size = real_number("step_size", step_size, above=0)
    fast: Any = getattr(problem, "steps", None)
    return fast(units, x, step_size) if fast else loop_steps(problem, units, x, step_size)


def loop_steps(problem: Problem, units: Order, x: Point, step_size: float) -> tuple[Matrix, Matrix]:
    """`steps` for any problem, one Python call a unit."""
    units, x = units_in(problem_of(problem), units), point_of(problem, x)
    step_size = real_number("step_size", step_size, above=0)
    points, rows = np.empty((len(units) + 1, problem.dim)), np.empty((len(units), problem.dim))
    points[0] = x
    for t in range(len(units)):
        rows[t] = problem.gradients(units[t : t + 1], points[t])[0]
        points[t + 1] = points[t] - step_size * rows[t]
    return points, rows
