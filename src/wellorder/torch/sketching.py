"""``signals="sketch"``: a few hundred numbers per example, by random projections of each layer's factors."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from wellorder.order import rng
from wellorder.torch.layers import CONVS, Layer, survey
from wellorder.torch.presence import UNHEARD, Reached
from wellorder.torch.record import Record
from wellorder.torch.tape import Scaler, Tape, Visit, silenced


@dataclass(frozen=True)
class Sketch:
    r"""Row of example i: :math:`\sum_\ell \sum_t (P_\ell e_{it}) \otimes (Q_\ell a_{it})`, ``size`` numbers.

    P and Q are random signs, scaled so that inner products keep their expectation; where e is as short as
    its projection it is taken as it is. A bias is one more input that is always 1. ``height`` is about the
    rows of P; ``filters`` the rows of Q for a convolution, applied at no more than ``side`` positions along
    each dimension; at most ``layers`` layers are sketched, evenly spread. ``mean`` says that the loss is a
    mean over the batch, which is undone.
    """

    size: int = 512
    height: int = 16
    filters: int = 4
    side: int = 12
    layers: int = 16
    mean: bool = True

    def __post_init__(self) -> None:
        for name in ("size", "height", "filters", "side", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: pass a number of 1 or more")


class SketchSource:
    """Adds each layer's sketch to the batch's rows while backward runs; nothing waits for the device."""

    def __init__(
        self, spec: Sketch, model: nn.Module, seed: int, scaler: Scaler | None = None, *, strict: bool = True
    ) -> None:
        self.spec = spec
        self._names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        self.layers = spread(sketchable(survey(model, inside=True)), spec.layers)
        if not self.layers:
            raise ValueError(
                f"model={type(model).__name__} has no nn.Linear, nn.Conv or nn.Embedding to sketch; "
                'use signals="exact" or "batch"'
            )
        self._maps = {id(layer): Projection(spec, layer, seed) for layer in self.layers}
        self.size = max(m.size for m in self._maps.values())
        start = 0
        for shape in self._maps.values():
            start = start if start + shape.size <= self.size else 0
            shape.start, start = start, start + shape.size
        self._anchor = next(p for p in model.parameters() if p.requires_grad)
        self._reached: Reached | None = Reached(model)
        self.tape = Tape(self.layers, self._arrived, scaler, model, strict=strict)

    def open(self, batch: int, given: Any = ()) -> Record:
        """Begin to record a batch of this many examples."""
        if self._reached is not None and not self.tape.records:
            self._reached.seen = False
        return self.tape.open(batch, given)

    def pause(self) -> None:
        """Passes from now on belong to no batch."""
        self.tape.pause()

    def close(self, record: Record | None = None) -> Tensor | None:
        """The batch's rows, (b, k); None if no gradient came."""
        record = record or self.tape.record
        if record is None:
            return None
        self.tape.close(record)
        rows, record.rows = record.rows, None
        if rows is None:
            if self._reached is not None and self._reached.seen:
                raise ValueError(UNHEARD)
            return None
        return rows.mul_(record.size) if self.spec.mean else rows

    def silent(self) -> AbstractContextManager[None]:
        """Record nothing inside."""
        return silenced(self.tape, *([self._reached] if self._reached is not None else []))

    def _arrived(self, visit: Visit, _: int, gradient: Tensor) -> None:
        record = visit.record
        if self._reached is not None:
            self._reached.remove()
            self._reached = None
        if record.rows is None:
            record.rows = torch.zeros(record.size, self.size, device=self._anchor.device)
        self._maps[id(visit.layer)].add(record.rows, visit.given, gradient)

    def coverage(self) -> dict[str, str]:
        """How each trainable parameter's gradient is taken."""
        how = {}
        for layer in self.layers:
            shape = self._maps[id(layer)]
            known = {name: p for name, p in layer.parameters.items() if id(p) in self._names}
            for name, p in known.items():
                numbers = f"{shape.height}×{shape.width} numbers" + " (with it)" * (name == "bias")
                how[self._names[id(p)]] = self.tape.spoken(layer, numbers)
        return {name: how.get(name, "not sketched") for name in self._names.values()}

    def remove(self) -> None:
        """Take the hooks off the model."""
        self.tape.remove()
        if self._reached is not None:
            self._reached.remove()


def spread(layers: list[Layer], count: int) -> list[Layer]:
    """At most ``count`` layers, evenly spread, the last one among them."""
    if len(layers) <= count:
        return layers
    return [layers[-1 - round(i * (len(layers) - 1) / max(count - 1, 1))] for i in range(count)][::-1]


