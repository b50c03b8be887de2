"""Compare orders on a task: train every policy with every seed, keep all as data, and judge.

>>> from wellorder.problems import quadratics
>>> from wellorder.experiments import Config, compare, problem_task
>>> task = problem_task(quadratics(200), step_size=2e-3)
>>> result = compare(task, Config(policies=("RR", "PairGraB"), epochs=20, seeds=(0, 1, 2)))
>>> result.verdicts[0].policy, result.verdicts[0].kind.value
('PairGraB', 'better')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wellorder._arguments import flag, instance_of, one_of, path_of, shown, whole_number
from wellorder._notebook import axes_for, house_style, html_table, literal
from wellorder.experiments._config import ComparisonPlan, Config, resolve
from wellorder.experiments._folder import RunFolder
from wellorder.experiments._pool import EpochRow, Job, JobEvent, work_off
from wellorder.experiments._progress import LiveWatch, displayed
from wellorder.experiments._tasks import Task
from wellorder.experiments._tuning import Search, two_stage
from wellorder.report._style import AXES
from wellorder.report._table import Table, curves, joined, table_of, times
from wellorder.report._table import number as in_digits
from wellorder.report._verdict import Verdict, final_values, headline, verdicts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Runner = Callable[[Sequence[Job]], Iterator[JobEvent]]
"""Works off jobs, here or elsewhere, and tells what they said."""
Ended = Callable[[int, list[EpochRow]], None]
"""Told of a job's number and all its rows when it has ended."""


class Watch(Protocol):
    """Somebody who looks on while a comparison runs."""

    def stage(self, title: str, rows: int) -> None:
        """Announce a stage that will make so many rows."""
        ...

    def row(self, label: str, seed: int, row: EpochRow) -> None:
        """Show a row that was just made."""
        ...


class Silent:
    """Looks away."""

    def stage(self, title: str, rows: int) -> None:
        pass

    def row(self, label: str, seed: int, row: EpochRow) -> None:
        pass


@dataclass(frozen=True)
class Comparison:
    """The answer: the whole table, the verdicts (best first), and how step sizes were found."""

    plan: ComparisonPlan
    table: Table
    verdicts: list[Verdict]
    step_sizes: dict[str, float]
    searches: dict[str, Search]
    folder: RunFolder | None

    def plot(self, metric: str = "", *, x: str = "epoch", axes: Axes | None = None) -> Axes:
        """Draw a metric of all policies, on axes of yours or on new ones: medians, and the seeds' range.

        Parameters
        ----------
        metric
            A column of the table; the judged one if none is named.
        x
            ``"epoch"``, ``"gradients"`` or ``"seconds"``.
        axes
            Matplotlib axes to draw on.
        """
        known = {m.column: m for m in self.plan.task.metrics}
        name = self.plan.metric.column if isinstance(metric, str) and not metric else metric
        chosen = known[one_of("metric", name, tuple(known))]
        along = one_of("x", x, tuple(AXES))
        drawn = axes_for(axes, "Comparison.plot")
        from wellorder.report._pictures import draw_curves  # slow to import

        with house_style():
            draw_curves(drawn, self.table, chosen, x=along)
            drawn.set(xlabel=AXES[along], ylabel=literal(chosen.label))
            drawn.legend()
        return drawn

    def __repr__(self) -> str:
        return f"Comparison: {self.plan.task.title}. {headline(self.verdicts, self.plan.baseline)}"

    def _repr_html_(self) -> str:
        metrics = self.plan.task.metrics
        judged = {v.policy: [times(v.epochs), times(v.seconds), v.conclusion.value] for v in self.verdicts}
        rows = []
        for policy in self.plan.policies:
            ends = [np.median(final_values(curves(self.table, policy, m.column))) for m in metrics]
            shown_ends = [in_digits(float(end), m) for end, m in zip(ends, metrics, strict=True)]
            rows.append([policy, *shown_ends, *judged.get(policy, ["× 1.00", "× 1.00", "baseline"])])
        heads = ["policy", *(m.label for m in metrics), "epochs to match", "time to match", "worth it?"]
        return html_table(heads, rows, title=repr(self))


