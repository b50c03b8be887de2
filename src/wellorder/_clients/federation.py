"""One federation's rounds from beginning to end: who is next, what their updates say, what must be saved."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wellorder._clients.heterogeneity import Differences
from wellorder._clients.queue import Queue
from wellorder._clients.tolerance import Tolerance
from wellorder._clients.updates import Arrays, NoSignalError, Signal, UnfitError, directions
from wellorder._kernels.sketch import FlatSketch
from wellorder._measure import strayed
from wellorder._order import Keeps, Policy, keeps_of, permutes, rng

Signals = Literal["auto", "exact", "sketch"]
EXACT_UP_TO = 2**20
SKETCH_WIDTH = 2**10
SHORT = 2**9
COORDINATES = 256


@dataclass(frozen=True)
class Visit:
    """A client's answer and what it reveals: a row of the policy's signals, or a fault.

    Exact rows are not kept (``row`` is None): they are formed again, two at a time, when the policy observes.
    """

    client: int
    arrays: Arrays
    row: npt.NDArray[np.float64] | None = None
    probe: npt.NDArray[np.float64] | None = None
    short: npt.NDArray[np.float32] | None = None
    fault: str = ""
    bad: bool = True
    """Whether an update with a fault is a bad one; else it only has nothing that could be balanced."""


@dataclass(frozen=True)
class RunningError:
    r"""How good the order is as it goes: the federated order error, estimated from a few coordinates.

    Holds prefix sums of pseudo-gradients at the ends of this epoch's rounds, at ``COORDINATES`` places.
    The estimate is :math:`\max_m \|P_m - \frac{m}{n} P_n\|_2`, scaled for the places left out: the
    order error of pseudo-gradients instead of gradients, over the part of the epoch that was seen.
    Exact for vectors no longer than ``COORDINATES``.
    """

    seed: int
    sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    counts: tuple[int, ...] = ()

    def probe(self, row: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Take the coordinates of ``row`` that count, scaled."""
        if len(row) <= COORDINATES:
            return row.astype(np.float64)
        places = rng(self.seed, 0, "running error").integers(0, len(row), COORDINATES)
        scaled: npt.NDArray[np.float64] = row[places] * np.float64(np.sqrt(len(row) / COORDINATES))
        return scaled

    def add(self, probes: list[npt.NDArray[np.float64]]) -> RunningError:
        """Close a round in which these were seen."""
        if not probes:
            return self
        total, count = np.sum(probes, axis=0), len(probes)
        if self.counts:
            total, count = total + self.sums[-1], count + self.counts[-1]
        sums = np.vstack([self.sums, total]) if self.counts else total[None]
        return replace(self, sums=sums, counts=(*self.counts, count))

    def value(self) -> float:
        """Estimate the order error of what was seen since the epoch began.

        >>> error = RunningError(0)
        >>> for z in ([1.0], [1.0], [-1.0], [-1.0]):
        ...     error = error.add([np.array(z)])
        >>> error.value()
        2.0
        """
        if not self.counts:
            return 0.0
        rounds = np.diff(self.sums, axis=0, prepend=0.0)
        return strayed(rounds, np.diff(np.array(self.counts, np.float64), prepend=0.0))


