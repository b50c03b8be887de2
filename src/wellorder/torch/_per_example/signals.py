"""Exact signals: all parameters' factors together, as one block of `Signals` for a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder.torch._per_example.factors import Factor, Rows
from wellorder.torch._per_example.uses import EarlyRows, Factored, PairDifferences, SeveralUses

Slots = Mapping[str, slice]
"""Where each parameter lies in the flat vector of all of them."""
Part = tuple[Factor, slice | Tensor]
"""A factor, and where its numbers lie in the flat vector."""


@dataclass
class LastRequest:
    """What a policy asked for last, differences of ``pairs`` or the gradients; and places it had."""

    pairs: bool = False
    places: dict[tuple[str, ...], Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ExactSignals:
    """The gradients of b examples, which nobody writes out: ``scale`` times the factors of each parameter.

    ``allowance`` bytes may be written out where that is cheaper than products of factors. ``rows`` are
    differences of pairs that were written already; ``total`` are some coordinates of the gradients' sum.
    """

    factors: Mapping[str, Factor]
    slots: Slots
    scale: float
    like: Tensor
    allowance: int = 0
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    last_request: LastRequest = field(default_factory=LastRequest)
    total: Tensor | None = None

    def __len__(self) -> int:
        return len(next(iter(self.factors.values())))

    def gram(self) -> Tensor:
        return self._block.gram()

    def dot(self, vector: Any) -> Tensor:
        return self._block.dot(vector)

    def combine(self, weights: npt.NDArray[np.float64]) -> Tensor:
        return self._block.combine(weights)

    def add_to(self, total: Any, weights: npt.NDArray[np.float64]) -> Tensor:
        """Add the weighted sum of the gradients to a vector, in place if it is one of ours."""
        return self._block.add_to(total, weights)

    def differences(self, pending: Any) -> Block | None:
        """Differences of consecutive gradients: half as many to write out; None if they do not pair up."""
        if len(pending) or len(self) % 2:
            return None
        self.last_request.pairs = True
        parts, left = self._as_rows(pairs=True)
        single = list[Part]()
        for name, factor in left.items():
            if not stays_factored(factor):
                parts.append((PairDifferences(factor), self.slots[name]))
            else:
                single.append((factor, self.slots[name]))
        return Block(len(self) // 2, parts, single, self.slots, self.scale, self.like)

    def take(self, index: npt.NDArray[np.intp]) -> ExactSignals:
        """Keep some of the examples."""
        where = torch.as_tensor(index, device=self.like.device)
        kept = {name: factor.take(where) for name, factor in self.factors.items()}
        return ExactSignals(
            kept, self.slots, self.scale, self.like, self.allowance, last_request=self.last_request
        )

    def finite(self) -> npt.NDArray[np.bool_]:
        """Which of the gradients are neither NaN nor infinite."""
        return np.asarray(torch.isfinite(self.gram().diagonal()).cpu().numpy())

    @cached_property
    def _block(self) -> Block:
        self.last_request.pairs = False
        parts, left = self._as_rows(pairs=False)
        parts += [(factor, self.slots[name]) for name, factor in left.items()]
        return Block(len(self), parts, [], self.slots, self.scale, self.like)

    def _as_rows(self, *, pairs: bool) -> tuple[list[Part], dict[str, Any]]:
        """Gradients that are written out, all small ones side by side; and the factors that are left.

        Which ones fit is decided by this batch alone, whatever was written early.
        """
        parts: list[Part] = []
        chosen = best_as_rows(self.factors, self.allowance, self.like.element_size(), pairs=pairs)
        small = tuple(name for name, factor in self.factors.items() if type(factor) is Rows)
        if small:
            values = torch.cat([self.factors[name].rows() for name in small], 1)
            parts.append((Rows(Rows(values).rows(pairs=pairs)), self._places(small)))
        for name in chosen:
            early = self.rows.get(name) if pairs else None
            rows = self.factors[name].rows(pairs=pairs) if early is None else early
            parts.append((Rows(rows), self.slots[name]))
        done = {*small, *chosen}
        return parts, {name: factor for name, factor in self.factors.items() if name not in done}

    def _places(self, names: tuple[str, ...]) -> Tensor:
        if names not in self.last_request.places:
            spans = [torch.arange(self.slots[name].start, self.slots[name].stop) for name in names]
            self.last_request.places[names] = torch.cat(spans).to(self.like.device)
        return self.last_request.places[names]


@dataclass(frozen=True)
class Block:
    """Products of ``count`` vectors, summed over the parts of the parameter vector.

    The vectors are ``scale`` times what the ``parts`` say, and differences of what ``single`` ones say.
    """

    count: int
    parts: Sequence[Part]
    single: Sequence[Part]
    slots: Slots
    scale: float
    like: Tensor

    def __len__(self) -> int:
        return self.count

    def gram(self) -> Tensor:
        total = self.like.new_zeros(self.count, self.count)
        for factor, _ in self.parts:
            total += factor.gram()
        if self.single:
            total += _pair_differences(_pair_differences(sum(factor.gram() for factor, _ in self.single)).T)
        return total.mul_(self.scale**2)

    def dot(self, vector: Any) -> Tensor:
        along = torch.as_tensor(vector).to(self.like)
        total = self.like.new_zeros(self.count)
        for factor, place in self.parts:
            total += factor.dot(along[place])
        if self.single:
            total += _pair_differences(sum(factor.dot(along[place]) for factor, place in self.single))
        return total.mul_(self.scale)

    def combine(self, weights: npt.NDArray[np.float64]) -> Tensor:
        return self.add_to(self.like.new_zeros(max(slot.stop for slot in self.slots.values())), weights)

    def add_to(self, total: Any, weights: npt.NDArray[np.float64]) -> Tensor:
        """Add the weighted sum to a vector, in place if it is one of ours."""
        ours = isinstance(total, Tensor) and total.dtype == self.like.dtype
        out: Tensor = total if ours else torch.as_tensor(total).to(self.like, copy=True)
        shares = np.asarray(weights, np.float64) * self.scale
        _add_all(self.parts, shares, out)
        if self.single:
            _add_all(self.single, np.stack([shares, -shares], 1).ravel(), out)
        return out


def _add_all(parts: Sequence[Part], weights: npt.NDArray[np.float64], out: Tensor) -> None:
    shares = torch.as_tensor(weights).to(out)
    for factor, place in parts:
        if isinstance(place, slice):
            factor.add(shares, out[place])
        else:
            out.index_add_(0, place, factor.rows().T @ shares)


def _pair_differences(x: Any) -> Tensor:
    """Differences of consecutive entries."""
    differences: Tensor = x[0::2] - x[1::2]
    return differences


def best_as_rows(factors: Mapping[str, Factor], allowance: int, size: int, *, pairs: bool) -> list[str]:
    """The parameters whose gradients are best written out, and fit, most positions first; or are already."""
    heavy: list[tuple[int, str, Any]]
    heavy = [(positions(f), name, f) for name, f in factors.items() if not stays_factored(f)]
    chosen = []
    for _, name, factor in sorted(heavy, reverse=True):
        room = len(factor) // (2 if pairs else 1) * factor.length * size
        if room <= allowance or isinstance(factor, EarlyRows):
            allowance -= room
            chosen.append(name)
    return chosen


def stays_factored(factor: Any) -> bool:
    """Whether a factor is best left as it is."""
    return (
        factor.stays_factored()
        if isinstance(factor, Factored)
        else not isinstance(factor, SeveralUses | EarlyRows)
    )


def positions(factor: Any) -> int:
    """Terms that each gradient is the sum of."""
    if isinstance(factor, SeveralUses):
        return sum(factor.shape[2] for factor in factor.uses if isinstance(factor, Factored))
    terms: int = factor.terms if isinstance(factor, EarlyRows) else factor.shape[2]
    return terms
