"""The state of a policy that knows rows: the latest of each unit, however old, and every epoch a fresh order.

Nothing about an order comes from the order before it: an epoch's order is a function of the rows, the seed
and the epoch's number. So rows may come before training, in every epoch, in some, in part, or never.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, room_for, seed_of
from wellorder._compiled import jit
from wellorder._kernels.balance import NO_VECTOR, add_rows
from wellorder._kernels.signals import dense, not_finite, other_dimension
from wellorder._order import Order, Remembered, Rows, Signs, frozen, own_state, visit

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class LatestRows(Remembered):
    """The order of this epoch, and the latest row of every unit that has one (marked 1), in float32."""

    seed: int
    epoch: int
    order: Order
    known: Signs
    seen: int = 0
    observed: int = 0
    """Rows that came in this epoch."""
    rows: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    clipped: int = 0


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
    return replace(state, rows=np.array(given), known=np.ones(n, np.int8))


def renew(state: LatestRows, units: npt.ArrayLike, signals: Any, *, newest: float = 1.0) -> LatestRows:
    """Store the rows of ``units``, which follow the order, in place of older ones.

    With ``newest`` below 1 a row is a running mean, in which the newest signal has this weight.

    Rows of another length may come at an epoch's start (a model's, where rows were given before): the others
    are forgotten then, since no inner product joins the two kinds.
    """
    own_state(state, LatestRows)
    steps = visit(state.order, state.seen, units)
    block = _single(dense(signals, len(steps)), "signals")
    if not len(steps):
        return state
    rows, known = state.rows, state.known
    if not rows.size or (rows.shape[1] != block.shape[1] and not state.observed):
        rows, known = np.zeros((len(state.order), block.shape[1]), np.float32), np.zeros_like(known)
    if rows.shape[1] != block.shape[1]:
        raise ValueError(other_dimension(block.shape[1], rows.shape[1]))
    _write(rows, known, state.order, steps, block, newest)
    return replace(
        state, seen=int(steps[-1]) + 1, observed=state.observed + len(steps), rows=rows, known=known
    )


def forgotten(state: LatestRows) -> LatestRows:
    """The same epoch, and no rows: those that come are of another kind, though they may be as long."""
    return replace(state, rows=np.zeros((0, 0), np.float32), known=np.zeros_like(state.known))


def fill_in(order: Order, known: Signs, better: Order) -> Order:
    """Put known units, in ``better`` order, where ``order`` has known ones; the others keep their place."""
    filled = order.copy()
    filled[known[order] > 0] = better
    return frozen(filled)


def known_part(state: LatestRows, order: Order) -> tuple[Order, npt.NDArray[np.float64]]:
    """The units of ``order`` that have a row, in its order, and the mean of their rows."""
    part: Order = order if state.known.all() else order[state.known[order] > 0]
    return part, add_rows(state.rows, NO_VECTOR) / max(len(part), 1)  # unknown rows are zero


def _single(block: Rows, name: str) -> Rows:
    """Refuse what float32 cannot hold."""
    if block.dtype != np.float32:
        good = np.abs(block).max(axis=1, initial=0.0) <= LARGEST
        if not good.all():
            raise ValueError(not_finite(int(np.argmin(good)), name))
        return block.astype(np.float32)
    return block


@jit
def _write(rows, known, order, steps, block, newest):  # type: ignore[no-untyped-def]
    for i in range(len(steps)):
        unit = order[steps[i]]
        if newest < 1.0 and known[unit]:
            for k in range(block.shape[1]):
                rows[unit, k] += newest * (block[i, k] - rows[unit, k])
        else:
            for k in range(block.shape[1]):
                rows[unit, k] = block[i, k]
        known[unit] = 1
