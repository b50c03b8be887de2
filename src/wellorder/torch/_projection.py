"""One layer's random projections: of what goes in, of the gradient that comes back, and their products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from wellorder._kernels.sketch import random_signs
from wellorder._order import rng
from wellorder.torch._batch_record import BatchRecord
from wellorder.torch._hooks import LayerUse, transformed
from wellorder.torch._per_example.layers import Layer, is_transposed_linear
from wellorder.torch._side_by_side import SideBySide, Slots

TALLER = 4
"""How much taller P is for sequences, whose positions are pooled."""
SHAPES = 64
"""Shapes of images whose places in memory are remembered."""


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
    """A layer's weight, ``groups`` · ``outputs`` · ``inputs`` · ``taps``, and the sketch made of it."""

    groups: int
    outputs: int
    inputs: int
    taps: int
    height: int
    width: int
    lookup: bool
    pool: bool

    @property
    def size(self) -> int:
        """Numbers in the sketch."""
        return self.height * self.width

    @property
    def training(self) -> int:
        """Multiplications of a training step, per example and position; a look-up has none."""
        return 0 if self.lookup else 3 * self.groups * self.outputs * self.inputs * self.taps

    @property
    def sketching(self) -> int:
        """Multiplications that the sketch adds, per example and position, if it looks at all positions."""
        left = 0 if self.height == self.outputs else self.height * self.outputs
        right = 0 if self.lookup else self.width * self.inputs
        return self.groups * (left + right + self.height * self.width)


