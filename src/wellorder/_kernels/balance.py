"""Balancing: signals → signs, one block at a time.

Rows that exist (NumPy, or a torch tensor on the CPU) are balanced in one fused, strictly sequential pass,
so the signs do not depend, bit for bit, on how an epoch is cut into blocks. Any other `Signals` is balanced
from its Gram matrix and its products with the running sum, by a scalar recursion that gives the same signs;
its rounding depends on the cut, so what is below rounding there is a tie (`TIE`). Both keep the running sum
in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wellorder._arguments import numbers, seed_of
from wellorder._compiled import fast, jit
from wellorder._kernels.sign_rules import Deterministic, SignRule, checked_rule
from wellorder._kernels.signals import (
    TensorRows,
    at_home,
    block_of,
    inner,
    not_finite,
    other_dimension,
    to_numpy,
    usable,
)
from wellorder._order import Order, Rows, Signals, Signs, Vector

Thresholds = npt.NDArray[np.float64]
NO_VECTOR: npt.NDArray[np.float64] = np.empty(0)
"""An accumulator that has seen nothing: its dimension is not known yet."""
TIE = 1e-12
"""An inner product this far below the lengths that it was computed from is rounding: it counts as 0.

Float64 products of a long epoch are wrong by some 1e-15 of those lengths; products of whole numbers, where
ties are common, are 0 or far above 1e-12 of them.
"""
LARGEST = 1e150
"""What balancing can square: a running sum beyond it was spoilt by a row."""


class Balanced(NamedTuple):
    """Signs of a block, the running sum after it, and how many decisions were clipped."""

    signs: Signs
    total: Vector
    clipped: int


def balance(
    signals: Any, rule: SignRule | None = None, *, total: Vector = NO_VECTOR, seed: int = 0, start: int = 0
) -> Balanced:
    """Sign each vector so that the signed running sum stays short.

    ε = +1 iff ⟨s, z⟩ is below the rule's threshold, then s ← s + ε·z.
    Costs O(b·d) for rows, O(b²·d) for other signals; O(d) memory.

    Parameters
    ----------
    signals
        A 2-D array (b, d), NumPy or torch, or any `Signals`.
    rule
        `Deterministic()` (the default) or `Walk(c)`.
    total
        The running sum so far; empty at the start.
    seed, start
        Where a random rule's draws begin, so that blocks can follow one another.

    >>> import numpy as np
    >>> balance(np.array([[1.0], [1.0], [3.0], [-2.0]])).signs
    array([-1,  1, -1, -1], dtype=int8)
    """
    rule = Deterministic() if rule is None else checked_rule(rule)
    block = block_of(signals, None)
    thresholds = rule.thresholds(seed_of(seed), 0, start, len(block))
    if not hasattr(total, "detach"):
        total = numbers("total", total, cure="pass the running sum so far, a 1-D array of numbers")
    if total.ndim != 1:
        raise ValueError(f"total of shape {tuple(total.shape)}: pass the running sum so far, 1-D")
    if len(total) and isinstance(block, np.ndarray) and len(total) != block.shape[1]:
        raise ValueError(
            f"total of {len(total)} numbers: signals have {block.shape[1]}; pass the running sum of such"
        )
    if len(total) and hasattr(block, "add_to"):
        total = total + 0.0  # the caller's own is not to be added to
    return balance_centred(block, NO_VECTOR, total, thresholds, rule.limit)


def balance_centred(
    block: Rows | Signals, center: Vector, total: Vector, thresholds: Thresholds, limit: float
) -> Balanced:
    """Balance the rows minus ``center`` (none if empty), going on from ``total``."""
    if isinstance(block, np.ndarray):
        s = _summand(total, block)
        middle = _summand(center, block) if len(center) else NO_VECTOR
        signs = np.empty(len(block), np.int8)
        return _checked(block, signs, s, *_balance_rows(block, middle, s, thresholds, limit, signs))
    if isinstance(block, TensorRows) and len(center):
        block, center = block.minus(center), NO_VECTOR
    mixing = np.eye(len(block))
    if not len(center):
        return _balance_products(block, [], mixing, total, thresholds, limit)
    mixing = np.hstack([np.full((len(block), 1), -1.0), mixing])
    return _balance_products(block, [center], mixing, total, thresholds, limit)


def balance_stored(
    rows: Rows, which: Order, center: Vector, thresholds: Thresholds, limit: float
) -> tuple[Signs, int]:
    """Signs of ``rows[which]`` minus ``center``, from a sum of zero, and the clips; no row is copied."""
    signs = np.empty(len(which), np.int8)
    balanced = _balance_stored(rows, which, center, np.zeros(rows.shape[1]), thresholds, limit, signs)
    return signs, int(_checked(rows, signs, NO_VECTOR, *balanced).clipped)


def balance_pairs(
    block: Rows | Signals, pending: Vector, total: Vector, thresholds: Thresholds, limit: float
) -> Balanced:
    """Balance the differences of consecutive rows, the first paired with ``pending`` if that is not empty.

    Gives one sign per pair; an unpaired last row is left to the caller.
    """
    count = (len(block) + bool(len(pending))) // 2
    if isinstance(block, np.ndarray):
        s = _summand(total, block)
        signs = np.empty(count, np.int8)
        bad, clipped, first = -1, 0, 0
        if len(pending) and count:
            both = np.stack([_summand(pending, block), block[0].astype(np.float64)])
            bad, clipped = _balance_differences(both, 0, s, thresholds[:1], limit, signs[:1])
            first, bad = 1, min(bad, 0)
        if bad < 0:
            bad, more = _balance_differences(block, first, s, thresholds[first:], limit, signs[first:])
            clipped += more
        return _checked(block, signs, s, bad, clipped)
    apart = block.differences(pending) if hasattr(block, "differences") else None
    if apart is not None:  # signals that know a cheaper way to their differences
        return _balance_products(apart, [], np.eye(count), total, thresholds, limit, shown=block)
    extra = [pending] if len(pending) else []
    mixing = np.zeros((count, len(extra) + len(block)))
    pairs = np.arange(count)
    mixing[pairs, 2 * pairs], mixing[pairs, 2 * pairs + 1] = 1.0, -1.0
    return _balance_products(block, extra, mixing, total, thresholds, limit)


def add_rows(block: Rows | Signals, total: Vector) -> Vector:
    """Running sum of all rows: ``total`` plus every row, one after the other."""
    if isinstance(block, np.ndarray):
        s = _summand(total, block)
        _add_rows(block, s)
        return s
    return _plus(total, block, np.ones(len(block)))


def last_row(block: Rows | Signals) -> Vector:
    """Copy the last row, in the accumulator's precision."""
    if isinstance(block, np.ndarray):
        last: Vector = block[-1].astype(np.float64)
    else:
        weights = np.zeros(len(block))
        weights[-1] = 1.0
        last = block.combine(weights)
    with np.errstate(over="ignore"):
        square = inner(last, last)
    if not np.isfinite(square):
        raise ValueError(not_finite(len(block) - 1))
    return last


