"""Per-example gradients of a convolution's filters, as a factor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wellorder.torch._per_example.factors import Index, Outer, cast, factors_are_cheaper, row_dots
from wellorder.torch._per_example.rows import gram_by_columns, rows_of


@dataclass(frozen=True)
class Convolution:
    """A convolution's gradients; ``image`` a is (b, C, …), ``left`` e is (b, O, …).

    ``padding`` zeros belong on both sides of the image; ``kind`` is the precision of the products.
    """

    image: Tensor
    left: Tensor
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    kernel: tuple[int, ...]
    padding: tuple[int, ...] = ()
    kind: torch.dtype | None = None

    def __len__(self) -> int:
        return len(self.image)

    @property
    def filters(self) -> tuple[int, ...]:
        """The parameter's shape."""
        return (self.left.shape[1], self.image.shape[1] // self.groups, *self.kernel)

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """(b, G, T, o, i)."""
        outputs, *patch = self.filters
        positions = self.left.shape[2:].numel()
        return len(self.left), self.groups, positions, outputs // self.groups, torch.Size(patch).numel()

    @property
    def length(self) -> int:
        """Numbers in one gradient."""
        return torch.Size(self.filters).numel()

    @property
    def columns(self) -> int:
        """Channels that each filter sees, if the filters are not in groups."""
        return self.image.shape[1] if self.groups == 1 else 1

    def part(self, some: slice) -> Convolution:
        """The gradients' entries for some channels."""
        return replace(self, image=self.image[:, some]) if self.groups == 1 else self

    def stays_factored(self) -> bool:
        """Whether products cost less from the factors."""
        b, _, positions, left, right = self.shape
        return factors_are_cheaper(positions, left, right, b)

    def gram(self) -> Tensor:
        return self.as_outer().gram() if self.stays_factored() else gram_by_columns(self)

    def dot(self, vector: Tensor) -> Tensor:
        conv: Any = (functional.conv1d, functional.conv2d, functional.conv3d)[len(self.kernel) - 1]
        image = cast(self.image, self.kind)
        through = conv(
            image, vector.view(self.filters), None, self.stride, self._padding, self.dilation, self.groups
        )
        return row_dots(through, cast(self.left, self.kind))

    def add(self, weights: Tensor, out: Tensor) -> None:
        out.add_(self._sum(cast(self.left, self.kind) * weights.view(-1, *[1] * (self.left.ndim - 1))))

    def _sum(self, left: Tensor) -> Tensor:
        image, none, wanted = cast(self.image, self.kind), [0] * len(self.kernel), [False, True, False]
        like = image.new_empty(1).expand(self.filters)
        place = (self.stride, self._padding, self.dilation, False, none, self.groups)
        backward: Any = torch.ops.aten.convolution_backward
        gradient: Tensor = backward(left, image, like, None, *place, wanted)[1]
        return gradient.flatten()

    def rows(self, *, pairs: bool = False) -> Tensor:
        return rows_of(self, pairs=pairs)

    def piece(self, some: slice, space: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Some examples' e, (n, G, o, T), and the patches that the filters saw, (n, G, T, i)."""
        image, left = cast(self.image[some], self.kind), cast(self.left[some], self.kind)
        if any(self._padding):
            image = functional.pad(image, [n for each in reversed(self._padding) for n in (each, each)])
        b, channels = image.shape[:2]
        places, steps = left.shape[2:], image.stride()
        view = image.as_strided(
            (b, channels, *self.kernel, *places),
            (
                *steps[:2],
                *(s * d for s, d in zip(steps[2:], self.dilation, strict=True)),
                *(s * d for s, d in zip(steps[2:], self.stride, strict=True)),
            ),
        )
        if space is not None:
            view = space[: view.numel()].view(view.shape).copy_(view)
        patches = view.reshape(b, self.groups, -1, places.numel())
        return left.reshape(b, self.groups, -1, places.numel()), patches.mT

    def as_outer(self) -> Outer:
        """The patches of all examples: k² times as large as the image."""
        left, right = self.piece(slice(None))
        return Outer(left.mT, right)

    def take(self, index: Index) -> Convolution:
        return replace(self, image=self.image[index], left=self.left[index])

    @property
    def _padding(self) -> tuple[int, ...]:
        return self.padding or (0,) * len(self.kernel)
