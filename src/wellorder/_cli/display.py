"""What the commands show: live progress on a terminal, clean tables, and nothing else."""

from __future__ import annotations

import codecs
import errno
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from wellorder.experiments._pool import EpochRow, JobError
from wellorder.report._table import Metric, number

IN_ASCII = {
    "‖": "||", "∇": "grad ", "∞": "inf", "θ": "theta", "γ": "gamma", "ς": "sigma", "σ": "sigma", "φ": "phi",
    "η": "eta", "δ": "delta", "ν": "nu", "\N{COMBINING MACRON}": "", "²": "^2", "₀": "0", "√": "sqrt ",
    "≤": "<=", "≥": ">=", "·": "*", "×": "x", "−": "-", "–": "-", "•": "*", "…": "...", "’": "'",
    "±": "+-", "Σ": "sum ",
}  # fmt: skip


def write_legibly() -> None:
    """Let standard output and error say in ASCII what their encoding lacks, instead of failing."""

    def spelled(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(IN_ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end

    codecs.register_error("wellorder-legible", spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="wellorder-legible")


class LiveWatch:
    """A progress bar with the time left, and each policy's latest value of a metric."""

    def __init__(self, metric: Metric, epochs: int) -> None:
        self.metric, self.epochs = metric, epochs
        self.latest: dict[str, dict[int, EpochRow]] = {}
        self.progress = bar()
        self.task = self.progress.add_task("starting", total=None)

    def stage(self, title: str, rows: int) -> None:
        self.latest.clear()
        self.progress.remove_task(self.task)
        self.task = self.progress.add_task(title, total=rows)

    def row(self, label: str, seed: int, row: EpochRow) -> None:
        self.latest.setdefault(label, {})[seed] = row
        self.progress.advance(self.task)

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for head in ("policy", "seed", "epoch", self.metric.label):
            table.add_column(head, justify="left" if head == "policy" else "right")
        for label, seeds in self.latest.items():
            seed, row = list(seeds.items())[-1]
            shown = number(row[self.metric.column], self.metric)
            table.add_row(label, str(seed), f"{int(row['epoch'])}/{self.epochs}", shown)
        return Group(self.progress, table)


def bar() -> Progress:
    """A progress bar for rows of work."""
    words = TextColumn("{task.description}", style="bold", markup=False)  # labels are anybody's text
    return Progress(
        words, BarColumn(bar_width=32), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn()
    )


@contextmanager
def shown(what: LiveWatch | Progress, *, quiet: bool) -> Iterator[None]:
    """Show progress on standard error, if that is a terminal and nobody asked for quiet."""
    console = _console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with Live(what, console=console, refresh_per_second=8, transient=True):
        yield


@contextmanager
def refusing(
    interrupted: str = "finished seeds are kept, and --resume finishes the rest",
) -> Iterator[None]:
    """Turn a ValueError into a message and exit code 2, a failure into 1, and Ctrl-C into 130."""
    try:
        yield
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        complain(f"interrupted; {interrupted}")
        raise typer.Exit(130) from None
    except (JobError, OSError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        complain(f"{error}; free some space; {interrupted}" if full else str(error))
        raise typer.Exit(1) from None


def complain(message: str) -> None:
    """Say what is wrong, on standard error."""
    _console(stderr=True).print(Text.assemble(("Error:", "bold red"), f" {message}"), soft_wrap=True)


def ratio(value: float) -> str:
    """A ratio as readers like it."""
    return "–" if np.isnan(value) else f"{value:.2f}"


def console() -> Console:
    """Standard output, wide enough for tables where it is no terminal."""
    return _console(width=None if sys.stdout.isatty() else 110)


def _console(**options: Any) -> Console:
    """A console that shows text as it stands: a label may hold brackets, and colons as in ``:x:``."""
    return Console(highlight=False, markup=False, emoji=False, **options)
