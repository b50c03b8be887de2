"""Per-example gradients of one parameter, as factors: products of them without the gradients themselves.

Every class here stands for b vectors of length p. ``rows`` writes them out; ``gram``, ``dot`` and ``combine``
need not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

Index = Tensor | slice
CHUNK = 1 << 22
"""Numbers written out at a time where rows are not kept."""


def prefers_ghost(positions: int, left: int, right: int, b: int) -> bool:
    """Whether a Gram matrix costs less from the factors than from written-out gradients.

    From the factors it takes 2·b²·T²·(i+o) operations, from rows b²·i·o and the rows themselves.

    >>> prefers_ghost(1, 10, 784, 64), prefers_ghost(784, 6, 75, 64)
    (True, False)
    """
    return positions == 1 or 2 * positions**2 * (left + right) <= left * right * (1 + 4 / b)


class Factor(Protocol):
    """b gradients of one parameter."""

    def __len__(self) -> int: ...
    def gram(self) -> Tensor:
        """All inner products, (b, b)."""
        ...

    def dot(self, vector: Tensor) -> Tensor:
        """Inner products with a flat vector, (b,)."""
        ...

    def combine(self, weights: Tensor, out: Tensor) -> None:
        """Sum the gradients, weighted, and write the sum to a flat vector."""
        ...

    def rows(self) -> Tensor:
        """Write the gradients out, (b, p)."""
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

    def combine(self, weights: Tensor, out: Tensor) -> None:
        torch.mv(self.values.T, weights, out=out)

    def rows(self) -> Tensor:
        return self.values

    def take(self, index: Index) -> Rows:
        return Rows(self.values[index])


@dataclass(frozen=True)
class Outer:
    """g_i = Σ_t e_it ⊗ a_it; ``left`` e (b, G, T, o), ``right`` a (b, G, T, i); G groups, T positions."""

    left: Tensor
    right: Tensor

    def __len__(self) -> int:
        return len(self.left)

    def gram(self) -> Tensor:
        b, groups, positions, _ = self.left.shape
        if not prefers_ghost(positions, self.left.shape[3], self.right.shape[3], b):
            return self._gram_by_rows()
        if positions == 1:
            left, right = self.left[:, :, 0].transpose(0, 1), self.right[:, :, 0].transpose(0, 1)
            return ((left @ left.mT) * (right @ right.mT)).sum(0)
        left, right = _flat(self.left), _flat(self.right)
        products = (left @ left.mT) * (right @ right.mT)
        return products.view(groups, b, positions, b, positions).sum((0, 2, 4))

    def _gram_by_rows(self) -> Tensor:
        """Write out a few of the parameter's rows at a time: no more numbers than the inputs have."""
        b, groups, _, left = self.left.shape
        step = max(1, max(CHUNK, self.right.numel()) // (b * groups * self.right.shape[3]))
        total = self.left.new_zeros(b, b)
        for first in range(0, left, step):
            total += Rows(Outer(self.left[..., first : first + step], self.right).rows()).gram()
        return total

    def dot(self, vector: Tensor) -> Tensor:
        b, groups, _, left = self.left.shape
        weight = vector.view(groups, left, self.right.shape[3])
        through = torch.matmul(_flat(self.right), weight.mT)
        if groups == 1:
            return row_dots(through.view(b, -1), self.left)
        return (through * _flat(self.left)).view(groups, b, -1).sum((0, 2))

    def combine(self, weights: Tensor, out: Tensor) -> None:
        left = _flat(self.left * weights.view(-1, 1, 1, 1))
        target = out.view(left.shape[0], left.shape[2], self.right.shape[3])
        if len(left) == 1:
            torch.mm(left[0].T, _flat(self.right)[0], out=target[0])
        else:
            torch.bmm(left.mT, _flat(self.right), out=target)

    def rows(self) -> Tensor:
        return torch.matmul(self.left.mT, self.right).flatten(1)

    def pair_rows(self) -> Tensor:
        """Differences of consecutive gradients, written out without the gradients themselves."""
        even, odd = self.take(slice(0, None, 2)), self.take(slice(1, None, 2))
        apart = torch.matmul(even.left.mT, even.right).flatten(0, 1)
        apart.baddbmm_(odd.left.mT.flatten(0, 1), odd.right.flatten(0, 1), alpha=-1)
        return apart.view(len(even), -1)

    def take(self, index: Index) -> Outer:
        return Outer(self.left[index], self.right[index])


@dataclass(frozen=True)
class Lookup:
    """g_i = Σ_t onehot(id_it) ⊗ e_it: an embedding's gradients; ``ids`` (b, T), ``left`` e (b, T, D)."""

    ids: Tensor
    left: Tensor
    count: int

    def __len__(self) -> int:
        return len(self.ids)

    def gram(self) -> Tensor:
        b, width = len(self), self.left.shape[2]
        seen, places = torch.unique(self.ids, return_inverse=True)
        total = self.left.new_zeros(b, b)
        step = max(1, CHUNK // (b * width))
        for first in range(0, len(seen), step):
            inside = (places >= first) & (places < first + step)
            who, where = inside.nonzero(as_tuple=True)
            table = self.left.new_zeros(b, step, width)
            table.index_put_((who, places[who, where] - first), self.left[who, where], accumulate=True)
            total += table.flatten(1) @ table.flatten(1).T
        return total

    def dot(self, vector: Tensor) -> Tensor:
        table = vector.view(self.count, -1)
        return row_dots(functional.embedding(self.ids, table), self.left)

    def combine(self, weights: Tensor, out: Tensor) -> None:
        self.add(weights, out.zero_())

    def add(self, weights: Tensor, out: Tensor) -> None:
        """Add the weighted sum to what is there."""
        shares = (self.left * weights.view(-1, 1, 1)).flatten(0, 1)
        out.view(self.count, -1).index_add_(0, self.ids.flatten(), shares)

    def rows(self) -> Tensor:
        table = self.left.new_zeros(len(self) * self.count, self.left.shape[2])
        owner = torch.arange(len(self), device=self.ids.device).unsqueeze(1)
        places = (self.ids + owner * self.count).flatten()
        return table.index_add_(0, places, self.left.flatten(0, 1)).view(len(self), -1)

    def take(self, index: Index) -> Lookup:
        return Lookup(self.ids[index], self.left[index], self.count)


def row_dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each a_i with b_i, (b,)."""
    return torch.bmm(a.reshape(len(a), 1, -1), b.reshape(len(b), -1, 1)).flatten()


def _flat(factor: Tensor) -> Tensor:
    """(b, G, T, o) → (G, b·T, o)."""
    return factor.transpose(0, 1).flatten(1, 2)
