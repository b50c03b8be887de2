"""The state of a policy that knows rows: the latest of each unit, however old, and every epoch a fresh order.

Nothing about an order comes from the order before it: an epoch's order is a function of the rows, the seed
and the epoch's number. So rows may come before training, in every epoch, in some, in part, or never.

Rows that were given before training do not age, and those that are observed do; so both stay, side by side.
No inner product joins the two kinds. Each is weighed so that, less its mean, it has length 1 on the average.
A unit of which only the given part is known counts, in the other, as if it were the mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, room_for, seed_of
from wellorder._compiled import jit
from wellorder._kernels.signals import dense, not_finite, other_dimension
from wellorder._order import Order, Remembered, Rows, Signs, frozen, own_state, visit

LARGEST = float(np.finfo(np.float32).max)
SMALL, SOME = 1e-9, 256
"""Rows of this size, or of one over it, are weighed, if the first few look like it."""


@dataclass(frozen=True)
class LatestRows(Remembered):
    """The order of this epoch, and the row of every unit that has one, in float32.

    ``known`` marks these by 1, and by -1 those of which only what was given is known, where others were seen.
    """

    seed: int
    epoch: int
    order: Order
    known: Signs
    seen: int = 0
    observed: int = 0
    """Rows that came in this epoch."""
    rows: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    clipped: int = 0
    given: int = 0
    """So many numbers of a row, the first, were given before training; the others are the latest observed."""

    @property
    def latest(self) -> npt.NDArray[np.float32]:
        """What was observed last of each unit; what was given, as long as nothing was."""
        return self.rows[:, self.given :] if self.rows.shape[1] > self.given else self.rows


def opened(n: int, seed: int, rows: Any = None) -> LatestRows:
    """A state before any epoch: nothing is known, or the rows given; its order is not made yet."""
    seed_of(seed)
    with room_for("n", n):
        state = LatestRows(seed, -1, frozen(np.zeros(0, np.int32)), np.zeros(n, np.int8))
    if rows is None:
        return state
    if not hasattr(rows, "detach"):
        rows = array_of("rows", rows, cure=f"pass a 2-D array with one row for each of the {n} units")
    shape = tuple(rows.shape)
    if len(shape) != 2 or shape[0] != n:
        raise ValueError(f"rows of shape {shape}: pass a 2-D array with one row for each of the {n} units")
    given = _single(dense(rows, n, "rows"), "rows")
    return replace(state, rows=np.array(given), known=np.ones(n, np.int8), given=shape[1])


def renew(state: LatestRows, units: npt.ArrayLike, signals: Any, *, newest: float = 1.0) -> LatestRows:
    """Store the rows of ``units``, which follow the order, in place of older ones.

    With ``newest`` below 1 a row is a running mean, in which the newest signal has this weight. Rows that
    were given before training stay beside these. Rows of another length than before may come at an epoch's
    start; what was observed before is forgotten then.
    """
    own_state(state, LatestRows)
    steps = visit(state.order, state.seen, units)
    block = _single(dense(signals, len(steps)), "signals")
    if not len(steps):
        return state
    rows, known, given = state.rows, state.known, state.given
    length = given + block.shape[1]
    if rows.shape[1] != length and not state.observed:
        rows, known = np.zeros((len(state.order), length), np.float32), np.zeros_like(known)
        if given:
            rows[:, :given], known[:] = state.rows[:, :given], -1
    if rows.shape[1] != length:
        raise ValueError(other_dimension(block.shape[1], rows.shape[1] - given))
    _write(rows, known, state.order, steps, block, newest, given)
    return replace(
        state, seen=int(steps[-1]) + 1, observed=state.observed + len(steps), rows=rows, known=known
    )


def fill_in(order: Order, known: Signs, better: Order) -> Order:
    """Put known units, in ``better`` order, where ``order`` has known ones; the others keep their place."""
    filled = order.copy()
    filled[known[order] != 0] = better
    return frozen(filled)


def known_part(state: LatestRows, order: Order) -> tuple[Order, npt.NDArray[np.float64]]:
    """The units of ``order`` that have a row, in its order, and the mean of their rows."""
    part: Order = order if state.known.all() else order[state.known[order] != 0]
    mean = _total(state.rows, state.known, state.given)
    mean[: state.given] /= max(len(part), 1)
    mean[state.given :] /= max(int((state.known > 0).sum()), 1)
    return part, mean


def weights_of(state: LatestRows, mean: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """What each number of a row counts, once its ``mean`` is off; None where all count as they are.

    Where all are of one kind, they do; but rows that are too large or small for products in float32 are
    brought near 1, by a power of two.
    """
    given, weights = state.given, np.zeros(len(mean))
    one_kind = not 0 < given < len(mean)
    if one_kind and SMALL < np.abs(state.rows[:SOME] - mean).max(initial=0.0) < 1 / SMALL:
        return None
    squares = _squares(state.rows, state.known, mean, given)
    counts = int((state.known != 0).sum()), int((state.known > 0).sum())
    for kind, count in zip((slice(None, given), slice(given, None)), counts, strict=True):
        length = math.sqrt(squares[kind].sum() / max(count, 1))
        if one_kind and length > 0:
            length = 2.0 ** round(math.log2(length))
        weights[kind] = 1 / length if length > 0 else 0.0
    return weights


def weighed(state: LatestRows, mean: npt.NDArray[np.float64]) -> tuple[Rows, npt.NDArray[np.float64]]:
    """Rows and their mean as they count: the state's own where all is of one kind, and else a copy."""
    weights = weights_of(state, mean)
    if weights is None:
        return state.rows, mean
    return _weighed(state.rows, state.known, mean, weights, state.given), np.zeros_like(mean)