def _summand(vector: Vector, rows: Rows) -> npt.NDArray[np.float64]:
    """Copy an accumulator for ``rows`` to be added to; zeros if it has seen nothing."""
    dim = rows.shape[1]
    if not len(vector):
        return np.zeros(dim)
    if len(vector) != dim:
        raise ValueError(other_dimension(dim, len(vector)))
    return to_numpy(vector).copy()


def _plus(total: Vector, block: Signals, weights: npt.NDArray[np.float64]) -> Vector:
    """``total`` plus the weighted sum of the rows; signals that can add in place do, as a state is spent."""
    if len(total) and hasattr(block, "add_to"):
        added: Vector = block.add_to(total, weights)
        return added
    update = block.combine(weights)
    return at_home(total, update) + update if len(total) else update


def _checked(rows: Rows, signs: Signs, total: Vector, bad: int, clipped: int) -> Balanced:
    """Refuse a row that spoilt its product, or the sum: 1e305 times zero is fine, and ruins the next."""
    if bad < 0 and len(total) and not np.abs(total).max() <= LARGEST:
        bad = int(np.argmin(usable(rows)))
    if bad >= 0:
        raise ValueError(not_finite(bad))
    return Balanced(signs, total, clipped)


def _balance_products(
    block: Signals,
    extra: list[Vector],
    mixing: Rows,
    total: Vector,
    thresholds: Thresholds,
    limit: float,
    *,
    shown: Signals | None = None,
) -> Balanced:
    """Balance the vectors ``mixing @ [*extra, *rows]`` from inner products alone.

    ``shown`` is what the caller was given where ``block`` was made from it, so that errors name its rows.
    """
    e = len(extra)
    gram = np.empty((e + len(block),) * 2)
    gram[e:, e:] = to_numpy(block.gram())
    along = np.zeros(e + len(block))
    for i, vector in enumerate(extra):
        gram[i, e:] = gram[e:, i] = to_numpy(block.dot(vector))
        gram[i, :e] = [inner(vector, other) for other in extra]
    length = 0.0
    if len(total):
        along[e:] = to_numpy(block.dot(total))
        along[:e] = [inner(vector, total) for vector in extra]
        length = inner(total, total) ** 0.5
    finite = np.isfinite(np.diagonal(gram)[e:]) & np.isfinite(along[e:])
    if not finite.all():
        good = finite if shown is None else np.isfinite(np.diagonal(to_numpy(shown.gram())))
        raise ValueError(not_finite(int(np.argmin(good))))
    signs = np.empty(len(mixing), np.int8)
    sizes = np.abs(mixing) @ np.sqrt(np.abs(np.diagonal(gram)))
    clipped = _signs_from_gram(
        mixing @ gram @ mixing.T, mixing @ along, length, sizes, thresholds, limit, signs
    )
    weights = signs @ mixing
    total = _plus(total, block, weights[e:])
    for weight, vector in zip(weights[:e], extra, strict=True):
        total = total + weight * at_home(vector, total)
    return Balanced(signs, total, int(clipped))


