"""Progress on a terminal: how far a comparison is, how long it will take, and each policy's latest value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wellorder.experiments._pool import EpochRow
from wellorder.report._table import Metric, number

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.progress import Progress


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
        from rich.console import Group
        from rich.table import Table

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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words = TextColumn("{task.description}", style="bold", markup=False)  # labels are anybody's text
    return Progress(
        words, BarColumn(bar_width=32), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn()
    )


@contextmanager
def displayed(what: Any, *, quiet: bool) -> Iterator[None]:
    """Show progress on standard error, if that is a terminal and nobody asked for quiet."""
    from rich.live import Live

    console = plain_console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with Live(what, console=console, refresh_per_second=8, transient=True):
        yield


def plain_console(**options: Any) -> Console:
    """A console that shows text as it stands: a label may hold brackets, and colons as in ``:x:``."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, **options)
