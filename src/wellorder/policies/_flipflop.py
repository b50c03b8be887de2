"""FlipFlop: a random order, then the same order backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wellorder._arguments import seed_of
from wellorder._order import Needs, frozen, own_state, shuffled
from wellorder.policies._plan import Plan, pass_by


@dataclass(frozen=True)
class FlipFlop:
    """Even epochs draw a random order, odd epochs walk it backwards (Rajput et al., 2022).

    >>> policy = FlipFlop()
    >>> first = policy.init(5)
    >>> first.order, policy.advance(first).order
    (array([2, 1, 3, 0, 4], dtype=int32), array([4, 0, 3, 1, 2], dtype=int32))
    """

    needs: ClassVar[Needs] = Needs.NOTHING

    def init(self, n: int, *, seed: int = 0) -> Plan:
        return Plan(seed_of(seed), 0, shuffled(n, seed, 0))

    observe = pass_by

    def advance(self, state: Plan) -> Plan:
        epoch = own_state(state, Plan).epoch + 1
        if epoch % 2:
            return Plan(state.seed, epoch, frozen(state.order[::-1].copy()))
        return Plan(state.seed, epoch, shuffled(len(state.order), state.seed, epoch))
