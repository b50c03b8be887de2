"""``signals="batch"``: the unit is a micro-batch, and its gradient is the one autograd computes anyway."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellorder._arguments import whole_number
from wellorder._order import rng
from wellorder.torch._batch_record import BatchRecord, BatchRecords
from wellorder.torch._hooks import Scaler, unscaled

SMALL = 256
"""How many times smaller than the largest a parameter may be before its gradient is not looked at."""


@dataclass(frozen=True)
class MicroBatch:
    """Order micro-batches, fixed groups of examples, by the gradients that autograd makes of them anyway.

    A model with more parameters than ``coordinates`` is seen through a fixed random choice of coordinates, in
    proportion to the parameters' sizes and scaled so that inner products keep their expectation. Parameters
    256 times smaller than the largest are left out.

    Parameters
    ----------
    coordinates
        At most so many numbers of the gradient are looked at.
    """

    coordinates: int = 8192

    def __post_init__(self) -> None:
        cure = "look at 1 or more numbers of the gradient"
        whole_number("coordinates", self.coordinates, least=1, cure=cure)


class Coordinates:
    """Reads chosen coordinates of each backward's own gradient, before accumulation and clipping.

    They go to the batch that was given out last: a parameter's gradient does not tell which pass made it.
    With ``reveals``, they are the batch's signal, so a batch was heard that got some.
    """

    def __init__(
        self,
        model: nn.Module,
        count: int,
        seed: int,
        records: BatchRecords,
        scaler: Scaler | None = None,
        *,
        reveals: bool = True,
    ) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        total = sum(p.numel() for _, p in named)
        self.chosen: dict[str, Tensor | None] = {}
        self._records, self._scaler, self._reveals = records, scaler, reveals
        self._handles: list[Any] = []
        self._readers: list[tuple[Tensor, Any]] = []
        self._shares: list[int] = []
        looked_at = 0
        first, largest = max(((name, p.numel()) for name, p in named), key=lambda each: each[1])
        for name, p in named:
            share = p.numel() if total <= count else max(int(count * p.numel() / total), int(name == first))
            if not share or (total > count and SMALL * p.numel() < largest):
                continue
            index = None
            if share < p.numel():
                places = rng(seed, 0, f"coordinates.{name}").choice(p.numel(), share, replace=False)
                index = torch.as_tensor(places, device=p.device).sort().values
            self.chosen[name] = index
            self._readers.append((p, self._reader(len(self._shares), index)))
            self._shares.append(2 * share if p.is_complex() else share)
            looked_at += share
        self.factor = math.sqrt(total / looked_at)
        self.attach()

    def attach(self) -> None:
        """Put the hooks on the parameters, if they are off; those that were frozen since get no gradient."""
        if not self._handles:
            self._handles = [p.register_hook(read) for p, read in self._readers if p.requires_grad]

    def _reader(self, place: int, index: Tensor | None) -> Any:
        def read(gradient: Tensor) -> None:
            nonlocal index
            record = self._records.latest
            if record is None or not self._records.backward_counts():
                return
            values = gradient.detach()
            values = values.to_dense() if values.is_sparse else values
            if index is not None and index.device != values.device:
                index = index.to(values.device)
            # Taken now: the optimizer, clipping or the next backward change the gradient where it lies.
            values = values.flatten() if index is None else values.take(index)
            values = torch.view_as_real(values).flatten() if values.is_complex() else values
            # A copy: autograd makes this very memory the parameter's .grad, and adds the next backward to it.
            values = values.to(torch.float32, copy=True)
            values = unscaled(values, self._scaler)
            record.heard = record.heard or self._reveals
            before = record.coordinates.get(place)
            record.coordinates[place] = values if before is None else before + values

        return read

    def row(self, record: BatchRecord) -> Tensor | None:
        """What a batch's backward passes added up to; None if there was none."""
        read, record.coordinates = record.coordinates, {}
        if not read:
            return None
        some = next(iter(read.values()))
        parts = [
            read[place] if place in read else some.new_zeros(share)
            for place, share in enumerate(self._shares)
        ]
        return torch.cat(parts) * self.factor

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class MicroBatchSource:
    """One row per batch."""

    def __init__(
        self,
        spec: MicroBatch,
        model: nn.Module,
        seed: int,
        scaler: Scaler | None = None,
        *,
        records: BatchRecords | None = None,
    ) -> None:
        self.spec = spec
        self.records = BatchRecords() if records is None else records
        self._coordinates = Coordinates(model, spec.coordinates, seed, self.records, scaler)
        self._model, self._handles = model, self.records.watch(model, outputs=True)
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]

    def settled(self, records: list[BatchRecord], *, now: bool = False) -> list[tuple[BatchRecord, Any]]:  # noqa: ARG002
        """The signals of batches that are closed; none waits for others."""
        return [(record, self.signals(record)) for record in records]

    def forget(self) -> None:
        """No batch waits."""

    def signals(self, record: BatchRecord) -> Tensor | None:
        """The gradient of a batch that is closed, as one row; None if there was none."""
        row = self._coordinates.row(record)
        return None if row is None else row.unsqueeze(0)

    def coverage(self) -> dict[str, str]:
        """How each trainable parameter's gradient is taken."""
        how = {
            name: "whole" if index is None else f"{len(index)} coordinates"
            for name, index in self._coordinates.chosen.items()
        }
        return {name: how.get(name, "not looked at") for name in self._names}

    def attach(self) -> None:
        """Put the hooks on the model, if they are off."""
        self._coordinates.attach()
        self._handles = self._handles or self.records.watch(self._model, outputs=True)

    def pause(self) -> None:
        """Take no signals until the hooks are attached again."""
        self.remove()

    def remove(self) -> None:
        """Take the hooks off the model."""
        self._coordinates.remove()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def note(self) -> str:
        """What there is to say about the model."""
        return ""
