"""``wellorder compare``: train every policy on a task, and say which order pays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from wellorder._cli.display import LiveWatch, complain, console, ratio, refusing, shown
from wellorder.experiments._compare import Comparison, compare
from wellorder.experiments._config import Config, resolve
from wellorder.experiments._folder import RunFolder, cores, fresh_path
from wellorder.experiments._names import MOST_SEEDS
from wellorder.experiments._pool import JobError
from wellorder.experiments._tasks import TASKS, task_of
from wellorder.report._table import curves, number
from wellorder.report._verdict import final_values, headline


def command(
    task: Annotated[str | None, typer.Option(help=f"{', '.join(TASKS)}.", show_default="digits")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy, repeatable: RR, 'GraB(reorders=2)', mine=PairGraB.", show_default="a sensible set"
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
        str | None, typer.Option(help="Judge against this policy.", show_default="RR")
    ] = None,
    cohort: Annotated[int | None, typer.Option(help="Federated: clients a round (S).")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Federated: local steps a client (K).")] = None,
    server_step: Annotated[
        float | None, typer.Option(help="Federated: amplification at an epoch's end.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data set's official files, or $WELLORDER_DATA.")
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the data set if it is missing.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(help="Worker processes.", show_default="the cores")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder.", show_default="runs/TASK-NUMBER")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish the run in --out.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
) -> None:
    """Compare orders on a task: loss per epoch, per gradient and per second, with a verdict and a report.

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
            "task": task, "policies": policy, "epochs": epochs, "step_size": lr, "baseline": baseline,
            "seeds": seed or (None if seeds is None else list(range(seeds))),
            "tune": "baseline" if tune else "each" if tune_each else None,
            "cohort": cohort, "local_steps": local_steps, "server_step": server_step,
        }  # fmt: skip
        before = _asked(RunFolder(out)) if resume and out is not None else {}
        if before and before["task"] not in TASKS:
            raise ValueError(
                f"out={out}: its task {before.get('task')!r} is one of your own; resume it from Python: "
                "compare(task, config, out=..., resume=True)"
            )
        options = {**before, **{k: v for k, v in typed.items() if v is not None}}
        name = options.pop("task", "digits")
        config = Config(**options)
        chosen = task_of(name, folder=None if data is None else str(data), download=download)
        plan = resolve(chosen, config)
        processes = cores() if jobs is None else jobs
        if not 1 <= processes <= 1024:
            raise ValueError(f"--jobs {jobs}: pass 1 to 1024")
        where = out or fresh_path(Path("runs"), name)
        watch = LiveWatch(plan.metric, plan.settings.epochs)
        with shown(watch, quiet=as_json):
            done = _run(
                lambda: compare(plan.task, config, out=where, jobs=processes, resume=resume, watch=watch)
            )
        report = publish(done)
    if as_json:
        typer.echo(json.dumps({**summary(done), "report": str(report)}, indent=2, ensure_ascii=False))
    else:
        _tell(done, report)


def _asked(folder: RunFolder) -> dict[str, Any]:
    """The options that the folder's run was given, and its task's name."""
    given: dict[str, Any] = folder.asked()["given"]
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
