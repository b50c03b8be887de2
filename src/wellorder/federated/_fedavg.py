"""Algorithm 2: regularised-participation federated learning on a problem whose units are clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import real_number, seed_of, whole_number
from wellorder._clients.availability import Always, Availability, availability_of
from wellorder._clients.queue import Queue, check_draws, plan_epoch
from wellorder._measure import at_once
from wellorder._order import Needs, Order, Policy, policy_of
from wellorder._training import Close, Moment, Recorder, Run, Visit, drawn_back, moments
from wellorder.federated._local_steps import FullGradient, Local, Rounds, local_of
from wellorder.problems._problem import Matrix, Point, Problem, problem_of, start_of


def fedavg(
    problem: Problem,
    policy: Policy[Any],
    *,
    step_size: float,
    epochs: int,
    cohort: int,
    local_steps: int,
    server_step: float = 1.0,
    seed: int = 0,
    start: npt.ArrayLike | None = None,
    p: float = 2,
    local: Local[Any] | None = None,
    proximal: float = 0.0,
    availability: Availability | None = None,
) -> Run:
    r"""Regularised-participation FL (Algorithm 2): every client trains once an epoch, S a round.

    A round's clients start at the server's w and take K local steps
    :math:`x_{k+1} = x_k - \gamma\nabla f_n(x_k)`; the server moves to the mean of where they end,
    :math:`w \leftarrow w - \frac1S\sum_n p_n` with pseudo-gradients :math:`p_n = x_0^n - x_K^n`; the epoch
    ends at :math:`x_{q+1} = x_q - \eta(x_q - w)`.

    The policy is shown :math:`p_n/\gamma = \sum_k\nabla f_n(x_k^n)`, in cohort order: signs and orders are
    those of :math:`p_n`, no digits are lost to cancellation, and a `Walk`'s c means what it means in SGD.
    Policies that ask for fresh signals see the gradients at x_q, as the prototype of FL-GraB does. `PairGraB`
    gives FL-GraB, `RandomReshuffling` FL-RR, `Arbitrary` FL-AP, and any one-permutation policy FL-OP.

    Parameters
    ----------
    problem, policy
        What to minimise (one unit a client), and the order in which clients take part.
    step_size, epochs, seed
        γ, Q, and the seed of all randomness.
    cohort
        S, the clients of a round. A short last round (S does not divide N) averages over the clients it has;
        the guarantees for FL-GraB assume that S is even and divides N.
    local_steps, server_step
        K, and the amplification η at the epoch's end.
    start, p, proximal
        As in `wellorder.sgd`; the proximal step follows the amplified one, and keeps FL-OP near x_0.
    local
        What a client does with its K steps: `FullGradient()` (the paper, and the default), or
        `LocalSGD(policy)`, which visits the client's own examples in an order of their own.

    availability
        Who can be reached in which round, as in `simulate`; everybody unless given. Whoever is away at its
        turn comes later in the epoch; whoever is left when no whole round can be made of them is missed, and
        comes first in the next one. The run's orders then say who came when, the missed ones last. The
        theorems do not cover it.

    >>> from wellorder import PairGraB, RandomReshuffling
    >>> from wellorder.federated import fedavg
    >>> from wellorder.problems import quadratics
    >>> problem, settings = quadratics(1000), dict(step_size=1e-3, epochs=30, cohort=2, local_steps=5)
    >>> worse = fedavg(problem, RandomReshuffling(), **settings)
    >>> better = fedavg(problem, PairGraB(), **settings)
    >>> bool(better.distance[-1] < worse.distance[-1] / 10)
    True
    """
    step_size = real_number("step_size", step_size, above=0)
    epochs = whole_number("epochs", epochs, least=1)
    policy_of(policy)
    if availability is not None:
        availability_of(availability)
    check_rounds(problem_of(problem).n, cohort, local_steps, server_step)
    check_draws(policy, cohort, availability is None or isinstance(availability, Always))
    weight = real_number("proximal", proximal, least=0)
    solver = FullGradient() if local is None else local_of(local)
    first, memory = start_of(problem, start), solver.init(problem, seed)
    plan = Rounds(step_size, cohort, local_steps)

    def visit(units: Order, w: Point) -> tuple[Matrix, Matrix]:
        nonlocal memory
        memory, points, signals = solver.rounds(problem, memory, units, w, plan)
        return points, signals

    def close(x: Point, w: Point) -> Point:
        return drawn_back(amplified(x, w, server_step), first, weight)

    extras = () if solver == FullGradient() else (f"local={solver!r}",)
    if availability is not None:
        extras = (*extras, f"availability={availability!r}")
    record = Recorder(
        problem, policy, step_size, epochs, seed, p, cohort=int(cohort), local_steps=int(local_steps),
        server_step=float(server_step), proximal=weight, extras=extras,
    )  # fmt: skip
    if availability is None:
        looks = moments(
            problem,
            policy,
            visit,
            close,
            epochs,
            seed,
            first,
            width=at_a_time(problem, plan),
            watch=record.watch,
        )
    else:
        queue = Queue(policy, seed_of(seed))
        looks = _moments_of(queue, availability, visit, close, epochs, first, plan, problem.n, record)
    for moment in looks:
        record.look(moment)
    return record.run()


@np.errstate(over="ignore", invalid="ignore")
def _moments_of(
    queue: Queue,
    availability: Availability,
    visit: Visit,
    close: Close,
    epochs: int,
    x: Point,
    plan: Rounds,
    clients: int,
    record: Recorder,
) -> Iterator[Moment]:
    """`moments` of clients who come when they can be reached: each round takes those who are there."""
    if queue.policy.needs not in (Needs.NOTHING, Needs.SIGNALS):
        raise ValueError(
            f"policy={queue.policy!r} asks for every client's gradient at once, and not all can be reached; "
            "use PairGraB() or one that needs no signals"
        )
    queue.open(clients)
    clock = 0
    for epoch in range(epochs):
        rounds, clock = plan_epoch(queue, plan.cohort, availability, clock)
        order = np.concatenate([queue.visited, queue.missed])
        yield Moment(epoch, x, order, 0, 0.0)
        w, at = x, 0
        for present, count in zip(rounds.clients, rounds.counts, strict=True):
            now = present[:count]
            points, signals = visit(now, w)
            w = points[-1]
            record.watch(x, points)
            if queue.policy.needs.at_visits():
                queue.observe(at, now, signals)
            at += len(now)
        x = close(x, w)
        if epoch + 1 < epochs:
            queue.close()
    yield Moment(epochs, x, order, 0, 0.0)


def at_a_time(problem: Problem, plan: Rounds) -> int:
    """How many clients to train at a time: whole rounds, as fit a cache."""
    return max(1, at_once(problem.dim) // (plan.cohort * plan.local_steps)) * plan.cohort


def amplified(x: Point, w: Point, server_step: float) -> Point:
    """Compute x − η(x − w), written so that η=1 gives w to the last bit."""
    return w if server_step == 1 else w + (1 - server_step) * (x - w)


def check_rounds(n: int, cohort: int, local_steps: int, server_step: float) -> None:
    """Refuse impossible rounds before any computation."""
    whole_number(
        "cohort", cohort, least=1, most=n, cure=f"a round takes 1 to {n} of the {n} clients; pass it as"
    )
    whole_number("local_steps", local_steps, least=1)
    real_number("server_step", server_step, above=0)
