"""Sign rules: a rule sets the threshold below which ⟨s, z⟩ earns a plus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wellorder._arguments import is_real, room_for, shown, whole_number
from wellorder._order import Signs, uniforms


class SignRule(Protocol):
    """How a vector ``z`` gets its sign, given the running sum ``s``: ε = +1 iff ⟨s, z⟩ < threshold.

    ``limit`` is the size of ⟨s, z⟩ above which a decision counts as clipped.
    """

    @property
    def limit(self) -> float: ...

    def thresholds(self, seed: int, epoch: int, start: int, count: int) -> npt.NDArray[np.float64]:
        """Thresholds of the decisions ``start .. start+count-1`` of an epoch."""
        ...


@dataclass(frozen=True)
class Deterministic:
    """ε = +1 iff ‖s + z‖ < ‖s − z‖, that is ⟨s, z⟩ < 0; a tie gives −1 (GraB's rule)."""

    @property
    def limit(self) -> float:
        return np.inf

    def thresholds(self, seed: int, epoch: int, start: int, count: int) -> npt.NDArray[np.float64]:  # noqa: ARG002
        whole_number("count", count, least=0)
        with room_for("count", count):
            return np.zeros(count)


@dataclass(frozen=True)
class Walk:
    """The self-balancing walk: ε = +1 with probability ½ − ⟨s, z⟩/(2c) (Alweiss et al., 2021).

    With u uniform on [0, 1), that is ⟨s, z⟩ < c·(1 − 2u). Where ⟨s, z⟩ is beyond ±c the probability would
    leave [0, 1]: it is clipped, and counted in the state's ``clipped``, so that a run can say that
    ``c`` was too small. The theory takes c = 30·log(dN/δ) for vectors of norm at most 1; for others,
    multiply by the square of the largest norm.

    >>> Walk(c=30.0).thresholds(seed=0, epoch=0, start=0, count=2).round(2)
    array([-2.58, 24.56])
    """

    c: float

    def __post_init__(self) -> None:
        if not is_real(self.c) or self.c <= 0:
            raise ValueError(
                f"c={shown(self.c)}: the walk's scale must be a positive number; try 30 * log(d * n / 0.01)"
            )
        object.__setattr__(self, "c", float(self.c))

    @property
    def limit(self) -> float:
        return self.c

    def thresholds(self, seed: int, epoch: int, start: int, count: int) -> npt.NDArray[np.float64]:
        return self.c * (1.0 - 2.0 * uniforms(seed, epoch, "walk", start, count))


def checked_rule(rule: Any) -> SignRule:
    """Take a sign rule; refuses anything else, the class of one included."""
    if isinstance(rule, type) or not hasattr(rule, "thresholds") or not hasattr(rule, "limit"):
        raise ValueError(f"rule={shown(rule)}: pass a sign rule, Deterministic() or Walk(c)")
    checked: SignRule = rule
    return checked


def signs_of(rule: SignRule, seed: int, epoch: int, values: npt.NDArray[np.float64]) -> tuple[Signs, int]:
    """Signs of an epoch's first decisions from the products ⟨s, z⟩, and how many of them are clipped."""
    thresholds = rule.thresholds(seed, epoch, 0, len(values))
    return np.where(values < thresholds, 1, -1).astype(np.int8), int((np.abs(values) > rule.limit).sum())
