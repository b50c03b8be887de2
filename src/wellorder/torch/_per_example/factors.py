"""Per-example gradients of one parameter, as factors: products of them without the gradients themselves.

Every class here stands for b vectors of length p. ``rows`` writes them out; ``gram``, ``dot`` and ``add``
need not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from wellorder.torch._per_example.rows import gram_by_columns, room_on, rows_of

Index = Tensor | slice
WRITING = 80
"""Operations that take as long as writing a number of a gradient and reading it thrice (measured)."""


def factors_are_cheaper(positions: int, left: int, right: int, b: int) -> bool:
    """Whether products cost less from the factors than from written-out gradients.

    From the factors the Gram matrix takes 2·b²·T²·(i+o) operations, and the two other products 2·b·T·i·o
    each; from rows they cost little, but the rows have to be written.

    >>> factors_are_cheaper(1, 10, 784, 64), factors_are_cheaper(784, 6, 75, 64)
    (True, False)
    """
    return positions == 1 or 2 * b * positions**2 * (left + right) / (left * right) + 2 * positions <= WRITING


class Factor(Protocol):
    """b gradients of one parameter."""

    def __len__(self) -> int: ...
    def gram(self) -> Tensor:
        """All inner products, (b, b)."""
        ...

    def dot(self, vector: Tensor) -> Tensor:
        """Inner products with a flat vector, (b,)."""
        ...

    def add(self, weights: Tensor, out: Tensor) -> None:
        """Add the weighted sum of the gradients to a flat vector."""
        ...

    def rows(self, *, pairs: bool = False) -> Tensor:
        """Write the gradients out, (b, p), or the differences of consecutive ones, (b/2, p)."""
        ...

    def take(self, index: Index) -> Factor:
        """Keep some of the b gradients."""
        ...


@dataclass(frozen=True)
class Rows:
    """Gradients that exist: biases, norms, and whatever was cheaper to write out."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def gram(self) -> Tensor:
        return self.values @ self.values.T

    def dot(self, vector: Tensor) -> Tensor:
        return self.values @ vector

    def add(self, weights: Tensor, out: Tensor) -> None:
        out.addmv_(self.values.T, weights)

    def rows(self, *, pairs: bool = False) -> Tensor:
        return self.values[0::2] - self.values[1::2] if pairs else self.values

    def take(self, index: Index) -> Rows:
        return Rows(self.values[index])


