"""Exact signals: all parameters' factors together, as one block of `Signals` for a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder.torch.factors import CHUNK, Convolved, Factor, Outer, Rows

Slots = Mapping[str, slice]
"""Where each parameter lies in the flat vector of all of them."""


@dataclass(frozen=True)
class Ghost:
    """The gradients of b examples, which nobody writes out: ``scale`` times the factors of each parameter."""

    parts: Sequence[tuple[slice, Factor]]
    dim: int
    scale: float
    like: Tensor

    def __len__(self) -> int:
        return len(self.parts[0][1])

    def gram(self) -> Tensor:
        total = self.like.new_zeros(len(self), len(self))
        for _, factor in self.parts:
            total += _gram(factor)
        return total * self.scale**2

    def dot(self, vector: Any) -> Tensor:
        along = torch.as_tensor(vector).to(self.like)
        total = self.like.new_zeros(len(self))
        for slot, factor in self.parts:
            total += factor.dot(along[slot])
        return total * self.scale

    def combine(self, weights: npt.NDArray[np.float64]) -> Tensor:
        shares = torch.as_tensor(np.asarray(weights, np.float64) * self.scale).to(self.like)
        total = self.like.new_zeros(self.dim)
        for slot, factor in self.parts:
            total[slot] = factor.combine(shares)
        return total

    def take(self, index: npt.NDArray[np.intp]) -> Ghost:
        """Keep some of the examples: those whose gradients are finite."""
        where = torch.as_tensor(index, device=self.like.device)
        return Ghost([(slot, f.take(where)) for slot, f in self.parts], self.dim, self.scale, self.like)


def prefers_ghost(positions: int, left: int, right: int, b: int) -> bool:
    """Whether a Gram matrix costs less from the factors than from written-out gradients.

    From the factors it takes 2·b²·T²·(i+o) operations, from rows b²·i·o and the rows themselves.

    >>> prefers_ghost(1, 10, 784, 64), prefers_ghost(784, 6, 75, 64)
    (True, False)
    """
    return positions == 1 or 2 * positions**2 * (left + right) <= left * right * (1 + 4 / b)


def settle(factors: Mapping[str, Factor], slots: Slots, allowance: int) -> list[tuple[slice, Factor]]:
    """Write out, up to ``allowance`` numbers in all, the gradients that are cheaper as rows."""
    parts: list[tuple[slice, Factor]] = []
    for name, factor in factors.items():
        size = len(factor) * (slots[name].stop - slots[name].start)
        if isinstance(factor, Outer | Convolved) and not _as_ghost(factor) and size <= allowance:
            allowance -= size
            factor = Rows(factor.rows())
        parts.append((slots[name], factor))
    return parts


def _as_ghost(factor: Outer | Convolved) -> bool:
    if isinstance(factor, Outer):
        _, _, positions, left = factor.left.shape
        return prefers_ghost(positions, left, factor.right.shape[3], len(factor))
    filters, channels = factor.left.shape[1] // factor.groups, factor.image.shape[1] // factor.groups
    return prefers_ghost(
        factor.left[0, 0].numel(), filters, channels * int(np.prod(factor.kernel)), len(factor)
    )


def _gram(factor: Factor) -> Tensor:
    if not isinstance(factor, Outer | Convolved) or _as_ghost(factor):
        return factor.gram()
    outer = factor.as_outer() if isinstance(factor, Convolved) else factor
    b, groups, _, left = outer.left.shape
    step = max(1, CHUNK // (b * groups * outer.right.shape[3]))
    total = outer.left.new_zeros(b, b)
    for first in range(0, left, step):
        total += Rows(Outer(outer.left[..., first : first + step], outer.right).rows()).gram()
    return total
