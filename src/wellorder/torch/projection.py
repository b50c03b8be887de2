"""One layer's random projections: of what goes in, of the gradient that comes back, and their products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from wellorder.order import rng
from wellorder.torch.layers import Layer

MIXED, TALLER = 4, 4


class Place(NamedTuple):
    """Where a layer's sketch lies in the rows: ``height`` times ``width`` numbers from ``start`` on."""

    start: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """How many numbers."""
        return self.height * self.width


class Sizes(NamedTuple):
    """A layer's weight, ``groups`` times ``outputs`` times ``inputs``, and what is made of it.

    ``channels`` are those of a convolution that mixes them first, else 0.
    """

    groups: int
    outputs: int
    inputs: int
    height: int
    width: int
    channels: int
    lookup: bool
    pool: bool

    @property
    def size(self) -> int:
        """Numbers in the sketch."""
        return self.height * self.width

    @property
    def training(self) -> int:
        """Multiplications of a training step, per example and position; a look-up has none."""
        return 0 if self.lookup else 3 * self.groups * self.outputs * self.inputs

    @property
    def sketching(self) -> int:
        """Multiplications that the sketch adds, per example and position, if it looks at all positions."""
        left = 0 if self.height == self.outputs else self.groups * self.height * self.outputs
        right = self.groups * self.width * self.inputs
        if self.channels:
            right = MIXED * (self.channels + self.width * self.inputs // self.channels)
        return left + (0 if self.lookup else right) + self.groups * self.height * self.width


def sizes_of(module: Any, size: int, height: int, filters: int, *, pool: bool = False) -> Sizes:
    """How a layer is sketched by about ``size`` numbers; pooled, P may be `TALLER`, as sequences need."""
    weight, bias = module.weight, getattr(module, "bias", None)
    conv, lookup = isinstance(module, _ConvNd), isinstance(module, nn.Embedding)
    groups = module.groups if conv else 1
    if lookup:
        outputs, inputs = weight.shape[1], weight.shape[0]
    else:
        outputs, inputs = weight.shape[0] // groups, weight[0].numel()
    pool = pool and not conv and not lookup
    best = TALLER * height if pool else best_height(size, height, 1 if lookup else inputs, outputs)
    tall = min(outputs, best, size)
    wide = min(inputs + (bias is not None), max(1, size // tall))
    channels = module.in_channels if conv and groups == 1 and module.in_channels > MIXED else 0
    return Sizes(groups, outputs, inputs, tall, min(wide, filters) if conv else wide, channels, lookup, pool)


class Part(NamedTuple):
    """One use of a layer in a batch: P e, (b, T, height), and Q a, (b, T, width)."""

    place: Place
    left: Tensor
    right: Tensor


class Projection:
    """One layer's P and Q, of ``sizes``; the sketch begins at the number ``start`` of the rows.

    A convolution's Q is itself one, at no more than ``side`` positions along each dimension. Where there are
    many channels, they are mixed to `MIXED` before, by random signs too: inner products still keep their
    expectation, at a tenth of the cost. If pooled, a linear layer's positions become one: e is summed, and a
    averaged.
    """

    def __init__(self, layer: Layer, seed: int, sizes: Sizes, start: int, side: int) -> None:
        module: Any = layer.module
        self.module, self.side, self._pool = module, side, sizes.pool
        weight, bias = module.weight, getattr(module, "bias", None)
        self._conv = isinstance(module, _ConvNd)
        groups, outputs, inputs = sizes.groups, sizes.outputs, sizes.inputs
        tall, width = sizes.height, sizes.width
        self.place = Place(start, tall, width)
        self._lookup = sizes.lookup
        draw = rng(seed, 0, f"{'pooled' if sizes.pool else 'sketch'}.{layer.name}")

        def signs(*shape: int) -> Tensor:
            drawn = draw.integers(0, 2, shape) * 2.0 - 1.0
            return torch.as_tensor(drawn, dtype=torch.float32, device=weight.device)

        self._left = None if outputs == tall else signs(groups, tall, outputs) / math.sqrt(tall)
        self._mix = signs(MIXED, module.in_channels) / math.sqrt(MIXED) if sizes.channels else None
        channels = MIXED if sizes.channels else weight.shape[1]
        shape = (channels, *weight.shape[2:]) if self._conv else (inputs,)
        right = signs(groups, width, *shape) / math.sqrt(width)
        self._constant = signs(groups * width) / math.sqrt(width) if bias is not None else None
        if self._conv:
            self._right = right.flatten(0, 1)
        elif self._lookup:
            self._right = right[0].T.contiguous()
            if module.padding_idx is not None:
                self._right[module.padding_idx] = 0
        else:
            self._right = right[0]
        self._cast: dict[Any, Tensor] = {}

    def of_input(self, given: Tensor, output: Tensor) -> Tensor:
        """Q a, in the precision that the layer works in; for a convolution at some of the positions."""
        if not self._conv:
            right, constant = self._inward(output, 1)
            if self._lookup:
                return functional.embedding(given, right)
            return functional.linear(given.flatten(1, -2).mean(1) if self._pool else given, right, constant)
        m, padding, thin = self.module, self.module.padding, self._thin(output)
        right, constant = self._inward(output, math.prod(thin))
        if self._mix is not None:
            mix = self._as("mix", self._mix, output)
            given = torch.matmul(mix, given.flatten(2)).unflatten(2, given.shape[2:])
        if isinstance(padding, str) or m.padding_mode != "zeros":
            mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
            given, padding = functional.pad(given, m._reversed_padding_repeated_twice, mode=mode), 0
        conv = (functional.conv1d, functional.conv2d, functional.conv3d)[len(thin) - 1]
        stride = tuple(s * t for s, t in zip(m.stride, thin, strict=True))
        return conv(given, right, constant, stride, padding, m.dilation, m.groups)

    def part(self, inward: Tensor, gradient: Tensor) -> Part:
        """Q a, and P e beside it."""
        left = self._outward(gradient)
        b, (_, height, width) = gradient.shape[0], self.place
        if not self._conv:
            gradient = gradient.flatten(1, -2).sum(1) if self._pool else gradient
            e = gradient if left is None else torch.matmul(gradient, left[0].T)
            return Part(self.place, e.reshape(b, -1, height), inward.reshape(b, -1, width))
        thin, groups = self._thin(gradient), self.module.groups
        q = inward.reshape(b, groups, width, -1)
        if max(thin) > 1:
            gradient = gradient[(slice(None), slice(None), *(slice(None, None, t) for t in thin))]
        e = gradient.reshape(b, groups, -1, q.shape[3])
        e = e if left is None else torch.matmul(left if groups > 1 else left[0], e)
        e, q = (x[:, 0] if groups == 1 else x.transpose(1, 2).flatten(2) for x in (e, q))
        return Part(self.place, e.mT, q.mT)

    def _thin(self, output: Tensor) -> tuple[int, ...]:
        """Every so-manyth position is looked at, along each dimension."""
        return tuple(-(-length // self.side) for length in output.shape[2:])

    def _inward(self, like: Tensor, scale: int) -> tuple[Tensor, Tensor | None]:
        """Q, and what the bias adds to it, ``scale`` times."""
        right = self._as(("right", scale), self._right, like, scale)
        if self._constant is None:
            return right, None
        return right, self._as(("constant", scale), self._constant, like, scale)

    def _outward(self, like: Tensor) -> Tensor | None:
        """P, if there is one."""
        return None if self._left is None else self._as("left", self._left, like)

    def _as(self, name: object, own: Tensor, like: Tensor, scale: int = 1) -> Tensor:
        """One of ours, in the precision and on the device of ``like``."""
        key = (name, like.dtype, like.device)
        if key not in self._cast:
            self._cast[key] = (own * scale).to(like)
        return self._cast[key]


class Shared:
    """An embedding whose table is also a linear layer's weight: that layer's P and Q, in exchanged roles.

    Both layers' parts of the gradient then meet in the same numbers, as they do in the parameter.
    """

    def __init__(self, layer: Layer, head: Projection) -> None:
        module: Any = layer.module
        self.head = head
        own = torch.eye(module.num_embeddings).to(module.weight) if head._left is None else head._left[0]
        self._table = own.T.clone()
        if module.padding_idx is not None:
            self._table[module.padding_idx] = 0

    @property
    def place(self) -> Place:
        """Where the linear layer's sketch lies."""
        return self.head.place

    def of_input(self, given: Tensor, output: Tensor) -> Tensor:
        """P a."""
        return functional.embedding(given, self.head._as(("table", id(self)), self._table, output))

    def part(self, inward: Tensor, gradient: Tensor) -> Part:
        """P a, and Q e beside it."""
        b, (_, height, width) = gradient.shape[0], self.place
        right = torch.matmul(gradient, self.head._inward(gradient, 1)[0].T)
        return Part(self.place, inward.reshape(b, -1, height), right.reshape(b, -1, width))


def best_height(size: int, height: int, inputs: int, outputs: int) -> int:
    """Rows of P, a power of two from half of ``height`` to twice it, that make P e and Q a cheapest.

    >>> best_height(512, 16, 784, 1024), best_height(512, 16, 128, 50000), best_height(512, 16, 4096, 128)
    (16, 8, 32)
    """
    ideal = round(math.log2(math.sqrt(size * inputs / outputs)))
    return int(min(max(2**ideal, height // 2), 2 * height))


def rows_of(parts: Sequence[Part], size: int, scale: float) -> Tensor:
    """Rows of a batch, (b, size): ``scale`` times the sum of (P e) ⊗ (Q a) over all parts and positions."""
    alike: dict[Place, list[Part]] = {}
    for part in parts:
        alike.setdefault(part.place, []).append(part)
    b = parts[0].left.shape[0]
    rows = torch.zeros(b, size, device=parts[0].left.device)
    for place, group in alike.items():
        left, right = group[0].left, group[0].right
        if len(group) > 1:
            left, right = torch.cat([part.left for part in group], 1), torch.cat([p.right for p in group], 1)
        left, right = left.float().mT, right.float()
        target = rows[:, place.start : place.start + place.size].view(b, place.height, place.width)
        if right.shape[1] == 1:
            target.addcmul_(left, right, value=scale)
        else:
            target.add_(torch.bmm(left, right), alpha=scale)
    return rows
