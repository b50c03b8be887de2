"""Local ordering: each client's own mini-batches, in the order of a policy of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._clients.queue import Queue
from wellorder._kernels.random_bits import bits, key_of
from wellorder._order import Policy, rng
from wellorder.federated._minibatches import Shape

Ints = npt.NDArray[np.int64]


class LocalOrdering:
    """A queue of mini-batches for each client visited; a visit is one epoch of the client's own policy.

    A client's mini-batches are cut once, at random. A visit takes its K steps along the queue, from the start
    again if there are fewer mini-batches than steps; mini-batches that a visit did not come to are first in
    the next one. The policy sees the gradient of each mini-batch's first visit.
    """

    def __init__(self, policy: Policy[Any], sizes: Ints, shape: Shape, seed: int) -> None:
        self.policy, self.sizes, self.shape = policy, sizes, shape
        self.seeds = rng(seed, 0, "clients").integers(2**62, size=len(sizes))
        self.queues: dict[int, Queue] = {}

    @property
    def watches(self) -> bool:
        """Whether the policy wants to see gradients."""
        return self.policy.needs.at_visits()

    def places(self, client: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The client's examples at each step of its next visit: (K, B) places and a mask."""
        size, batch, seed = int(self.sizes[client]), self.shape.batch, int(self.seeds[client])
        cut = np.argsort(bits(key_of(seed, 0, "cut"), np.arange(size)), kind="stable")
        if client not in self.queues:
            self.queues[client] = Queue(self.policy, seed)
            self.queues[client].open(-(-size // batch))
        line = self.queues[client].next(self.shape.steps)
        turn = line[np.arange(self.shape.steps) % len(line)]
        place = turn[:, None] * batch + np.arange(batch)
        real = place < size
        return cut[np.where(real, place, 0)], real

    def see(self, client: int, step: int, gradient: Any) -> None:
        """Show the client's policy the gradient of one step of its visit."""
        queue = self.queues[client]
        line = queue.next(self.shape.steps)
        if step < len(line):
            queue.observe(step, line[step : step + 1], gradient[None])

    def leave(self, client: int) -> None:
        """Close the visit; what it did not come to goes first next time."""
        queue = self.queues[client]
        queue.settle(queue.next(self.shape.steps))
        queue.give_up()
        queue.close()

    def saved(self) -> dict[str, Any]:
        """All visited clients' queues, for a checkpoint."""
        return {f"{client}": queue.saved() for client, queue in self.queues.items()}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on where `saved` was."""
        for client, own in saved.items():
            queue = Queue(self.policy, int(self.seeds[int(client)]))
            queue.restore(own)
            self.queues[int(client)] = queue
