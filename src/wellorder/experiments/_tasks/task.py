"""What a task is: something that can be trained in any order, and looked at after every epoch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from wellorder._arguments import instance_of, real_number, shown, whole_number
from wellorder._measure import order_error
from wellorder._order import Policy, policy_of
from wellorder._training import Moment
from wellorder.experiments._known_rows import informed
from wellorder.experiments._training import Settings, train
from wellorder.problems._problem import Point, Problem, problem_of, start_of
from wellorder.report._table import Metric

LOSS = Metric("loss", "training loss", log=False)
EXCESS = Metric("excess_loss", "excess loss", about="training loss above its minimum")
ORDER_ERROR = Metric("order_error", "order error", about="how far the order strays")
DISTANCE = Metric("distance", "distance", about="distance to the minimiser")
TEST_LOSS = Metric("test_loss", "test loss", log=False, held_out=True)
TEST_ACCURACY = Metric(
    "test_accuracy", "test accuracy", lower_is_better=False, log=False, percent=True, held_out=True
)

LOOK = 256
"""So many gradients go into a fingerprint."""


PARTS = ("name", "title", "metrics", "step_size", "epochs", "grid", "check", "train")


class Task(Protocol):
    """The seam between `wellorder.experiments.compare` and whatever trains.

    A task is a picklable object (with ``--jobs`` it travels to worker processes). Its ``train`` yields one
    flat row of numbers at x_0, x_1, … x_Q: ``epoch``, then the columns named by ``metrics``, then the
    cumulative ``gradients`` and training ``seconds``. The first metric is the one that verdicts judge. A task
    whose first run in a process would pay for compilation has ``warm_up(policy, seed, settings)`` as well;
    one that may be mistaken for another of its name has a ``fingerprint()``, plain data kept with each run;
    one that is trained by other means than steps of one unit has a ``method`` that says how, in words; one
    whose ``knows`` holds "labels" and "inputs" can be ordered by them (the policies ``stratified`` and
    ``features``); one that a command makes has that ``command``, a list of words.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def metrics(self) -> tuple[Metric, ...]: ...
    @property
    def step_size(self) -> float:
        """The step size unless the user gives one or tunes it."""
        ...

    @property
    def epochs(self) -> int: ...
    @property
    def grid(self) -> tuple[float, ...]:
        """The coarse grid of the step-size search."""
        ...

    def check(self, settings: Settings) -> int | None:
        """Refuse settings that cannot be run, before anything is computed.

        Returns the number of units, with which policies are checked too; None where only loading would tell.
        """
        ...

    def train(self, policy: Policy[Any], seed: int, settings: Settings) -> Iterator[dict[str, float]]:
        """Train from the start; a run that diverges still yields all its rows, with infinite losses."""
        ...


def checked_task(task: Any, given: Any) -> Any:
    """Take a task: an object with all that `wellorder.experiments.Task` names."""
    if isinstance(task, type) or not all(hasattr(task, part) for part in PARTS):
        raise ValueError(
            f"task={shown(given)}: pass the name of a task, or such as NetworkTask(model, data, …) or "
            "problem_task(problem, …)"
        )
    return task