class Federation:
    """A federation whose model is a mapping of named arrays, its clients known by name.

    Memory beyond the policy's: views of the model, with ``server_step`` ≠ 1 the epoch's first model, and two
    rows (or one sketch a client of the round).
    """

    def __init__(
        self,
        policy: Policy[Any],
        cohort: int,
        seed: int = 0,
        *,
        server_step: float = 1.0,
        signals: Signals = "auto",
        tolerance: Tolerance | None = None,
    ) -> None:
        if not permutes(policy):
            raise ValueError(
                f"policy={policy!r} visits clients twice in an epoch; use RandomReshuffling(), or, for "
                "cohorts drawn anew in each round, the strategy by itself"
            )
        self.queue, self.cohort = Queue(policy, seed), int(cohort)
        self.server_step, self.signals, self.tolerance = server_step, signals, tolerance or Tolerance()
        self.names: list[str] = []
        """Client ``c`` is ``names[c]``: a number is given once and never again."""
        self.model: Arrays = {}
        self.first: Arrays = {}
        self.counts: tuple[str, ...] = ()
        """The arrays whose movement is the signal; settled by the first answers, for the whole run."""
        self.error, self.differences = RunningError(seed), Differences()
        self._short: FlatSketch | None = None
        self.sketch: FlatSketch | None = None
        self.rounds = self.fruitless = 0
        self._numbers: dict[str, int] = {}
        self._met: set[str] = set()

    def choose(self, present: Collection[str], enough: int, late: bool) -> tuple[int, ...] | None:
        """Name the next cohort; ``None`` says to look again later, ``()`` that nobody is there.

        Opens the first epoch once ``enough`` clients are present, and closes one whose rest, for all who are
        away or have failed, fills no cohort: when it is ``late``, or when there is nobody to hope for. A few
        train alone only where no more than they are present at all.
        """
        self._met.update(present)
        queue = self.queue
        if queue.epoch < 0:
            if not (len(present) >= enough or (late and present)):
                return () if late else None
            self._number(present)
            queue.open(len(self.names))
            self.first = self.model
        for _ in range(2):
            here = np.zeros(len(self.names), bool)
            here[[self._numbers[name] for name in present if name in self._numbers]] = True
            chosen, few = queue.next(self.cohort, here.__getitem__), np.count_nonzero(here) < self.cohort
            if not queue.cut_short(chosen, self.cohort) or (len(chosen) and few):
                return tuple(chosen.tolist())
            # Nobody waits again for a client that was missing in the epoch before.
            away = queue.waiting[~here[queue.waiting]]
            hope = not np.isin(away, queue.absent).all()
            if not present or (hope and not late):
                return () if late else None
            self.give_up()
        return ()

    def signal(self, held: Collection[str] = ()) -> Signal:
        """How updates relative to the current model become signals.

        The first ``held``, names of arrays that clients sent, settle what counts: whatever of them the model
        holds as floats. A strategy may average counters into floats later, or clients send a part of it.
        """
        names = self.counts or directions(self.model)
        if not self.counts and (own := tuple(name for name in names if name in held)):
            names = self.counts = own
        lost = [name for name in names if name not in self.model]
        if lost:
            raise ValueError(
                f"arrays: the model has lost {lost[0]}, which it was trained with; keep its arrays"
            )
        dim = sum(self.model[name].size for name in names)
        most = SKETCH_WIDTH if keeps_of(self.queue.policy) is Keeps.ROWS else EXACT_UP_TO
        sketched = self.signals == "sketch" or (self.signals == "auto" and dim > most)
        if sketched and (self.sketch is None or len(self.sketch.signs) != dim):
            self.sketch = FlatSketch.draw(dim, SKETCH_WIDTH, self.queue.seed)
        return Signal.relative_to(self.model, names, sketch=self.sketch, cap=self.tolerance.norm_cap)

    def check_model(self) -> None:
        """Refuse a model whose updates have no direction, where the policy asks for one."""
        policy = self.queue.policy
        if policy.needs.at_visits() and not directions(self.model):
            raise ValueError(
                "arrays: the model has no floating-point arrays that clients train (trees have none), so "
                f"updates have no direction for policy={policy!r}; use RandomReshuffling()"
            )

    def measure(self, signal: Signal, client: int, arrays: Arrays) -> Visit:
        """Look at an update; one that cannot be balanced becomes a visit with a fault."""
        if not signal.pieces:  # a model of trees, and a policy that asks for nothing
            return Visit(client, arrays)
        try:
            row = signal.row(arrays)
        except UnfitError as error:
            return Visit(client, {}, fault=str(error), bad=not isinstance(error, NoSignalError))
        kept = row if signal.sketch else None
        return Visit(client, arrays, kept, self.error.probe(row), self._shortened(row))

    def _shortened(self, row: npt.NDArray[Any]) -> npt.NDArray[np.float32] | None:
        """A sketch by which the updates of the first two epochs are compared, then nothing."""
        if not self.differences.wants(self.queue.epoch):
            return None
        if len(row) <= SHORT:
            return row.astype(np.float32)
        if self._short is None:
            self._short = FlatSketch.draw(len(row), SHORT, self.queue.seed)
        return self._short.of([row]).astype(np.float32)

    def take(
        self, signal: Signal, visits: Sequence[Visit], failed: Sequence[int], moved: bool
    ) -> dict[str, Any]:
        """Enter a round: who came, in cohort order, who failed, and whether ``model`` has moved.

        Returns the round's figures. An epoch that this round completes is closed.
        """
        queue = self.queue
        at, clients = len(queue.visited), [visit.client for visit in visits]
        if queue.policy.needs.at_visits():
            for first, block in _pairs(visits, signal):
                queue.observe(at + first, clients[first : first + len(block)], block)
        probes = [visit.probe for visit in visits if visit.probe is not None]
        self.error = self.error.add(probes)
        if self.differences.wants(queue.epoch):
            told = {visit.client: visit.short for visit in visits if visit.short is not None}
            self.differences.add(queue.epoch, list(told), list(told.values()))
        queue.settle(clients, failed, self.tolerance.attempts)
        self.fruitless = 0 if moved else self.fruitless + 1
        figures = {
            "epoch": queue.epoch, "position": len(queue.visited), "clients": queue.size, "cohort": clients,
            "error": self.error.value(), "failures": len(failed), "missed": len(queue.missed),
            "bad-updates": sum(bool(visit.fault) and visit.bad for visit in visits),
        }  # fmt: skip
        if not len(queue) and queue.epoch >= 0:
            self.close()
        return figures

    def give_up(self) -> None:
        """Close an epoch whose rest cannot be visited; they come first in the next."""
        self.queue.give_up()
        self.close()

    def close(self) -> None:
        """Amplify the epoch's movement, x ← x_q − η(x_q − w), and open the next epoch to all whom we met.

        Names are numbered here and nowhere else: in which order they were met within an epoch is chance.
        """
        if self.server_step != 1:
            moved = self.first.keys() & (self.counts or directions(self.model))
            self.model = {n: self._amplified(n, w) if n in moved else w for n, w in self.model.items()}
        before = len(self.names)
        self._number(self._met)
        self.queue.close(range(before, len(self.names)))
        self.error, self.first = RunningError(self.queue.seed), self.model

    def _number(self, names: Iterable[str]) -> None:
        """Number the names that are new, in their natural order."""
        for name in sorted(set(names) - self._numbers.keys(), key=natural):
            self._numbers[name] = len(self.names)
            self.names.append(name)

    def _amplified(self, name: str, w: npt.NDArray[Any]) -> npt.NDArray[Any]:
        moved: npt.NDArray[Any] = w + (1 - self.server_step) * (self.first[name] - w)
        return moved.astype(w.dtype)

    def saved(self) -> dict[str, Any]:
        """All from which `restore` goes on, for `wellorder._saving.save_state`."""
        return {
            "seed": self.queue.seed, "rounds": self.rounds, "names": self.names, "queue": self.queue.saved(),
            "error": {"sums": self.error.sums, "counts": list(self.error.counts)},
            "counts": list(self.counts), "cohort": self.cohort, "server_step": self.server_step,
            "signals": self.signals, "model": dict(self.model),
            "first": dict(self.first) if self.server_step != 1 else {},
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on where `saved` was; refuses another seed's or another policy's state."""
        seed = self.queue.seed
        settings = {"cohort": self.cohort, "server_step": self.server_step, "signals": self.signals}
        for name, own in {"seed": seed, **settings}.items():
            if saved.get(name, own) != own:
                raise ValueError(
                    f"{name}={own!r}: this state was saved with {name}={saved[name]!r}; pass that one"
                )
        self.queue.restore(saved["queue"])
        self.names = list(saved["names"])
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self.error = RunningError(seed, saved["error"]["sums"], tuple(saved["error"]["counts"]))
        self.model = saved["model"]
        self.first = saved["first"] if self.server_step != 1 else self.model
        self.counts = tuple(saved["counts"])
        self.rounds = saved["rounds"]


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which ``"2"`` comes before ``"10"``.

    >>> sorted(["node-10", "10", "node-2", "2"], key=natural)
    ['2', '10', 'node-2', 'node-10']
    """
    parts = (part for part in re.split(r"(\d+)", name) if part)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def _pairs(visits: Sequence[Visit], signal: Signal) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Rows of consecutive good visits, at most two at a time, each block with the place of its first."""
    buffer = None if signal.sketch else np.empty((2, signal.dim), signal.dtype)
    at = 0
    while at < len(visits):
        pair = list(visits[at : at + 2])
        if len(pair) == 2 and pair[1].fault:
            pair = pair[:1]
        if not pair[0].fault:
            if buffer is None:
                yield at, np.stack([visit.row for visit in pair if visit.row is not None])
            else:
                for visit, out in zip(pair, buffer, strict=False):
                    signal.row(visit.arrays, out)
                yield at, buffer[: len(pair)]
        at += 1 if pair[0].fault else len(pair)
