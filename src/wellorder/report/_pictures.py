"""Table → PNG and PDF, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from wellorder._arguments import instance_of, path_of, shown
from wellorder._notebook import PICTURES, house_style, literal, picture_file
from wellorder._saving import write_whole
from wellorder.report._style import AXES, bands_of, looks_of, shown_range
from wellorder.report._table import Metric, Table, checked_metric, checked_table, curves, policies_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_curves(axes: Axes, table: Table, metric: Metric, *, x: str = "epoch") -> None:
    """Each policy's median over seeds, in a band from the least to the largest seed."""
    looks, bands = looks_of(policies_of(table)), bands_of(table, metric)
    for policy, (low, middle, high) in bands.items():
        along, (colour, dash) = np.median(curves(table, policy, x), axis=0), looks[policy]
        axes.fill_between(along, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(along, middle, color=colour, linestyle=dash, label=literal(policy))
    positive = shown_range(bands, log=True) if metric.log else None
    if positive is not None:
        axes.set_yscale("log", nonpositive="mask")
    seen = positive or shown_range(bands, log=False)
    if seen is not None:
        axes.set_ylim(*seen)
    if metric.percent:
        axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
    if x != "seconds":
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
    axes.margins(x=0.01)


def picture(table: Table, metrics: Sequence[Metric], title: str = "") -> Figure:
    """One panel for each metric against epochs, two in a row."""
    checked_table(table)
    if not isinstance(metrics, list | tuple) or not 0 < len(metrics) <= 100:
        raise ValueError(f"metrics={shown(metrics)}: pass a list of 1 to 100 metrics")
    for metric in metrics:
        checked_metric(metric, table, "metrics")
    instance_of("title", title, str, "pass a line of text")
    with house_style():
        rows = -(-len(metrics) // 2)
        figure = Figure(figsize=(9.0, 3.1 * rows + 0.5), layout="constrained")
        panels = figure.subplots(rows, min(2, len(metrics)), squeeze=False).ravel()
        for axes, metric in zip(panels, metrics, strict=False):
            draw_curves(axes, table, metric)
            axes.set(title=literal(metric.label), xlabel="epoch")
        for axes in panels[len(metrics) :]:
            axes.set_axis_off()
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6))
        if title:
            figure.suptitle(literal(title), x=0.01, ha="left", fontsize=11)
    return figure


def costs(table: Table, metric: Metric, title: str = "") -> Figure:
    """One metric against epochs, gradients and seconds, as far as the table has them."""
    checked_metric(metric, checked_table(table))
    instance_of("title", title, str, "pass a line of text")
    known = [name for name in AXES if name in table.column_names]
    with house_style():
        figure = Figure(figsize=(3.6 * len(known), 3.5), layout="constrained")
        panels = figure.subplots(1, len(known), sharey=True, squeeze=False).ravel()
        for axes, name in zip(panels, known, strict=True):
            draw_curves(axes, table, metric, x=name)
            axes.set(xlabel=AXES[name])
        panels[0].set_ylabel(literal(metric.label))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6))
        if title:
            figure.suptitle(literal(title), x=0.01, ha="left", fontsize=11)
    return figure


def save_picture(figure: Figure, path: Path) -> None:
    """Write PNG, PDF or SVG, by the suffix of ``path``; whole or not at all, and without the date."""
    instance_of("figure", figure, Figure, "pass a figure, such as picture made")
    path = picture_file("path", path_of("path", path))
    dateless: Any = {PICTURES[path.suffix]: None}
    with house_style():
        write_whole(
            path, lambda beside: figure.savefig(beside, dpi=160, metadata=dateless, facecolor="white")
        )
