"""How good an order is: the order error, the drift, and the second-order expansion of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, norm_order, numbers, real_number, shown, whole_number
from wellorder._compiled import fast, jit
from wellorder._kernels.signals import TensorRows, block_of
from wellorder._order import Order, Rows, rng

BLOCK = 256
Lookup = Callable[[Order], npt.NDArray[np.float64]]


def at_once(dim: int) -> int:
    """How many rows of ``dim`` numbers to take at a time: as fit a processor cache, and never below 256.

    >>> at_once(1), at_once(1_000_000)
    (4096, 256)
    """
    return max(BLOCK, 4096 // dim)


def order_error(vectors: Any, order: npt.ArrayLike, *, p: float = 2, every: int = 1) -> float:
    """Order error of visiting ``vectors`` in ``order``.

    φ̄ = max over n of ‖Σ_{i<n} (z_π(i) − mean z)‖_p, with n = every, 2·every, … ≤ N:
    ``every=1`` for SGD, ``every=S`` for federated rounds of S clients.
    NaN if a vector is. Exact, in float64; O(n·d) time; memory beyond the vectors: see `at_once`.

    Parameters
    ----------
    vectors
        Rows indexed by unit, (n, d), NumPy or torch; or a function from an array of units to their rows, if
        the rows should not all exist at once.
    order
        The unit at each step.
    p
        The norm: any p ≥ 1, or ``numpy.inf``.
    every
        Measure at multiples of this many steps.

    >>> z = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    >>> order_error(z, [0, 1, 2, 3]), order_error(z, [0, 2, 1, 3]), order_error(z, [0, 2, 1, 3], every=2)
    (2.0, 1.0, 0.0)
    """
    steps = _steps(order)
    rows_of = _lookup(vectors, steps)
    p = norm_order(p)
    whole_number("every", every, least=1, cure="measure at multiples of this many steps")
    width = at_once(rows_of(steps[:1]).shape[1])
    mean = sum(rows.sum(axis=0) for rows in map(rows_of, _blocks(np.arange(len(steps)), width))) / len(steps)
    prefix, worst, seen = np.zeros(len(mean)), 0.0, 0
    for units in _blocks(steps, width):
        worst = float(np.maximum(worst, _prefixes(rows_of(units), mean, prefix, seen, every, p)))
        seen += len(units)
    return worst


def strayed(sums: Rows, counts: npt.NDArray[np.float64]) -> float:
    """Order error of an epoch that is known by parts: sums of the rows of each, and how many they were.

    The largest ‖Σ (sum − count·mean)‖₂ over the epoch's beginnings that end with a part; the mean is that of
    all rows. What loaders and federations estimate as they go, from sketches or from some coordinates.

    >>> strayed(np.array([[1.0], [1.0], [-2.0]]), np.array([4.0, 4.0, 4.0]))
    2.0
    """
    mean = sums.sum(axis=0, dtype=np.float64) / counts.sum()
    return float(np.sqrt(_largest(sums, counts, mean, np.zeros_like(mean))))


def error_vs_shuffle(rows: Any, order: Order, *, every: int = 1, seed: int = 0, shuffles: int = 3) -> float:
    """Order error of ``order``, relative to the mean of a few shuffles of the same rows: 1 is no better.

    O(n·k) time for each.
    """
    n = len(order)
    drawn = [rng(seed, s, "audit").permutation(n) for s in range(shuffles)]
    mean = float(np.mean([order_error(rows, shuffle, every=every) for shuffle in drawn]))
    return order_error(rows, order, every=every) / mean if mean > 0 else 1.0


def drift(points: npt.ArrayLike, *, p: float = 2) -> float:
    """Δ = max_n ‖x^n − x^0‖_p over the points of one epoch, the parameter drift.

    >>> drift([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])
    5.0
    """
    p = norm_order(p)
    path = numbers("points", points, cure="pass a 2-D array, the epoch's first point first")
    if path.ndim != 2 or not len(path):
        raise ValueError(f"points of shape {path.shape}: pass a 2-D array, the epoch's first point first")
    return float(np.linalg.norm(path - path[0], ord=p, axis=1).max())


@dataclass(frozen=True)
class Expansion:
    """One epoch's movement to second order: x_{q+1} − x_q ≈ optimisation + error, with ‖error‖ ≤ bound."""

    optimisation: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]
    bound: float
    order_error: float


