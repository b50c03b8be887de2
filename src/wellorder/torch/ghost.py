"""Exact signals: all parameters' factors together, as one block of `Signals` for a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder.torch.compound import Apart, Heavy, Tied
from wellorder.torch.factors import Factor, Rows

Slots = Mapping[str, slice]
"""Where each parameter lies in the flat vector of all of them."""


@dataclass
class Habit:
    """What a policy asked for last: differences of ``pairs``, or the gradients."""

    pairs: bool = False


@dataclass(frozen=True)
class Ghost:
    """The gradients of b examples, which nobody writes out: ``scale`` times the factors of each parameter.

    ``allowance`` bytes may be written out where that is cheaper than products of factors. ``rows`` are those
    that were written already, or differences of ``pairs`` of them.
    """

    factors: Mapping[str, Factor]
    slots: Slots
    scale: float
    like: Tensor
    allowance: int = 0
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    habit: Habit = field(default_factory=Habit)
    pairs: bool = False

    def __len__(self) -> int:
        return len(next(iter(self.factors.values())))

    def gram(self) -> Tensor:
        total = self.like.new_zeros(len(self), len(self))
        for factor in self.parts.values():
            total += factor.gram()
        return total * self.scale**2

    def dot(self, vector: Any) -> Tensor:
        along = torch.as_tensor(vector).to(self.like)
        total = self.like.new_zeros(len(self))
        for name, factor in self.parts.items():
            total += factor.dot(along[self.slots[name]])
        return total * self.scale

    def combine(self, weights: npt.NDArray[np.float64]) -> Tensor:
        return self.add(weights, self.like.new_zeros(max(slot.stop for slot in self.slots.values())))

    def add(self, weights: npt.NDArray[np.float64], total: Tensor) -> Tensor:
        """Add the weighted sum of the gradients to a vector, in place."""
        shares = torch.as_tensor(np.asarray(weights, np.float64) * self.scale).to(self.like)
        for name, factor in self.parts.items():
            factor.add(shares, total[self.slots[name]])
        return total

    def differences(self, pending: Any) -> Ghost | None:
        """Differences of consecutive gradients: half as many to write out; None if they do not pair up."""
        if len(pending) or len(self) % 2:
            return None
        self.habit.pairs = True
        parts = self._written(pairs=True)
        apart = {n: parts[n] if n in parts else Apart(factor) for n, factor in self.factors.items()}
        return Ghost(apart, self.slots, self.scale, self.like)

    def take(self, index: npt.NDArray[np.intp]) -> Ghost:
        """Keep some of the examples."""
        where = torch.as_tensor(index, device=self.like.device)
        kept = {name: factor.take(where) for name, factor in self.factors.items()}
        return Ghost(kept, self.slots, self.scale, self.like, self.allowance, habit=self.habit)

    def finite(self) -> npt.NDArray[np.bool_]:
        """Which of the gradients are neither NaN nor infinite."""
        return np.asarray(torch.isfinite(self.gram().diagonal()).cpu().numpy())

    @cached_property
    def parts(self) -> dict[str, Factor]:
        """The factors, those written out that are cheaper as rows."""
        self.habit.pairs = False
        return {**self.factors, **self._written(pairs=False)}

    def _written(self, *, pairs: bool) -> dict[str, Rows]:
        """Rows that fit, by this batch alone: what was written early is used, but decides nothing."""
        parts: dict[str, Rows] = {}
        chosen = as_rows(self.factors, self.allowance, self.like.element_size(), pairs=pairs)
        for name, factor in self.factors.items():
            if name in chosen and name in self.rows and self.pairs == pairs:
                parts[name] = Rows(self.rows[name])
            elif name in chosen or (pairs and isinstance(factor, Rows)):
                parts[name] = Rows(factor.rows(pairs=pairs))
        return parts


def as_rows(factors: Mapping[str, Factor], allowance: int, size: int, *, pairs: bool) -> frozenset[str]:
    """The parameters whose gradients are best written out, and fit: most positions first."""
    heavy = [(positions(f), name, f) for name, f in factors.items() if isinstance(f, Heavy | Tied)]
    chosen = set()
    for _, name, factor in sorted((each for each in heavy if not as_ghost(each[2])), reverse=True):
        room = len(factor) // (2 if pairs else 1) * factor.length * size
        if room <= allowance:
            allowance -= room
            chosen.add(name)
    return frozenset(chosen)


def as_ghost(factor: Heavy | Tied) -> bool:
    """Whether a factor is best left as it is."""
    return not isinstance(factor, Tied) and factor.ghostly()


def positions(factor: Heavy | Tied) -> int:
    """Terms that each gradient is the sum of."""
    return factor.shape[2] if isinstance(factor, Heavy) else sum(map(positions, _heavy(factor)))


def _heavy(factor: Tied) -> list[Heavy]:
    return [use for use in factor.uses if isinstance(use, Heavy)]