def sizes_of(module: Any, size: int, height: int, filters: int, *, pool: bool = False) -> Sizes:
    """How a layer is sketched by about ``size`` numbers; pooled, P may be `TALLER`, as sequences need."""
    weight, bias = module.weight, getattr(module, "bias", None)
    conv, lookup = isinstance(module, _ConvNd), isinstance(module, nn.Embedding)
    groups = module.groups if conv else 1
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    if lookup or is_transposed_linear(module):
        outputs, inputs = inputs, outputs
    pool = pool and not conv and not lookup
    best = TALLER * height if pool else best_height(size, height, 1 if lookup else inputs, outputs)
    tall = min(outputs, best, size)
    wide = min(inputs + (bias is not None and not conv), max(1, size // tall))
    taps = math.prod(weight.shape[2:])
    return Sizes(groups, outputs, inputs, taps, tall, min(wide, filters) if conv else wide, lookup, pool)


class Part(NamedTuple):
    """One use of a layer in a batch: P e, (b, T, height), and Q a, (b, T, width); ``scale`` times both."""

    place: Place
    left: Tensor
    right: Tensor
    scale: float = 1.0

    def folded(self, views: int) -> Part:
        """Several views of each example, one after the other, as so many more positions of it."""
        left, right = (x.unflatten(0, (views, -1)).transpose(0, 1).flatten(1, 2) for x in self[1:3])
        return self._replace(left=left, right=right)


class LayerSketch:
    """Reads a layer for its rows: by one projection where it is given vectors, by another for sequences.

    The input is projected at once, in the forward pass, and only Q a is kept until the gradient comes: inputs
    that somebody else lets go, as activation checkpointing does, are not held on to. Those of a small layer
    are copied, a few steps of ``batch`` examples side by side, and projected together.
    """

    folds = True

    def __init__(
        self, layer: Layer, single: Projection | Shared, sequence: Projection | Shared, batch: int = 0
    ) -> None:
        self.latest = self._single = single
        self._sequence = sequence
        self._dims = 1 if isinstance(layer.module, nn.Embedding) else 2
        # Whether a convolution was given a batch is told by the number of dimensions.
        self._ndim = layer.module.weight.ndim if isinstance(layer.module, _ConvNd) else 0
        several = batch and isinstance(single, Projection) and not isinstance(layer.module, nn.Embedding)
        self.side_by_side = SideBySide(batch) if several else None

    def keep(self, use: LayerUse, _: Any, __: Any, first: Tensor, output: Tensor) -> Any:
        """Q a, or where a lies, and by which projection."""
        projection = self.latest = self._single if first.ndim <= self._dims else self._sequence
        if self._ndim and first.ndim != self._ndim:
            return None
        first = first.detach()
        if isinstance(projection, Shared):
            return projection, projection.of_input(first, output)
        seen = projection.seen(first, output)
        beside = self.side_by_side if projection.one_by_one and use.views == 1 else None
        if beside is not None and not torch._C._are_functorch_transforms_active():
            slots = beside.keep(use.record, seen, output, projection.stands_for)
            if slots is not None:
                return projection, slots
        return projection, projection.inward(seen, output)

    def take(self, use: LayerUse, _: int, gradient: Tensor) -> None:
        """Note Q a and P e; their product is made for the whole batch when it is settled."""
        projection, inward = use.kept
        if isinstance(inward, Slots):
            if not transformed() and inward.take(use.record, projection.felt(gradient)):
                return
            seen = inward.given[inward.rows(use.record)]
            inward = projection.inward(seen, seen)
        part = projection.part(inward, gradient)
        use.record.parts.append(part if use.views == 1 else part.folded(use.views))

    def parts(self, records: Sequence[BatchRecord]) -> Iterator[Part]:
        """Q a and P e of all that lies side by side, if any of it is of these batches."""
        for slots in () if self.side_by_side is None else self.side_by_side.in_order():
            shown = slots.shown(records)
            if shown is not None:
                given, back = shown
                projection: Any = self._single if given.ndim <= self._dims else self._sequence
                yield projection.product(projection.inward(given, given), back, slots.stands_for)

    def forget(self, *, needless: bool = False) -> None:
        """Let go what lies side by side, all of it or what is ``needless``."""
        if self.side_by_side is not None and (not needless or self.side_by_side.takes_room()):
            self.side_by_side.kinds = {}


class Projection:
    """One layer's P and Q, of ``sizes``; the sketch begins at the number ``start`` of the rows.

    A convolution is seen at no more than ``side`` positions along each dimension, and there through its
    middle tap: the others' inputs are much the same, and orders were as good as with all of them. If pooled,
    a linear layer's positions become one: e is summed, and a averaged.
    """

    def __init__(self, layer: Layer, seed: int, sizes: Sizes, start: int, side: int) -> None:
        module: Any = layer.module
        self.module, self.side, self._sizes = module, side, sizes
        weight, bias = module.weight, getattr(module, "bias", None)
        self._conv = isinstance(module, _ConvNd)
        # Steps may lie side by side, but not where look-ups or pooling make them small anyway.
        self.one_by_one = not (sizes.lookup or sizes.pool)
        groups, outputs, inputs = sizes.groups, sizes.outputs, sizes.inputs
        tall, width = sizes.height, sizes.width
        self.place = Place(start, tall, width)
        draw = rng(seed, 0, f"{'pooled' if sizes.pool else 'sketch'}.{layer.name}")

        def signs(*shape: int) -> Tensor:
            drawn = random_signs(draw, *shape)
            return torch.as_tensor(drawn, dtype=torch.float32, device=weight.device)

        self._left = None if outputs == tall else signs(groups, tall, outputs) / math.sqrt(tall)
        self._right = signs(groups, width, inputs) / math.sqrt(width)
        self._constant = signs(width) / math.sqrt(width) if bias is not None and not self._conv else None
        if sizes.lookup:
            self._right = self._right.mT.contiguous()
            if module.padding_idx is not None:
                self._right[:, module.padding_idx] = 0
        # Sums of about √inputs numbers must not leave float16's range; a power of two loses no digits.
        self._small = 2.0 ** -(2 + math.ceil(math.log2(inputs) / 2))
        # P and Q in the precision and on the device that the layer turns out to work in: under autocast that
        # is known only when it runs, and converting them anew would cost more than applying them.
        self._inwards: dict[Any, tuple[Tensor, Tensor | None]] = {}
        self._outwards: dict[Any, Tensor] = {}
        self._cuts: dict[Any, tuple[Any, Any, int] | None] = {}

    def seen(self, given: Tensor, output: Tensor) -> Tensor:
        """What is looked at of an input: a convolution's at some of the positions, the mean of a sequence.

        A convolution is seen by one tap near its filters' middle.
        """
        if self._conv:
            return self._cut(given, output)
        if self._sizes.pool and not self._sizes.lookup:
            given = given.flatten(1, -2)  # one vector before it is projected: T times cheaper
            given = given.mean(1) if given.shape[1] else given.sum(1)
        return given

    def inward(self, seen: Tensor, like: Tensor) -> Tensor:
        """Q a, in the precision that the layer works in."""
        right, constant = self._inward(like)
        if self._sizes.lookup:  # one-hot inputs are never made: Q's columns are a table
            return functional.embedding(seen, right[0])
        seen = seen.to(like.dtype)  # a compiled graph's own, where no autocast is on by now
        if not self._conv:
            return functional.linear(seen, right[0], constant)
        if self._sizes.groups == 1:
            return torch.matmul(right[0], seen.flatten(2))
        return torch.matmul(right, seen.unflatten(1, (self._sizes.groups, -1)).flatten(3))

    def felt(self, gradient: Tensor) -> Tensor:
        """What is looked at of a gradient: a convolution's at some positions, the sum of a sequence."""
        if not self._conv:
            return gradient.flatten(1, -2).sum(1) if self._sizes.pool else gradient
        return self._cut(gradient, None)

    def stands_for(self, output: Tensor) -> int:
        """For how many positions each one that is looked at stands."""
        return math.prod(self._thin(output)) if self._conv else 1

    def part(self, inward: Tensor, gradient: Tensor) -> Part:
        """Q a, and P e beside it."""
        return self.product(inward, self.felt(gradient), self.stands_for(gradient))

    def product(self, inward: Tensor, gradient: Tensor, stands_for: int) -> Part:
        """Q a, and P e of the part of the gradient that is looked at."""
        left = self._outward(gradient)
        b, (_, height, width) = gradient.shape[0], self.place
        scale = 1 / self._small if inward.dtype == torch.float16 else 1.0
        if not self._conv:
            e = gradient if left is None else torch.matmul(gradient, left[0].T)
            return Part(self.place, e.reshape(b, -1, height), inward.reshape(b, -1, width), scale)
        # The positions that are looked at stand for all, and the middle tap for all taps: squared norms keep
        # about their size, so that no layer outweighs the others for having been thinned out.
        groups = self._sizes.groups
        scale *= stands_for * math.sqrt(self._sizes.taps)
        if groups == 1:
            e = gradient.flatten(2)
            e = e if left is None else torch.matmul(left[0], e)
            return Part(self.place, e.mT, inward.mT, scale)
        e = gradient.unflatten(1, (groups, -1)).flatten(3)
        e = e if left is None else torch.matmul(left, e)
        e, q = (x.transpose(1, 2).flatten(2) for x in (e, inward))
        return Part(self.place, e.mT, q.mT, scale)

    def _thin(self, output: Tensor) -> tuple[int, ...]:
        """Every so-manyth position is looked at, along each dimension."""
        return tuple(-(-length // self.side) for length in output.shape[2:])

    def _cut(self, x: Tensor, output: Tensor | None) -> Tensor:
        """What is looked at of a gradient, or, with the output, of an input.

        How it lies in memory is remembered: one call instead of one for each dimension.
        """
        plain = type(x) is Tensor and not torch._C._are_functorch_transforms_active()
        key = (x.shape, x.stride(), None if output is None else output.shape) if plain else None
        if key in self._cuts:
            cut = self._cuts[key]
            return x if cut is None else x.as_strided(cut[0], cut[1], x.storage_offset() + cut[2])
        if output is None:
            padded, where = False, tuple(slice(None, None, t) for t in self._thin(x))
        else:
            padded, where = self._positions(x.shape[2:], output)
        whole = functional.pad(x, self.module._reversed_padding_repeated_twice) if padded else x
        part = whole[(slice(None), slice(None), *where)]
        if plain and not padded:
            if len(self._cuts) >= SHAPES:
                self._cuts = {}
            same = part.shape == x.shape
            at = int(part.storage_offset()) - int(x.storage_offset())
            self._cuts[key] = None if same else (tuple(part.shape), part.stride(), at)
        return part

    def _positions(self, given: tuple[int, ...], output: Tensor) -> tuple[bool, tuple[slice, ...]]:
        """Where the middle tap lies of an image so large; and whether the image must be padded for it."""
        m: Any = self.module
        sides = zip(
            m.kernel_size, m.dilation, m.stride, m._reversed_padding_repeated_twice[::-2], strict=True
        )
        both = zip(given, output.shape[2:], strict=True)
        taps = [middle_tap(*side, *lengths) for side, lengths in zip(sides, both, strict=True)]
        padded = None in taps
        starts = [d * (k // 2) for k, d in zip(m.kernel_size, m.dilation, strict=True)] if padded else taps
        places = zip(starts, m.stride, output.shape[2:], self._thin(output), strict=True)
        return padded, tuple(slice(at, at + (n - 1) * s + 1, s * t) for at, s, n, t in places)

    def _inward(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Q, and what the bias adds to it, as ``like`` is; smaller in float16, so that sums stay in range."""
        key = (like.dtype, like.device)
        if key not in self._inwards:
            scale = self._small if like.dtype == torch.float16 else 1.0
            constant = None if self._constant is None else (self._constant * scale).to(like)
            self._inwards[key] = (self._right * scale).to(like), constant
        return self._inwards[key]

    def _outward(self, like: Tensor) -> Tensor | None:
        """P, if there is one, as ``like`` is."""
        if self._left is None:
            return None
        key = (like.dtype, like.device)
        if key not in self._outwards:
            self._outwards[key] = self._left.to(like)
        return self._outwards[key]


def middle_tap(kernel: int, dilation: int, stride: int, border: int, inputs: int, outputs: int) -> int | None:
    """Where a filter's middle tap begins along one dimension, or the next that never lies in the border.

    >>> middle_tap(5, 1, 1, 0, 32, 28), middle_tap(3, 1, 1, 1, 32, 32), middle_tap(1, 1, 1, 1, 32, 34)
    (2, 0, None)
    """
    starts = range(-border, kernel * dilation - border, dilation)
    inside = [at for at in starts if at >= 0 and at + (outputs - 1) * stride < inputs]
    return inside[len(inside) // 2] if inside else None


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
        if self._table.dtype != output.dtype or self._table.device != output.device:
            self._table = self._table.to(output)
        return functional.embedding(given, self._table)

    def part(self, inward: Tensor, gradient: Tensor) -> Part:
        """P a, and Q e beside it."""
        b, (_, height, width) = gradient.shape[0], self.place
        right = torch.matmul(gradient, self.head._inward(gradient)[0][0].T)
        scale = 1 / self.head._small if gradient.dtype == torch.float16 else 1.0
        return Part(self.place, inward.reshape(b, -1, height), right.reshape(b, -1, width), scale)


def best_height(size: int, height: int, inputs: int, outputs: int) -> int:
    """Rows of P, a power of two from half of ``height`` to twice it, that make P e and Q a cheapest.

    >>> best_height(512, 16, 784, 1024), best_height(512, 16, 128, 50000), best_height(512, 16, 4096, 128)
    (16, 8, 32)
    """
    ideal = round(math.log2(math.sqrt(size * inputs / outputs)))
    return int(min(max(2**ideal, height // 2), 2 * height))


def rows_of(
    parts: Sequence[Part], size: int, scale: float, room: Tensor | None = None, *, apart: bool = False
) -> Tensor:
    """Rows of a batch, (b, size): ``scale`` times the sum of (P e) ⊗ (Q a) over all parts and positions.

    They are made in ``room``, if there is some. All uses of a layer (it is called twice, or there are two
    backward passes) are multiplied at once, unless they must be ``apart``.
    """
    alike: dict[Any, list[Part]] = {}
    for number, part in enumerate(parts):
        alike.setdefault(number if apart else (part.place, part.scale), []).append(part)
    b = parts[0].left.shape[0]
    rows = torch.zeros(b, size, device=parts[0].left.device) if room is None else room[:b].zero_()
    for group in alike.values():
        place, left, right, own = group[0]
        if len(group) > 1:
            left, right = torch.cat([part.left for part in group], 1), torch.cat([p.right for p in group], 1)
        left, right = left.float().mT, right.float()
        target = rows[:, place.start : place.start + place.size].view(b, place.height, place.width)
        if right.shape[1] == 1:  # one position: no matrix product is needed
            target.addcmul_(left, right, value=scale * own)
        else:
            target.add_(torch.bmm(left, right), alpha=scale * own)
    return rows