@dataclass(frozen=True)
class ProblemTask:
    """The task of minimising a problem by Algorithm 1, or by Algorithm 2 if the settings have rounds."""

    name: str
    title: str
    problem_of: Callable[[int], Problem]
    """From the seed to the problem."""
    metrics: tuple[Metric, ...]
    step_size: float
    epochs: int
    grid: tuple[float, ...]
    test: Callable[[Problem, Point], Mapping[str, float]] | None = None
    """Metrics on data that are not trained on, by column."""

    def check(self, settings: Settings) -> int:
        n = self.problem_of(0).n
        instance_of("settings", settings, Settings, "pass a wellorder.experiments.Settings")
        settings.check(n)
        return n

    @property
    def knows(self) -> tuple[str, ...]:
        """What is known of all units before training: "labels", "inputs"."""
        problem = self.problem_of(0)
        return tuple(what for what, name in (("labels", "y"), ("inputs", "X")) if hasattr(problem, name))

    def fingerprint(self) -> dict[str, Any]:
        """What tells this problem from another of its name: kind, size, metrics, and a look at its start."""
        problem = self.problem_of(0)
        x, units = start_of(problem), np.arange(min(problem.n, LOOK), dtype=np.int32)
        with np.errstate(all="ignore"):
            seen = np.append(np.asarray(problem.gradients(units, x), np.float64), problem.value(x))
        scale = float(np.abs(seen).max()) or 1.0
        digits = f"{scale:.4e}", *(np.round(seen / scale, 5) + 0.0).tolist()  # last bits may differ elsewhere
        return {
            "kind": type(problem).__name__,
            "n": int(problem.n),
            "dim": int(problem.dim),
            "metrics": [metric.column for metric in self.metrics],
            "start": f"{zlib.crc32(repr(digits).encode()):08x}",
        }

    def warm_up(self, policy: Policy[Any], seed: int, settings: Settings) -> None:
        """Train one epoch that nobody records: compilation is no cost of training."""
        instance_of("settings", settings, Settings, "pass a wellorder.experiments.Settings")
        for _ in self.train(policy, seed, replace(settings, epochs=1)):
            pass

    def train(self, policy: Policy[Any], seed: int, settings: Settings) -> Iterator[dict[str, float]]:
        policy_of(policy)
        instance_of("settings", settings, Settings, "pass a wellorder.experiments.Settings")
        problem, row = self.problem_of(seed), {}
        known: Any = problem  # whoever asks for these was told by ``knows`` that they are there
        policy = informed(policy, lambda: (known.X, known.y))
        # One BLAS thread, so that neither clocks nor last bits depend on what else is running.
        with threadpool_limits(1):
            for moment in train(problem, policy, settings, seed):
                row = self._look(problem, moment, settings.cohort)
                yield row
        for epoch in range(int(row["epoch"]) + 1, settings.epochs + 1):
            lost = {metric.column: np.inf if metric.lower_is_better else 0.0 for metric in self.metrics}
            yield {**row, **lost, "epoch": epoch}

    def _look(self, problem: Problem, moment: Moment, cohort: int) -> dict[str, float]:
        x, best = moment.x, problem.minimiser
        with np.errstate(all="ignore"):
            found = {"loss": problem.value(x)}
            found["order_error"] = order_error(
                lambda units: problem.gradients(units, x), moment.order, every=cohort
            )
            if best is not None:
                found["excess_loss"] = max(found["loss"] - problem.value(best), 0.0)
                found["distance"] = float(np.linalg.norm(x - best))
            found |= self.test(problem, x) if self.test else {}
        named = {metric.column: found[metric.column] for metric in self.metrics}
        return {"epoch": moment.epoch, **named, "gradients": moment.gradients, "seconds": moment.seconds}


def problem_task(
    problem: Problem, *, step_size: float, epochs: int = 30, name: str = "problem"
) -> ProblemTask:
    """Make a task of your own `Problem`; all seeds share it, and differ in the policies' randomness.

    >>> from wellorder.problems import quadratics
    >>> task = problem_task(quadratics(100), step_size=1e-3)
    >>> [metric.column for metric in task.metrics]
    ['excess_loss', 'loss', 'order_error', 'distance']
    """
    problem_of(problem)
    step_size, epochs = real_number("step_size", step_size, above=0), whole_number("epochs", epochs, least=1)
    instance_of("name", name, str, "pass a name, as a string")
    known = (EXCESS, LOSS, ORDER_ERROR, DISTANCE) if problem.minimiser is not None else (LOSS, ORDER_ERROR)
    grid = (step_size / 10, step_size, step_size * 10)
    return ProblemTask(name, f"{type(problem).__name__}, {problem.n} units", partial(_same, problem), known,
                       step_size, epochs, grid)  # fmt: skip


def _same(problem: Problem, seed: int) -> Problem:  # noqa: ARG001
    return problem
