"""Steering: every epoch a fresh shuffle, from which the next unit is chosen among a few."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import real_number, whole_number
from wellorder._kernels.steer import steered
from wellorder._order import Keeps, Needs, Order, frozen, own_state, shuffled
from wellorder.policies._latest_rows import (
    LatestRows,
    fill_in,
    known_part,
    opened,
    renew,
    weighed,
    weights_of,
)

MOST = 1e9
"""What lengths may count; their products with sums of theirs must be within float32."""


@dataclass(frozen=True)
class Steering:
    """A fresh shuffle every epoch; of a few units of a window, the next is the one that turns the sum back.

    Units enter a window in the order of the shuffle. A step draws ``candidates`` of its members and visits
    the one with the smallest ⟨z, s⟩/‖z‖, where z is its row less the mean of all and s the sum of those
    visited so far. What a row is longer than most stands in z as one more number: else short rows, which are
    seldom chosen near the end of training, would be left for the epoch's, and easy examples with them.

    One pass, where `Herding` takes several, and it needs no second look: `balanced_stream` does the same to
    data that stream by, by directions alone. Rows may be as old as they are; without them the orders are
    those of `RandomReshuffling`, and a unit without a row keeps its random place. Rows that are given before
    the first epoch stay beside those that are observed later. Costs n·k·4 bytes for rows of k numbers, given
    and observed ones together (as much once more while an order is made, if some units have only given ones),
    and O(candidates·n·k) time an epoch.

    Parameters
    ----------
    window
        How many units wait to be chosen from.
    candidates
        How many of them are looked at, at each step.
    lengths
        How much a row's length, less the mean of all lengths, counts as a number of the row; 0: directions
        alone decide.

    >>> import numpy as np
    >>> from wellorder import RandomReshuffling, order_error
    >>> rows = np.random.default_rng(0).normal(size=(1000, 8))
    >>> state = Steering().init(1000, rows=rows)
    >>> bool(order_error(rows, state.order) < order_error(rows, RandomReshuffling().init(1000).order) / 8)
    True
    """

    window: int = 1024
    candidates: int = 16
    lengths: float = 0.5

    needs: ClassVar[Needs] = Needs.SIGNALS
    keeps: ClassVar[Keeps] = Keeps.ROWS
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, cure in (
            ("window", "pass how many units wait"),
            ("candidates", "pass how many are looked at"),
        ):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=1, cure=cure))
        if real_number("lengths", self.lengths, least=0) > MOST:
            raise ValueError(
                f"lengths={self.lengths!r}: pass at most {MOST:g}, from where on they decide alone"
            )
        object.__setattr__(self, "lengths", float(self.lengths))

    def init(self, n: int, *, seed: int = 0, rows: npt.ArrayLike | None = None) -> LatestRows:
        return self.open(opened(whole_number("n", n, least=1), seed, rows), 0)

    def observe(self, state: LatestRows, units: npt.ArrayLike, signals: Any) -> LatestRows:
        return renew(state, units, signals)

    def advance(self, state: LatestRows) -> LatestRows:
        return self.open(state, own_state(state, LatestRows).epoch + 1)

    def open(self, state: LatestRows, epoch: int) -> LatestRows:
        """Open any epoch with the rows known now; leaves ``state`` valid."""
        opening = self._opening(state, epoch)
        while True:
            try:
                next(opening)
            except StopIteration as end:
                opened: LatestRows = end.value
                return opened

    def advancing(self, state: LatestRows) -> Generator[Order, None, LatestRows]:
        """As `advance`, which it returns; gives the next order part by part, as it is made."""
        return self._opening(state, state.epoch + 1)

    def _opening(self, state: LatestRows, epoch: int) -> Generator[Order, None, LatestRows]:
        order = shuffled(len(own_state(state, LatestRows).known), state.seed, epoch)
        part, mean = known_part(state, order)
        if len(part):
            rows, weights = state.rows, None
            if state.known.min() < 0:  # the mean stands for what was not observed only in a copy
                rows, mean = weighed(state, mean)
            else:
                weights = weights_of(state, mean)
            rule = self.window, self.candidates, self.lengths
            parts = steered(rows, part, mean, weights, rule, (state.seed, epoch))
            if len(part) == len(order):
                made = []
                for each in parts:
                    made.append(each)
                    yield each
                return replace(state, epoch=epoch, order=frozen(np.concatenate(made)), seen=0, observed=0)
            order = fill_in(order, state.known, np.concatenate(list(parts)))
        yield order
        return replace(state, epoch=epoch, order=frozen(order), seen=0, observed=0)
