"""Herding: keep the epoch's rows, and balance and reorder them many times at its end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import seed_of, whole_number
from wellorder._compiled import jit
from wellorder._kernels.balance import balance_stored
from wellorder._kernels.reorder import place
from wellorder._kernels.sign_rules import Deterministic, SignRule, checked_rule
from wellorder._kernels.signals import dense, not_finite, other_dimension
from wellorder._order import Keeps, Needs, Order, Signs, frozen, shuffled, visit

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class HerdingState:
    """The rows of the units observed in this epoch (marked 1), by unit, in float32."""

    seed: int
    epoch: int
    order: Order
    marks: Signs
    seen: int = 0
    rows: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    clipped: int = 0


@dataclass(frozen=True)
class Herding:
    r"""Balancing of the epoch's stored signals, ``passes`` times over (Algorithm ``alg:BasicBR``, repeated).

    GraB and PairGraB see each signal once, and halve the order error once an epoch. With the signals kept,
    the same pass can be repeated until its floor is reached in one epoch; and the mean is known, so that
    no stale one is needed. Meant for sketches: costs n·k·4 bytes for rows of k numbers, and O(passes·n·k)
    time at the epoch's end. Units that were not observed keep the middle.

    Parameters
    ----------
    passes
        How often the epoch's end balances and reorders. Each pass halves the error until its floor, which six
        reach for up to some 250,000 units.
    rule
        `Deterministic()` or `Walk(c)`.

    >>> import numpy as np
    >>> from wellorder import order_error
    >>> rows = np.random.default_rng(0).normal(size=(1000, 8))
    >>> policy = Herding(passes=10)
    >>> state = policy.init(1000)
    >>> before = order_error(rows, state.order)
    >>> state = policy.advance(policy.observe(state, state.order, rows[state.order]))
    >>> bool(order_error(rows, state.order) < before / 8)
    True
    """

    passes: int = 6
    rule: SignRule = field(default_factory=Deterministic)

    needs: ClassVar[Needs] = Needs.SIGNALS
    keeps: ClassVar[Keeps] = Keeps.ROWS

    def __post_init__(self) -> None:
        checked_rule(self.rule)
        object.__setattr__(
            self,
            "passes",
            whole_number("passes", self.passes, least=1, cure="how often the epoch's end balances"),
        )

    def init(self, n: int, *, seed: int = 0) -> HerdingState:
        return HerdingState(seed_of(seed), 0, shuffled(n, seed, 0), np.zeros(n, np.int8))

    def observe(self, state: HerdingState, units: npt.ArrayLike, signals: Any) -> HerdingState:
        steps = visit(state.order, state.seen, units)
        block = dense(signals, len(steps))
        if block.dtype != np.float32:
            good = np.abs(block).max(axis=1, initial=0.0) <= LARGEST
            if not good.all():
                raise ValueError(not_finite(int(np.argmin(good))))
        if not len(steps):
            return state
        rows = state.rows if state.rows.size else np.zeros((len(state.order), block.shape[1]), np.float32)
        if rows.shape[1] != block.shape[1]:
            raise ValueError(other_dimension(block.shape[1], rows.shape[1]))
        _keep(rows, state.marks, state.order, steps, block)
        return replace(state, seen=int(steps[-1]) + 1, rows=rows)

    def advance(self, state: HerdingState) -> HerdingState:
        order, clipped = state.order, state.clipped
        observed = int(state.marks.sum())
        mean = state.rows.sum(axis=0, dtype=np.float64) / max(observed, 1)
        for done in range(self.passes if observed else 0):
            signs, more = _signs(self.rule, state, order, mean, done * observed)
            order, clipped = place(order, signs), clipped + more
        state.marks.fill(0)
        return HerdingState(state.seed, state.epoch + 1, frozen(order), state.marks, clipped=clipped)


@jit
def _keep(rows, marks, order, steps, block):  # type: ignore[no-untyped-def]
    for i in range(len(steps)):
        unit = order[steps[i]]
        marks[unit] = 1
        for k in range(block.shape[1]):
            rows[unit, k] = block[i, k]


def _signs(
    rule: SignRule, state: HerdingState, order: Order, mean: npt.NDArray[np.float64], start: int
) -> tuple[Signs, int]:
    """Signs by step of one pass along ``order``: those of the observed, 0 for the others; and the clips."""
    steps = np.flatnonzero(state.marks[order])
    signs = np.zeros(len(order), np.int8)
    thresholds = rule.thresholds(state.seed, state.epoch, start, len(steps))
    signs[steps], clipped = balance_stored(state.rows, order[steps], mean, thresholds, rule.limit)
    return signs, clipped
