"""Independent permutations: every epoch's order is drawn anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wellorder._arguments import seed_of
from wellorder._order import Needs, Order, frozen, own_state, rng, shuffled, units_of
from wellorder.policies._plan import Plan, pass_by


@dataclass(frozen=True)
class RandomReshuffling:
    """A uniformly random order, drawn independently for each epoch (Example ``ex:random reshuffling``).

    What ``shuffle=True`` does. Advance costs O(n) time and 4 bytes a unit.

    >>> policy = RandomReshuffling()
    >>> policy.advance(policy.init(5, seed=1)).order
    array([0, 3, 1, 2, 4], dtype=int32)
    """

    needs: ClassVar[Needs] = Needs.NOTHING

    def init(self, n: int, *, seed: int = 0) -> Plan:
        return Plan(seed_of(seed), 0, shuffled(n, seed, 0))

    observe = pass_by

    def advance(self, state: Plan) -> Plan:
        epoch = own_state(state, Plan).epoch + 1
        return Plan(state.seed, epoch, shuffled(len(state.order), state.seed, epoch))


@dataclass(frozen=True)
class WithReplacement:
    """Each step draws a unit uniformly, with replacement: classic SGD, as a baseline.

    The only policy whose orders are not permutations.

    >>> WithReplacement().init(5, seed=1).order
    array([3, 4, 1, 4, 2], dtype=int32)
    """

    needs: ClassVar[Needs] = Needs.NOTHING
    permutes: ClassVar[bool] = False

    def init(self, n: int, *, seed: int = 0) -> Plan:
        return Plan(seed_of(seed), 0, _draws(n, seed, 0))

    observe = pass_by

    def advance(self, state: Plan) -> Plan:
        epoch = own_state(state, Plan).epoch + 1
        return Plan(state.seed, epoch, _draws(len(state.order), state.seed, epoch))


def _draws(n: int, seed: int, epoch: int) -> Order:
    dtype = units_of(n, seed).dtype
    drawn: Order = frozen(rng(seed, epoch, "draws").integers(0, n, n, dtype=dtype.type))
    return drawn
