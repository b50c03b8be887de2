"""The policies, once: short names, colours, theory rows and commands' lists are derived from this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wellorder._arguments import shown
from wellorder._order import Keeps, Needs, Policy, keeps_of
from wellorder.policies._arbitrary import Arbitrary
from wellorder.policies._cdgrab import CDGraB
from wellorder.policies._cohorts import BalancedCohorts
from wellorder.policies._flipflop import FlipFlop
from wellorder.policies._grab import GraB
from wellorder.policies._greedy import Greedy
from wellorder.policies._herding import Herding
from wellorder.policies._independent import RandomCohorts, RandomReshuffling, WithReplacement
from wellorder.policies._one import IncrementalGradient, NicePermutation, ShuffleOnce
from wellorder.policies._pairgrab import PairGraB, PairGraBProto
from wellorder.policies._proto import GraBProto
from wellorder.policies._steering import Steering


@dataclass(frozen=True)
class Entry:
    """One policy as the library knows it."""

    policy: type[Any]
    short: str
    """What may be typed instead of its name, and stands in tables."""
    paper: str
    """The row of `wellorder.theory` for its order of examples; "" where there is none but any order's, AP."""
    clients: str
    """The same for its order of clients; "" where there is none but any order's, FL-AP."""
    colour: str
    """In every picture; readable on white and on near-black, and by colour-blind eyes."""
    memory: str
    """What it keeps from visit to visit, in words."""
    dash: str = "solid"
    """Of its line: eight colours can be told apart, so relatives share one and differ in this."""
    compared: bool = False
    """Whether `compare` takes it where no policies are named."""

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.policy.__name__

    @property
    def needs(self) -> Needs:
        """What it must be shown, and when."""
        needs: Needs = self.policy.needs
        return needs

    @property
    def keeps(self) -> Keeps:
        """What it keeps of a signal."""
        return keeps_of(self.policy)  # type: ignore[arg-type]  # its class attributes are all it asks


AN_ORDER = "4 bytes a unit"
SLATE, ORANGE, PLUM, SAGE = "#537785", "#f09406", "#562b3f", "#8db3a1"
INDIGO, SKY, RED, CLAY = "#3928ac", "#40aefd", "#791e02", "#b16044"
REGISTRY: tuple[Entry, ...] = (
    Entry(RandomReshuffling, "RR", "RR", "FL-RR", SLATE, AN_ORDER, compared=True),
    Entry(ShuffleOnce, "SO", "SO", "FL-SO", ORANGE, AN_ORDER, compared=True),
    Entry(IncrementalGradient, "IG", "IG", "FL-IG", PLUM, AN_ORDER),
    Entry(FlipFlop, "FF", "", "", SAGE, AN_ORDER),
    Entry(NicePermutation, "NP", "NP", "FL-NP", ORANGE, "8·d bytes a unit in the first epoch", "dashed"),
    Entry(Arbitrary, "AP", "AP", "FL-AP", PLUM, "the orders given", "dashed"),
    Entry(WithReplacement, "with replacement", "", "", SLATE, AN_ORDER, "dashed"),
    Entry(RandomCohorts, "random cohorts", "", "", SAGE, AN_ORDER, "dashed"),
    Entry(Greedy, "Greedy", "", "", RED, "8·d bytes a unit", "dashed"),
    Entry(GraBProto, "GraB-proto", "GraB-proto", "", INDIGO, "8·d bytes a unit", "dashed"),
    Entry(PairGraBProto, "PairGraB-proto", "PairGraB-proto", "FL-GraB-proto", SKY, "2 vectors", "dashed"),
    Entry(GraB, "GraB", "GraB", "", INDIGO, "3 vectors, 5 bytes a unit"),
    Entry(PairGraB, "PairGraB", "PairGraB", "FL-GraB", SKY, "2 vectors and 5 bytes a unit", compared=True),
    Entry(CDGraB, "CD-GraB", "PairGraB", "CD-GraB", CLAY, "workers + 1 vectors and 5 bytes a unit", "dashed"),
    Entry(Herding, "Herding", "Herding", "FL-Herding", RED, "rows: 4·k bytes a unit"),
    Entry(Steering, "Steering", "", "", CLAY, "rows: 4·k bytes a unit", compared=True),
    Entry(BalancedCohorts, "balanced cohorts", "", "", RED, "rows: 4·k bytes a unit", "dotted"),
)
"""All policies of the library, in the order in which lists and legends show them."""


def entry_of(policy: Policy[Any] | type[Any]) -> Entry | None:
    """The entry of a policy or of its class; None for a stranger's, whatever its name, and for a subclass.

    >>> from wellorder import PairGraB
    >>> entry_of(PairGraB()).clients
    'FL-GraB'
    """
    kind = policy if isinstance(policy, type) else type(policy)
    return next((entry for entry in REGISTRY if entry.policy is kind), None)


def entry_named(word: str) -> Entry | None:
    """The entry whose name or short name is ``word``, in whatever case; None if there is none.

    >>> entry_named("rr").name, entry_named("pairgrab").name
    ('RandomReshuffling', 'PairGraB')
    """
    if not isinstance(word, str):
        raise ValueError(f"word={shown(word)}: pass the name of a policy, such as 'PairGraB'")
    return next((e for e in REGISTRY if word.lower() in (e.name.lower(), e.short.lower())), None)


def line_of(policy: Policy[Any]) -> dict[str, str]:
    """How matplotlib draws its line; a stranger's as matplotlib likes.

    >>> from wellorder import Greedy
    >>> line_of(Greedy())["linestyle"]
    'dashed'
    """
    entry = entry_of(policy)
    return {} if entry is None else {"color": entry.colour, "linestyle": entry.dash}
