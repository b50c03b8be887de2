"""``wellorder reproduce fig2`` and ``fig3``: federated training of the paper's networks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from wellorder._cli.display import bar, console, refusing, shown
from wellorder.report._table import as_text

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
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Precision = Annotated[
    str | None, typer.Option(help="float64, float32, tf32 or bf16.", show_default="float32; on CUDA tf32")
]
Quick = Annotated[bool, typer.Option("--quick", help="A small form for two CPU cores and two minutes.")]
Resume = Annotated[bool, typer.Option("--resume", help="Finish the run in the folder.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the data set first if it is missing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the final values as JSON, and nothing else.")]


def command_for(name: str, about: str) -> Callable[..., None]:
    """The command of one figure; both take the same options."""

    def command(
        out: Out = None, data: DataFolder = None, dataset: Named = None, rounds: Rounds = None,
        seeds: Seeds = None, policy: Policies = None, tune: Tune = False, lr: Rate = None,
        clients: Clients = None, device: Device = "cpu", precision: Precision = None, quick: Quick = False,
        resume: Resume = False, download: Download = False, as_json: AsJson = False,
    ) -> None:  # fmt: skip
        arithmetic = precision or ("tf32" if device.startswith("cuda") else "float32")
        given = {
            "dataset": dataset, "rounds": rounds, "seeds": seeds, "policies": policy, "step_size": lr,
            "clients": clients, "tune": tune, "device": device, "precision": arithmetic,
        }  # fmt: skip
        changes = {key: value for key, value in given.items() if value is not None}
        _reproduce(name, changes, quick, Files(out or Path("runs") / name, data, resume, download), as_json)

    command.__doc__ = about
    return command


@dataclass(frozen=True)
class Files:
    """Where a run is kept and where its data comes from."""

    out: Path
    data: Path | None
    resume: bool
    download: bool


def _one_thread() -> None:
    """Small products are faster on one core than shared among several."""
    try:
        import torch
    except ModuleNotFoundError:
        return
    torch.set_num_threads(1)


def _reproduce(name: str, changes: dict[str, Any], quick: bool, files: Files, as_json: bool) -> None:
    from wellorder.experiments import _fig2 as fig2
    from wellorder.experiments import _fig3 as fig3
    from wellorder.experiments._publish_clients import publish

    clock = time.perf_counter()
    if quick:
        _one_thread()
    full: Callable[..., fig2.Config] = fig2.Config if name == "fig2" else fig3.config
    make = (fig2.quick if name == "fig2" else fig3.quick) if quick else full
    with refusing():
        try:
            config = make(**changes)
            found = fig2.dataset_of(config, files.data, download=files.download)
            progress = bar()
            task = progress.add_task(f"{config.model} on {config.dataset}: epochs", total=config.epochs)

            def tell(epochs: int, _: list[dict[str, float]]) -> None:
                progress.update(task, completed=epochs)

            with shown(progress, quiet=as_json):
                done = fig2.run(config, found, files.out, resume=files.resume, progress=tell)
        except ModuleNotFoundError as error:
            raise ValueError(f"{error}; this needs 'wellorder[torch,experiments]'") from None
        report = publish(done, name, found)
    ends = fig2.finals(done.table)
    if as_json:
        typer.echo(as_text({"final": ends, "step_size": done.step_size, "report": str(report)}))
        return
    table = Table(
        "policy", "test accuracy", "training loss", title="Mean of the last 5 evaluations, over seeds"
    )
    for label, values in ends.items():
        table.add_row(
            label,
            f"{100 * values['test_accuracy']:.2f} ± {100 * values['test_accuracy_std']:.2f} %",
            f"{values['train_loss']:.4f} ± {values['train_loss_std']:.4f}",
        )
    console().print(table)
    console().print(f"Report: {report} ({time.perf_counter() - clock:.1f} s)", soft_wrap=True, markup=False)
