"""Per-example gradients of a convolution's filters, as a factor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from wellorder.torch.factors import Index, Outer, row_dots


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
        return row_dots(through, self.left)

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
