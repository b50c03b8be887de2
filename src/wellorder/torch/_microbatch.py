"""``signals="batch"``: the unit is a micro-batch, and its gradient is the one autograd computes anyway."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellorder._order import rng
from wellorder.torch._record import Record
from wellorder.torch._tape import Scaler, silenced, unscaled

SMALL = 256
"""How many times smaller than the largest a parameter may be before its gradient is not looked at."""


@dataclass(frozen=True)
class MicroBatch:
    """Order micro-batches by their gradients, of which at most ``coordinates`` numbers are looked at.

    A model with more parameters is seen through a fixed random choice of coordinates, in proportion to the
    parameters' sizes and scaled so that inner products keep their expectation. Parameters `SMALL` times
    smaller than the largest are left out.
    """

    coordinates: int = 8192

    def __post_init__(self) -> None:
        if self.coordinates < 1:
            raise ValueError(f"coordinates={self.coordinates!r}: look at 1 or more numbers of the gradient")


class Coordinates:
    """Reads chosen coordinates of each backward's own gradient, before accumulation and clipping."""

    def __init__(self, model: nn.Module, count: int, seed: int, scaler: Scaler | None = None) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        total = sum(p.numel() for _, p in named)
        self.chosen: dict[str, Tensor | None] = {}
        self._scaler, self.deaf, self._open = scaler, 0, False
        self._record: Record | None = None
        self._handles: list[Any] = []
        self._shares: list[int] = []
        self._read: dict[int, Tensor] = {}
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
            self._handles.append(p.register_hook(self._reader(len(self._shares), index)))
            self._shares.append(share)
        self.factor = math.sqrt(total / sum(self._shares))

    def _reader(self, place: int, index: Tensor | None) -> Any:
        def read(gradient: Tensor) -> None:
            nonlocal index
            if self.deaf or not self._open:
                return
            values = gradient.detach()
            values = values.to_dense() if values.is_sparse else values
            if index is not None and index.device != values.device:
                index = index.to(values.device)
            values = (values.flatten() if index is None else values.take(index)).float()
            values = unscaled(values, self._scaler)
            if self._record is not None:
                self._record.heard = True
            before = self._read.get(place)
            self._read[place] = values if before is None else before + values

        return read

    def open(self, record: Record | None = None) -> None:
        """Begin a batch."""
        self._open, self._read, self._record = True, {}, record

    def pause(self) -> None:
        """Read no more, but keep what was read."""
        self._open = False

    def close(self) -> Tensor | None:
        """What the batch's backward passes added up to; None if there was none."""
        read, self._open, self._read = self._read, False, {}
        if not read:
            return None
        some = next(iter(read.values()))
        absent = {
            place: some.new_zeros(share) for place, share in enumerate(self._shares) if place not in read
        }
        whole = {**read, **absent}
        return torch.cat([whole[place] for place in range(len(self._shares))]) * self.factor

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()


class MicroBatchSource:
    """One row per batch."""

    def __init__(self, spec: MicroBatch, model: nn.Module, seed: int, scaler: Scaler | None = None) -> None:
        self.spec = spec
        self._coordinates = Coordinates(model, spec.coordinates, seed, scaler)
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]

    def open(self, batch: int, given: Any = ()) -> Record:  # noqa: ARG002 - each batch is settled by the next
        """Begin a batch."""
        record = Record(batch)
        self._coordinates.open(record)
        return record

    def pause(self) -> None:
        """Passes from now on belong to no batch."""
        self._coordinates.pause()

    def close(self, record: Record | None = None) -> Tensor | None:  # noqa: ARG002 - there is but one
        """The batch's gradient as one row; None if there was none."""
        row = self._coordinates.close()
        return None if row is None else row.unsqueeze(0)

    def silent(self) -> AbstractContextManager[None]:
        """Record nothing inside."""
        return silenced(self._coordinates)

    def coverage(self) -> dict[str, str]:
        """How each trainable parameter's gradient is taken."""
        how = {name: _spoken(index) for name, index in self._coordinates.chosen.items()}
        return {name: how.get(name, "not looked at") for name in self._names}

    def remove(self) -> None:
        """Take the hooks off the model."""
        self._coordinates.remove()


def _spoken(index: Tensor | None) -> str:
    return "whole" if index is None else f"{len(index)} coordinates"
