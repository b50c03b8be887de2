"""Independent permutations: every epoch's order is drawn anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wellorder._arguments import seed_of, whole_number
from wellorder._order import Needs, Order, frozen, own_state, rng, shuffled, units_of
from wellorder.policies._plan import Plan, pass_by


@dataclass(frozen=True)
class RandomReshuffling:
    """A uniformly random order, drawn independently for each epoch.

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

    Its orders are not permutations.

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


@dataclass(frozen=True)
class RandomCohorts:
    """Each round draws ``cohort`` units anew, without regard to the rounds before: Flower's default.

    The baseline of federated learning: a round has no client twice, but an epoch (as many visits as there are
    clients) may have one twice and another never. Its orders are not permutations.

    Parameters
    ----------
    cohort
        S, the clients of a round. It must be that of the rounds in which the order is used.

    >>> RandomCohorts(cohort=2).init(6, seed=1).order
    array([1, 2, 4, 0, 4, 2], dtype=int32)
    """

    cohort: int = 10

    needs: ClassVar[Needs] = Needs.NOTHING
    permutes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "cohort", whole_number("cohort", self.cohort, least=1))

    def init(self, n: int, *, seed: int = 0) -> Plan:
        return Plan(seed_of(seed), 0, self._order(n, seed, 0))

    observe = pass_by

    def advance(self, state: Plan) -> Plan:
        epoch = own_state(state, Plan).epoch + 1
        return Plan(state.seed, epoch, self._order(len(state.order), state.seed, epoch))

    def sampler(self, state: Plan) -> Callable[[Order, int], Order]:
        """The draws of an epoch's rounds, in turn: from those who can be reached, at most ``most``.

        Where all can be reached in every round, they are the epoch's order.
        """
        draw = rng(state.seed, state.epoch, "cohorts")

        def cohort(reachable: Order, most: int) -> Order:
            count = min(self.cohort, most, len(reachable))
            chosen: Order = draw.choice(reachable, count, replace=False)
            return chosen

        return cohort

    def _order(self, n: int, seed: int, epoch: int) -> Order:
        units = units_of(n, seed)
        draw = self.sampler(Plan(seed, epoch, units))
        rounds = [draw(units, n - at) for at in range(0, n, self.cohort)]
        return frozen(np.concatenate(rounds))


def _draws(n: int, seed: int, epoch: int) -> Order:
    dtype = units_of(n, seed).dtype
    drawn: Order = frozen(rng(seed, epoch, "draws").integers(0, n, n, dtype=dtype.type))
    return drawn
