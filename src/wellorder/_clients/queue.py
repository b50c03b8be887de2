"""The queue of clients: one policy's order at work on clients that come late, fail, are missed, or join.

The simulator and Flower both draw their rounds from it. A policy never learns of any of that: the states that
it is shown are those it made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._clients.availability import Always, Availability
from wellorder._kernels.signals import KEPT, SUMMED, usable
from wellorder._order import (
    Keeps,
    Policy,
    is_permutation,
    keeps_of,
    load_state_dict,
    permutes,
    rng,
    state_dict,
)

Ints = npt.NDArray[np.int64]
Here = Callable[[Ints], npt.NDArray[np.bool_]]
"""Whether each of these clients can be reached now."""
NOBODY: Ints = np.empty(0, np.int64)
ALIKE = 256
"""Clients among whom the one most like another is looked for, at most."""
PATIENCE = 100_000
"""Rounds in a row in which nobody at all can be reached, before a planned epoch gives up."""


class Queue:
    """Clients 0..n-1 in the order of a policy, each of them visited once an epoch.

    In an open epoch every client is in exactly one of ``waiting``, ``visited`` and ``missed``. Whoever cannot
    be reached keeps the place; whoever was missed in an epoch comes first in the next. Nobody is lost, and
    nobody trains almost alone because others are away: that round is `cut_short`, and the epoch closed.

    ``units[u]`` is the client that the policy's unit ``u`` stands for. A policy that balances signals is told
    who came when, not who should have: the t-th client visited is the t-th unit of its order, so that one who
    was away at its turn is simply a later unit. A policy that keeps rows keeps them by client, so its units
    stay; its rows are shown at the epoch's end, in its own order, whoever came when. They also tell who is
    like whom: whoever is away changes places with the one most like it, of the next few hundred.
    """

    def __init__(self, policy: Policy[Any], seed: int = 0) -> None:
        self.policy, self.seed = policy, seed
        self._keeps_rows, self._watches = keeps_of(policy) is Keeps.ROWS, policy.needs.at_visits()
        self._permutes = permutes(policy)
        self.state: Any = None
        self.epoch = -1
        self.generation = 0
        """How often the set of clients has changed; each generation has randomness of its own."""
        self.units = self.missed = self.absent = NOBODY
        """``absent``: missed in the epoch before; nobody waits for them until they were visited again."""
        self.failures: Counter[int] = Counter()
        """Failed attempts of this epoch, by client."""
        # Who waits is the front, which `next` has looked at, then the line from ``_at`` on, which it has not:
        # a round then costs as much as it looks at, not as much as there are clients.
        self._front = self._line = self._came = NOBODY
        self._at = self._visits = 0
        self._rows: dict[int, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self._front) + len(self._line) - self._at

    @property
    def waiting(self) -> Ints:
        """Who has not been visited, nor missed, in this epoch; in turn."""
        return np.concatenate([self._front, self._line[self._at :]])

    @property
    def visited(self) -> Ints:
        """Who was visited in this epoch, in order."""
        return self._came[: self._visits]

    @property
    def size(self) -> int:
        """How many visits this epoch has."""
        return len(self._came)

    def open(self, clients: int) -> None:
        """Open epoch 0 over the clients ``0..clients-1``."""
        self.epoch = 0
        self._start(np.arange(clients))
        self.line_up()

    def line_up(self, order: Ints | None = None) -> None:
        """Put whoever was missed first, then the others in the policy's order (or in ``order``).

        Those who had these places take their places, each that of the most alike, where rows tell. Elsewhere
        the others go round from the last who was missed on: those at the end of an order that never changes
        would otherwise be missed again and again, and come every second time.
        """
        rest = self.units[self.state.order] if order is None else order
        if len(self.absent):
            first = np.zeros(len(self.units), bool)
            first[self.absent] = True
            if self._knows_rows():
                rest, _ = self._brought_forward(rest, first[rest], len(self.absent))
            else:
                rest = np.roll(rest, -1 - int(np.flatnonzero(rest == self.absent[-1])[0]))
                rest = np.concatenate([self.absent, rest[~first[rest]]])
        self._line, self._at, self._front = rest.astype(np.int64), 0, NOBODY
        self._came, self._visits, self.missed = np.empty(len(rest), np.int64), 0, NOBODY
        self.failures.clear()
        if self._permutes and not is_permutation(self._line, len(self.units)):
            raise ValueError(
                f"policy={self.policy!r} does not visit each of {len(self.units)} clients once; "
                "use one whose orders are permutations, e.g. RandomReshuffling() or PairGraB()"
            )

    def next(self, size: int, here: Here | None = None) -> Ints:
        """Name the next ``size`` clients that are ``here`` (None: all are); they wait until they `settle`.

        >>> from wellorder import IncrementalGradient
        >>> queue = Queue(IncrementalGradient())
        >>> queue.open(4)
        >>> queue.next(2, lambda clients: clients != 0)
        array([1, 2])
        """
        if here is None:
            self._look(size - len(self._front))
            return self._front[:size]
        alike = self._knows_rows()
        up, enough = here(self._front), size + ALIKE if alike else size
        while (found := int(np.count_nonzero(up))) < enough and self._at < len(self._line):
            up = np.concatenate([up, here(self._look(max(4 * (enough - found), 64)))])
        if alike:
            self._front, up = self._brought_forward(self._front, up, size)
        return self._front[np.flatnonzero(up)[:size]]

    def cut_short(self, chosen: Sequence[int] | Ints, size: int) -> bool:
        """Whether ``chosen``, the `next` round, has fewer than ``size`` since somebody is away, or failed.

        Not so if it is the last round of an order whose length ``size`` does not divide.

        >>> from wellorder import IncrementalGradient
        >>> queue = Queue(IncrementalGradient())
        >>> queue.open(4)
        >>> queue.settle(queue.next(3))
        >>> queue.cut_short(queue.next(3), 3), queue.cut_short([], 3)
        (False, True)
        """
        last = len(chosen) == len(self) == self.size % size
        return len(chosen) < size and not last

    def settle(self, visited: Sequence[int] | Ints, failed: Sequence[int] = (), attempts: int = 1) -> None:
        """Close a round: ``visited`` leave, ``failed`` go to the end, or are missed after ``attempts``.

        A client that was missed in the epoch before has one attempt.
        """
        came, lost = np.asarray(visited, np.int64), np.asarray(failed, np.int64)
        done = np.concatenate([came, lost])
        left = self._front[~np.isin(self._front, done)]
        if len(self._front) - len(left) < len(done):  # somebody whom `next` has not looked at
            self._look(len(self._line))
            left = self._front[~np.isin(self._front, done)]
        self._front = left
        self._came[self._visits : self._visits + len(came)] = came
        self._visits += len(came)
        if not len(lost):
            return
        self.failures.update(lost.tolist())
        away = set(self.absent.tolist())
        spent = np.array([self.failures[c] >= (1 if c in away else attempts) for c in lost.tolist()])
        self._line, self._at = np.concatenate([self._line[self._at :], lost[~spent]]), 0
        self.missed = np.concatenate([self.missed, lost[spent]])

    def take_drawn(self, clients: Ints) -> None:
        """Close a round of clients drawn anew: so many of the epoch's visits are made, whoever waits."""
        self._came[self._visits : self._visits + len(clients)] = clients
        self._visits += len(clients)
        self._at += len(clients)

    def give_up(self) -> None:
        """Stop waiting: whoever is still in the queue is missed in this epoch."""
        self.missed = np.concatenate([self.missed, self.waiting])
        self._front, self._line, self._at = NOBODY, NOBODY, 0

    def observe(self, at: int, clients: Sequence[int] | Ints, rows: Any) -> None:
        """Show the policy the signals of ``clients``, visited ``at``-th, ``at + 1``-th … in this epoch.

        A client whose signal is not finite stays unobserved.
        """
        if self._keeps_rows:
            kept = _kept(rows)
            good = usable(kept, KEPT)
            self._rows.update({int(c): row for c, row, g in zip(clients, kept, good, strict=True) if g})
            return
        units = self.state.order[at : at + len(clients)]
        try:
            self.state = self.policy.observe(self.state, units, rows)
        except ValueError:
            good = usable(_kept(rows), SUMMED)
            if good.all():
                raise
            if good.any():
                self.state = self.policy.observe(self.state, units[good], rows[good])

    def close(self, newcomers: Sequence[int] = ()) -> None:
        """Close an epoch that nobody waits in, and open the next.

        Clients that joined meanwhile have no signal yet and go to the middle. They change the number of
        units, so the policy starts afresh (GraB forgets its stale mean, ShuffleOnce draws a new order).

        >>> from wellorder import IncrementalGradient
        >>> queue = Queue(IncrementalGradient())
        >>> queue.open(3)
        >>> queue.settle([0, 2]); queue.give_up(); queue.close()
        >>> queue.waiting
        array([1, 2, 0])
        """
        if self._keeps_rows:
            self._show_rows()
        elif self._watches:
            self.units[self.state.order] = np.concatenate([self.visited, self.missed])
        self.state = self.policy.advance(self.state)
        self.epoch, self.absent = self.epoch + 1, self.missed
        if not len(newcomers):
            self.line_up()
            return
        order = self.units[self.state.order]
        middle = len(order) // 2
        order = np.concatenate([order[:middle], np.sort(np.asarray(newcomers, np.int64)), order[middle:]])
        self.generation += 1
        self._start(np.sort(order))
        self.line_up(order if self._watches else None)

    def saved(self) -> dict[str, Any]:
        """All of it, for `wellorder._saving.save_state`."""
        rows = self._rows
        return {
            "state": state_dict(self.policy, self.state), "epoch": self.epoch, "generation": self.generation,
            "units": self.units, "waiting": self.waiting, "visited": self.visited, "missed": self.missed,
            "absent": self.absent, "failures": np.array([*self.failures.elements()], np.int64),
            "rows": {"clients": np.array([*rows], np.int64), "rows": np.array([*rows.values()])},
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on where `saved` was; refuses another policy's state."""
        self.state = load_state_dict(self.policy, saved["state"])
        self.epoch, self.generation = int(saved["epoch"]), int(saved["generation"])
        self.units, self.missed, self.absent = saved["units"], saved["missed"], saved["absent"]
        self._front, self._line, self._at = NOBODY, saved["waiting"], 0
        self._came = np.concatenate([saved["visited"], saved["waiting"], saved["missed"]])
        self._visits = len(saved["visited"])
        self.failures = Counter(saved["failures"].tolist())
        self._rows = dict(zip(saved["rows"]["clients"].tolist(), saved["rows"]["rows"], strict=True))

    def _start(self, units: Ints) -> None:
        """Start the policy afresh over these clients."""
        seed = self.seed
        if self.generation:
            seed = int(rng(self.seed, self.generation, "generation").integers(2**62))
        self.units, self.state = units, self.policy.init(len(units), seed=seed)

    def _look(self, count: int) -> Ints:
        """Move the next ``count`` of the line to the front."""
        block = self._line[self._at : self._at + max(count, 0)]
        self._at += len(block)
        self._front = np.concatenate([self._front, block])
        return block

    def _knows_rows(self) -> bool:
        """Whether the policy has a row of some client."""
        return self._keeps_rows and bool(np.any(getattr(self.state, "known", False)))

    def _brought_forward(
        self, line: Ints, wanted: npt.NDArray[np.bool_], count: int
    ) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """A line whose first ``count`` places have clients that are ``wanted``, and who is wanted in it.

        Whoever else had such a place changes with the most alike of the wanted behind; if one of the two has
        no row, with the first of them.
        """
        line, wanted = line.astype(np.int64), wanted.copy()
        rows, known = self.state.rows, self.state.known > 0
        behind = iter((np.flatnonzero(wanted[count:]) + count).tolist())
        near = list(islice(behind, ALIKE))
        for place in np.flatnonzero(~wanted[:count]).tolist():
            if not near:
                break
            own, others = line[place], line[near]
            far = np.where(known[others], np.square(rows[others] - rows[own]).sum(axis=1), np.inf)
            other = near.pop(int(far.argmin()) if known[own] else 0)
            near.extend(islice(behind, 1))
            line[place], line[other] = line[other], own
            wanted[place], wanted[other] = True, False
        return line, wanted

    def _show_rows(self) -> None:
        """Show a policy that keeps rows what was seen in this epoch, in its own order."""
        order = self.state.order
        known = np.isin(self.units[order], [*self._rows])
        if known.any():
            rows = np.stack([self._rows[int(client)] for client in self.units[order[known]]])
            self.state = self.policy.observe(self.state, order[known], rows)
        self._rows = {}


@dataclass(frozen=True)
class Rounds:
    """An epoch's rounds: who takes part in each."""

    clients: Ints
    """(T, S), 0 where nobody takes the place."""
    counts: Ints
    """(T,): the first so many places of each round are taken."""

    def repeats(self) -> Ints:
        """How often each place's client was visited before, (T, S): 0 where a policy permutes.

        >>> Rounds(np.array([[3, 1], [1, 3], [3, 0]]), np.array([2, 2, 1])).repeats()
        array([[0, 0],
               [1, 1],
               [2, 0]])
        """
        taken = np.arange(self.clients.shape[1]) < self.counts[:, None]
        came = self.clients[taken]
        order = np.argsort(came, kind="stable")
        first = np.diff(came[order], prepend=-1) != 0
        place = np.arange(len(came))
        before = np.empty(len(came), np.int64)
        before[order] = place - np.maximum.accumulate(np.where(first, place, 0))
        found = np.zeros_like(self.clients)
        found[taken] = before
        return found


def plan_epoch(queue: Queue, cohort: int, availability: Availability, clock: int) -> tuple[Rounds, int]:
    """Draw all rounds of the open epoch ahead; returns them and the clock, which counts idle rounds too.

    The epoch ends when those who are left and can be reached no longer fill a round, while all who can be
    reached would: whoever is left is missed, and comes first in the next. A few clients alone would have a
    whole round's say. A policy that draws its rounds anew (it has a ``sampler``) draws from those who can be
    reached, until it has made as many visits as there are clients.
    """
    everybody = isinstance(availability, Always)
    draw = None if everybody or permutes(queue.policy) else queue.policy.sampler(queue.state)  # type: ignore[attr-defined]
    chosen: list[Ints] = []
    idle = 0
    while len(queue):
        here = None if everybody else partial(availability.reachable, turn=clock, seed=queue.seed)
        if draw is None or here is None:
            now = queue.next(cohort, here)
        else:
            now = draw(queue.units[here(queue.units)], len(queue))
        if draw is None and here is not None and queue.cut_short(now, cohort):
            enough = np.count_nonzero(here(queue.units)) >= cohort
            if enough or (chosen and not len(now)):
                break
        clock += 1
        if len(now):
            chosen.append(now)
            queue.settle(now) if draw is None else queue.take_drawn(now)
            idle = 0
            continue
        idle += 1
        if idle > PATIENCE:
            raise ValueError(
                f"availability={availability!r}: nobody could be reached in {PATIENCE} rounds; "
                "let some client wake up"
            )
    queue.give_up()
    clients = np.zeros((len(chosen), cohort), np.int64)
    for row, now in zip(clients, chosen, strict=True):
        row[: len(now)] = now
    return Rounds(clients, np.array([len(now) for now in chosen], np.int64)), clock


def check_cohort(policy: Policy[Any], cohort: int) -> None:
    """Refuse a policy that knows rounds, but of another size."""
    own = getattr(policy, "cohort", cohort)
    if own != cohort:
        raise ValueError(
            f"policy={policy!r} makes rounds of {own}, and cohort={cohort}; "
            f"pass {type(policy).__name__}(cohort={cohort})"
        )


def check_draws(policy: Policy[Any], cohort: int, always: bool) -> None:
    """Refuse a policy that makes rounds of another size, or whose draws would be wrong."""
    check_cohort(policy, cohort)
    if permutes(policy):
        return
    if not always and not hasattr(policy, "sampler"):
        raise ValueError(
            f"policy={policy!r} has no turns to miss; use it with availability=Always(), "
            f"or RandomCohorts(cohort={cohort}), which draws from those who can be reached"
        )


def _kept(rows: Any) -> npt.NDArray[Any]:
    """Rows as a NumPy copy of our own, whatever is in them."""
    host = rows.detach().cpu().numpy() if hasattr(rows, "detach") else rows
    return np.array(host)
