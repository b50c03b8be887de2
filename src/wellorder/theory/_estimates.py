"""The constants of a problem: exact where a formula exists, a labelled estimate elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wellorder._arguments import numbers, seed_of
from wellorder._order import rng
from wellorder.problems import Logistic, Problem, Quadratics, start_of
from wellorder.problems._problem import BLOCK, Matrix
from wellorder.theory._setting import Keywords

EXACT, UPPER = "exact", "upper bound"
DIRECTIONS = 16
Three = tuple[float, float, float]


@dataclass(frozen=True)
class Estimate:
    """L, L_{2,∞}, L_∞, ς and F_0 of a problem, and how each was found."""

    n: int
    dim: int
    smoothness: float
    smoothness_2inf: float
    smoothness_inf: float
    sigma: float
    gap: float
    how: Mapping[str, str]
    """For each constant: "exact", "upper bound", or what the estimate rests on."""

    @property
    def exact(self) -> bool:
        """Whether the theory's promises hold with these constants for certain."""
        return set(self.how.values()) <= {EXACT, UPPER}

    @property
    def known(self) -> Keywords:
        """The constants as keywords for the other functions of `wellorder.theory`."""
        return Keywords(
            dim=self.dim,
            smoothness=self.smoothness,
            smoothness_2inf=self.smoothness_2inf,
            smoothness_inf=self.smoothness_inf,
            sigma=self.sigma,
            gap=self.gap,
        )


def estimate(problem: Problem, points: npt.ArrayLike | None = None, *, seed: int = 0) -> Estimate:
    """Find L, L_{2,∞}, L_∞, ς and F_0 of a problem.

    Quadratics and logistic regression have formulas. Any other problem is probed along random directions,
    which can only come out too small: such constants are labelled, and guarantees from them are estimates.
    Units whose curvatures differ have no ς for all x; then ς is the largest deviation at ``points``, so, for
    quadratics, on their convex hull as well. The theory asks for ς at the epochs' first points only:
    ``run.x[:-1]`` suffices.

    Parameters
    ----------
    problem
        What is minimised.
    points
        Where it was (or will be), (m, dim), the start first; the start alone unless given.
    seed
        Of the random directions.

    >>> from wellorder.problems import quadratics
    >>> found = estimate(quadratics(100, dim=4, spread=0.0))
    >>> found.smoothness, found.smoothness_2inf, found.smoothness_inf, found.exact
    (1.0, 2.0, 1.0, True)
    """
    first = start_of(problem)
    seed_of(seed)
    cure = f"pass finite points (m, {problem.dim}), the start first"
    where = np.atleast_2d(first if points is None else numbers("points", points, cure=cure).copy())
    if where.ndim != 2 or where.shape[1] != problem.dim or not len(where) or not np.isfinite(where).all():
        raise ValueError(f"points of shape {where.shape}: {cure}")
    curves, how = _curvature(problem, where, seed)
    sigma, how_sigma = _deviation(problem, where)
    gap, how_gap = _gap(problem, where)
    labels = {
        "smoothness": how[0],
        "smoothness_2inf": how[1],
        "smoothness_inf": how[2],
        "sigma": how_sigma,
        "gap": how_gap,
    }
    return Estimate(problem.n, problem.dim, *curves, sigma, gap, labels)


def _curvature(
    problem: Problem, where: Matrix, seed: int
) -> tuple[tuple[float, float, float], tuple[str, str, str]]:
    if isinstance(problem, Quadratics):
        diagonal = 2 * np.abs(problem.a)
        most = float(diagonal.max())
        return (most, float(np.linalg.norm(diagonal, axis=1).max()), most), (EXACT, EXACT, EXACT)
    if isinstance(problem, Logistic):
        size = {p: np.linalg.norm(problem.X, ord=p, axis=1) for p in (1, 2, np.inf)}
        l2, root = problem.l2, np.sqrt(problem.dim)
        return (
            float((size[2] ** 2).max() / 4 + l2),
            float((size[2] * size[1]).max() / 4 + l2 * root),
            float((size[np.inf] * size[1]).max() / 4 + l2),
        ), (EXACT, UPPER, EXACT)
    label = f"secants along {DIRECTIONS} directions: can be too small"
    return _secants(problem, where, seed), (label, label, label)


def _secants(problem: Problem, where: Matrix, seed: int) -> Three:
    """Largest ratios ‖∇f_u(x+v) − ∇f_u(x)‖/‖v‖ over all units, probing directions and points in turn."""
    draw = rng(seed, 0, "secants")
    most = np.zeros(3)
    for t in range(DIRECTIONS):
        x = where[t * len(where) // DIRECTIONS]
        scale = 1e-3 * max(1.0, float(np.abs(x).max()))
        signs = draw.choice([-1.0, 1.0], problem.dim) * scale
        loose = draw.standard_normal(problem.dim) * scale
        for units in _blocks(problem.n):
            here = problem.gradients(units, x)
            for v in (signs, loose):
                change = problem.gradients(units, x + v) - here
                two, top = np.linalg.norm(change, axis=1).max(), np.abs(change).max()
                most = np.maximum(
                    most, [two / np.linalg.norm(v), two / np.abs(v).max(), top / np.abs(v).max()]
                )
    return float(most[0]), float(max(most[0], most[1])), float(most[2])


def _deviation(problem: Problem, where: Matrix) -> tuple[float, str]:
    common = isinstance(problem, Quadratics) and not np.ptp(problem.a, axis=0).any()
    if common:
        where = where[:1]
    worst = max(_deviation_at(problem, x) for x in where)
    if common:
        return worst, EXACT
    what = "the convex hull of" if isinstance(problem, Quadratics) else ""
    return worst, f"the largest on {what} the {len(where)} given points".replace("  ", " ")


def _deviation_at(problem: Problem, x: npt.NDArray[np.float64]) -> float:
    total = np.zeros(problem.dim)
    for units in _blocks(problem.n):
        total += problem.gradients(units, x).sum(axis=0)
    mean = total / problem.n
    return max(
        float(np.linalg.norm(problem.gradients(u, x) - mean, axis=1).max()) for u in _blocks(problem.n)
    )


def _gap(problem: Problem, where: Matrix) -> tuple[float, str]:
    here = problem.value(where[0])
    if isinstance(problem, Quadratics) and not (problem.a.mean(axis=0) > 0).all():
        lowest = min(problem.value(x) for x in where)
        return max(0.0, here - lowest), "f may have no minimum: can be too small"
    if problem.minimiser is not None:
        return max(0.0, here - problem.value(problem.minimiser)), EXACT
    lowest = min(problem.value(x) for x in where)
    return here - lowest, f"down to the lowest of the {len(where)} given points: can be too small"


def _blocks(n: int) -> list[npt.NDArray[np.int64]]:
    return [np.arange(at, min(at + BLOCK, n)) for at in range(0, n, BLOCK)]
