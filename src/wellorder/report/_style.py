"""One look for all pictures: the same policy has the same colour on paper, on the page, and in the dark."""

from __future__ import annotations

from collections.abc import Sequence

COLOURS = (
    "#64748b", "#d97706", "#0d9488", "#c026d3", "#3b82f6",
    "#65a30d", "#dc2626", "#0891b2", "#92400e", "#7c3aed", "#f472b6", "#14532d", "#eab308", "#1e3a8a",
)  # fmt: skip
"""Told apart by most eyes, and readable on white and on near-black."""

KNOWN = {
    "RandomReshuffling": 0, "RR": 0, "FL-RR": 0,
    "ShuffleOnce": 1, "SO": 1, "FL-OP": 1,
    "FlipFlop": 2,
    "GraB": 3,
    "PairGraB": 4, "FL-GraB": 4,
}  # fmt: skip


def colours_of(policies: Sequence[str]) -> dict[str, str]:
    """A colour for each policy: its own if it has one, else the next that is free.

    >>> colours_of(["PairGraB", "mine"]) == {"PairGraB": COLOURS[4], "mine": COLOURS[0]}
    True
    """
    taken = {KNOWN[name] for name in policies if name in KNOWN}
    free = [at for at in range(len(COLOURS)) if at not in taken]
    chosen: dict[str, str] = {}
    for name in policies:
        at = KNOWN[name] if name in KNOWN else free.pop(0) if free else len(chosen)
        chosen[name] = COLOURS[at % len(COLOURS)]
    return chosen
