"""Whose turn it is: clients by name, the epoch's queue, who was visited, who is missing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Roster:
    """The clients that are known and where each of them stands in this epoch.

    Client ``c`` is ``names[c]``: a number is given once and never again. In an open epoch each of its clients
    is in exactly one of ``queue``, ``visited`` and ``missed``; clients beyond them joined later and wait for
    the next epoch.
    """

    names: tuple[str, ...] = ()
    epoch: int = -1
    queue: tuple[int, ...] = ()
    visited: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    """Missed in the epoch before: nobody waits for them until they have been visited again."""
    failures: tuple[int, ...] = ()
    """One entry for each failed attempt of this epoch."""

    @property
    def size(self) -> int:
        """How many clients this epoch has."""
        return len(self.queue) + len(self.visited) + len(self.missed)


def join(roster: Roster, names: Iterable[str]) -> Roster:
    """Number the names that are new, in their natural order.

    >>> join(Roster(("2",)), ["10", "2", "1"]).names
    ('2', '1', '10')
    """
    new = sorted(set(names) - set(roster.names), key=natural)
    return replace(roster, names=roster.names + tuple(new)) if new else roster


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which ``"2"`` comes before ``"10"``."""
    parts = (part for part in re.split(r"(\d+)", name) if part)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def turn(roster: Roster, size: int, present: Collection[int]) -> tuple[int, ...]:
    """Name the next ``size`` clients of the queue that are present; whoever is away keeps the place.

    >>> turn(Roster(queue=(3, 1, 0, 2)), 2, {0, 1, 2})
    (1, 0)
    """
    return tuple(client for client in roster.queue if client in present)[:size]


def settle(roster: Roster, visited: Collection[int], failed: Collection[int], attempts: int) -> Roster:
    """Close a round: ``visited`` leave the queue, ``failed`` go to its end, or are missed after ``attempts``.

    A client that was missed in the epoch before has one attempt.

    >>> settle(Roster(queue=(3, 1, 0, 2)), visited=[3], failed=[1], attempts=2).queue
    (0, 2, 1)
    """
    failures = roster.failures + tuple(failed)
    spent = {c for c in failed if failures.count(c) >= (1 if c in roster.absent else attempts)}
    done = {*visited, *failed}
    return replace(
        roster,
        queue=tuple(c for c in roster.queue if c not in done) + tuple(c for c in failed if c not in spent),
        visited=roster.visited + tuple(visited),
        missed=roster.missed + tuple(c for c in failed if c in spent),
        failures=failures,
    )


def give_up(roster: Roster) -> Roster:
    """Stop waiting: whoever is still in the queue is missed in this epoch."""
    return replace(roster, queue=(), missed=roster.missed + roster.queue)
