"""What comes with an update: records that must be alike for all clients of a round, and a client's weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

Report = tuple[Collection[str], Mapping[str, Mapping[str, Any]]]
"""The names of a reply's array records, and its metrics by record and name."""


def odd_ones(reports: Mapping[int, Report], weight: str, seen: Iterable[str] = ()) -> dict[int, str]:
    """Find the replies that would keep a strategy from averaging the others, and say why.

    Each must have one record of arrays and one of metrics, named as in most replies (those of earlier rounds,
    whose `shape_of` was ``seen``, count too), and in it a positive ``weight``.

    >>> fine, light, more = {"num-examples": 9}, {"num-examples": 0}, {"num-examples": 9, "loss": 0.1}
    >>> odd_ones({0: (["arrays"], {"m": fine}), 1: (["arrays"], {"m": light})}, "num-examples")
    {1: 'its num-examples is 0'}
    >>> odd_ones({0: (["a"], {"m": fine}), 1: (["a"], {"m": more}), 2: (["a"], {"m": more})}, "num-examples")
    {0: 'its records are a, m (num-examples); those of others a, m (loss, num-examples)'}
    """
    odd = {client: fault for client, report in reports.items() if (fault := _fault(report, weight))}
    shapes = {client: shape_of(report) for client, report in reports.items() if client not in odd}
    usual = Counter([*seen, *shapes.values()]).most_common(1)[0][0] if shapes else ""
    strange = {client: shape for client, shape in shapes.items() if shape != usual}
    return odd | {c: f"its records are {shape}; those of others {usual}" for c, shape in strange.items()}


def _fault(report: Report, weight: str) -> str:
    arrays, metrics = report
    if len(arrays) != 1 or len(metrics) != 1:
        return f"it has {len(arrays)} records of arrays and {len(metrics)} of metrics instead of one each"
    (record,) = metrics.values()
    if weight not in record:
        return f"it has no {weight}"
    w = record[weight]
    good = isinstance(w, int | float) and np.isfinite(w) and w > 0
    return "" if good else f"its {weight} is {w!r}"


def shape_of(report: Report) -> str:
    """The names of a reply's records and metrics, in one line."""
    arrays, metrics = report
    return ", ".join([*arrays, *(f"{name} ({', '.join(sorted(m))})" for name, m in metrics.items())])
