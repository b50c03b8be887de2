"""``wellorder reproduce``: the paper's figures and CD-GraB's, one subcommand each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from wellorder._cli.display import console, refusing
from wellorder._saving import write_text
from wellorder.experiments._folder import cores, machine, versions, whole_folder
from wellorder.experiments._progress import bar, displayed
from wellorder.report._table import as_text, joined, write_table

SAID_EVERY = 60.0
"""Seconds between two lines about where a run is."""
app = typer.Typer(help="Reproduce the paper's figures, and CD-GraB's.", no_args_is_help=True)


Out = Annotated[Path | None, typer.Option(help="The run's folder.", show_default="runs/fig2 or runs/fig3")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="Folder of the data set's official files, or $WELLORDER_DATA.")
]
Named = Annotated[
    str | None, typer.Option("--dataset", help="cifar10, cifar100, cinic10, mnist, fashion_mnist or digits.")
]
Rounds = Annotated[int | None, typer.Option(help="Rounds to train.", show_default="20000; quick: 200")]
Seeds = Annotated[int | None, typer.Option(help="How many seeds.", show_default="5; quick: 2")]
Policies = Annotated[
    list[str] | None, typer.Option("--policy", help="A policy, as name or label=Name(...); repeatable.")
]
Tune = Annotated[bool, typer.Option("--tune", help="Search the step size in two stages on the first policy.")]
Rate = Annotated[float | None, typer.Option("--lr", help="The step size.", show_default="the paper's")]
Clients = Annotated[int | None, typer.Option(help="Clients.", show_default="1000; quick: 50")]
Sample = Annotated[
    int | None,
    typer.Option("--train-sample", help="Training examples to evaluate on.", show_default="all; quick: 500"),
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Precision = Annotated[
    str | None, typer.Option(help="float64, float32, tf32 or bf16.", show_default="float32; on CUDA tf32")
]
Quick = Annotated[bool, typer.Option("--quick", help="A small form for two CPU cores and two minutes.")]
Resume = Annotated[bool, typer.Option("--resume", help="Finish the run in the folder.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the data set first if it is missing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the final values as JSON, and nothing else.")]


@app.callback()
def _root() -> None:
    """Reproduce the paper's figures, and CD-GraB's."""


@app.command("fig1")
def figure1(
    out: Annotated[Path, typer.Option(help="Where to write the figure and its table.")] = Path("runs/fig1"),
    every: Annotated[bool, typer.Option("--all", help="Every policy, not only the paper's.")] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 10,
    epochs: Annotated[int, typer.Option(help="Epochs to train.")] = 100,
    n: Annotated[int, typer.Option(help="Units (examples or clients).")] = 1000,
    lr: Annotated[float, typer.Option(help="The step size, for all policies.")] = 1e-3,
    jobs: Annotated[
        int | None, typer.Option(help="Worker processes.", show_default="1; --all: the cores")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the medians as JSON, and nothing else.")
    ] = False,
) -> None:
    """Figure 1: quadratics, SGD and federated; distance to the optimum and order error (PNG, PDF, table)."""
    from wellorder.experiments import _figure_1 as fig1  # plotting libraries are slow to import

    clock = time.perf_counter()
    config = fig1.QuadraticsFigure(n=n, seeds=seeds, epochs=epochs, step_size=lr, every_policy=every)
    with refusing("nothing was written; run the command again"):
        processes = (cores() if every else 1) if jobs is None else jobs
        if not 1 <= processes <= 1024:
            raise ValueError(f"--jobs {jobs}: pass 1 to 1024")
        config.check()
        progress = bar()
        task = progress.add_task("Figure 1: seeds", total=seeds)
        parts = []
        with whole_folder(out) as beside:
            with displayed(progress, quiet=as_json):
                for part in fig1.run(config, jobs=processes):
                    parts.append(part)
                    progress.advance(task)
            table = fig1.whole(parts)
            found = _write(beside, "fig1", fig1.plot(table), table, config, fig1.medians(table))
    if as_json:
        typer.echo(as_text({**found, "figure": str(out / "fig1.png")}))
        return
    shown_table = Table(
        "policy", "‖x − x*‖", "order error", title="Medians at the last epoch", title_justify="left"
    )
    for policy, values in fig1.medians(table).items():
        shown_table.add_row(policy, f"{values['distance']:.2e}", f"{values['order_error']:.1f}")
    console().print(shown_table)
    console().print(f"Figure: {out / 'fig1.png'} ({time.perf_counter() - clock:.1f} s)", soft_wrap=True)


@app.command("cdgrab")
def coordination(
    out: Annotated[Path, typer.Option(help="Where to write the figure and its table.")] = Path("runs/cdgrab"),
    workers: Annotated[
        list[int] | None, typer.Option(help="A number of workers; repeatable.", show_default="1, 4, 16, 64")
    ] = None,
    n: Annotated[int, typer.Option(help="Vectors, of all workers together.")] = 4096,
    dim: Annotated[int, typer.Option(help="Numbers in a vector.")] = 16,
    epochs: Annotated[int, typer.Option(help="Epochs.")] = 10,
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 5,
    as_json: AsJson = False,
) -> None:
    """CD-GraB: order error of workers who balance together, and of those who do so alone."""
    from wellorder.experiments import _coordination as figure

    clock = time.perf_counter()
    counts = {"workers": tuple(sorted(set(workers)))} if workers else {}
    config = figure.CoordinationFigure(n=n, dim=dim, epochs=epochs, seeds=seeds, **counts)
    with refusing("nothing was written; run the command again"):
        config.check()
        progress = bar()
        task = progress.add_task("CD-GraB: seeds", total=seeds)
        parts = []
        with whole_folder(out) as beside:
            with displayed(progress, quiet=as_json):
                for part in figure.run(config):
                    parts.append(part)
                    progress.advance(task)
            table = joined(parts)
            found = _write(beside, "cdgrab", figure.plot(table), table, config, figure.medians(table))
    if as_json:
        typer.echo(as_text({**found, "figure": str(out / "cdgrab.png")}))
        return
    titles = figure.LABELS.values()
    shown_table = Table("", *titles, title="Order error in the last epoch, medians", title_justify="left")
    for setting, values in figure.medians(table).items():
        shown_table.add_row(setting, *(f"{values[policy]:.1f}" for policy in figure.LABELS))
    console().print(shown_table)
    console().print(f"Figure: {out / 'cdgrab.png'} ({time.perf_counter() - clock:.1f} s)", soft_wrap=True)


def _write(folder: Path, name: str, figure: Any, table: Any, config: Any, medians: Any) -> dict[str, Any]:
    """A figure's files: pictures, tables, and what they were made with, which is returned too."""
    from wellorder.report._pictures import save_picture

    found = {
        "config": asdict(config), "medians": medians, "versions": versions(), "machine": machine(),
    }  # fmt: skip
    for suffix in (".png", ".pdf"):
        save_picture(figure, folder / f"{name}{suffix}")
    for suffix in (".parquet", ".csv"):
        write_table(table, folder / f"{name}{suffix}")
    write_text(folder / f"{name}.json", as_text(found))
    return found


