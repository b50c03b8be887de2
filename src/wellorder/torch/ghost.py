"""Exact signals: all parameters' factors together, as one block of `Signals` for a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder.torch.compound import Apart, Tied
from wellorder.torch.convolved import Convolved
from wellorder.torch.factors import Factor, Outer, Rows, prefers_ghost

Slots = Mapping[str, slice]
"""Where each parameter lies in the flat vector of all of them."""


@dataclass(frozen=True)
class Ghost:
    """The gradients of b examples, which nobody writes out: ``scale`` times the factors of each parameter.

    ``allowance`` numbers may be written out where that is cheaper than products of factors.
    """

    factors: Mapping[str, Factor]
    slots: Slots
    scale: float
    like: Tensor
    allowance: int = 0

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
        shares = torch.as_tensor(np.asarray(weights, np.float64) * self.scale).to(self.like)
        absent = [slot for name, slot in self.slots.items() if name not in self.factors]
        total = self.like.new_empty(max(slot.stop for slot in self.slots.values()))
        for slot in absent:
            total[slot] = 0
        for name, factor in self.parts.items():
            factor.combine(shares, total[self.slots[name]])
        return total

    def differences(self, pending: Any) -> Ghost | None:
        """Differences of consecutive gradients: half as many to write out; None if they do not pair up."""
        if len(pending) or len(self) % 2:
            return None
        left = self.allowance
        parts: dict[str, Factor] = {}
        for name, factor in self.factors.items():
            size = len(self) // 2 * _length(self.slots[name])
            if isinstance(factor, Rows):
                parts[name] = Rows(factor.values[0::2] - factor.values[1::2])
            elif isinstance(factor, Outer | Convolved | Tied) and not as_ghost(factor) and size <= left:
                left -= size
                parts[name] = Rows(factor.pair_rows())
            else:
                parts[name] = Apart(factor)
        return Ghost(parts, self.slots, self.scale, self.like)

    def take(self, index: npt.NDArray[np.intp]) -> Ghost:
        """Keep some of the examples."""
        where = torch.as_tensor(index, device=self.like.device)
        kept = {name: factor.take(where) for name, factor in self.factors.items()}
        return Ghost(kept, self.slots, self.scale, self.like, self.allowance)

    def finite(self) -> npt.NDArray[np.bool_]:
        """Which of the gradients are neither NaN nor infinite."""
        return np.asarray(torch.isfinite(self.gram().diagonal()).cpu().numpy())

    @cached_property
    def parts(self) -> dict[str, Factor]:
        """The factors, those written out that are cheaper as rows."""
        left = self.allowance
        parts: dict[str, Factor] = {}
        for name, factor in self.factors.items():
            size = len(self) * _length(self.slots[name])
            heavy = isinstance(factor, Outer | Convolved | Tied) and not as_ghost(factor)
            parts[name] = Rows(factor.rows()) if heavy and size <= left else factor
            left -= size if heavy and size <= left else 0
        return parts


def as_ghost(factor: Outer | Convolved | Tied) -> bool:
    """Whether a factor is best left as it is."""
    if isinstance(factor, Tied):
        return False
    if isinstance(factor, Outer):
        return prefers_ghost(factor.left.shape[2], factor.left.shape[3], factor.right.shape[3], len(factor))
    filters, channels = factor.left.shape[1] // factor.groups, factor.image.shape[1] // factor.groups
    patch = channels * int(np.prod(factor.kernel))
    return prefers_ghost(factor.left[0, 0].numel(), filters, patch, len(factor))


def _length(slot: slice) -> int:
    return int(slot.stop - slot.start)