def compare(
    task: Task | str,
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    progress: bool = True,
) -> Comparison:
    """Train all policies with all seeds and judge them; the same plan gives the same table, bit for bit.

    Parameters
    ----------
    task
        The name of an embedded task, or any `Task`: a `NetworkTask`, or what `table_task` makes of a table
        and `problem_task` of your own problem.
    config
        What to compare.
    out, resume
        The run's folder (nothing is kept without one), and whether to finish what is in it.
    jobs
        Worker processes. With more than one, call from under ``if __name__ == "__main__"``.
    executor
        Any `concurrent.futures.Executor` to train on instead: of Dask, of MPI, of other processes. Rows come
        when a run has ended.
    watch
        Told of every row as it is made.
    progress
        Whether to show a progress bar, where standard error is a terminal and nobody else watches.
    """
    wanted = Config() if config is None else config
    if watch is not None and (
        isinstance(watch, type) or not any(callable(getattr(watch, verb, None)) for verb in ("stage", "row"))
    ):
        raise ValueError(f"watch={shown(watch)}: pass an object with stage(title, rows) and row(label, …)")
    plan = resolve(task, wanted)
    whole_number("jobs", jobs, least=1, most=1024)
    flag("resume", resume)
    flag("progress", progress)
    if executor is not None:
        instance_of("executor", executor, Executor, "pass a concurrent.futures.Executor, as Dask's "
                    "client.get_executor()")  # fmt: skip
        if jobs != 1:
            raise ValueError(f"jobs={jobs}: the executor decides how many run at a time; leave jobs out")
    run = partial(work_off, processes=jobs, executor=executor)
    if watch is not None or not progress:
        return _kept(plan, wanted, out, resume, run, Silent() if watch is None else watch)
    live = LiveWatch(plan.metric, plan.settings.epochs)
    with displayed(live, quiet=False):
        return _kept(plan, wanted, out, resume, run, live)


def _kept(
    plan: ComparisonPlan, wanted: Config, out: str | Path | None, resume: bool, run: Runner, seen: Watch
) -> Comparison:
    """Compare, in a folder if there is to be one."""
    if out is None:
        return _compared(plan, None, run, seen)
    home = path_of("out", out, what="a folder")
    if resume:
        _check_same(RunFolder(home), plan)
    with RunFolder.claimed(home, resume=resume) as folder:
        if not resume:
            given = {"task": plan.task.name, **wanted.given()}
            folder.write("config.json", {"given": given, "resolved": plan.described()})
        return _compared(plan, folder, run, seen)


def _compared(plan: ComparisonPlan, folder: RunFolder | None, run: Runner, watch: Watch) -> Comparison:
    searches = _searches(plan, folder, run, watch)
    step_sizes = _step_sizes(plan, searches)
    cells = _cells(plan, step_sizes, folder, run, watch)
    table = joined(cells) if folder is None else folder.seal(cells)
    judged = verdicts(table, plan.metric, plan.baseline, plan.test_metric)
    return Comparison(plan, table, judged, step_sizes, searches, folder)


def _check_same(folder: RunFolder, plan: ComparisonPlan) -> None:
    """Make sure that the folder holds the run that is to be finished."""
    wanted, old = _flat(plan.described()), _flat(folder.asked()["resolved"])
    different = [
        f"{key}={value!r} (was {old.get(key)!r})" for key, value in wanted.items() if old.get(key) != value
    ]
    if different:
        raise ValueError(
            f"out={folder.path}: its run has other options: {'; '.join(different)}; choose another folder"
        )


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose own parts have names of their own, as in ``problem.n``."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        parts = value if isinstance(value, dict) else {"": value}
        if name == "policies":
            found["order of policies"] = list(parts)  # cells are numbered by it
        found |= {f"{name}.{part}" if part else name: each for part, each in parts.items()}
    return found


