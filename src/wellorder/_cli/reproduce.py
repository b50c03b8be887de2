"""``wellorder reproduce``: the paper's figures, one subcommand each."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from wellorder._cli.display import bar, console, refusing, shown
from wellorder._cli.reproduce_clients import command_for
from wellorder._saving import TEMPORARY, write_text
from wellorder.experiments._folder import cores, machine, versions
from wellorder.report._table import as_text, write_table

app = typer.Typer(help="Reproduce the paper's figures.", no_args_is_help=True)


app.command("fig2")(
    command_for("fig2", "Figure 2: federated training of the paper's CNN (table, figures, report).")
)
app.command("fig3")(
    command_for("fig3", "Figure 3: federated training of ResNet-10 (table, figures, report).")
)


@app.callback()
def _root() -> None:
    """Reproduce the paper's figures."""


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
    from wellorder.experiments import _fig1 as fig1  # plotting libraries are slow to import
    from wellorder.report._pictures import save_picture

    clock = time.perf_counter()
    config = fig1.Config(n=n, seeds=seeds, epochs=epochs, step_size=lr, every_policy=every)
    with refusing("nothing was written; run the command again"):
        processes = (cores() if every else 1) if jobs is None else jobs
        if processes < 1:
            raise ValueError(f"--jobs {jobs}: pass 1 or more")
        config.check()
        _check_writable(out)
        progress = bar()
        task = progress.add_task("Figure 1: seeds", total=seeds)
        parts = []
        with shown(progress, quiet=as_json):
            for part in fig1.run(config, jobs=processes):
                parts.append(part)
                progress.advance(task)
        table = fig1.whole(parts)
        found = {
            "config": asdict(config),
            "medians": fig1.medians(table),
            "versions": versions(),
            "machine": machine(),
        }
        figure = fig1.plot(table)
        with _all_or_nothing(out) as beside:
            for suffix in (".png", ".pdf"):
                save_picture(figure, beside / f"fig1{suffix}")
            for suffix in (".parquet", ".csv"):
                write_table(table, beside / f"fig1{suffix}")
            write_text(beside / "fig1.json", as_text(found))
    if as_json:
        typer.echo(as_text({**found, "figure": str(out / "fig1.png")}))
        return
    shown_table = Table(
        "policy", "‖x − x*‖", "order error", title="Medians at the last epoch", title_justify="left"
    )
    for policy, values in fig1.medians(table).items():
        shown_table.add_row(policy, f"{values['distance']:.2e}", f"{values['order_error']:.1f}")
    console().print(shown_table)
    console().print(
        f"Figure: {out / 'fig1.png'} ({time.perf_counter() - clock:.1f} s)", soft_wrap=True, markup=False
    )


def _check_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise ValueError(
            f"--out {out}: cannot be written ({error.strerror or error}); choose another"
        ) from None


@contextmanager
def _all_or_nothing(out: Path) -> Iterator[Path]:
    """A folder whose files move to ``out`` once all of them are written."""
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=out) as beside:
        yield Path(beside)
        for file in sorted(Path(beside).iterdir()):
            file.replace(out / file.name)
