"""GraB: balance each gradient about last epoch's mean, and reorder by sign."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import seed_of, whole_number
from wellorder._kernels.balance import NO_VECTOR, add_rows, balance_centred
from wellorder._kernels.reorder import place
from wellorder._kernels.sign_rules import Deterministic, SignRule, checked_rule, signs_of
from wellorder._kernels.signals import block_of
from wellorder._order import (
    Keeps,
    Needs,
    Order,
    Remembered,
    Signs,
    Vector,
    frozen,
    own_state,
    shuffled,
    visit,
)


@dataclass(frozen=True)
class GraBState(Remembered):
    """Signs by step, the signed sum of the centred signals, their plain sum, and last epoch's mean."""

    seed: int
    epoch: int
    order: Order
    signs: Signs
    seen: int = 0
    observed: int = 0
    total: Vector = field(default_factory=NO_VECTOR.copy)
    summed: Vector = field(default_factory=NO_VECTOR.copy)
    stale: Vector = field(default_factory=NO_VECTOR.copy)
    clipped: int = 0


@dataclass(frozen=True)
class GraB:
    """Gradient balancing with a stale mean (Lu et al., 2022).

    Each signal g is centred by last epoch's mean m, signed by the rule against the running sum,
    s ← s + ε·(g − m), and the epoch's end puts plus units first and minus units last,
    reversed. Costs O(d) a unit, three vectors of length d, and 5 bytes a unit.

    Parameters
    ----------
    rule
        `Deterministic()` or `Walk(c)`.
    reorders
        How often the epoch's end applies the same step-by-step signs.

    >>> import numpy as np
    >>> policy = GraB()
    >>> state = policy.init(4)
    >>> state = policy.observe(state, state.order, np.array([[2.0], [1.0], [-3.0], [-2.0]]))
    >>> state.order, policy.advance(state).order
    (array([2, 1, 3, 0], dtype=int32), array([1, 0, 3, 2], dtype=int32))
    """

    rule: SignRule = field(default_factory=Deterministic)
    reorders: int = 1

    needs: ClassVar[Needs] = Needs.SIGNALS
    keeps: ClassVar[Keeps] = Keeps.PRODUCTS
    balances: ClassVar[str] = "centred"
    """What is signed, for those who balance a whole epoch elsewhere and tell by `take_balanced`."""

    def __post_init__(self) -> None:
        checked_rule(self.rule)
        times = whole_number(
            "reorders", self.reorders, least=1, cure="pass how often the epoch's end reorders"
        )
        object.__setattr__(self, "reorders", times)

    def init(self, n: int, *, seed: int = 0) -> GraBState:
        return GraBState(seed_of(seed), 0, shuffled(n, seed, 0), np.zeros(n, np.int8))

    def observe(self, state: GraBState, units: npt.ArrayLike, signals: Any) -> GraBState:
        own_state(state, GraBState)
        steps = visit(state.order, state.seen, units)
        block = block_of(signals, len(steps))
        if not len(steps):
            return state
        thresholds = self.rule.thresholds(state.seed, state.epoch, state.observed, len(steps))
        signs, total, clipped = balance_centred(block, state.stale, state.total, thresholds, self.rule.limit)
        summed = add_rows(block, state.summed)
        state.signs[steps] = signs
        return replace(
            state,
            seen=int(steps[-1]) + 1,
            observed=state.observed + len(steps),
            total=total,
            summed=summed,
            clipped=state.clipped + clipped,
        )

    def take_balanced(
        self, state: GraBState, values: npt.NDArray[np.float64], total: Vector, summed: Vector
    ) -> GraBState:
        """Take in an epoch's beginning that was balanced elsewhere, by the same recursion and thresholds.

        ``values[t]`` is ⟨s, z_t⟩ at step t, ``total`` the signed and ``summed`` the plain sum of the signals.
        """
        signs, clipped = signs_of(self.rule, state.seed, state.epoch, values)
        state.signs[: len(signs)] = signs
        return replace(
            state,
            seen=len(signs),
            observed=len(signs),
            total=total,
            summed=summed,
            clipped=state.clipped + clipped,
        )

    def advance(self, state: GraBState) -> GraBState:
        own_state(state, GraBState)
        order = state.order
        for _ in range(self.reorders):
            order = place(order, state.signs)
        stale = state.summed / state.observed if state.observed else state.stale
        state.signs.fill(0)
        return GraBState(
            state.seed, state.epoch + 1, frozen(order), state.signs, stale=stale, clipped=state.clipped
        )
