"""Table → ``report.html``: one self-contained page that needs no network.

Any flat table will do (see `_table`): fill a `Page` with the table, the metrics worth a chart
(the first is the judged one) and the verdicts, and `render` it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from wellorder._arguments import instance_of
from wellorder.report._style import AXES, Look, bands_of, looks_of, shown_range
from wellorder.report._table import Metric, Table, curves, number, policies_of, times
from wellorder.report._verdict import Conclusion, Verdict, final_values

DASHES = {"solid": "", "dashed": "7 4", "dotted": "2 3"}
"""As SVG wants them."""


@dataclass(frozen=True)
class Page:
    """All that a report shows."""

    title: str
    subtitle: str
    table: Table
    metrics: Sequence[Metric]
    baseline: str
    headline: str
    verdicts: Sequence[Verdict]
    command: str
    """How to run it again."""
    notes: Sequence[str] = ()
    """What a reader should know before believing the verdict."""
    how: Mapping[str, str] = field(default_factory=dict)
    """Facts about the run: machine, versions, step sizes …"""
    figures: Mapping[str, bytes] = field(default_factory=dict)
    """Further pictures, as PNG, by what they show."""


def render(page: Page) -> str:
    """The page as HTML."""
    instance_of("page", page, Page, "pass a wellorder.report.Page")
    found = files("wellorder.report")
    files_of = {"html": "page.html", "css": "page.css", "chart": "chart.js", "page": "page.js"}
    parts = {name: found.joinpath(file).read_text(encoding="utf-8") for name, file in files_of.items()}
    text = {
        "title": page.title, "subtitle": page.subtitle, "headline": page.headline, "command": page.command,
    }  # fmt: skip
    return Template(parts["html"]).substitute(
        {name: _escaped(value) for name, value in text.items()},
        verdicts="".join(map(_item, page.verdicts)),
        notes="".join(f'<p class="notes">{escape(note)}</p>' for note in page.notes),
        results=_results(page) + "".join(_figure(name, png) for name, png in page.figures.items()),
        how="".join(f"<p><b>{escape(name)}:</b> {escape(fact)}</p>" for name, fact in page.how.items()),
        data=_data(page), css=parts["css"], chart=parts["chart"], page=parts["page"],
    )  # fmt: skip


def _escaped(text: str) -> str:
    """Text for HTML in which no line breaks between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|ms|s|min|h)(?:\W|$))", "\N{NO-BREAK SPACE}", escape(text))


def _item(verdict: Verdict) -> str:
    colour = {Conclusion.WORTH: "better", Conclusion.COSTLY: "worse", Conclusion.WORSE: "worse"}
    mark = f'<span class="mark {colour.get(verdict.conclusion, "even")}">{verdict.conclusion.value}</span>'
    said = f"<b>{escape(verdict.policy)}:</b> {_escaped(verdict.answers)}. "
    return f"<li>{mark}<span>{said}<small>{escape(verdict.text)}</small></span></li>"


def _results(page: Page) -> str:
    """The table of final values: median over seeds, and the range of the seeds."""
    heads = ["policy", *(metric.label for metric in page.metrics), "epochs to match", "time to match"]
    judged = {verdict.policy: verdict for verdict in page.verdicts}
    rows = []
    for policy, look in looks_of(policies_of(page.table)).items():
        cells = [f"<span>{_swatch(look)}{escape(policy)}</span>"]
        for metric in page.metrics:
            ends = final_values(curves(page.table, policy, metric.column))
            low, high = number(float(ends.min()), metric), number(float(ends.max()), metric)
            spread = "" if low == high else f"<small>{low} – {high}</small>"
            cells.append(f"<span>{number(float(np.median(ends)), metric)}{spread}</span>")
        verdict = judged.get(policy)
        ratios = (1.0, 1.0) if verdict is None else (verdict.epochs, verdict.seconds)
        cells += map(times, ratios)
        labelled = zip(heads, cells, strict=True)
        rows.append("<tr>" + "".join(f'<td data-label="{escape(h)}">{c}</td>' for h, c in labelled) + "</tr>")
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    note = (
        f"Medians over seeds, and their range. To match: what it took to reach {page.baseline}'s final "
        f"{page.metrics[0].label}, as a multiple of what {page.baseline} took."
    )
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"{body}<p>{escape(note)}</p>"


def _figure(name: str, png: bytes) -> str:
    shown = base64.b64encode(png).decode()
    return f'<p><img alt="{escape(name)}" style="max-width:100%" src="data:image/png;base64,{shown}"></p>'


def _swatch(look: Look) -> str:
    """A piece of a policy's line."""
    line = f'<line x2="26" y1="3" y2="3" stroke-dasharray="{DASHES[look.dash]}"/>'
    return f'<svg class="swatch" style="--colour:{look.colour}" viewBox="0 0 26 6">{line}</svg>'


def _data(page: Page) -> str:
    """What the page's script draws, as JSON that no tag can break out of."""
    names = policies_of(page.table)
    axes = {key: word for key, word in AXES.items() if key in page.table.column_names}
    content = {
        "policies": [
            {"name": name, "colour": look.colour, "dash": DASHES[look.dash]}
            for name, look in looks_of(names).items()
        ],
        "words": axes,
        "x": {
            key: {name: _plain(np.median(curves(page.table, name, key), axis=0)) for name in names}
            for key in axes
        },
        "metrics": [_metric(page.table, metric) for metric in page.metrics],
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _metric(table: Table, metric: Metric) -> dict[str, Any]:
    bands = bands_of(table, metric)
    better = "lower is better" if metric.lower_is_better else "higher is better"
    return {
        "column": metric.column, "title": metric.label[:1].upper() + metric.label[1:], "log": metric.log,
        "about": f"{metric.about}; {better}" if metric.about else better,
        "percent": metric.percent,
        "range": {"log": shown_range(bands, log=True), "linear": shown_range(bands, log=False)},
        "curves": {
            name: {key: _plain(line) for key, line in band._asdict().items()} for name, band in bands.items()
        },
    }  # fmt: skip


def _plain(values: Any) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
