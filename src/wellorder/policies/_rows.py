"""The state of a policy that keeps whole signals: one row per step. Costs n·d·8 bytes: for small problems."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import seed_of
from wellorder._kernels.balance import NO_VECTOR, add_rows, balance_centred
from wellorder._kernels.reorder import BLOCK
from wellorder._kernels.sign_rules import SignRule
from wellorder._kernels.signals import dense, other_dimension
from wellorder._order import Order, Remembered, Signs, own_state, visit


@dataclass(frozen=True)
class Kept(Remembered):
    """An order, and the signal (and a mark) of every step that was observed."""

    seed: int
    epoch: int
    order: Order
    seen: int = 0
    marks: Signs = field(default_factory=lambda: np.zeros(0, np.int8))
    rows: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    clipped: int = 0


def opened(order: Order, seed: int, epoch: int, clipped: int = 0) -> Kept:
    """Open an epoch in which nothing was observed yet."""
    return Kept(seed_of(seed), epoch, order, marks=np.zeros(len(order), np.int8), clipped=clipped)


def keep(state: Kept, units: npt.ArrayLike, signals: Any) -> Kept:
    """Store the rows of ``units`` at the steps that visit them."""
    own_state(state, Kept)
    steps = visit(state.order, state.seen, units)
    block = dense(signals, len(steps))
    if not len(steps):
        return state
    rows = state.rows if state.rows.size else np.zeros((len(state.order), block.shape[1]))
    if rows.shape[1] != block.shape[1]:
        raise ValueError(other_dimension(block.shape[1], rows.shape[1]))
    rows[steps] = block
    state.marks[steps] = 1
    return replace(state, seen=int(steps[-1]) + 1, rows=rows)


def signs_of(state: Kept, steps: npt.NDArray[np.intp], rule: SignRule, start: int) -> tuple[Signs, int]:
    """Balance the rows of ``steps`` about their own mean; signs by step (0 elsewhere), and the clips."""
    signs = np.zeros(len(state.order), np.int8)
    total, clipped, center = NO_VECTOR, 0, NO_VECTOR
    for at in range(0, len(steps), BLOCK):
        center = add_rows(state.rows[steps[at : at + BLOCK]], center)
    center = center / max(len(steps), 1)
    for at in range(0, len(steps), BLOCK):
        part = steps[at : at + BLOCK]
        thresholds = rule.thresholds(state.seed, state.epoch, start + at, len(part))
        signs[part], total, more = balance_centred(state.rows[part], center, total, thresholds, rule.limit)
        clipped += more
    return signs, clipped
