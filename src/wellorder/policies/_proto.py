"""GraB's prototype: balance fresh gradients, centred exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._kernels.reorder import place
from wellorder._kernels.sign_rules import Deterministic, SignRule, checked_rule
from wellorder._order import Keeps, Needs, frozen, own_state, shuffled
from wellorder.policies._rows import Kept, keep, opened, signs_of


@dataclass(frozen=True)
class GraBProto:
    """`basic_br` of every unit's gradient at the epoch's first point, about their mean.

    Takes n extra gradients an epoch and n·d·8 bytes: the prototype that the theory studies, not one
    to train with. Use `GraB` or `PairGraB` for that.
    """

    rule: SignRule = field(default_factory=Deterministic)

    needs: ClassVar[Needs] = Needs.FRESH
    keeps: ClassVar[Keeps] = Keeps.ROWS

    def __post_init__(self) -> None:
        checked_rule(self.rule)

    def init(self, n: int, *, seed: int = 0) -> Kept:
        return opened(shuffled(n, seed, 0), seed, 0)

    def observe(self, state: Kept, units: npt.ArrayLike, signals: Any) -> Kept:
        return keep(state, units, signals)

    def advance(self, state: Kept) -> Kept:
        own_state(state, Kept)
        signs, clipped = signs_of(state, np.flatnonzero(state.marks), self.rule, 0)
        return opened(frozen(place(state.order, signs)), state.seed, state.epoch + 1, state.clipped + clipped)
