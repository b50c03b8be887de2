"""Factors made of factors: all uses of one parameter, and differences of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellorder.torch.factors import Factor, Index, Lookup, Outer, Rows


@dataclass(frozen=True)
class Tied:
    """An embedding's table that is the output layer's weight too."""

    outer: Outer
    lookup: Lookup

    def __len__(self) -> int:
        return len(self.lookup)

    def gram(self) -> Tensor:
        return Rows(self.rows()).gram()

    def dot(self, vector: Tensor) -> Tensor:
        return self.outer.dot(vector) + self.lookup.dot(vector)

    def combine(self, weights: Tensor, out: Tensor) -> None:
        self.outer.combine(weights, out)
        self.lookup.add(weights, out)

    def rows(self) -> Tensor:
        return self._with_lookups(self.outer.rows(), self.lookup.left, 1)

    def pair_rows(self) -> Tensor:
        """Differences of consecutive gradients, written out."""
        signs = torch.ones(len(self) // 2 * 2, 1, 1).to(self.lookup.left)
        signs[1::2] = -1
        return self._with_lookups(self.outer.pair_rows(), self.lookup.left * signs, 2)

    def _with_lookups(self, rows: Tensor, left: Tensor, each: int) -> Tensor:
        """Add the look-ups of ``each`` examples to every row."""
        owner = torch.arange(len(left), device=left.device).div(each, rounding_mode="floor").unsqueeze(1)
        places = (self.lookup.ids + owner * self.lookup.count).flatten()
        return rows.view(-1, left.shape[2]).index_add_(0, places, left.flatten(0, 1)).view(len(rows), -1)

    def take(self, index: Index) -> Tied:
        return Tied(self.outer.take(index), self.lookup.take(index))


@dataclass(frozen=True)
class Apart:
    """Differences of consecutive gradients, by the gradients' own products."""

    of: Factor

    def __len__(self) -> int:
        return len(self.of) // 2

    def gram(self) -> Tensor:
        half = self.of.gram()
        half = half[0::2] - half[1::2]
        return half[:, 0::2] - half[:, 1::2]

    def dot(self, vector: Tensor) -> Tensor:
        along = self.of.dot(vector)
        return along[0::2] - along[1::2]

    def combine(self, weights: Tensor, out: Tensor) -> None:
        self.of.combine(torch.stack([weights, -weights], 1).flatten(), out)

    def rows(self) -> Tensor:
        rows = self.of.rows()
        return rows[0::2] - rows[1::2]

    def take(self, index: Index) -> Apart:
        raise NotImplementedError("take gradients before their differences")


def merge(uses: Sequence[Any]) -> Factor:
    """One parameter's gradients from all its uses in a batch: tied weights, a module called twice."""
    if len(uses) == 1:
        only: Factor = uses[0]
        return only
    if all(isinstance(use, Lookup) for use in uses):
        return Lookup(
            torch.cat([u.ids for u in uses], 1), torch.cat([u.left for u in uses], 1), uses[0].count
        )
    if all(isinstance(use, Outer | Lookup) for use in uses):
        outers = [use for use in uses if isinstance(use, Outer)]
        lookups = [use for use in uses if isinstance(use, Lookup)]
        outer = outers[0]
        if len(outers) > 1:
            outer = Outer(torch.cat([o.left for o in outers], 2), torch.cat([o.right for o in outers], 2))
        return Tied(outer, _joined(lookups)) if lookups else outer
    return Rows(torch.stack([use.rows() for use in uses]).sum(0))


def _joined(uses: Sequence[Lookup]) -> Lookup:
    return Lookup(torch.cat([u.ids for u in uses], 1), torch.cat([u.left for u in uses], 1), uses[0].count)
