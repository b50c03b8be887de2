"""``signals="sketch"``: a few hundred numbers per example, by random projections of each layer's factors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from wellorder.torch.layers import CONVS, Layer, survey
from wellorder.torch.presence import UNHEARD, Reached
from wellorder.torch.projection import Projection, rows_of, sizes_of
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
    filters: int = 8
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
        self._maps = {
            id(layer): Projection(layer, seed, spec.size, spec.height, spec.filters, spec.side)
            for layer in self.layers
        }
        self.size = max(m.place.size for m in self._maps.values())
        start = 0
        for each in self._maps.values():
            start = start if start + each.place.size <= self.size else 0
            each.place, start = each.place._replace(start=start), start + each.place.size
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

    def _brief(self, layer: Layer, given: Tensor, output: Tensor) -> Tensor:
        return self._maps[id(layer)].of_input(given, output)

    def _arrived(self, visit: Visit, _: int, gradient: Tensor) -> None:
        if self._reached is not None:
            self._reached.remove()
            self._reached = None
        visit.record.parts.append(self._maps[id(visit.layer)].part(visit.brief, gradient))

    def coverage(self) -> dict[str, str]:
        """How each trainable parameter's gradient is taken."""
        how = {}
        for layer in self.layers:
            _, height, width = self._maps[id(layer)].place
            known = {name: p for name, p in layer.parameters.items() if id(p) in self._names}
            for name, p in known.items():
                numbers = f"{height}×{width} numbers" + " (with it)" * (name == "bias")
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

    The latter is a bound: as if all positions of a convolution were looked at.
    """
    sizes = {id(x): sizes_of(x.module, spec.size, spec.height, spec.filters) for x in layers}
    chosen = [sizes[id(x)] for x in spread(layers, spec.layers)]
    training = sum(each.training for each in sizes.values())
    return max(x.height * x.width for x in chosen), sum(x.sketching for x in chosen) / max(training, 1)


def sketchable(layers: list[Layer]) -> list[Layer]:
    """Layers with a weight that is trained and a rule to sketch it."""
    kinds = (nn.Linear, nn.Embedding, *CONVS)
    return [x for x in layers if not x.whole and isinstance(x.module, kinds) and "weight" in x.parameters]