def _searches(plan: ComparisonPlan, folder: RunFolder | None, run: Runner, watch: Watch) -> dict[str, Search]:
    """Search the step sizes that the plan wants tuned; a folder remembers the searches that are finished."""
    wanted = {"": [], "baseline": [plan.baseline], "each": list(plan.policies)}[plan.tune]
    known = (folder.read("tuning.json") if folder is not None else None) or {}
    found = {}
    for label in wanted:
        if label not in known:
            search = two_stage(_tuner(plan, label, run, watch), plan.task.grid)
            known[label] = search.as_data()
            if folder is not None:
                folder.write("tuning.json", known)
        found[label] = remembered(folder, known[label])
    return found


def remembered(folder: RunFolder | None, data: Any) -> Search:
    """A search as the folder remembers it."""
    try:
        return Search.from_data(data)
    except ValueError as error:
        raise error if folder is None else folder.damaged("tuning.json", str(error)) from None


def _step_sizes(plan: ComparisonPlan, searches: dict[str, Search]) -> dict[str, float]:
    if not searches:
        return dict.fromkeys(plan.policies, plan.settings.step_size)
    shared = searches.get(plan.baseline)
    return {label: searches.get(label, shared).best for label in plan.policies}  # type: ignore[union-attr]


def _tuner(
    plan: ComparisonPlan, label: str, run: Runner, watch: Watch
) -> Callable[[Sequence[float]], list[float]]:
    """From step sizes to the median final value of the judged metric over up to three seeds; low is good."""
    seeds, metric = plan.seeds[:3], plan.metric

    def losses(grid: Sequence[float]) -> list[float]:
        batch = [_job(plan, label, seed, value) for value in grid for seed in seeds]
        watch.stage(f"step size of {label}", len(batch) * (plan.settings.epochs + 1))
        rows = _rows(batch, run, watch)
        ends = final_values(np.array([[row[metric.column] for row in done] for done in rows]))
        return list(np.median(ends.reshape(len(grid), -1), axis=1) * (1 if metric.lower_is_better else -1))

    return losses


def _cells(
    plan: ComparisonPlan, step_sizes: dict[str, float], folder: RunFolder | None, run: Runner, watch: Watch
) -> list[Table]:
    """All cells, the missing ones trained, seed after seed so that a broken run leaves whole seeds."""
    labels = list(plan.policies)
    cells: dict[tuple[int, int], Any] = {}
    columns = [*(metric.column for metric in plan.task.metrics), "gradients", "seconds"]
    for seed in plan.seeds:
        for number in range(len(labels)):
            cells[number, seed] = folder and folder.kept(
                number, labels[number], seed, rows=plan.settings.epochs + 1, columns=columns
            )
    missing = [cell for cell, table in cells.items() if table is None]
    batch = [_job(plan, labels[number], seed, step_sizes[labels[number]]) for number, seed in missing]

    def keep(at: int, rows: list[EpochRow]) -> None:
        number, seed = missing[at]
        cells[number, seed] = table_of({"policy": labels[number], "seed": seed, **row} for row in rows)
        if folder is not None:
            folder.keep(number, seed, cells[number, seed])

    watch.stage("training", len(batch) * (plan.settings.epochs + 1))
    _rows(batch, run, watch, keep)
    return [cells[number, seed] for number in range(len(labels)) for seed in plan.seeds]


def _job(plan: ComparisonPlan, label: str, seed: int, step_size: float) -> Job:
    return Job(plan.task, label, plan.policies[label], seed, replace(plan.settings, step_size=step_size))


def _rows(batch: list[Job], run: Runner, watch: Watch, ended: Ended | None = None) -> list[list[EpochRow]]:
    """Work off a batch; its rows by job, each job handed to ``ended`` as soon as it is."""
    rows: list[list[EpochRow]] = [[] for _ in batch]
    for event in run(batch):
        if event.row is None:
            if ended is not None:
                ended(event.job, rows[event.job])
        else:
            rows[event.job].append(event.row)
            watch.row(batch[event.job].label, batch[event.job].seed, event.row)
    return rows
