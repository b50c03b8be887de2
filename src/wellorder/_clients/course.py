"""A policy at work on clients that come and go: the t-th client visited is the t-th unit of its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from wellorder._clients.roster import Roster
from wellorder._order import Policy, is_permutation, rng


@dataclass(frozen=True)
class Course:
    """A policy, its state, and the roster that says which client each unit is.

    ``units[u]`` is the client that unit ``u`` stands for. A policy that observes signals must be told who
    came when, not who should have: its units are assigned by position as clients are visited, so that a
    client that was away at its turn is simply a later unit. A policy that observes nothing keeps its units.
    """

    policy: Policy[Any]
    seed: int = 0
    state: Any = None
    roster: Roster = field(default_factory=Roster)
    units: tuple[int, ...] = ()
    generation: int = 0
    """How often the set of clients has changed; each generation has randomness of its own."""


def open_first(course: Course) -> Course:
    """Open epoch 0 over the clients known so far."""
    return _opened(replace(course, units=tuple(range(len(course.roster.names)))))


def observe(course: Course, at: int, rows: Any) -> Course:
    """Show the policy the signals of the clients visited ``at``-th, ``at + 1``-th … in this epoch."""
    units = course.state.order[at : at + len(rows)]
    return replace(course, state=course.policy.observe(course.state, units, rows))


def close(course: Course) -> Course:
    """Close an epoch whose queue is empty, and open the next: the missing first, then the policy's order.

    Clients that joined meanwhile have no signal yet and go to the middle. They change the number of units, so
    the policy starts afresh (GraB forgets its stale mean, ShuffleOnce draws a new order).

    >>> from wellorder import IncrementalGradient
    >>> course = open_first(Course(IncrementalGradient(), roster=Roster(("a", "b", "c"))))
    >>> course = replace(course, roster=replace(course.roster, queue=(), visited=(0, 2), missed=(1,)))
    >>> close(course).roster.queue
    (1, 0, 2)
    """
    roster, units = course.roster, course.units
    if course.policy.needs.at_visits():
        units = tuple(
            np.array(units)[_inverse(course.state.order, roster.visited + roster.missed, units)].tolist()
        )
    state = course.policy.advance(course.state)
    order = [units[u] for u in state.order]
    newcomers = sorted(set(range(len(roster.names))) - set(units))
    moved = replace(
        course,
        state=state,
        units=units,
        roster=replace(
            roster,
            epoch=roster.epoch + 1,
            visited=(),
            missed=(),
            absent=roster.missed,
            failures=(),
            queue=_first(roster.missed, order),
        ),
    )
    if not newcomers:
        _checked(moved)
        return moved
    middle = len(order) // 2
    order = order[:middle] + newcomers + order[middle:]
    return _opened(replace(moved, units=tuple(sorted(order)), generation=course.generation + 1), order)


def _inverse(order: Any, came: Sequence[int], units: Sequence[int]) -> Any:
    """Index into ``units`` that puts the t-th client that came at unit ``order[t]``."""
    where = {client: unit for unit, client in enumerate(units)}
    index = np.empty(len(units), np.intp)
    index[order] = [where[client] for client in came]
    return index


def _opened(course: Course, order: Sequence[int] = ()) -> Course:
    """Start the policy afresh over ``course.units``; one that observes follows ``order`` if that is given."""
    seed = course.seed
    if course.generation:
        seed = int(rng(course.seed, course.generation, "generation").integers(2**62))
    state = course.policy.init(len(course.units), seed=seed)
    roster = course.roster
    if not (order and course.policy.needs.at_visits()):
        order = [course.units[u] for u in state.order]
    queue = _first(roster.absent, order)
    opened = replace(course, state=state, roster=replace(roster, epoch=max(roster.epoch, 0), queue=queue))
    _checked(opened)
    return opened


def _first(some: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    return tuple(some) + tuple(client for client in order if client not in set(some))


def _checked(course: Course) -> None:
    if not is_permutation(course.state.order, len(course.units)):
        raise ValueError(
            f"policy={course.policy!r} does not visit each of {len(course.units)} clients once; "
            "use one whose orders are permutations, e.g. RandomReshuffling() or PairGraB()"
        )