def best_height(spec: Sketch, inputs: int, outputs: int) -> int:
    """Rows of P, a power of two from half of ``spec.height`` to twice it, that make P e and Q a cheapest.

    >>> best_height(Sketch(), 784, 1024), best_height(Sketch(), 128, 50000), best_height(Sketch(), 4096, 128)
    (16, 8, 32)
    """
    ideal = round(math.log2(math.sqrt(spec.size * inputs / outputs)))
    return int(min(max(2**ideal, spec.height // 2), 2 * spec.height))


def sketchable(layers: list[Layer]) -> list[Layer]:
    """Layers with a weight that is trained and a rule to sketch it."""
    kinds = (nn.Linear, nn.Embedding, *CONVS)
    return [x for x in layers if not x.whole and isinstance(x.module, kinds) and "weight" in x.parameters]


class Projection:
    """One layer's P and Q, and how they meet its factors."""

    def __init__(self, spec: Sketch, layer: Layer, seed: int) -> None:
        module: Any = layer.module
        self.module = module
        self.groups = module.groups if isinstance(module, _ConvNd) else 1
        weight = module.weight
        if isinstance(module, nn.Embedding):
            outputs, inputs = weight.shape[1], weight.shape[0]
        else:
            outputs, inputs = weight.shape[0] // self.groups, weight[0].numel()
        bias = getattr(module, "bias", None)
        free = isinstance(module, nn.Embedding)  # Q a is a look-up
        self.height = min(outputs, best_height(spec, 1 if free else inputs, outputs))
        wide = min(inputs + (bias is not None), max(1, spec.size // self.height))
        self.width = min(wide, spec.filters) if isinstance(module, CONVS) else wide
        self.size = self.height * self.width
        self.start, self.side = 0, spec.side
        draw = rng(seed, 0, f"sketch.{layer.name}")

        def signs(*shape: int) -> Tensor:
            drawn = draw.integers(0, 2, shape) * 2.0 - 1.0
            return torch.as_tensor(drawn, dtype=torch.float32, device=weight.device)

        self.left = (
            None
            if outputs == self.height
            else signs(self.groups, self.height, outputs) / math.sqrt(self.height)
        )
        right = signs(self.groups, self.width, inputs) / math.sqrt(self.width)
        self.constant = signs(self.groups * self.width) / math.sqrt(self.width) if bias is not None else None
        self.right = right if isinstance(module, CONVS) else right[0]
        if isinstance(module, nn.Embedding):
            self.right = self.right.T.contiguous()
            if module.padding_idx is not None:
                self.right[module.padding_idx] = 0
        self._cast: dict[Any, tuple[Any, Any, Any]] = {}

    def add(self, rows: Tensor, given: Tensor, gradient: Tensor) -> None:
        """Add Σ_t (P e) ⊗ (Q a) to this layer's columns of ``rows``."""
        left, right, constant = self._as(gradient.dtype, gradient.device)
        target = rows[:, self.start : self.start + self.size].view(len(rows), self.height, self.width)
        if isinstance(self.module, CONVS):
            e, q = self._convolution(left, right, constant, given.to(gradient.dtype), gradient)
            e, q = (x.transpose(1, 2).flatten(2).to(rows.dtype) for x in (e, q))
            target.baddbmm_(e, q.mT)
            return
        e = gradient if left is None else gradient @ left[0].T
        if isinstance(self.module, nn.Embedding):
            q = functional.embedding(given, right)
        else:
            q = functional.linear(given.to(gradient.dtype), right, constant)
        if q.ndim == 2:
            target.addcmul_(e.unsqueeze(2).to(rows.dtype), q.unsqueeze(1).to(rows.dtype))
            return
        e, q = e.reshape(len(rows), -1, self.height), q.reshape(len(rows), -1, self.width)
        target.baddbmm_(e.mT.to(rows.dtype), q.to(rows.dtype))

    def _convolution(
        self, left: Any, right: Tensor, constant: Any, a: Tensor, e: Tensor
    ) -> tuple[Tensor, Tensor]:
        """P e (b, G, height, T) and Q a (b, G, width, T) at some of the positions, evenly spread.

        Q a is itself a convolution, with a longer stride. (Gathering the patches and multiplying them was
        slower, on a CPU and on a GPU.)
        """
        m, padding = self.module, self.module.padding
        thin = tuple(-(-side // self.side) for side in e.shape[2:])
        if isinstance(padding, str) or m.padding_mode != "zeros":
            mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
            a, padding = functional.pad(a, m._reversed_padding_repeated_twice, mode=mode), 0
        conv = (functional.conv1d, functional.conv2d, functional.conv3d)[len(thin) - 1]
        stride = tuple(s * t for s, t in zip(m.stride, thin, strict=True))
        filters = right.view(-1, *m.weight.shape[1:])
        q = conv(a, filters, constant, stride, padding, m.dilation, m.groups)
        q = q.reshape(len(a), self.groups, self.width, -1)
        e = e[(slice(None), slice(None), *(slice(None, None, t) for t in thin))]
        e = e.reshape(len(a), self.groups, -1, q.shape[3])
        e = e if left is None else left @ e
        return (e * math.prod(thin), q) if max(thin) > 1 else (e, q)

    def _as(self, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any, Any]:
        if (dtype, device) not in self._cast:
            maps = (self.left, self.right, self.constant)
            left, right, constant = (None if x is None else x.to(device, dtype) for x in maps)
            self._cast[dtype, device] = left, right, constant
        return self._cast[dtype, device]
