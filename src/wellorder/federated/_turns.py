"""Turns: an epoch's order, cut into rounds of those who can be reached."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wellorder._order import Order
from wellorder.federated._availability import Always, Availability


class Turns:
    """One epoch's plan: whoever missed the last epoch first, then the policy's order.

    A round takes the first ``cohort`` clients of the plan that can be reached; who cannot be reached keeps
    the place and is asked again in the next round. The epoch ends when nobody who is left can be reached;
    those are `missed`. Nobody is visited twice in an epoch, and nobody is lost.
    """

    def __init__(self, order: Order, late: Order, cohort: int, availability: Availability, seed: int) -> None:
        if len(late):
            order = np.concatenate([late, order[~np.isin(order, late)]]).astype(order.dtype)
        self.plan = order
        self.cohort, self.availability, self.seed = cohort, availability, seed
        self._waiting: Order = order[:0]
        self._at = 0
        self._visited: list[npt.NDArray[np.integer]] = []

    def take(self, turn: int) -> Order:
        """Choose the clients of round ``turn``; empty when nobody left can be reached in it."""
        if isinstance(self.availability, Always):
            chosen = self.plan[self._at : self._at + self.cohort]
            self._at += len(chosen)
        else:
            chosen = self._reach(turn)
        if len(chosen):
            self._visited.append(chosen)
        return chosen

    def _reach(self, turn: int) -> Order:
        found, left, wanted = [], [], self.cohort
        batch = self._waiting
        while True:
            up = np.flatnonzero(self.availability.reachable(batch, turn, self.seed))[:wanted]
            found.append(batch[up])
            left.append(np.delete(batch, up))
            wanted -= len(up)
            if not wanted or self._at == len(self.plan):
                break
            batch = self.plan[self._at : self._at + max(4 * wanted, 64)]
            self._at += len(batch)
        self._waiting = np.concatenate(left)
        return np.concatenate(found)

    @property
    def missed(self) -> Order:
        """Those who were not visited (yet), in the order of the plan."""
        return np.concatenate([self._waiting, self.plan[self._at :]])

    @property
    def visited(self) -> Order:
        """Those who were visited, in order."""
        return np.concatenate(self._visited) if self._visited else self.plan[:0]

    @property
    def effective(self) -> Order:
        """The order that this epoch really follows: the visits, then whoever is left."""
        return np.concatenate([self.visited, self.missed])
