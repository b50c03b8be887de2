"""Local ordering: each client's own mini-batches, in the order of a policy of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._order import Needs, Order, Policy, frozen, load_state_dict, rng, state_dict
from wellorder.federated._batches import Shape
from wellorder.federated._counter import bits, key_of

Ints = npt.NDArray[np.int64]


class Inner:
    """One policy state for each client that was visited; a visit is one epoch of the client's own policy.

    A client's mini-batches are cut once, at random. A visit takes its K steps along the policy's order, from
    the start again if there are fewer mini-batches than steps; mini-batches that a visit did not come to are
    first in the next one. The policy sees the gradient of each mini-batch's first visit.
    """

    def __init__(self, policy: Policy[Any], sizes: Ints, shape: Shape, seed: int) -> None:
        self.policy, self.sizes, self.shape, self.seed = policy, sizes, shape, seed
        self.seeds = rng(seed, 0, "clients").integers(2**62, size=len(sizes))
        self.states: dict[int, Any] = {}

    @property
    def watches(self) -> bool:
        """Whether the policy wants to see gradients."""
        return self.policy.needs is Needs.SIGNALS

    def places(self, client: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The client's examples at each step of its next visit: (K, B) places and a mask."""
        size, batch = int(self.sizes[client]), self.shape.batch
        cut = np.argsort(bits(key_of(int(self.seeds[client]), 0, "cut"), np.arange(size)), kind="stable")
        order = self._order(client)
        turn = order[np.arange(self.shape.steps) % len(order)]
        place = turn[:, None] * batch + np.arange(batch)
        real = place < size
        return cut[np.where(real, place, 0)], real

    def _order(self, client: int) -> Order:
        if client not in self.states:
            count = -(-int(self.sizes[client]) // self.shape.batch)
            self.states[client] = self.policy.init(count, seed=int(self.seeds[client]))
        order: Order = self.states[client].order
        return order

    def see(self, client: int, step: int, gradient: Any) -> None:
        """Show the client's policy the gradient of one step of its visit."""
        state = self.states[client]
        if step < len(state.order):
            self.states[client] = self.policy.observe(state, state.order[step : step + 1], gradient[None])

    def leave(self, client: int) -> None:
        """Close the visit; what it did not come to goes first next time."""
        before = self.states[client].order
        state = self.policy.advance(self.states[client])
        unseen = before[self.shape.steps :]
        if len(unseen):
            order = np.concatenate([unseen, state.order[~np.isin(state.order, unseen)]])
            state = replace(state, order=frozen(order.astype(before.dtype)))
        self.states[client] = state

    def state_dict(self) -> dict[str, Any]:
        """All visited clients' states, for a checkpoint."""
        return {f"{client}": state_dict(self.policy, state) for client, state in self.states.items()}

    def load_state_dict(self, mapping: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.states = {int(client): load_state_dict(self.policy, own) for client, own in mapping.items()}
