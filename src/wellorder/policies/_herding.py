"""Herding: every epoch a fresh shuffle, balanced and reordered several times over the rows known by then."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import whole_number
from wellorder._kernels.balance import balance_stored
from wellorder._kernels.reorder import place
from wellorder._kernels.sign_rules import Deterministic, SignRule, checked_rule
from wellorder._order import Keeps, Needs, Order, Rows, own_state, shuffled
from wellorder.policies._latest_rows import LatestRows, fill_in, known_part, opened, renew, weighed


@dataclass(frozen=True)
class Herding:
    """A fresh shuffle every epoch, balanced ``passes`` times over the latest rows.

    GraB and PairGraB see each signal once, and halve the order error once an epoch. With rows kept, the same
    pass can be repeated at one epoch's end, about the rows' true mean; and rows that are
    a few epochs old still serve, so signals need not come in every epoch. Without rows the orders are those
    of `RandomReshuffling`; a unit without a row keeps its random place. Rows that are given before the first
    epoch stay beside those that are observed later. Meant for sketches and features: costs n·k·4 bytes for
    rows of k numbers (as much once more, while an order is made of both kinds), and O(passes·n·k) time an
    epoch.

    Parameters
    ----------
    passes
        How often the shuffle is balanced and reordered. Each pass halves the error until its floor.
    rule
        `Deterministic()` or `Walk(c)`.

    >>> import numpy as np
    >>> from wellorder import RandomReshuffling, order_error
    >>> rows = np.random.default_rng(0).normal(size=(1000, 8))
    >>> state = Herding().init(1000, rows=rows)
    >>> bool(order_error(rows, state.order) < order_error(rows, RandomReshuffling().init(1000).order) / 8)
    True
    """

    passes: int = 8
    rule: SignRule = field(default_factory=Deterministic)

    needs: ClassVar[Needs] = Needs.SIGNALS
    keeps: ClassVar[Keeps] = Keeps.ROWS
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_rule(self.rule)
        passes = whole_number("passes", self.passes, least=1, cure="pass how often a shuffle is balanced")
        object.__setattr__(self, "passes", passes)

    def init(self, n: int, *, seed: int = 0, rows: npt.ArrayLike | None = None) -> LatestRows:
        return self.open(opened(whole_number("n", n, least=1), seed, rows), 0)

    def observe(self, state: LatestRows, units: npt.ArrayLike, signals: Any) -> LatestRows:
        return renew(state, units, signals)

    def advance(self, state: LatestRows) -> LatestRows:
        return self.open(state, own_state(state, LatestRows).epoch + 1)

    def open(self, state: LatestRows, epoch: int) -> LatestRows:
        """Open any epoch with the rows known now; leaves ``state`` valid."""
        order = shuffled(len(own_state(state, LatestRows).known), state.seed, epoch)
        part, mean = known_part(state, order)
        rows = state.rows
        if 0 < state.given < len(mean):  # rows of one kind stay as a walk's c takes them
            rows, mean = weighed(state, mean)
        part, clipped = herded(rows, part, mean, self.rule, self.passes, (state.seed, epoch))
        filled = fill_in(order, state.known, part)
        return replace(state, epoch=epoch, order=filled, seen=0, observed=0, clipped=state.clipped + clipped)


def herded(
    rows: Rows,
    part: Order,
    mean: npt.NDArray[np.float64],
    rule: SignRule,
    passes: int,
    seed_and_epoch: tuple[int, int],
) -> tuple[Order, int]:
    """Balance and reorder ``part`` over its rows several times; and how many products were clipped."""
    clipped = 0
    for done in range(passes if len(part) else 0):
        thresholds = rule.thresholds(*seed_and_epoch, done * len(part), len(part))
        signs, more = balance_stored(rows, part, mean, thresholds, rule.limit)
        part, clipped = place(part, signs), clipped + more
    return part, clipped
