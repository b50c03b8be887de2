"""What a round's clients do on a problem: full gradients, or their own examples in an order of their own.

Rounds are trained many at a time. Each function returns the points at which gradients were taken, in visiting
order, then the server's new point, (b·K+1, d), and for each client the sum of its local gradients, (b, d).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, shown
from wellorder._compiled import fast, jit
from wellorder._order import Order, Policy, frozen, is_permutation, policy_of, rng
from wellorder.problems import Logistic, Quadratics
from wellorder.problems._problem import Matrix, Point, Problem, problem_of, start_of, steps

M = TypeVar("M")
Trained = tuple[M, Matrix, Matrix]


@dataclass(frozen=True)
class Rounds:
    """How rounds go: γ, S clients each, K local steps a client."""

    step_size: float
    cohort: int
    local_steps: int


def rounds(problem: Problem, units: Order, w: Point, plan: Rounds) -> tuple[Matrix, Matrix]:
    """Train ``units``, a cohort at a time, from the server's point ``w``.

    A cohort of one is nothing but plain steps, K for each client, so it shares their arithmetic bit for bit.
    """
    if plan.cohort == 1:
        points, rows = steps(problem, np.repeat(units, plan.local_steps), w, plan.step_size)
        return points, in_turn(rows.reshape(len(units), plan.local_steps, len(w)).swapaxes(0, 1))
    if not isinstance(problem, Quadratics | Logistic):
        return loop_rounds(problem, units, w, plan)
    points, signals = np.empty((len(units) * plan.local_steps + 1, len(w))), np.zeros((len(units), len(w)))
    settings = units, w, plan.step_size, plan.cohort, plan.local_steps, points, signals
    if isinstance(problem, Quadratics):
        _quadratics(problem.a, problem.b, *settings)
    else:
        _logistic(problem.X, problem.y, problem.l2, *settings)
    return points, signals


def loop_rounds(problem: Problem, units: Order, w: Point, plan: Rounds) -> tuple[Matrix, Matrix]:
    """`rounds` for any problem, one client after the other."""
    K = plan.local_steps  # noqa: N806
    points, signals = np.empty((len(units) * K + 1, len(w))), np.empty((len(units), len(w)))
    for at in range(0, len(units), plan.cohort):
        ends = []
        for t in range(at, min(at + plan.cohort, len(units))):
            path, rows = steps(problem, np.repeat(units[t : t + 1], K), w, plan.step_size)
            points[t * K : (t + 1) * K] = path[:-1]
            signals[t] = in_turn(rows)
            ends.append(path[-1])
        w = in_turn(np.stack(ends)) / len(ends)
    points[-1] = w
    return points, signals


def in_turn(rows: Matrix) -> Matrix:
    """Add up ``rows`` over their first axis, one after the other (NumPy's own sum may pair them up)."""
    total: Matrix = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total


@dataclass(frozen=True, eq=False)
class Clients:
    """f_c(x) = mean of f_u(x) over the examples u of client c; all clients have equally many."""

    examples: Problem
    members: Order = field(repr=False)
    """(clients, examples of each)."""

    @property
    def n(self) -> int:
        return len(self.members)

    @property
    def dim(self) -> int:
        return self.examples.dim

    @property
    def minimiser(self) -> Point | None:
        return self.examples.minimiser

    @property
    def start(self) -> Point:
        return start_of(self.examples)

    def gradients(self, units: Order, x: Point) -> Matrix:
        own = self.members[units]
        rows = self.examples.gradients(own.ravel(), x)
        mean: Matrix = rows.reshape(*own.shape, self.dim).mean(axis=1)
        return mean

    def value(self, x: Point) -> float:
        return self.examples.value(x)


def clients(problem: Problem, groups: int | Sequence[npt.ArrayLike]) -> Clients:
    """Hand the units of ``problem`` to clients: so many runs of neighbours, or the groups given.

    Neighbours stay together, so data sorted by label gives clients of about one label each. Groups must be
    equally large and hold every unit once, so that the clients' mean is the objective of ``problem``.

    >>> from wellorder.federated import clients
    >>> from wellorder.problems import quadratics
    >>> clients(quadratics(6), 3).members
    array([[0, 1],
           [2, 3],
           [4, 5]])
    """
    problem_of(problem)
    if isinstance(groups, int | np.integer) and not isinstance(groups, bool):
        if groups < 1 or problem.n % groups:
            raise ValueError(
                f"groups={shown(groups)}: {problem.n} units do not fall into so many equal groups; "
                "pass a divisor"
            )
        return Clients(problem, frozen(np.arange(problem.n).reshape(groups, -1)))
    cure = "pass a number of groups, or a list of groups of one size, 1-D lists of units"
    members = array_of("groups", groups, cure=cure, kinds="iu")
    if members.ndim != 2 or not is_permutation(members.ravel(), problem.n):
        raise ValueError(
            f"groups must hold each of the problem's units 0..{problem.n - 1} once; pass lists of units"
        )
    return Clients(problem, frozen(members))


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
    >>> from wellorder.federated import LocalSGD, clients, fedavg
    >>> from wellorder.problems import quadratics
    >>> problem = clients(quadratics(120), 12)
    >>> run = fedavg(problem, PairGraB(), step_size=1e-3, epochs=3, cohort=2, local_steps=10,
    ...              local=LocalSGD(RandomReshuffling()))
    >>> run.orders.shape
    (3, 12)
    """

    policy: Policy[Any]

    def __post_init__(self) -> None:
        policy_of(self.policy)

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


def local_of(local: Any) -> Any:
    """Take a local solver; refuses anything else, the class of one included."""
    if isinstance(local, type) or not all(
        callable(getattr(local, verb, None)) for verb in ("init", "rounds")
    ):
        raise ValueError(
            f"local={shown(local)}: pass FullGradient(), LocalSGD(policy) or a solver of your own"
        )
    return local


def _served(problem: Problem) -> Clients:
    if isinstance(problem, Clients):
        return problem
    raise ValueError(
        f"problem={shown(problem)}: local example ordering needs clients with examples; "
        "make them by wellorder.federated.clients(problem, count)"
    )


@jit
def _quadratics(a, b, units, w, step_size, cohort, local_steps, points, signals):  # type: ignore[no-untyped-def]
    dim = len(w)
    server, total = w.copy(), np.zeros(dim)
    for t in range(len(units)):
        unit = units[t]
        for k in range(dim):
            x = server[k]
            for step in range(local_steps):
                points[t * local_steps + step, k] = x
                g = 2.0 * a[unit, k] * x + b[unit, k]
                signals[t, k] += g
                x = x - step_size * g
            total[k] += x
        _close_round(t, len(units), cohort, server, total)
    points[-1] = server


@fast
def _logistic(X, y, l2, units, w, step_size, cohort, local_steps, points, signals):  # type: ignore[no-untyped-def]  # noqa: N803
    dim = len(w)
    server, total, x = w.copy(), np.zeros(dim), np.empty(dim)
    for t in range(len(units)):
        unit = units[t]
        x[:] = server
        for step in range(local_steps):
            points[t * local_steps + step] = x
            margin = 0.0
            for k in range(dim):
                margin += X[unit, k] * x[k]
            weight = -y[unit] * 0.5 * (1.0 + np.tanh(-0.5 * y[unit] * margin))
            for k in range(dim):
                g = weight * X[unit, k] + l2 * x[k]
                signals[t, k] += g
                x[k] -= step_size * g
        total += x
        _close_round(t, len(units), cohort, server, total)
    points[-1] = server


@jit
def _close_round(t, count, cohort, server, total):  # type: ignore[no-untyped-def]
    """Move the server to the mean after the round's last client; a short last round divides by its size."""
    if (t + 1) % cohort and t + 1 < count:
        return
    size = t % cohort + 1
    for k in range(len(server)):
        server[k] = total[k] / size
        total[k] = 0.0