def _single(block: Rows, name: str) -> Rows:
    """Refuse what float32 cannot hold."""
    if block.dtype != np.float32:
        good = np.abs(block).max(axis=1, initial=0.0) <= LARGEST
        if not good.all():
            raise ValueError(not_finite(int(np.argmin(good)), name))
        return block.astype(np.float32)
    return block


@jit
def _write(rows, known, order, steps, block, newest, given):  # type: ignore[no-untyped-def]
    for i in range(len(steps)):
        unit = order[steps[i]]
        latest = rows[unit, given:]
        if newest < 1.0 and known[unit] > 0:
            for k in range(block.shape[1]):
                latest[k] += newest * (block[i, k] - latest[k])
        else:
            for k in range(block.shape[1]):
                latest[k] = block[i, k]
        known[unit] = 1


@jit
def _length(row, known, given):  # type: ignore[no-untyped-def]
    """How many numbers of a row are known, from its first on."""
    return len(row) if known > 0 else (given if known < 0 else 0)


@jit
def _total(rows, known, given):  # type: ignore[no-untyped-def]
    """Sum of all that is known."""
    total = np.zeros(rows.shape[1])
    for i in range(len(rows)):
        row = rows[i]
        for k in range(_length(row, known[i], given)):
            total[k] += np.float64(row[k])
    return total


@jit
def _squares(rows, known, mean, given):  # type: ignore[no-untyped-def]
    """Of each number, the sum of its squares, less the mean, over all rows in which it is known."""
    total = np.zeros(len(mean))
    for i in range(len(rows)):
        row = rows[i]
        for k in range(_length(row, known[i], given)):
            z = np.float64(row[k]) - mean[k]
            total[k] += z * z
    return total


@jit
def _weighed(rows, known, mean, weights, given):  # type: ignore[no-untyped-def]
    """All rows less the mean, by what they count; zero where nothing is known."""
    out = np.zeros(rows.shape, np.float32)
    for i in range(len(rows)):
        row, own = rows[i], out[i]
        for k in range(_length(row, known[i], given)):
            own[k] = np.float32((np.float64(row[k]) - mean[k]) * weights[k])
    return out
