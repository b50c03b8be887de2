"""A finished Figure 2 or 3 on disk: figures, summary and report, all read from its table."""

from __future__ import annotations

from pathlib import Path

from wellorder._datasets.files import Dataset
from wellorder._datasets.partitions import Partition
from wellorder._saving import write_text
from wellorder.experiments import _fig2 as fig2
from wellorder.experiments._folder import machine, versions
from wellorder.report._page import Page, render
from wellorder.report._pictures import costs, save_picture
from wellorder.report._table import as_text, policies_of
from wellorder.report._verdict import headline, verdicts


def publish(done: fig2.Done, name: str, dataset: Dataset) -> Path:
    """Write ``fig2.png`` and ``.pdf`` (or ``fig3``), ``partition.png``, ``summary.json``, ``report.html``."""
    path, config, table = done.folder.path, done.config, done.table
    title = f"{config.model} on {config.dataset}, {config.clients} clients"
    figure = fig2.plot(table, title)
    for suffix in (".png", ".pdf"):
        save_picture(figure, path / f"{name}{suffix}")
    save_picture(costs(table, fig2.TRAIN_LOSS, title), path / "costs.png")
    who = Partition.load(path / "partition.npz")
    save_picture(fig2.plot_partition(who, dataset.train_labels, dataset.classes), path / "partition.png")
    final = {"final": fig2.finals(table), "step_size": done.step_size, "config": config.described()}
    write_text(path / "summary.json", as_text(final))
    write_text(path / "report.html", render(_page(done, name, title)))
    return path / "report.html"


def _page(done: fig2.Done, name: str, title: str) -> Page:
    config, baseline = done.config, policies_of(done.table)[0]
    found = verdicts(done.table, fig2.ACCURACY, baseline)
    facts = {
        "Federation": f"{config.clients} clients of about one label, {config.cohort} a round, "
        f"{config.local_steps} local steps of {config.batch} examples",
        "Step size": f"{done.step_size:.3g}",
        "Machine": ", ".join(f"{key} {value}" for key, value in machine().items() if key != "byteorder"),
        "Versions": ", ".join(f"{key} {value}" for key, value in versions().items()),
        "Gradients": "mini-batch gradients, summed over clients",
        "Seconds": "wall clock of training, a run's share where runs were trained side by side",
        "Data": "table.parquet and timings.parquet (also as CSV) beside this page hold every number shown",
    }
    return Page(
        title=f"Clients in order: {title}",
        subtitle=f"{config.epochs} epochs · {config.seeds} seeds · step size {done.step_size:.3g}",
        table=done.table, metrics=fig2.METRICS, baseline=baseline, headline=headline(found, baseline),
        verdicts=found, notes=[f"{baseline}: {done.search.note}."] if done.search else [],
        command=f"wellorder reproduce {name} --dataset {config.dataset} --rounds {config.rounds}", how=facts,
    )  # fmt: skip
