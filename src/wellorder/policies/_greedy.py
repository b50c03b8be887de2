"""Greedy ordering: always the unit that keeps the running sum shortest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import whole_number
from wellorder._compiled import jit
from wellorder._order import Keeps, Needs, frozen, own_state, shuffled
from wellorder.policies._rows import Kept, keep, opened


@dataclass(frozen=True)
class Greedy:
    """Visit next the unit whose last signal keeps the centred running sum shortest (Lu et al., 2021).

    A baseline for small n: an epoch's end costs O(n²·d) time and n·d·8 bytes, and there is no guarantee
    better than that of an arbitrary order. More than ``max_units`` units are refused.
    """

    max_units: int = 20_000

    needs: ClassVar[Needs] = Needs.SIGNALS
    keeps: ClassVar[Keeps] = Keeps.ROWS

    def init(self, n: int, *, seed: int = 0) -> Kept:
        if whole_number("n", n, least=1) > self.max_units:
            raise ValueError(
                f"n={n}: greedy ordering takes O(n²·d) time an epoch; use PairGraB (O(n·d)), "
                f"order batches instead of examples, or raise max_units={self.max_units}"
            )
        return opened(shuffled(n, seed, 0), seed, 0)

    def observe(self, state: Kept, units: npt.ArrayLike, signals: Any) -> Kept:
        return keep(state, units, signals)

    def advance(self, state: Kept) -> Kept:
        steps = np.flatnonzero(own_state(state, Kept).marks)
        if not len(steps):
            return opened(state.order, state.seed, state.epoch + 1)
        rows = state.rows[steps]
        chosen = state.order[steps[_greedy(rows - rows.mean(axis=0))]]
        unseen = state.order[state.marks == 0]
        half = len(chosen) // 2
        order = np.concatenate([chosen[:half], unseen, chosen[half:]])
        return opened(frozen(order), state.seed, state.epoch + 1)


@jit
def _greedy(rows):  # type: ignore[no-untyped-def]
    n, dim = rows.shape
    chosen, used = np.empty(n, np.int64), np.zeros(n, np.bool_)
    along, squares = np.zeros(n), np.zeros(n)
    for i in range(n):
        for k in range(dim):  # a loop, since numba's @ needs SciPy, which the core does without
            squares[i] += rows[i, k] * rows[i, k]
    for step in range(n):
        best, least = -1, np.inf
        for i in range(n):
            if not used[i] and 2.0 * along[i] + squares[i] < least:
                best, least = i, 2.0 * along[i] + squares[i]
        used[best] = True
        chosen[step] = best
        for i in range(n):
            for k in range(dim):
                along[i] += rows[i, k] * rows[best, k]
    return chosen
