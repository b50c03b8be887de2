"""TEMPORARY stand-in for policies/_registry.py."""

from dataclasses import dataclass
from typing import Any

from wellorder import policies as p


@dataclass(frozen=True)
class Entry:
    policy: Any
    paper: str
    clients: str

    @property
    def name(self) -> str:
        return str(self.policy.__name__)


REGISTRY = (
    Entry(p.RandomReshuffling, "RR", "FL-RR"),
    Entry(p.ShuffleOnce, "SO", "FL-SO"),
    Entry(p.IncrementalGradient, "IG", "FL-IG"),
    Entry(p.FlipFlop, "", ""),
    Entry(p.NicePermutation, "NP", "FL-NP"),
    Entry(p.Arbitrary, "AP", "FL-AP"),
    Entry(p.WithReplacement, "", ""),
    Entry(p.Greedy, "", ""),
    Entry(p.GraBProto, "GraB-proto", ""),
    Entry(p.PairGraBProto, "PairGraB-proto", "FL-GraB-proto"),
    Entry(p.GraB, "GraB", ""),
    Entry(p.PairGraB, "PairGraB", "FL-GraB"),
    Entry(p.Herding, "Herding", "FL-Herding"),
)


def entry_of(policy: Any) -> Any:
    kind = policy if isinstance(policy, type) else type(policy)
    return next((e for e in REGISTRY if e.policy is kind), None)