def federated_figure(name: str, about: str) -> Callable[..., None]:
    """The command of one figure; both take the same options."""

    def command(
        out: Out = None, data: DataFolder = None, dataset: Named = None, rounds: Rounds = None,
        seeds: Seeds = None, policy: Policies = None, tune: Tune = False, lr: Rate = None,
        clients: Clients = None, device: Device = "cpu", precision: Precision = None, quick: Quick = False,
        train_sample: Sample = None, resume: Resume = False, download: Download = False,
        as_json: AsJson = False,
    ) -> None:  # fmt: skip
        given = {
            "dataset": dataset, "rounds": rounds, "seeds": seeds, "policies": policy, "step_size": lr,
            "clients": clients, "tune": tune, "device": device, "precision": precision,
            "train_sample": train_sample,
        }  # fmt: skip
        changes = {key: value for key, value in given.items() if value is not None}
        _train(name, changes, quick, RunFiles(out or Path("runs") / name, data, resume, download), as_json)

    command.__doc__ = about
    return command


@dataclass(frozen=True)
class RunFiles:
    """Where a run is kept and where its data comes from."""

    out: Path
    data: Path | None
    resume: bool
    download: bool


def spread(values: dict[str, float], name: str, scale: float, digits: int) -> str:
    """A mean, and its deviation over seeds if there are several.

    >>> spread({"loss": 0.25, "loss_std": float("nan")}, "loss", 1, 2)
    '0.25'
    """
    mean, deviation = scale * values[name], scale * values[f"{name}_std"]
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if deviation == deviation else "")


class Whereabouts:
    """Where a long run is: a bar of rounds on a terminal, elsewhere a line now and then on standard error."""

    def __init__(self, title: str, epochs: int, *, quiet: bool) -> None:
        self.progress, self.epochs = bar(), epochs
        self.task = self.progress.add_task(title, total=None)
        self.lines = not quiet and not sys.stderr.isatty()
        self.began = self.said = time.perf_counter()
        self.seen = 0

    def round(self, done: int, turn: int, rounds: int) -> None:
        """After ``done`` epochs, ``turn`` of the next one's rounds are done."""
        at, total = done * rounds + turn, self.epochs * rounds
        self.progress.update(self.task, completed=at, total=total)
        self.seen += 1
        now = time.perf_counter()
        if self.lines and (self.seen in (1, 10) or now > self.said + SAID_EVERY):
            left = (now - self.began) / self.seen * (total - at)
            told = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} minutes"
            typer.echo(f"round {at} of {total}, about {told} left", err=True)
            self.said = now


def _one_thread() -> None:
    """Small products are faster on one core than shared among several."""
    try:
        import torch
    except ModuleNotFoundError:
        return
    torch.set_num_threads(1)


def _train(name: str, changes: dict[str, Any], quick: bool, files: RunFiles, as_json: bool) -> None:
    from wellorder.experiments import _figures_2_3 as figures

    clock = time.perf_counter()
    if quick:
        _one_thread()
    with refusing():
        try:
            config = figures.figure(name, quick=quick, **changes)
            found = figures.dataset_of(config, files.data, download=files.download)
            where = Whereabouts(f"{config.model} on {config.dataset}: rounds", config.epochs, quiet=as_json)
            with displayed(where.progress, quiet=as_json):
                done = figures.run(config, found, files.out, resume=files.resume, watch=where.round)
        except ModuleNotFoundError as error:
            raise ValueError(f"{error}; this needs 'wellorder[torch,experiments]'") from None
        report = figures.publish(done, found)
    ends = figures.finals(done.table)
    if as_json:
        typer.echo(as_text({"final": ends, "step_size": done.step_size, "report": str(report)}))
        return
    table = Table(
        "policy", "test accuracy", "training loss", title="Mean of the last 5 evaluations, over seeds"
    )
    for label, values in ends.items():
        table.add_row(
            label,
            f"{spread(values, 'test_accuracy', 100, 2)} %",
            spread(values, "train_loss", 1, 4),
        )
    console().print(table)
    console().print(f"Report: {report} ({time.perf_counter() - clock:.1f} s)", soft_wrap=True)


app.command("fig2")(
    federated_figure("fig2", "Figure 2: federated training of the paper's CNN (table, figures, report).")
)
app.command("fig3")(
    federated_figure("fig3", "Figure 3: federated training of ResNet-10 (table, figures, report).")
)
