"""``signals="sketch"``: a few hundred numbers per example, by random projections of each layer's factors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from wellorder.torch._layers import CONVS, Layer, survey
from wellorder.torch._presence import UNHEARD, Reached
from wellorder.torch._projection import Projection, Shared, Sizes, rows_of, sizes_of
from wellorder.torch._record import Record
from wellorder.torch._tape import Scaler, Tape, Visit, silenced


@dataclass(frozen=True)
class Sketch:
    r"""Row of example i: :math:`\sum_\ell \sum_t (P_\ell e_{it}) \otimes (Q_\ell a_{it})`, ``size`` numbers.

    P and Q are random signs, scaled so that inner products keep their expectation; where e is as short as
    its projection it is taken as it is. A linear layer's bias is one more input that is always 1. ``height``
    is about the rows of P. A convolution is seen through its filters' middle tap alone, at no more than
    ``side`` positions along each dimension; ``filters`` are the rows of its Q. With ``pool``, a linear layer
    on a sequence is seen through (P Σ_t e) ⊗ (Q mean_t a), with a taller P: not the projected gradient, but
    cheaper, and better orders came of it. At most ``layers`` layers are sketched, evenly spread. ``mean``
    says that the loss is a mean over the batch, which is undone.
    """

    size: int = 512
    height: int = 16
    filters: int = 8
    side: int = 12
    layers: int = 8
    pool: bool = True
    mean: bool = True

    def __post_init__(self) -> None:
        for name in ("size", "height", "filters", "side", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: pass a number of 1 or more")


class SketchSource:
    """Projects inputs while forward runs, and gradients while backward does; nothing waits for the device."""

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
        self._seed = seed
        self._heads = {id(x.module.weight): x for x in self.layers if isinstance(x.module, nn.Linear)}
        self._maps: dict[tuple[str, bool], Projection | Shared] = {}
        self._latest: dict[str, Projection | Shared] = {}
        self.size = row_size(spec, self.layers)
        self._starts, start = {}, 0
        for layer in self.layers:
            size = most_numbers(spec, layer)
            start = start if start + size <= self.size else 0
            self._starts[layer.name], start = start, start + size
        self._ways = {
            x.name: (
                self._map(x, pool=False),
                self._map(x, pool=True),
                1 if isinstance(x.module, nn.Embedding) else 2,
            )
            for x in self.layers
        }
        self._reached: Reached | None = Reached(model)
        self.tape = Tape(self.layers, self._arrived, scaler, model, strict=strict, brief=self._brief)

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
        parts, record.parts = record.parts, []
        if not parts:
            if self._reached is not None and self._reached.seen:
                raise ValueError(UNHEARD)
            return None
        return rows_of(parts, self.size, record.size if self.spec.mean else 1)

    def silent(self) -> AbstractContextManager[None]:
        """Record nothing inside."""
        return silenced(self.tape, *([self._reached] if self._reached is not None else []))

    def _brief(
        self, layer: Layer, given: Tensor, output: Tensor
    ) -> tuple[Projection | Shared, Tensor] | None:
        single, sequence, dims = self._ways[layer.name]
        each = self._latest[layer.name] = single if given.ndim <= dims else sequence
        return (each, each.of_input(given, output)) if each.fits(given) else None

    def _map(self, layer: Layer, *, pool: bool) -> Projection | Shared:
        """A layer's projections, for a sequence (``pool``) or for single vectors."""
        pool = pool and self.spec.pool and not isinstance(layer.module, CONVS)
        key = (layer.name, pool)
        if key not in self._maps:
            head = self._heads.get(id(layer.module.weight))
            own = head if head is not None and isinstance(layer.module, nn.Embedding) else None
            other = None if own is None else self._map(own, pool=pool)
            if isinstance(other, Projection):
                self._maps[key] = Shared(layer, other)
            else:
                start, sizes = self._starts[layer.name], sizes_for(self.spec, layer, pool=pool)
                self._maps[key] = Projection(layer, self._seed, sizes, start, self.spec.side)
        return self._maps[key]

    def _arrived(self, visit: Visit, _: int, gradient: Tensor) -> None:
        if self._reached is not None:
            self._reached.remove()
            self._reached = None
        each, inward = visit.brief
        visit.record.parts.append(each.part(inward, gradient))

    def coverage(self) -> dict[str, str]:
        """How each trainable parameter's gradient is taken."""
        how = {}
        for layer in self.layers:
            each = self._latest.get(layer.name) or self._map(layer, pool=False)
            _, height, width = each.place
            known = {name: p for name, p in layer.parameters.items() if id(p) in self._names}
            for name, p in known.items():
                numbers = f"{height}×{width} numbers" + " (with it)" * (name == "bias")
                if name == "weight" or not isinstance(layer.module, CONVS):
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


def modelled(spec: Sketch, layers: list[Layer]) -> tuple[int, float]:
    """Numbers in a row, and what the sketch adds to a step's multiplications, relative to them.

    The latter is a bound: as if all positions of a convolution or a sequence were looked at.
    """
    chosen = spread(layers, spec.layers)
    added = sum(sizes_for(spec, layer).sketching for layer in chosen)
    training = sum(sizes_for(spec, layer).training for layer in layers)
    return row_size(spec, chosen), added / max(training, 1)


def row_size(spec: Sketch, layers: list[Layer]) -> int:
    """Numbers in a row."""
    return max(most_numbers(spec, layer) for layer in layers)


def most_numbers(spec: Sketch, layer: Layer) -> int:
    """Numbers in a layer's sketch, for single vectors or for a sequence."""
    return max(sizes_for(spec, layer, pool=pool).size for pool in (False, True))


def sizes_for(spec: Sketch, layer: Layer, *, pool: bool = False) -> Sizes:
    """How a layer is sketched, for a sequence (``pool``) or for single vectors."""
    return sizes_of(layer.module, spec.size, spec.height, spec.filters, pool=pool and spec.pool)


def sketchable(layers: list[Layer]) -> list[Layer]:
    """Layers with a weight that is trained and a rule to sketch it."""
    kinds = (nn.Linear, nn.Embedding, *CONVS)
    return [x for x in layers if not x.whole and isinstance(x.module, kinds) and "weight" in x.parameters]
