"""PairGraB: balance differences of consecutive gradients, so that no mean is needed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import seed_of, whole_number
from wellorder._kernels.balance import NO_VECTOR, balance_pairs, last_row
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
class PairState(Remembered):
    """Signs by step, the signed sum of the differences, and the signal that waits for its partner."""

    seed: int
    epoch: int
    order: Order
    signs: Signs
    seen: int = 0
    observed: int = 0
    total: Vector = field(default_factory=NO_VECTOR.copy)
    pending: Vector = field(default_factory=NO_VECTOR.copy)
    waiting: int = -1
    clipped: int = 0


@dataclass(frozen=True)
class PairGraB:
    """Gradient balancing in pairs (Cooper et al., 2023); for clients, FL-GraB.

    The difference d of two consecutive signals is signed against the running sum, s ← s + ε·d; the first
    of the pair carries ε, the second −ε, and the epoch's end puts plus units first and minus units last,
    reversed. A unit without a partner keeps the middle.
    Costs O(d) a unit, two vectors of length d, and 5 bytes a unit.

    Parameters
    ----------
    rule
        `Deterministic()` or `Walk(c)`.
    reorders
        How often the epoch's end applies the same step-by-step signs, as in `GraB`; more than 1 spoils it.

    >>> import numpy as np
    >>> policy = PairGraB()
    >>> state = policy.init(4)
    >>> state = policy.observe(state, state.order, np.array([[2.0], [1.0], [-3.0], [-2.0]]))
    >>> state.order, policy.advance(state).order
    (array([2, 1, 3, 0], dtype=int32), array([1, 0, 3, 2], dtype=int32))
    """

    rule: SignRule = field(default_factory=Deterministic)
    reorders: int = 1

    needs: ClassVar[Needs] = Needs.SIGNALS
    keeps: ClassVar[Keeps] = Keeps.PRODUCTS
    balances: ClassVar[str] = "pairs"
    """What is signed, for those who balance a whole epoch elsewhere and tell by `take_balanced`."""

    def __post_init__(self) -> None:
        checked_rule(self.rule)
        times = whole_number(
            "reorders", self.reorders, least=1, cure="pass how often the epoch's end reorders"
        )
        object.__setattr__(self, "reorders", times)

    def init(self, n: int, *, seed: int = 0) -> PairState:
        return _opened(n, seed)

    def observe(self, state: PairState, units: npt.ArrayLike, signals: Any) -> PairState:
        return _observed(self.rule, state, units, signals)

    def take_balanced(self, state: PairState, values: npt.NDArray[np.float64], total: Vector) -> PairState:
        """Take in an epoch's whole pairs that were balanced elsewhere, by the same recursion and thresholds.

        ``values[t]`` is ⟨s, d_t⟩ at the t-th pair, ``total`` the signed sum of the differences.
        """
        signs, clipped = signs_of(self.rule, state.seed, state.epoch, values)
        state.signs[: 2 * len(signs)] = np.column_stack([signs, -signs]).ravel()
        return replace(
            state,
            seen=2 * len(signs),
            observed=2 * len(signs),
            total=total,
            clipped=state.clipped + clipped,
        )

    def advance(self, state: PairState) -> PairState:
        return _advanced(state, self.reorders)


@dataclass(frozen=True)
class PairGraBProto:
    """`pair_br` of every unit's gradient at the epoch's first point.

    Takes n extra gradients an epoch: the prototype that the theory studies. Use `PairGraB` to train.
    """

    rule: SignRule = field(default_factory=Deterministic)

    needs: ClassVar[Needs] = Needs.FRESH
    keeps: ClassVar[Keeps] = Keeps.PRODUCTS

    def __post_init__(self) -> None:
        checked_rule(self.rule)

    def init(self, n: int, *, seed: int = 0) -> PairState:
        return _opened(n, seed)

    def observe(self, state: PairState, units: npt.ArrayLike, signals: Any) -> PairState:
        return _observed(self.rule, state, units, signals)

    def advance(self, state: PairState) -> PairState:
        return _advanced(state)


def _opened(n: int, seed: int) -> PairState:
    return PairState(seed_of(seed), 0, shuffled(n, seed, 0), np.zeros(n, np.int8))


def _observed(rule: SignRule, state: PairState, units: npt.ArrayLike, signals: Any) -> PairState:
    own_state(state, PairState)
    steps = visit(state.order, state.seen, units)
    block = block_of(signals, len(steps))
    if not len(steps):
        return state
    thresholds = rule.thresholds(state.seed, state.epoch, state.observed // 2, (len(steps) + 1) // 2)
    pairs, total, clipped = balance_pairs(block, state.pending, state.total, thresholds, rule.limit)
    partners = steps if state.waiting < 0 else np.concatenate([[state.waiting], steps])
    lone = len(partners) % 2
    pending = last_row(block) if lone else NO_VECTOR
    state.signs[partners[: 2 * len(pairs)]] = np.column_stack([pairs, -pairs]).ravel()
    return replace(
        state,
        seen=int(steps[-1]) + 1,
        observed=state.observed + len(steps),
        total=total,
        pending=pending,
        waiting=int(partners[-1]) if lone else -1,
        clipped=state.clipped + clipped,
    )


def _advanced(state: PairState, reorders: int = 1) -> PairState:
    order = own_state(state, PairState).order
    for _ in range(reorders):
        order = place(order, state.signs)
    state.signs.fill(0)
    return PairState(state.seed, state.epoch + 1, frozen(order), state.signs, clipped=state.clipped)
