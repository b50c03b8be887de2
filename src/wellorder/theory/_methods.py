"""The paper's methods and their constants, one row each; every row names the example that proves it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wellorder.theory._setting import Setting

INF = math.inf
Formula = Callable[[Setting], float]


@dataclass(frozen=True)
class Method:
    """A row: what Assumption 1 holds with, and how small the step size must be."""

    name: str
    label: str
    """The LaTeX label of the example in the paper."""
    relation: str
    """How an epoch's order relates to the others (Table 1)."""
    p: float
    D: Formula
    A: tuple[float, ...] = ()
    """A_1, A_2, …"""
    B: tuple[float, ...] = ()
    """B_0/N², B_1/N², …"""
    c1: float = 3
    c2: float = 6
    steps: int = 32
    """The step size is at most 1/(steps·L_{2,p}·N) and 1/(steps·L_p·N)."""
    stale: bool = False
    """Whether signals come from along the way, so that N + C replaces N beside L_{2,∞}."""
    uses: Callable[[Setting, int], int] = lambda _setting, _epochs: 0
    """How many times in a run the argument may fail, with probability δ each."""
    pairs: bool = False

    @property
    def federated(self) -> bool:
        """Whether this is a row of Theorem 2 (clients) rather than of Theorem 1 (examples)."""
        return self.name.startswith("FL-")

    @property
    def one(self) -> bool:
        """Whether one permutation serves all epochs."""
        return self.relation == "identical"


def _arbitrary(s: Setting) -> float:
    return (s.n * s.sigma) ** 2


def _shuffled(s: Setting) -> float:
    return 4 * s.n * (s.sigma * math.log(8 / s.delta)) ** 2


def _nice(s: Setting) -> float:
    """φ̄_0² after balancing a worst order: a pass halves it and adds C·ς/2 (Lemma 3); √d leads to p = 2."""
    return s.dim * (s.sigma * (s.walk(pairs=False) + math.ldexp(s.n, -s.passes))) ** 2


def _one(start: Formula) -> Formula:
    def formula(s: Setting) -> float:
        first = start(s) if s.first_error is None else s.first_error**2
        return 2 * first + 8 * (s.smoothness * s.n * s.theta) ** 2

    return formula


def _balanced(times: float, *, pairs: bool) -> Formula:
    return lambda s: times * (s.walk(pairs=pairs) * s.sigma) ** 2


def _balanced_rounds(part: float) -> Formula:
    return lambda s: (s.cohort * s.sigma) ** 2 * part + 6 * (s.walk(pairs=True) * s.sigma) ** 2


def _every_epoch(_: Setting, epochs: int) -> int:
    return epochs


def _once(s: Setting, _: int) -> int:
    return int(s.first_error is None)


def _each_pass(s: Setting, _: int) -> int:
    return s.passes if s.first_error is None else 0


def _plain(prefix: str, arbitrary: str, shuffled: str, one: str) -> list[Method]:
    return [
        Method(prefix + "AP", arbitrary, "arbitrary", 2, _arbitrary),
        Method(prefix + "RR", shuffled, "independent", 2, _shuffled, uses=_every_epoch),
        Method(prefix + "OP", one, "identical", 2, _one(_arbitrary)),
        Method(prefix + "IG", one, "identical", 2, _one(_arbitrary)),
        Method(prefix + "SO", one, "identical", 2, _one(_shuffled), uses=_once),
        Method(prefix + "NP", one, "identical", 2, _one(_nice), uses=_each_pass),
    ]


ROWS = [
    *_plain("", "ex:arbitrary permutation", "ex:random reshuffling", "ex:one permutation"),
    Method(
        "GraB-proto", "ex:GraB-proto", "dependent", INF, _balanced(1, pairs=False),
        A=(3 / 4,), B=(0, 1 / 50), c2=24, uses=_every_epoch,
    ),
    Method(
        "PairGraB-proto", "ex:PairGraB-proto", "dependent", INF, _balanced(4, pairs=True),
        A=(3 / 4,), B=(0, 1 / 50), c2=24, uses=_every_epoch, pairs=True,
    ),
    Method(
        "GraB", "ex:GraB", "dependent", INF, _balanced(2, pairs=False),
        A=(3 / 5, 1 / 50), B=(0, 1 / 50, 1 / 50), c2=16, steps=128, stale=True, uses=_every_epoch,
    ),
    Method(
        "PairGraB", "ex:PairGraB", "dependent", INF, _balanced(4, pairs=True),
        A=(4 / 5,), B=(0, 3 / 50), c2=30, steps=64, stale=True, uses=_every_epoch, pairs=True,
    ),
    *_plain("FL-", "ex:FL-AP", "ex:FL-RR", "ex:FL-OP"),
    Method(
        "FL-GraB-proto", "ex:FL-GraB-proto", "dependent", INF, _balanced_rounds(1 / 40),
        A=(3 / 4,), B=(0, 1 / 40), c2=24, uses=_every_epoch, pairs=True,
    ),
    Method(
        "FL-GraB", "ex:FL-GraB", "dependent", INF, _balanced_rounds(1 / 96),
        A=(3 / 5,), B=(0, 1 / 96), c2=15, steps=128, stale=True, uses=_every_epoch, pairs=True,
    ),
]  # fmt: skip

METHODS = {row.name: row for row in ROWS}

POLICIES = {
    "RandomReshuffling": "RR",
    "IncrementalGradient": "IG",
    "ShuffleOnce": "SO",
    "NicePermutation": "NP",
    "GraBProto": "GraB-proto",
    "PairGraBProto": "PairGraB-proto",
    "GraB": "GraB",
    "PairGraB": "PairGraB",
}
_ROUNDS = {"GraB-proto": "AP", "PairGraB-proto": "GraB-proto", "GraB": "AP", "PairGraB": "GraB"}
"""Clients: FL-GraB balances pairs; for GraB itself only the bound of arbitrary orders is proved."""


def method_of(policy: Any, *, federated: bool = False) -> str:
    """Name the row that covers a policy: its own where the paper has one, else AP, which covers them all.

    >>> from wellorder import FlipFlop, PairGraB
    >>> method_of(PairGraB()), method_of(PairGraB(), federated=True), method_of(FlipFlop())
    ('PairGraB', 'FL-GraB', 'AP')
    """
    kind = type(policy).__name__
    if kind == "WithReplacement":
        raise ValueError(
            "policy=WithReplacement(): its orders are no permutations, which nothing here covers; "
            "use RandomReshuffling"
        )
    name = POLICIES.get(kind, "AP")
    if getattr(policy, "reorders", 1) != 1:
        name = "AP"
    return f"FL-{_ROUNDS.get(name, name)}" if federated else name
