"""Arbitrary permutations: the caller supplies the order of every epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, seed_of, shown
from wellorder._order import Needs, Order, frozen, is_permutation, own_state, units_of
from wellorder.policies._plan import Plan, pass_by


@dataclass(frozen=True)
class Arbitrary:
    """Orders of your own: one per epoch, or a function from the epoch to one.

    Orders given as a list are kept as tuples (about 36 bytes a unit); pass a function for large n.

    >>> policy = Arbitrary([[0, 1, 2], [2, 1, 0]])
    >>> policy.advance(policy.init(3)).order
    array([2, 1, 0], dtype=int32)
    >>> Arbitrary(lambda epoch: np.roll(np.arange(3), epoch)).init(3).order
    array([0, 1, 2], dtype=int32)
    """

    orders: Sequence[npt.ArrayLike] | Callable[[int], npt.ArrayLike]

    needs: ClassVar[Needs] = Needs.NOTHING

    def __post_init__(self) -> None:
        if callable(self.orders):
            return
        given: Any = self.orders
        listed = isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.ndim == 2)
        if not listed or any(isinstance(order, str) or not np.ndim(order) for order in given):
            raise ValueError(
                f"orders={shown(self.orders)}: pass a list of permutations, one per epoch "
                "([order] if only one), or a function from the epoch to one"
            )
        if not len(self.orders):
            raise ValueError("orders=[]: pass at least one permutation, or a function from the epoch to one")
        kept = tuple(
            tuple(_checked(order, np.size(order), epoch).tolist()) for epoch, order in enumerate(self.orders)
        )
        object.__setattr__(self, "orders", kept)

    def init(self, n: int, *, seed: int = 0) -> Plan:
        units_of(n, seed)
        return Plan(seed_of(seed), 0, self._order(n, 0))

    observe = pass_by

    def advance(self, state: Plan) -> Plan:
        epoch = own_state(state, Plan).epoch + 1
        return Plan(state.seed, epoch, self._order(len(state.order), epoch))

    def _order(self, n: int, epoch: int) -> Order:
        if callable(self.orders):
            return _checked(self.orders(epoch), n, epoch)
        if epoch >= len(self.orders):
            raise ValueError(
                f"orders: {len(self.orders)} given, but epoch {epoch} was opened; "
                "give one per epoch, or a function from the epoch to an order"
            )
        return _checked(self.orders[epoch], n, epoch)


def _checked(order: Any, n: int, epoch: int) -> Order:
    array = array_of(f"orders[{epoch}]", order, cure=f"pass a permutation of 0..{n - 1}")
    if not is_permutation(array, n):
        raise ValueError(
            f"orders[{epoch}]={shown(array)} is not a permutation of 0..{n - 1}; list each unit exactly once"
        )
    kept: Order = frozen(array.astype(np.int32 if n < 2**31 else np.int64))
    return kept
