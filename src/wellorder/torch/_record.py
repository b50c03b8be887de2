"""What one batch that was given out has revealed so far."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from wellorder.torch._layers import tensors_in


class Record:
    """One batch's notes. ``alone``: no earlier batch still waited for its gradient when this one began."""

    def __init__(self, size: int, given: Any = (), *, alone: bool = True) -> None:
        self.size, self.alone = size, alone
        self.used = self.heard = self.closed = False
        self.parts: list[Any] = []
        self.visits: list[Any] = []
        self.whole: list[Any] = []
        self._given = [weakref.ref(t) for t in tensors_in(given)]
        self._visits: list[weakref.ref[Any]] = []

    @property
    def given(self) -> list[Tensor]:
        """The batch's tensors that are still held by somebody."""
        return [t for ref in self._given if (t := ref()) is not None]

    def visited(self, visit: Any) -> None:
        """Note that a layer was used."""
        self.used = True
        self._visits.append(weakref.ref(visit))

    def awaited(self) -> bool:
        """Whether a gradient may still come: none came yet, and the graph lives, or the unused batch does."""
        if self.heard:
            return False
        return any(ref() is not None for ref in self._visits) if self.used else bool(self.given)


def owner_of(given: list[Tensor], records: Iterable[Record]) -> Record | None:
    """The batch that the model's input is, the latest first: by its memory, then by its values."""
    latest = list(records)[::-1]
    for same in (_same_memory, _same_values):
        for record in latest:
            if any(same(x, t) for x in given for t in record.given):
                return record
    return None


def _same_memory(x: Tensor, t: Tensor) -> bool:
    return x.device == t.device and x.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()


def _same_values(x: Tensor, t: Tensor) -> bool:
    return x.shape == t.shape and x.dtype == t.dtype and torch.equal(x.detach().cpu(), t.detach().cpu())