def expansion(
    problem: Any,
    x: npt.ArrayLike,
    order: npt.ArrayLike,
    *,
    step_size: float,
    smoothness: float,
    cohort: int = 1,
    local_steps: int = 1,
) -> Expansion:
    """Split an epoch's movement into what optimises and what the order spoils.

    The error vector γ²·Σ_n ∇²f_π(n)(x)·Σ_{i<n} (∇f_π(i)(x) − ∇f(x)) is at most γ²LNφ̄ long.
    For federated rounds of ``cohort`` = S clients with ``local_steps`` = K the inner sum stops at the
    round's start, and the factor is γ²K²/S².
    Needs ``problem.curve`` (Hessian–vector products). O(n·d) time, O(256·d) memory.

    >>> from wellorder.problems import quadratics
    >>> problem = quadratics(100, dim=3)
    >>> parts = expansion(problem, np.ones(3), np.arange(100), step_size=1e-3, smoothness=8.0)
    >>> bool(np.linalg.norm(parts.error) <= parts.bound)
    True
    """
    if not hasattr(problem, "curve"):
        raise ValueError(
            f"problem={shown(problem)} has no Hessian–vector products; give it curve(units, x, vectors)"
        )
    S = whole_number("cohort", cohort, least=1)  # noqa: N806
    K = whole_number("local_steps", local_steps, least=1)  # noqa: N806
    real_number("step_size", step_size, above=0)
    real_number("smoothness", smoothness, least=0)
    point, steps = numbers("x", x, cure=f"pass a point of the problem's {problem.dim} numbers"), _steps(order)
    if point.shape != (problem.dim,):
        raise ValueError(f"x of shape {point.shape}: pass a point of the problem's {problem.dim} numbers")
    if len(steps) != problem.n:
        raise ValueError(f"order of {len(steps)} steps: pass one for each of the problem's {problem.n} units")
    if len(steps) % S:
        raise ValueError(
            f"cohort={S}: the expansion takes rounds of one size; pass a divisor of {len(steps)}, the length "
            "of order"
        )
    mean = sum(problem.gradients(units, point).sum(axis=0) for units in _blocks(steps)) / len(steps)
    optimisation = -step_size * K * len(steps) / S * mean
    error, prefix, worst = np.zeros_like(mean), np.zeros_like(mean), 0.0
    width, factor = max(1, BLOCK // S) * S, (step_size * K / S) * (step_size * K / S)
    for at in range(0, len(steps), width):
        units = steps[at : at + width]
        rows = problem.gradients(units, point)
        sums = np.vstack([prefix, prefix + np.cumsum(rows - mean, axis=0)])
        prefix = sums[-1]
        starts = np.arange(len(units)) // S * S
        worst = max(worst, float(np.linalg.norm(sums[starts], axis=1).max()))
        error += problem.curve(units, point, sums[starts]).sum(axis=0)
        optimisation = optimisation + factor * problem.curve(units, point, (at + starts)[:, None] * mean).sum(
            axis=0
        )
        if K > 1:
            optimisation = optimisation + step_size * step_size / S * K * (K - 1) / 2 * problem.curve(
                units, point, rows
            ).sum(axis=0)
    return Expansion(optimisation, factor * error, factor * smoothness * len(steps) * worst, worst)


def _steps(order: npt.ArrayLike) -> Order:
    steps = array_of("order", order, cure="pass a 1-D array of units")
    if steps.ndim != 1 or not steps.size or steps.dtype.kind not in "iu":
        raise ValueError(f"order of shape {steps.shape} and dtype {steps.dtype}: pass a 1-D array of units")
    if steps.min() < 0 or steps.max() >= len(steps):
        raise ValueError(f"order holds units outside 0..{len(steps) - 1}; pass one step per unit")
    return steps


def _lookup(vectors: Any, steps: Order) -> Lookup:
    if callable(vectors):
        return partial(_looked_up, vectors)
    rows = block_of(vectors, None, "vectors")
    if len(rows) != len(steps):
        raise ValueError(f"order of {len(steps)} steps for {len(rows)} vectors; pass one step for each")
    if isinstance(rows, TensorRows):
        rows = np.asarray(rows.rows.cpu())
    if not isinstance(rows, np.ndarray):
        raise ValueError(
            f"vectors={type(vectors).__name__}: pass a 2-D array (n, d), or a function from units to rows"
        )
    return lambda units: rows[units].astype(np.float64, copy=False)


def _looked_up(vectors: Callable[[Order], Any], units: Order) -> npt.NDArray[np.float64]:
    rows = np.ascontiguousarray(
        numbers("vectors(units)", vectors(units), cure="return one row for each unit")
    )
    if rows.ndim != 2 or len(rows) != len(units):
        raise ValueError(
            f"vectors(units) of shape {rows.shape}: return one row for each of {len(units)} units"
        )
    return rows


def _blocks(units: Order, width: int = BLOCK) -> list[Order]:
    return [units[at : at + width] for at in range(0, len(units), width)]


@jit
def _prefixes(rows, mean, prefix, seen, every, p):  # type: ignore[no-untyped-def]
    worst = 0.0
    for t in range(len(rows)):
        for k in range(len(mean)):
            prefix[k] += rows[t, k] - mean[k]
        if (seen + t + 1) % every:
            continue
        norm = _norm(prefix, p)
        if not norm <= worst:  # so that NaN wins
            worst = norm
    return worst


@jit
def _norm(vector, p):  # type: ignore[no-untyped-def]
    """‖vector‖_p, though powers of its numbers may be beyond float64; NaN if one is."""
    if p == 2:
        square = 0.0
        for k in range(len(vector)):
            square += vector[k] * vector[k]
        if 1e-280 < square < 1e280:
            return np.sqrt(square)
    largest = 0.0
    for k in range(len(vector)):
        if np.isnan(vector[k]):
            return np.nan
        largest = max(largest, abs(vector[k]))
    if largest == 0 or np.isinf(largest) or np.isinf(p):
        return largest
    total = 0.0
    for k in range(len(vector)):
        total += (abs(vector[k]) / largest) ** p
    return largest * total ** (1.0 / p)


@fast
def _largest(sums, counts, mean, total):  # type: ignore[no-untyped-def]
    """Largest squared norm of a beginning of Σ (sum − count·mean)."""
    largest = 0.0
    for t in range(len(sums)):
        square = 0.0
        for k in range(len(total)):
            x = total[k] + np.float64(sums[t, k]) - counts[t] * mean[k]
            total[k] = x
            square += x * x
        largest = max(largest, square)
    return largest
