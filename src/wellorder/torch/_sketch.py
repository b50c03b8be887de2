"""``signals="sketch"``: a few hundred numbers per example, by random projections of each layer's factors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import torch
from torch import Tensor, nn

from wellorder._arguments import flag, whole_number
from wellorder.torch._batch_record import BatchRecord, BatchRecords
from wellorder.torch._hooks import LayerHooks, Scaler
from wellorder.torch._per_example.layers import CONVS, Layer, is_transposed_linear, survey
from wellorder.torch._projection import LayerSketch, Part, Projection, Shared, Sizes, rows_of, sizes_of
from wellorder.torch._side_by_side import STEPS, place_of, stacked


@dataclass(frozen=True)
class Sketch:
    r"""Row of example i: :math:`\sum_\ell \sum_t (P_\ell e_{it}) \otimes (Q_\ell a_{it})`, ``size`` numbers.

    Layer ℓ was given a and got back e at its positions t. P and Q are random signs, scaled so that inner
    products keep their expectation; where e is as short as its projection it is taken as it is. A linear
    layer's bias is one more input that is always 1. A convolution is seen through its filters' middle tap.

    Parameters
    ----------
    size
        Numbers in a row.
    height
        About the rows of P.
    filters
        Rows of a convolution's Q.
    side
        A convolution is seen at no more than so many positions along each dimension.
    layers
        At most so many layers are sketched, evenly spread.
    pool
        See a linear layer on a sequence through (P Σ_t e) ⊗ (Q mean_t a), with a taller P: not the projected
        gradient, but cheaper, and better orders came of it.
    mean
        The loss is a mean over the batch (PyTorch's default), which is undone; False for a sum.
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
            whole_number(name, getattr(self, name), least=1, cure="pass a number of 1 or more")
        for name in ("pool", "mean"):
            flag(name, getattr(self, name))


class SketchSource:
    """Gives each layer its projections and its place in the rows; the layers' parts become a batch's rows.

    Inputs are projected while forward runs, and gradients while backward does; nothing waits for the device.
    Of small layers several steps of ``batch`` examples are projected together: their batches wait until then.
    """

    def __init__(
        self,
        spec: Sketch,
        model: nn.Module,
        seed: int,
        scaler: Scaler | None = None,
        *,
        records: BatchRecords | None = None,
        batch: int = 0,
        strict: bool = True,
    ) -> None:
        self.spec, self._batch = spec, batch
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
        self.size = row_size(spec, self.layers)
        self._starts = _places_in_row(spec, self.layers, self.size)
        self._readers = {
            layer: LayerSketch(layer, self._map(layer, pool=False), self._map(layer, pool=True), batch)
            for layer in self.layers
        }
        self.records = BatchRecords() if records is None else records
        self.hooks = LayerHooks(model, self._readers, self.records, scaler, strict=strict)
        self._waiting: list[BatchRecord] = []
        self._rooms: dict[bool, Tensor] = {}

    def signals(self, record: BatchRecord) -> Tensor | None:
        """The rows of a batch that is closed, (b, k); None if no gradient came."""
        rows = next(rows for _, rows in list(self._made([record])))
        return None if rows is None else rows.clone()

    def settled(self, records: list[BatchRecord], *, now: bool = False) -> Iterable[tuple[BatchRecord, Any]]:
        """The rows of batches that are closed, as soon as all steps beside them are, or ``now``.

        On a CPU they are good until the next are asked for: new memory would cost more than its contents.
        """
        ready: list[BatchRecord] = []
        for record in records:
            if not record.heard:
                self.hooks.check_heard(record)
            if self._waiting and self._waiting[0].step // STEPS != record.step // STEPS:
                ready += self._waiting
                self._waiting = []
            self._waiting.append(record)
        if now or (self._waiting and (not self._batch or place_of(self._waiting[-1]) == STEPS - 1)):
            ready, self._waiting = ready + self._waiting, []
        if not ready:
            return ()
        groups = groupby(ready, lambda record: record.step // STEPS)
        return chain.from_iterable(self._made(list(group)) for _, group in groups)

    def forget(self) -> None:
        """Nothing comes of batches that wait."""
        self._waiting = []
        for reader in self._readers.values():
            reader.forget()

    def _made(self, records: list[BatchRecord]) -> Iterator[tuple[BatchRecord, Tensor | None]]:
        """The rows of batches of one group, one batch after the other."""
        parts = [part for reader in self._readers.values() for part in reader.parts(records)]
        parts += stacked(records, self._batch)
        together = self._rows_of(parts, self._batch, of_all=True) if parts else None
        for record in records:
            rows = self._rows(record, together)
            record.parts, record.done = [], True
            yield record, rows
        for reader in self._readers.values():
            reader.forget(needless=True)

    def _rows_of(self, parts: list[Part], batch: int, *, of_all: bool) -> Tensor:
        """The rows of some parts, on a CPU in memory that is used again and again.

        In those ``of_all`` steps of a group each part is added by itself: no step minds what others have.
        """
        left, scale = parts[0].left, batch if self.spec.mean else 1
        if left.device.type != "cpu":
            return rows_of(parts, self.size, scale, apart=of_all)
        if of_all not in self._rooms or len(self._rooms[of_all]) < len(left):
            self._rooms[of_all] = torch.empty(len(left), self.size)
        return rows_of(parts, self.size, scale, self._rooms[of_all], apart=of_all)

    def _rows(self, record: BatchRecord, together: Tensor | None) -> Tensor | None:
        if not record.heard:
            self.hooks.check_heard(record)
            return None
        rows = None
        if together is not None:
            start = place_of(record) * self._batch
            rows = together[start : start + record.size]
            if self.spec.mean and record.size != self._batch:
                rows = rows * (record.size / self._batch)
        if record.parts:
            others = self._rows_of(record.parts, record.size, of_all=False)
            rows = others if rows is None else rows + others
        return rows

    def coverage(self) -> dict[str, str]:
        """How each trainable parameter's gradient is taken."""
        how = {}
        for layer, reader in self._readers.items():
            _, height, width = reader.latest.place
            known = {name: p for name, p in layer.parameters.items() if id(p) in self._names}
            for name, p in known.items():
                numbers = f"{height}×{width} numbers" + " (with it)" * (name == "bias")
                if name == "weight" or not isinstance(layer.module, CONVS):
                    how[self._names[id(p)]] = self.hooks.coverage_of(layer, numbers)
        return {name: how.get(name, "not sketched") for name in self._names.values()}

    def attach(self) -> None:
        """Put the hooks on the model, if they are off."""
        self.hooks.attach()

    def pause(self) -> None:
        """Take no signals until the hooks are attached again."""
        self.hooks.pause()

    def remove(self) -> None:
        """Take the hooks off the model."""
        self.hooks.remove()

    def note(self) -> str:
        """What there is to say about the model."""
        return self.hooks.note()

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


def _places_in_row(spec: Sketch, layers: list[Layer], size: int) -> dict[str, int]:
    """Where each layer's sketch begins: side by side as long as there is room, then one over the other.

    Layers that share numbers of a row have independent signs, so their products vanish in expectation.
    """
    starts, start = {}, 0
    for layer in layers:
        numbers = most_numbers(spec, layer)
        start = start if start + numbers <= size else 0
        starts[layer.name], start = start, start + numbers
    return starts


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
    """Layers with a weight that is trained and a rule to sketch it; complex ones have none."""
    kinds = (nn.Linear, nn.Embedding, *CONVS)
    return [
        x
        for x in layers
        if (isinstance(x.module, kinds) or is_transposed_linear(x.module))
        and not x.run_again
        and "weight" in x.parameters
        and not x.parameters["weight"].is_complex()
    ]
