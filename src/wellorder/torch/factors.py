"""Per-example gradients of one parameter, as factors: products of them without the gradients themselves.

Every class here stands for b vectors of length p. ``rows`` writes them out; ``gram``, ``dot`` and ``combine``
need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

Index = Tensor | slice
CHUNK = 1 << 22
"""Numbers written out at a time where rows are not kept."""


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
        if positions == 1:
            left, right = self.left[:, :, 0].transpose(0, 1), self.right[:, :, 0].transpose(0, 1)
            return ((left @ left.mT) * (right @ right.mT)).sum(0)
        left, right = _flat(self.left), _flat(self.right)
        products = (left @ left.mT) * (right @ right.mT)
        return products.view(groups, b, positions, b, positions).sum((0, 2, 4))

    def dot(self, vector: Tensor) -> Tensor:
        b, groups, _, left = self.left.shape
        weight = vector.view(groups, left, self.right.shape[3])
        through = torch.matmul(_flat(self.right), weight.mT)
        if groups == 1:
            return _dots(through.view(b, -1), self.left)
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
        return _dots(functional.embedding(self.ids, table), self.left)

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


@dataclass(frozen=True)
class Convolved:
    """A convolution's gradients; ``image`` (b, C, …) is padded already, ``left`` e is (b, O, …)."""

    image: Tensor
    left: Tensor
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    kernel: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.image)

    def gram(self) -> Tensor:
        return self.as_outer().gram()

    def dot(self, vector: Tensor) -> Tensor:
        shape = (self.left.shape[1], self.image.shape[1] // self.groups, *self.kernel)
        conv = (functional.conv1d, functional.conv2d, functional.conv3d)[len(self.kernel) - 1]
        through = conv(self.image, vector.view(shape), None, self.stride, 0, self.dilation, self.groups)
        return _dots(through, self.left)

    def combine(self, weights: Tensor, out: Tensor) -> None:
        left = self.left * weights.view(-1, *[1] * (self.left.ndim - 1))
        shape = (self.left.shape[1], self.image.shape[1] // self.groups, *self.kernel)
        like = self.image.new_empty(1).expand(shape)
        none = [0] * len(self.kernel)
        flags = [False, True, False]
        _, gradient, _ = torch.ops.aten.convolution_backward(
            left, self.image, like, None, self.stride, none, self.dilation, False, none, self.groups, flags
        )
        out.copy_(gradient.flatten())

    def rows(self) -> Tensor:
        return self.as_outer().rows()

    def pair_rows(self) -> Tensor:
        """Differences of consecutive gradients, written out."""
        apart = self.take(slice(0, None, 2)).rows()
        return apart.sub_(self.take(slice(1, None, 2)).rows())

    def as_outer(self) -> Outer:
        """The patches that the filters saw, from a strided view: k² times as large as the image."""
        b, channels = self.image.shape[:2]
        places = self.left.shape[2:]
        steps = self.image.stride()
        view = self.image.as_strided(
            (b, channels, *self.kernel, *places),
            (
                *steps[:2],
                *(s * d for s, d in zip(steps[2:], self.dilation, strict=True)),
                *(s * d for s, d in zip(steps[2:], self.stride, strict=True)),
            ),
        )
        right = view.reshape(b, self.groups, -1, places.numel()).mT
        return Outer(self.left.reshape(b, self.groups, -1, places.numel()).mT, right)

    def take(self, index: Index) -> Convolved:
        return Convolved(
            self.image[index], self.left[index], self.stride, self.dilation, self.groups, self.kernel
        )


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


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each a_i with b_i, (b,)."""
    return torch.bmm(a.reshape(len(a), 1, -1), b.reshape(len(b), -1, 1)).flatten()


def _flat(factor: Tensor) -> Tensor:
    """(b, G, T, o) → (G, b·T, o)."""
    return factor.transpose(0, 1).flatten(1, 2)
