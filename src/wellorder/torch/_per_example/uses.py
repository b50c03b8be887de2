"""Factors made of factors: all uses of one parameter, and differences of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellorder.torch._per_example.convolution import Convolution
from wellorder.torch._per_example.factors import Factor, Index, Lookup, Outer, Rows
from wellorder.torch._per_example.rows import gram_by_columns

Factored = Outer | Convolution
"""Factors whose rows take work."""


@dataclass(frozen=True)
class SeveralUses:
    """Several uses of one parameter: an embedding's table that is the output layer's weight, for one."""

    uses: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.uses[0])

    @property
    def length(self) -> int:
        """Numbers in one gradient."""
        length: int = self.uses[0].length
        return length

    @property
    def columns(self) -> int:
        """Columns of the parameter."""
        columns: int = self.uses[0].columns
        return columns

    def part(self, some: slice) -> SeveralUses:
        """The gradients' entries in some columns."""
        return SeveralUses(tuple(use.part(some) for use in self.uses))

    def gram(self) -> Tensor:
        return gram_by_columns(self)

    def dot(self, vector: Tensor) -> Tensor:
        return torch.stack([use.dot(vector) for use in self.uses]).sum(0)

    def add(self, weights: Tensor, out: Tensor) -> None:
        for use in self.uses:
            use.add(weights, out)

    def rows(self, *, pairs: bool = False) -> Tensor:
        total: Tensor = self.uses[0].rows(pairs=pairs)
        for use in self.uses[1:]:
            add_rows(use, total, pairs=pairs)
        return total

    def take(self, index: Index) -> SeveralUses:
        return SeveralUses(tuple(use.take(index) for use in self.uses))


def add_rows(use: Factor, rows: Tensor, *, pairs: bool) -> None:
    """Add a use's gradients, or the differences of consecutive ones, to rows that exist."""
    if isinstance(use, Lookup):
        use.add_rows(rows, pairs=pairs)
    else:
        rows.add_(use.rows(pairs=pairs))


@dataclass(frozen=True)
class PairDifferences:
    """Differences of consecutive gradients that are written out a few columns at a time."""

    of: Factored | SeveralUses

    def __len__(self) -> int:
        return len(self.of) // 2

    def gram(self) -> Tensor:
        return gram_by_columns(self.of, pairs=True)

    def dot(self, vector: Tensor) -> Tensor:
        along = self.of.dot(vector)
        return along[0::2] - along[1::2]

    def add(self, weights: Tensor, out: Tensor) -> None:
        self.of.add(torch.stack([weights, -weights], 1).flatten(), out)

    def rows(self, *, pairs: bool = False) -> Tensor:
        if pairs:
            raise NotImplementedError("differences of differences")
        return self.of.rows(pairs=True)

    def take(self, index: Index) -> PairDifferences:
        raise NotImplementedError("take gradients before their differences")


@dataclass(frozen=True)
class EarlyRows(Rows):
    """Gradients that were written out in place of factors of so many ``terms``."""

    terms: int

    @property
    def length(self) -> int:
        """Numbers in one gradient."""
        return self.values.shape[1]


@dataclass(frozen=True)
class Use:
    """One use of a parameter by a layer that held ``bytes``; ``rows`` are differences of pairs, if any."""

    name: str
    factor: Factor
    rows: Tensor | None = None
    bytes: int = 0


def held(factor: Factor) -> int:
    """Bytes of what went into a layer and of what came back."""
    if isinstance(factor, Outer):
        return int(factor.left.nbytes + factor.right.nbytes)
    return int(factor.image.nbytes + factor.left.nbytes) if isinstance(factor, Convolution) else 0


def joined(uses: Sequence[Use]) -> Tensor | None:
    """Differences of pairs of all uses together, if all those that take work were written out."""
    first, *others = sorted(uses, key=lambda use: isinstance(use.factor, Lookup))
    if any(isinstance(use.factor, Factored) and use.rows is None for use in uses) or first.rows is None:
        return None
    for use in others:
        if use.rows is None:
            add_rows(use.factor, first.rows, pairs=True)
        else:
            first.rows.add_(use.rows)
    return first.rows


def merge(uses: Sequence[Any]) -> Factor:
    """One parameter's gradients from all its uses in a batch: tied weights, a module called twice."""
    if len(uses) == 1:
        only: Factor = uses[0]
        return only
    whole = [use for use in uses if isinstance(use, EarlyRows)]
    if whole:
        for use in uses:
            if use is not whole[0]:
                add_rows(use, whole[0].values, pairs=False)
        return whole[0]
    if all(isinstance(use, Rows) for use in uses):
        return Rows(torch.stack([use.values for use in uses]).sum(0))
    if all(isinstance(use, Lookup) for use in uses):
        return _beside(uses)
    if all(isinstance(use, Outer) for use in uses):
        left, right = torch.cat([o.left for o in uses], 2), torch.cat([o.right for o in uses], 2)
        return Outer(left, right, uses[0].kind)
    if any(isinstance(use, Rows) for use in uses):
        return Rows(torch.stack([use.rows() for use in uses]).sum(0))
    return SeveralUses(tuple(sorted(uses, key=lambda use: isinstance(use, Lookup))))


def _beside(uses: Sequence[Lookup]) -> Lookup:
    return Lookup(torch.cat([u.ids for u in uses], 1), torch.cat([u.left for u in uses], 1), uses[0].count)
