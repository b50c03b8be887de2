"""One permutation: the first epoch's order serves all epochs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import seed_of, whole_number
from wellorder._kernels.reorder import place
from wellorder._kernels.sign_rules import Deterministic, SignRule, checked_rule
from wellorder._order import Keeps, Needs, frozen, own_state, shuffled, units_of
from wellorder.policies._plan import Plan, pass_by
from wellorder.policies._rows import Kept, keep, opened, signs_of


@dataclass(frozen=True)
class IncrementalGradient:
    """Units in their own order, every epoch.

    >>> IncrementalGradient().init(4).order
    array([0, 1, 2, 3], dtype=int32)
    """

    needs: ClassVar[Needs] = Needs.NOTHING

    def init(self, n: int, *, seed: int = 0) -> Plan:
        return Plan(seed_of(seed), 0, frozen(units_of(n, seed)))

    observe = pass_by

    def advance(self, state: Plan) -> Plan:
        return replace(own_state(state, Plan), epoch=state.epoch + 1, seen=0)


@dataclass(frozen=True)
class ShuffleOnce:
    """One random order, drawn at the start and used in every epoch.

    >>> ShuffleOnce().init(5).order
    array([2, 1, 3, 0, 4], dtype=int32)
    """

    needs: ClassVar[Needs] = Needs.NOTHING

    def init(self, n: int, *, seed: int = 0) -> Plan:
        return Plan(seed_of(seed), 0, shuffled(n, seed, 0))

    observe = pass_by

    def advance(self, state: Plan) -> Plan:
        return replace(own_state(state, Plan), epoch=state.epoch + 1, seen=0)


@dataclass(frozen=True)
class NicePermutation:
    """One order made with care: the gradients at the first point, balanced and reordered ``passes`` times.

    Each pass about halves the order error until that reaches its floor (Lemma 3).
    Takes n extra gradients once, and n·d·8 bytes until the order is made; the order serves as long as the
    parameters stay near where they were.
    """

    passes: int = 10
    rule: SignRule = field(default_factory=Deterministic)

    needs: ClassVar[Needs] = Needs.FRESH_ONCE
    keeps: ClassVar[Keeps] = Keeps.ROWS

    def __post_init__(self) -> None:
        checked_rule(self.rule)
        object.__setattr__(
            self,
            "passes",
            whole_number("passes", self.passes, least=1, cure="balance at least once, or use ShuffleOnce"),
        )

    def init(self, n: int, *, seed: int = 0) -> Kept:
        return opened(shuffled(n, seed, 0), seed, 0)

    def observe(self, state: Kept, units: npt.ArrayLike, signals: Any) -> Kept:
        if own_state(state, Kept).epoch > 0:
            return replace(
                state, seen=pass_by(self, Plan(0, 0, state.order, state.seen), units, signals).seen
            )
        state = keep(state, units, signals)
        complete = state.seen == len(state.order) and state.rows.size > 0
        return self._planned(state) if complete else state

    def advance(self, state: Kept) -> Kept:
        if own_state(state, Kept).rows.size:
            state = self._planned(state)
        return opened(state.order, state.seed, state.epoch + 1, state.clipped)

    def _planned(self, state: Kept) -> Kept:
        clipped = state.clipped
        for at in range(self.passes):
            steps = np.flatnonzero(state.marks)
            signs, more = signs_of(state, steps, self.rule, at * len(steps))
            moved = place(np.arange(len(signs)), signs)
            state = replace(state, order=state.order[moved], rows=state.rows[moved], marks=state.marks[moved])
            clipped += more
        return replace(opened(frozen(state.order), state.seed, 0, clipped), seen=len(state.order))
