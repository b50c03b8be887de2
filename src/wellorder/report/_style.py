"""What page and pictures share: each policy's line, the bands that are drawn, and the part that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wellorder.policies import REGISTRY
from wellorder.report._table import Metric, Table, curves, policies_of

AXES = {"epoch": "epoch", "gradients": "gradients", "seconds": "seconds of training"}
"""What a metric can be drawn against, in words."""


class Look(NamedTuple):
    """How a policy's line is drawn."""

    colour: str
    dash: str


KNOWN = {
    word: Look(entry.colour, entry.dash)
    for entry in REGISTRY
    for word in (entry.name, entry.short, entry.clients)
    if word
}
KNOWN["FL-OP"] = KNOWN["FL-SO"]  # the paper's figures show one permutation by the one that is shuffled
COLOURS = tuple(dict.fromkeys(entry.colour for entry in REGISTRY))
LOOKS = tuple(Look(colour, dash) for dash in ("solid", "dashed", "dotted") for colour in COLOURS)


def looks_of(policies: Sequence[str]) -> dict[str, Look]:
    """A look for each label: its policy's if it is a policy's name, else the next that is free.

    >>> looks_of(["PairGraB", "mine"]) == {"PairGraB": KNOWN["PairGraB"], "mine": LOOKS[0]}
    True
    """
    taken = {KNOWN[name] for name in policies if name in KNOWN}
    colours = {look.colour for look in taken}
    free = sorted((look for look in LOOKS if look not in taken), key=lambda look: look.colour in colours)
    chosen: dict[str, Look] = {}
    for name in policies:
        spare = LOOKS[len(chosen) % len(LOOKS)]
        chosen[name] = KNOWN[name] if name in KNOWN else free.pop(0) if free else spare
    return chosen


class Band(NamedTuple):
    """A policy's curve: over the seeds, the least, the median and the largest at each epoch."""

    low: npt.NDArray[np.float64]
    middle: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def bands_of(table: Table, metric: Metric) -> dict[str, Band]:
    """Each policy's band; NaN where it is not finite."""
    found = {}
    for policy in policies_of(table):
        values = curves(table, policy, metric.column)
        lines = (values.min(axis=0), np.median(values, axis=0), values.max(axis=0))
        found[policy] = Band(*(np.where(np.isfinite(line), line, np.nan) for line in lines))
    return found


def shown_range(bands: dict[str, Band], *, log: bool) -> tuple[float, float] | None:
    """The part of the vertical axis that is shown; None if there is nothing to show.

    On a linear axis the first tenth of the epochs is left out: it would flatten all that follows.

    >>> falling = np.array([100.0] + [1 + 1 / e for e in range(1, 21)])
    >>> bottom, top = shown_range({"RR": Band(falling, falling, falling)}, log=False)
    >>> bool(0.9 < bottom < 1.1), bool(1.3 < top < 1.6)
    (True, True)
    """
    lines = [line[0 if log else -(-len(line) // 10) :] for band in bands.values() for line in band]
    values = np.concatenate(lines) if lines else np.zeros(0)
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not len(values):
        return None
    ends = np.log10(values) if log else values
    low, high = float(ends.min()), float(ends.max())
    air = 0.05 * ((high - low) or (1.0 if log else abs(high) or 1.0))
    return (10 ** (low - air), 10 ** (high + air)) if log else (low - air, high + air)