@fast
def _decide(v, threshold, limit):  # type: ignore[no-untyped-def]
    return (1 if v < threshold else -1), (1 if abs(v) > limit else 0)


@fast
def _balance_rows(rows, center, s, thresholds, limit, signs):  # type: ignore[no-untyped-def]
    """Sequential balancing of rows − center; returns the first row not finite (or −1) and the clips.

    One pass a row: the last row's update and this row's product share a loop, so ``s`` is read once.
    """
    clipped, weight, dim = 0, 0.0, len(s)
    if not len(rows):
        return -1, 0
    last = rows[0]
    for t in range(len(rows)):
        row, v = rows[t], 0.0
        if len(center):
            for k in range(dim):
                x = s[k] + weight * (np.float64(last[k]) - center[k])
                s[k] = x
                v += x * (np.float64(row[k]) - center[k])
        else:
            for k in range(dim):
                x = s[k] + weight * np.float64(last[k])
                s[k] = x
                v += x * np.float64(row[k])
        if not np.isfinite(v):
            return t, clipped
        signs[t], clip = _decide(v, thresholds[t], limit)
        clipped += clip
        weight, last = np.float64(signs[t]), row
    for k in range(dim):
        s[k] += weight * (np.float64(last[k]) - (center[k] if len(center) else 0.0))
    return -1, clipped


@fast
def _balance_stored(rows, which, mean, s, thresholds, limit, signs):  # type: ignore[no-untyped-def]
    """`_balance_rows` of ``rows[which]`` − mean, where they lie."""
    clipped, weight, dim = 0, 0.0, len(s)
    if not len(which):
        return -1, 0
    last = rows[which[0]]
    for t in range(len(which)):
        row, v = rows[which[t]], 0.0
        for k in range(dim):
            x = s[k] + weight * (np.float64(last[k]) - mean[k])
            s[k] = x
            v += x * (np.float64(row[k]) - mean[k])
        if not np.isfinite(v):
            return t, clipped
        signs[t], clip = _decide(v, thresholds[t], limit)
        clipped += clip
        weight, last = np.float64(signs[t]), row
    return -1, clipped


@fast
def _balance_differences(rows, first, s, thresholds, limit, signs):  # type: ignore[no-untyped-def]
    """Sequential balancing of rows[first] − rows[first+1], rows[first+2] − …; returns as `_balance_rows`."""
    clipped, weight, dim = 0, 0.0, len(s)
    pairs = (len(rows) - first) // 2
    if not pairs:
        return -1, 0
    c, d = rows[first], rows[first + 1]
    for pair in range(pairs):
        a, b, v = rows[first + 2 * pair], rows[first + 2 * pair + 1], 0.0
        for k in range(dim):
            x = s[k] + weight * (np.float64(c[k]) - np.float64(d[k]))
            s[k] = x
            v += x * (np.float64(a[k]) - np.float64(b[k]))
        if not np.isfinite(v):
            return first + 2 * pair + (1 if np.isfinite(a).all() else 0), clipped
        signs[pair], clip = _decide(v, thresholds[pair], limit)
        clipped += clip
        weight, c, d = np.float64(signs[pair]), a, b
    for k in range(dim):
        s[k] += weight * (np.float64(c[k]) - np.float64(d[k]))
    return -1, clipped


@fast
def _add_rows(rows, s):  # type: ignore[no-untyped-def]
    for t in range(len(rows)):
        row = rows[t]
        for k in range(len(s)):
            s[k] += np.float64(row[k])


@jit
def _signs_from_gram(gram, along, length, sizes, thresholds, limit, signs):  # type: ignore[no-untyped-def]
    """Signs by the recursion ⟨s + εz_t, z_j⟩ = ⟨s, z_j⟩ + ε⟨z_t, z_j⟩.

    ``length`` is that of s, and ``sizes[t]`` that of z_t before anything in it cancelled: the scale of what
    rounding can do to a product, even where s has come back to zero.
    """
    clipped = 0
    for t in range(len(gram)):
        length += sizes[t]
        v = along[t]
        if abs(v) <= TIE * length * sizes[t]:
            v = 0.0
        sign = 1 if v < thresholds[t] else -1
        clipped += 1 if abs(v) > limit else 0
        signs[t] = sign
        for j in range(t + 1, len(gram)):
            along[j] += sign * gram[t, j]
    return clipped
