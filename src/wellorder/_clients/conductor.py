"""One federation's rounds from beginning to end: who is next, what their updates say, what must be saved."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wellorder._clients.course import Course, close, observe, open_first
from wellorder._clients.gauge import Gauge
from wellorder._clients.roster import Roster, give_up, join, settle, turn
from wellorder._clients.tolerance import Tolerance
from wellorder._clients.updates import Arrays, Signal, Sketch, UnfitError
from wellorder._order import Policy, load_state_dict, state_dict

Signals = Literal["auto", "exact", "sketch"]
EXACT_UP_TO = 2**20
SKETCH_WIDTH = 2**10


@dataclass(frozen=True)
class Visit:
    """A client's answer and what it reveals: a row of the policy's signals, or a fault.

    Exact rows are not kept (``row`` is None): they are formed again, two at a time, when the policy observes.
    """

    client: int
    arrays: Arrays
    row: npt.NDArray[np.float64] | None = None
    probe: npt.NDArray[np.float64] | None = None
    fault: str = ""


@dataclass
class Conductor:
    """Keeps the course of a federation whose model is a mapping of named arrays.

    Memory beyond the policy's: views of the model, with ``server_step`` ≠ 1 the epoch's first model, and two
    rows (or one sketch a client of the round).
    """

    course: Course
    cohort: int
    server_step: float = 1.0
    signals: Signals = "auto"
    tolerance: Tolerance = field(default_factory=Tolerance)
    model: Arrays = field(default_factory=dict)
    first: Arrays = field(default_factory=dict)
    gauge: Gauge = field(default_factory=lambda: Gauge(0))
    sketch: Sketch | None = None
    met: set[str] = field(default_factory=set)
    rounds: int = 0
    fruitless: int = 0

    @staticmethod
    def of(policy: Policy[Any], cohort: int, seed: int = 0, **settings: Any) -> Conductor:
        """A conductor that knows nobody yet."""
        return Conductor(Course(policy, seed), int(cohort), gauge=Gauge(seed), **settings)

    @property
    def names(self) -> tuple[str, ...]:
        """Client ``c`` is ``names[c]``."""
        return self.course.roster.names

    def choose(self, present: Collection[str], enough: int, late: bool) -> tuple[int, ...] | None:
        """Name the next cohort; ``None`` says to look again later, ``()`` that nobody is there.

        Opens the first epoch once ``enough`` clients are present, and closes one whose rest is away: when it
        is ``late``, or when there is nobody to hope for.
        """
        self.met |= set(present)
        if self.course.roster.epoch < 0:
            if not (len(present) >= enough or (late and present)):
                return () if late else None
            roster = join(self.course.roster, present)
            self.course, self.first = open_first(replace(self.course, roster=roster)), self.model
        for _ in range(2):
            roster = self.course.roster
            here = {client for client, name in enumerate(roster.names) if name in present}
            if chosen := turn(roster, self.cohort, here):
                return chosen
            hope = set(roster.queue) - set(roster.absent)
            if not present or (hope and not late):
                return () if late else None
            self.course = replace(self.course, roster=give_up(roster))
            self.close()
        return ()

    def signal(self) -> Signal:
        """How updates relative to the current model become signals."""
        dim = sum(array.size for array in self.model.values() if array.dtype.kind == "f")
        if not dim:
            raise ValueError(
                "arrays: the model has no floating-point arrays, so its updates have no direction"
            )
        sketched = self.signals == "sketch" or (self.signals == "auto" and dim > EXACT_UP_TO)
        if sketched and (self.sketch is None or self.sketch.dim != dim):
            self.sketch = Sketch.draw(dim, SKETCH_WIDTH, self.course.seed)
        return Signal.relative_to(self.model, sketch=self.sketch, cap=self.tolerance.norm_cap)

    def measure(self, signal: Signal, client: int, arrays: Arrays) -> Visit:
        """Look at an update; one that cannot be balanced becomes a visit with a fault."""
        try:
            row = signal.row(arrays)
        except UnfitError as error:
            return Visit(client, {}, fault=str(error))
        return Visit(client, arrays, row if signal.sketch else None, self.gauge.probe(row))

    def take(
        self, signal: Signal, visits: Sequence[Visit], failed: Sequence[int], moved: bool
    ) -> dict[str, Any]:
        """Enter a round: who came, in cohort order, who failed, and whether ``model`` has moved.

        Returns the round's figures. An epoch that this round completes is closed.
        """
        at = len(self.course.roster.visited)
        if self.course.policy.needs.at_visits():
            for first, block in _runs(visits, signal):
                self.course = observe(self.course, at + first, block)
        self.gauge = self.gauge.add([visit.probe for visit in visits if visit.probe is not None])
        clients = [visit.client for visit in visits]
        roster = settle(self.course.roster, clients, failed, self.tolerance.attempts)
        self.course = replace(self.course, roster=roster)
        self.fruitless = 0 if moved else self.fruitless + 1
        figures = {
            "epoch": roster.epoch, "position": len(roster.visited), "clients": roster.size, "cohort": clients,
            "error": self.gauge.value(), "failures": len(failed), "missed": len(roster.missed),
            "bad-updates": sum(bool(visit.fault) for visit in visits),
        }  # fmt: skip
        if not roster.queue and roster.epoch >= 0:
            self.close()
        return figures

    def close(self) -> None:
        """Amplify the epoch's movement, x ← x_q − η(x_q − w), and open the next epoch to all whom we met.

        Names are numbered here and nowhere else: in which order they were met within an epoch is chance.
        """
        if self.server_step != 1:
            self.model = {name: self._amplified(name, w) for name, w in self.model.items()}
        course = replace(self.course, roster=join(self.course.roster, self.met))
        self.course, self.gauge, self.first = close(course), Gauge(course.seed), self.model

    def _amplified(self, name: str, w: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if w.dtype.kind != "f":
            return w
        moved: npt.NDArray[Any] = w + (1 - self.server_step) * (self.first[name] - w)
        return moved.astype(w.dtype)

    def saved(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and facts from which `restore` goes on."""
        policy = state_dict(self.course.policy, self.course.state)
        arrays = {f"policy/{k}": v for k, v in policy.items() if isinstance(v, np.ndarray)}
        arrays |= {f"model/{k}": v for k, v in self.model.items()}
        if self.server_step != 1:
            arrays |= {f"first/{k}": v for k, v in self.first.items()}
        arrays["gauge"] = self.gauge.sums
        facts = {
            "policy": {k: v for k, v in policy.items() if not isinstance(v, np.ndarray)},
            "seed": self.course.seed, "rounds": self.rounds, "roster": asdict(self.course.roster),
            "units": self.course.units, "generation": self.course.generation, "gauge": self.gauge.counts,
        }  # fmt: skip
        return arrays, facts

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Go on where `saved` was; refuses another seed's or another policy's state."""
        policy, seed = self.course.policy, self.course.seed
        if facts["seed"] != seed:
            raise ValueError(f"seed={seed}: this state was saved with seed {facts['seed']}; pass that one")
        state = load_state_dict(policy, facts["policy"] | under(arrays, "policy/"))
        told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in facts["roster"].items()}
        self.course = Course(policy, seed, state, Roster(**told), tuple(facts["units"]), facts["generation"])
        self.gauge = Gauge(seed, arrays["gauge"], tuple(facts["gauge"]))
        self.model = under(arrays, "model/")
        self.first = under(arrays, "first/") if self.server_step != 1 else self.model
        if self.first.keys() != self.model.keys():
            raise ValueError(
                f"server_step={self.server_step}: this state was saved with 1.0 and lacks the epoch's first "
                "model; pass server_step=1.0"
            )
        self.rounds = facts["rounds"]


def under(arrays: Arrays, prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Those arrays whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _runs(visits: Sequence[Visit], signal: Signal) -> Iterator[tuple[int, npt.NDArray[Any]]]:
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
