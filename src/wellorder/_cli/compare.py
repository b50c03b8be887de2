"""``wellorder compare``: train every policy on a task, and say which order pays."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from wellorder._cli import completion
from wellorder._cli.display import complain, console, ratio, refusing
from wellorder._extras import needed_by
from wellorder.experiments._compare import Comparison, compare
from wellorder.experiments._config import Config, resolve
from wellorder.experiments._folder import RunFolder, cores, fresh_path
from wellorder.experiments._names import MOST_SEEDS
from wellorder.experiments._pool import JobError
from wellorder.experiments._tasks import TASKS, Task, task_of
from wellorder.experiments._tasks.own import own_task
from wellorder.report._table import curves, number
from wellorder.report._verdict import final_values, headline

SUFFIXES = (".csv", ".parquet", ".npz")


EXAMPLES = """
Examples:

wellorder compare digits --seeds 10

wellorder compare mytask.py:task --policy RR --policy Steering --seeds 3

wellorder compare --data table.csv --label y --model mlp --tune
"""


def command(
    given: Annotated[
        str | None,
        typer.Argument(
            metavar="[TASK]",
            help="A task's name, or your own: mytask.py:task, package.module:task.",
            autocompletion=completion.tasks,
            show_default="digits",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(TASKS)}; of a table: classification or regression.",
            autocompletion=completion.tasks,
            show_default="digits",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A table (.csv, .parquet, .npz), or the folder of a data set's official files."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="The table's column to predict.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Of a table: linear or mlp.", show_default="linear")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Of a table: rows in a step.", show_default="16")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A table's column to leave out, repeatable.")] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the data set if it is missing.")
    ] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy, repeatable: RR, 'GraB(reorders=2)', mine=PairGraB.",
            autocompletion=completion.policies,
            show_default="those you would switch on",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs to train.", show_default="the task's")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds, from 0.", show_default="5")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="One seed, repeatable, instead of --seeds.")] = None,
    lr: Annotated[float | None, typer.Option(help="The step size.", show_default="the task's")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Two-stage grid search on the baseline, reused.")
    ] = False,
    tune_each: Annotated[bool, typer.Option("--tune-each", help="The same search for every policy.")] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Judge against this policy.", autocompletion=completion.policies, show_default="RR"
        ),
    ] = None,
    cohort: Annotated[int | None, typer.Option(help="Federated: clients a round (S).")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Federated: local steps a client (K).")] = None,
    server_step: Annotated[
        float | None, typer.Option(help="Federated: amplification at an epoch's end.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Worker processes.", show_default="the cores; on a GPU 1")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder.", show_default="runs/TASK-NUMBER")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the run in --out.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
) -> None:
    """Compare orders on a task: loss per epoch, per gradient and per second, with a verdict and a report.

    TASK is one of ours, your own PyTorch training (a file and the name of a NetworkTask in it, or of a
    function that makes one), or a table (--data, --label). `wellorder list` shows tasks and policies.

    Exit codes: 0 done, 1 a training run failed, 2 bad input, 130 interrupted (--resume finishes the rest).
    """
    with refusing():
        from wellorder.experiments._publish import publish, summary  # plotting libraries are slow to import

        if resume and out is None:
            raise ValueError("--resume needs --out: the folder of the run to finish")
        if seeds is not None and (seed or not 1 <= seeds <= MOST_SEEDS):
            raise ValueError(f"--seeds {seeds}: pass 1 to {MOST_SEEDS}, and not --seed as well")
        if tune and tune_each:
            raise ValueError("--tune and --tune-each: pass one of them")
        typed: dict[str, Any] = {
            "policies": policy, "epochs": epochs, "step_size": lr, "baseline": baseline,
            "seeds": seed or (None if seeds is None else list(range(seeds))),
            "tune": "baseline" if tune else "each" if tune_each else None,
            "cohort": cohort, "local_steps": local_steps, "server_step": server_step,
        }  # fmt: skip
        before = _asked(RunFolder(out)) if resume and out is not None else {}
        known = before.pop("task", None)
        config = Config(**{**before, **{k: v for k, v in typed.items() if v is not None}})
        wish = Wish(given, task, data, label, model, batch, tuple(drop or ()), download)
        chosen = wish.task(known)
        plan = resolve(chosen, config)
        processes = jobs if jobs is not None else 1 if _on_gpu(chosen) else cores()
        if not 1 <= processes <= 1024:
            raise ValueError(f"--jobs {jobs}: pass 1 to 1024")
        where = out or fresh_path(Path("runs"), re.sub(r"[^\w.-]+", "-", chosen.name) or "task")
        done = _run(
            lambda: compare(plan.task, config, out=where, jobs=processes, resume=resume, progress=not as_json)
        )
        report = publish(done)
    if as_json:
        typer.echo(json.dumps({**summary(done), "report": str(report)}, indent=2, ensure_ascii=False))
    else:
        _tell(done, report)


@dataclass(frozen=True)
class Wish:
    """What was typed about the task."""

    given: str | None
    option: str | None
    data: Path | None
    label: str | None
    model: str | None
    batch: int | None
    drop: tuple[str, ...]
    download: bool

    def task(self, known: str | None) -> Task:
        """Make the task; ``known`` is that of the run which is to be finished, if there is one."""
        if self.given is not None and self.option is not None and not self._is_table:
            raise ValueError(f"{self.given} and --task {self.option}: name one task")
        if self._is_table:
            return self._table()
        odd = [f"--{name}" for name in ("label", "model", "batch", "drop") if getattr(self, name)]
        if odd:
            raise ValueError(f"{', '.join(odd)}: only for a table; name its file with --data")
        name = self.given or self.option or known or "digits"
        if name == known and name not in TASKS and not (self.given or self.option):
            # What a folder says is data: it never decides which code is run.
            raise ValueError(
                f"its task {known!r} is one of your own; name it again: wellorder compare mytask.py:task "
                "--resume --out …, or --data and --label of the table; resume it from Python by "
                "compare(task, config, out=…, resume=True)"
            )
        if ":" in name:
            if self.data is not None or self.download:
                raise ValueError(f"{name} loads its own data; leave out --data and --download")
            return own_task(name)
        if name.endswith(".py"):
            raise ValueError(f"{name}: name the task in it, too, as {name}:task")
        return task_of(name, folder=None if self.data is None else str(self.data), download=self.download)

    @property
    def _is_table(self) -> bool:
        return self.data is not None and (self.label is not None or self.data.suffix.lower() in SUFFIXES)

    def _table(self) -> Task:
        if self.given is not None or self.option not in (None, "classification", "regression"):
            raise ValueError(
                f"--data {self.data} with {self.given or f'--task {self.option}'}: a table is a task of its "
                "own; leave the name out, or pass --task classification or regression"
            )
        if self.label is None:
            raise ValueError(f"--data {self.data} needs --label: the column to predict")
        with needed_by("a table", "torch", "experiments"):
            from wellorder.experiments._tasks.tables import table_task
        asked = {"model": self.model, "batch_size": self.batch}
        return table_task(
            str(self.data),
            self.label,
            kind=self.option,
            drop=self.drop,
            **{name: value for name, value in asked.items() if value is not None},  # type: ignore[arg-type]
        )


def _on_gpu(task: Task) -> bool:
    return str(getattr(task, "device", "cpu")).split(":")[0] != "cpu"


def _asked(folder: RunFolder) -> dict[str, Any]:
    """The options that the folder's run was given, and its task's name."""
    given: dict[str, Any] = dict(folder.asked()["given"])
    try:
        if not isinstance(given.get("task"), str):
            raise ValueError("names no task")
        Config.from_given({name: value for name, value in given.items() if name != "task"})
    except ValueError as error:
        raise folder.damaged("config.json", str(error)) from None
    return given


def _run(work: Any) -> Comparison:
    try:
        done: Comparison = work()
        return done
    except JobError as error:
        complain(f"{error}\nFinished seeds are kept, and --resume finishes the rest.")
        raise typer.Exit(1) from None


def _tell(done: Comparison, report: Path) -> None:
    plan, screen = done.plan, console()
    table = Table(title=plan.task.title, title_justify="left", title_style="bold")
    table.add_column("policy", no_wrap=True)
    for metric in plan.task.metrics:
        table.add_column(metric.label, justify="right")
    for head in ("epochs", "gradients", "time"):
        table.add_column(head, justify="right")
    judged = {verdict.policy: verdict for verdict in done.verdicts}
    for label in plan.policies:
        cells = []
        for metric in plan.task.metrics:
            ends = final_values(curves(done.table, label, metric.column))
            cells.append(number(float(np.median(ends)), metric))
        v = judged.get(label)
        ratios = (1.0, 1.0, 1.0) if v is None else (v.epochs, v.gradients, v.seconds)
        table.add_row(label, *cells, *map(ratio, ratios))
    screen.print(table)
    screen.print(f"{plan.method}.", style="dim")
    screen.print(
        f"Final values: medians over {len(plan.seeds)} seeds. Epochs, gradients, time: what it took to reach "
        f"{plan.baseline}'s final {plan.metric.label}, as a fraction of what {plan.baseline} took.\n",
        style="dim",
    )
    for label, search in done.searches.items():
        screen.print(f"{label}: {search.note}.", soft_wrap=True)
    screen.print(headline(done.verdicts, plan.baseline), style="bold", soft_wrap=True)
    for verdict in done.verdicts:
        screen.print(f"• {verdict.policy}, {verdict.conclusion.value}: {verdict.answers}.", soft_wrap=True)
        screen.print(f"  {verdict.text}", soft_wrap=True, style="dim")
    screen.print(f"\nReport: {report}", soft_wrap=True)
