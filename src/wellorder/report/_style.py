"""One look for all pictures: the same policy has the same colour on paper, on the page, and in the dark."""

from __future__ import annotations

from collections.abc import Sequence

from wellorder.policies import REGISTRY

KNOWN = {
    word: entry.colour
    for entry in REGISTRY
    for word in (entry.name, entry.short, entry.clients)
    if word
}  # fmt: skip
KNOWN["FL-OP"] = KNOWN["FL-SO"]  # the paper's figures show one permutation by the one that is shuffled
COLOURS = tuple(entry.colour for entry in REGISTRY)


def colours_of(policies: Sequence[str]) -> dict[str, str]:
    """A colour for each label: its policy's if it is a policy's name, else the next that is free.

    >>> colours_of(["PairGraB", "mine"]) == {"PairGraB": KNOWN["PairGraB"], "mine": COLOURS[0]}
    True
    """
    taken = {KNOWN[name] for name in policies if name in KNOWN}
    free = [colour for colour in COLOURS if colour not in taken]
    chosen: dict[str, str] = {}
    for name in policies:
        spare = COLOURS[len(chosen) % len(COLOURS)]
        chosen[name] = KNOWN[name] if name in KNOWN else free.pop(0) if free else spare
    return chosen
