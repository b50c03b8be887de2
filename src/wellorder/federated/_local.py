"""What a client does with its local steps: full gradients, or its own examples in an order of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from wellorder._order import Order, Policy, rng
from wellorder.federated._clients import Clients
from wellorder.federated._rounds import Rounds, in_turn, rounds
from wellorder.problems._problem import Matrix, Point, Problem, steps

M = TypeVar("M")
Trained = tuple[M, Matrix, Matrix]


class Local(Protocol[M]):
    """A local solver: a frozen rule; ``M`` is all that it remembers of its clients."""

    def init(self, problem: Problem, seed: int) -> M:
        """Open the memory for all clients of ``problem``; refuses a problem that it cannot serve."""
        ...

    def rounds(self, problem: Problem, memory: M, units: Order, w: Point, plan: Rounds) -> Trained[M]:
        """Train whole rounds from ``w``; returns the memory and what `rounds` does."""
        ...


@dataclass(frozen=True)
class FullGradient:
    """Every local step follows the client's whole gradient, as in the paper's Algorithm 2."""

    def init(self, problem: Problem, seed: int) -> None:  # noqa: ARG002
        return None

    def rounds(self, problem: Problem, memory: None, units: Order, w: Point, plan: Rounds) -> Trained[None]:
        return memory, *rounds(problem, units, w, plan)


@dataclass(frozen=True)
class LocalSGD:
    """Each local step follows one example of the client's own, in the order of a policy of its own.

    This is the paper's third future direction: example ordering inside local updates. Every client keeps its
    policy's state from round to round; a pass over its examples may span several rounds. The problem must be
    made by `clients`. Costs one policy state a client.

    >>> from wellorder import PairGraB, RandomReshuffling
    >>> from wellorder.federated import clients, fedavg
    >>> from wellorder.problems import quadratics
    >>> problem = clients(quadratics(120), 12)
    >>> run = fedavg(problem, PairGraB(), step_size=1e-3, epochs=3, cohort=2, local_steps=10,
    ...              local=LocalSGD(RandomReshuffling()))
    >>> run.orders.shape
    (3, 12)
    """

    policy: Policy[Any]

    def init(self, problem: Problem, seed: int) -> tuple[_Client, ...]:
        own = _served(problem).members
        seeds = rng(seed, 0, "clients").integers(2**62, size=len(own))
        return tuple(_Client(self.policy.init(len(m), seed=int(s))) for m, s in zip(own, seeds, strict=True))

    def rounds(
        self, problem: Problem, memory: tuple[_Client, ...], units: Order, w: Point, plan: Rounds
    ) -> Trained[tuple[_Client, ...]]:
        served, known = _served(problem), list(memory)
        points, signals = [], []
        for at in range(0, len(units), plan.cohort):
            ends = []
            for client in units[at : at + plan.cohort]:
                known[client], path, rows = self._train(served, client, known[client], w, plan)
                points.append(path[:-1])
                signals.append(in_turn(rows))
                ends.append(path[-1])
            w = in_turn(np.stack(ends)) / len(ends)
        return tuple(known), np.vstack([*points, w]), np.stack(signals)

    def _train(
        self, problem: Clients, client: int, known: _Client, x: Point, plan: Rounds
    ) -> Trained[_Client]:
        """Take the client's next local steps from ``x``, going on in its pass where it stopped."""
        policy, state, at, own = self.policy, known.state, known.at, problem.members[client]
        points, rows = [x[None]], []
        left = plan.local_steps
        while left:
            if at == 0 and policy.needs.at_start(state.epoch):
                state = policy.observe(state, state.order, problem.examples.gradients(own[state.order], x))
            turn = state.order[at : at + left]
            path, grads = steps(problem.examples, own[turn], x, plan.step_size)
            if policy.needs.at_visits():
                state = policy.observe(state, turn, grads)
            x, at, left = path[-1], at + len(turn), left - len(turn)
            points.append(path[1:])
            rows.append(grads)
            if at == len(own):
                state, at = policy.advance(state), 0
        return _Client(state, at), np.vstack(points), np.vstack(rows)


@dataclass(frozen=True)
class _Client:
    """A client's policy state, and how many examples of its current pass are behind it."""

    state: Any
    at: int = 0


def _served(problem: Problem) -> Clients:
    if isinstance(problem, Clients):
        return problem
    raise ValueError(
        f"problem={problem!r}: local example ordering needs clients with examples; "
        "make them by wellorder.federated._clients(problem, count)"
    )