@dataclass(frozen=True)
class Outer:
    """g_i = Σ_t e_it ⊗ a_it; ``left`` e (b, G, T, o), ``right`` a (b, G, T, i); G groups, T positions.

    ``kind`` is the precision of the products, if it is not the factors'.
    """

    left: Tensor
    right: Tensor
    kind: torch.dtype | None = None

    def __len__(self) -> int:
        return len(self.left)

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """(b, G, T, o, i)."""
        b, groups, positions, left = self.left.shape
        return b, groups, positions, left, self.right.shape[3]

    @property
    def length(self) -> int:
        """Numbers in one gradient."""
        return self.left.shape[1] * self.left.shape[3] * self.right.shape[3]

    @property
    def columns(self) -> int:
        """Columns of the parameter."""
        return self.right.shape[3]

    def part(self, some: slice) -> Outer:
        """The gradients' entries in some columns."""
        return Outer(self.left, self.right[..., some], self.kind)

    def stays_factored(self) -> bool:
        """Whether products cost less from the factors."""
        b, _, positions, left, right = self.shape
        return factors_are_cheaper(positions, left, right, b)

    def gram(self) -> Tensor:
        if not self.stays_factored():
            return gram_by_columns(self)
        left, right = self._wide()
        if left.shape[1] == left.shape[2] == 1:
            left, right = left[:, 0, 0], right[:, 0, 0]
            return (left @ left.T).mul_(right @ right.T)
        return _gram_of_positions(left, right)

    def dot(self, vector: Tensor) -> Tensor:
        b, groups, _, outputs, inputs = self.shape
        left, right = self._wide()
        weight = vector.view(groups, outputs, inputs)
        if groups == 1:
            return row_dots(torch.mm(_flat(right)[0], weight[0].T).view_as(left), left)
        return (torch.matmul(_flat(right), weight.mT) * _flat(left)).view(groups, b, -1).sum((0, 2))

    def add(self, weights: Tensor, out: Tensor) -> None:
        left, right = self._wide()
        left = _flat(left * weights.view(-1, 1, 1, 1))
        target = out.view(len(left), left.shape[2], right.shape[3])
        if len(left) == 1:
            target[0].addmm_(left[0].T, _flat(right)[0])
        else:
            target.baddbmm_(left.mT, _flat(right))

    def rows(self, *, pairs: bool = False) -> Tensor:
        return rows_of(self, pairs=pairs)

    def piece(self, some: slice, space: Tensor | None = None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Some examples' e, (n, G, o, T), and a, (n, G, T, i)."""
        left, right = Outer(self.left[some], self.right[some], self.kind)._wide()
        return left.mT, right

    def take(self, index: Index) -> Outer:
        return Outer(self.left[index], self.right[index], self.kind)

    def _wide(self) -> tuple[Tensor, Tensor]:
        return cast(self.left, self.kind), cast(self.right, self.kind)


@dataclass(frozen=True)
class Lookup:
    """g_i = Σ_t onehot(id_it) ⊗ e_it: an embedding's gradients; ``ids`` (b, T), ``left`` e (b, T, D)."""

    ids: Tensor
    left: Tensor
    count: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def length(self) -> int:
        """Numbers in one gradient."""
        return self.count * self.left.shape[2]

    @property
    def columns(self) -> int:
        """Columns of the table."""
        return self.left.shape[2]

    def part(self, some: slice) -> Lookup:
        """The gradients' entries in some columns."""
        return Lookup(self.ids, self.left[..., some], self.count)

    def gram(self) -> Tensor:
        seen, places = torch.unique(self.ids, return_inverse=True)
        few = Lookup(places, self.left, len(seen))
        if len(self) * few.length <= room_on(self.left):
            rows = few.rows()
            return rows @ rows.T
        return gram_by_columns(few)

    def dot(self, vector: Tensor) -> Tensor:
        table = vector.view(self.count, -1)
        return row_dots(functional.embedding(self.ids, table), self.left)

    def add(self, weights: Tensor, out: Tensor) -> None:
        shares = (self.left * weights.view(-1, 1, 1)).flatten(0, 1)
        out.view(self.count, -1).index_add_(0, self.ids.flatten(), shares)

    def rows(self, *, pairs: bool = False) -> Tensor:
        table = self.left.new_zeros(len(self) // (2 if pairs else 1), self.length)
        self.add_rows(table, pairs=pairs)
        return table

    def add_rows(self, rows: Tensor, *, pairs: bool = False) -> None:
        """Add the gradients, or the differences of consecutive ones, to rows that exist."""
        owner = torch.arange(len(self), device=self.ids.device).unsqueeze(1)
        left = self.left
        if pairs:
            left = left * (1 - 2 * (owner % 2)).unsqueeze(2)
            owner = owner.div(2, rounding_mode="floor")
        places = (self.ids + owner * self.count).flatten()
        rows.view(-1, left.shape[2]).index_add_(0, places, left.flatten(0, 1))

    def take(self, index: Index) -> Lookup:
        return Lookup(self.ids[index], self.left[index], self.count)


def cast(x: Tensor, kind: torch.dtype | None) -> Tensor:
    """In another precision, if one is named."""
    return x if kind is None else x.to(kind)


def row_dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each a_i with b_i, (b,); ``a`` is written over."""
    return a.mul_(b).flatten(1).sum(1)


def _flat(factor: Tensor) -> Tensor:
    """(b, G, T, o) → (G, b·T, o)."""
    return factor.transpose(0, 1).flatten(1, 2)


def _gram_of_positions(left: Tensor, right: Tensor) -> Tensor:
    """⟨g_i, g_j⟩ = Σ_tu (e_it·e_ju)(a_it·a_ju): some examples i at a time, and only j from i on."""
    b, groups, positions, _ = left.shape
    left, right = _flat(left), _flat(right)
    total = left.new_empty(b, b)
    step = max(1, min((b + 3) // 4, room_on(left) // (groups * b * positions**2)))
    for first in range(0, b, step):
        start, stop = first * positions, (first + step) * positions
        products = left[:, start:stop] @ left[:, start:].mT
        products.mul_(right[:, start:stop] @ right[:, start:].mT)
        block = products.view(groups, -1, positions, b - first, positions).sum((0, 2, 4))
        total[first : first + step, first:] = block
        total[first:, first : first + step] = block.T
    return total
