"""A batch's life: it is given out, passes over it are made, gradients come to it, and it is settled."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wellorder._order import Order

_DRAWN_AHEAD = (
    "a batch was drawn while the one before had not been used, and the model's input is neither of them: if "
    "you draw batches ahead of training, signals may reach the wrong examples; draw one batch at a time"
)


class BatchRecord:
    """What one batch that was given out has revealed so far.

    ``parts`` is what the layers' gradients became, in the words of the source of signals; ``coordinates`` are
    numbers of the parameters' own gradients. ``alone`` says that no other batch was unsettled while this one
    was, so that whatever the parameters got is this batch's.
    """

    def __init__(self, size: int, given: Any, step: int, units: Order, *, alone: bool) -> None:
        self.size, self.step, self.units, self.alone = size, step, units, alone
        self.used = self.heard = self.reached = self.closed = False
        self.parts: list[Any] = []
        self.coordinates: dict[int, Tensor] = {}
        # Weak, because a batch or a graph that we kept alive would be memory that the training does not use,
        # and because their end is what tells that no gradient will come any more.
        self.uses: list[weakref.ref[Any]] = []
        self._given = [weakref.ref(t) for t in tensors_in(given)]

    @property
    def given(self) -> list[Tensor]:
        """The batch's tensors that are still held by somebody."""
        return [t for ref in self._given if (t := ref()) is not None]

    def may_still_get_a_gradient(self) -> bool:
        """Whether none came yet, and the graph that it would come through lives, or the unused batch does."""
        if self.heard:
            return False
        return any(ref() is not None for ref in self.uses) if self.used else bool(self.given)


class BatchRecords:
    """The batches that are given out and not settled, and to which of them a pass belongs.

    Mostly there is one. The losses of several batches may be summed before one backward, though, so a batch
    stays until its gradient came; and where batches are drawn ahead, the model's input tells which one a
    pass works on.
    """

    def __init__(self) -> None:
        self.open_records: list[BatchRecord] = []
        self.latest: BatchRecord | None = None
        self.now: BatchRecord | None = None
        self.ignoring = 0
        self.any_settled = False
        self.seconds = 0.0
        self._in_doubt = self._skipped = self._warned = False

    def open(self, size: int, given: Any = (), *, step: int = 0, units: Order | None = None) -> BatchRecord:
        """Begin a batch of so many examples, of which ``given`` is handed out."""
        last = self.open_records[-1] if self.open_records else None
        # In an ordinary loop each batch is used before the next is drawn, and nothing has to be compared.
        self._in_doubt = self._skipped or (last is not None and not last.used)
        whose = np.zeros(0, np.int32) if units is None else units
        record = BatchRecord(size, given, step, whose, alone=last is None)
        self.open_records.append(record)
        self.latest = self.now = record
        return record

    def model_called(self, given: list[Tensor]) -> None:
        """Find out which batch a forward pass is for, where there is doubt."""
        if self.ignoring or self.latest is None or not torch.is_grad_enabled():
            return
        self.now = self.latest
        if self._in_doubt:
            owner = _owner_of(given, self.open_records)
            if owner is None:
                self.warn_once(_DRAWN_AHEAD)
            self.now = owner or self.latest

    def pause(self) -> None:
        """Passes from now on belong to no batch; gradients still come to those that were made."""
        self.latest = self.now = None

    def settle(self, *, everything: bool = False, but: BatchRecord | None = None) -> list[BatchRecord]:
        """Close the batches whose gradient came or will not come, or ``everything``; returns them."""
        ready = [
            record
            for record in self.open_records
            if record is not but and (everything or not record.may_still_get_a_gradient())
        ]
        for record in ready:
            self.close(record)
        return ready

    def close(self, record: BatchRecord | None = None) -> BatchRecord | None:
        """Take no more gradients for a batch, the latest unless named."""
        record = record or self.latest
        if record is not None:
            record.alone = record.alone and self.open_records[-1:] == [record]
            record.closed = self.any_settled = True
            if record in self.open_records:
                self.open_records.remove(record)
            self._skipped = not record.used
            if record is self.latest:
                self.pause()
        return record

    @contextmanager
    def ignore(self) -> Iterator[None]:
        """Passes inside belong to no batch, and neither do gradients."""
        self.ignoring += 1
        try:
            yield
        finally:
            self.ignoring -= 1

    def warn_once(self, words: str) -> None:
        """Warn of the first thing that goes wrong; what follows is mostly its consequence."""
        if not self._warned:
            self._warned = True
            warnings.warn(words, UserWarning, stacklevel=2)

    def watch(self, model: nn.Module) -> Any:
        """Put the hook on the model that tells when it is called; returns the handle to take it off."""
        return model.register_forward_pre_hook(_ModelHook(self), with_kwargs=True)


class WeakHook:
    """A hook that does not keep its owner alive, and that copies of the model do without.

    A model outlives its loader, and is deep-copied and pickled by its user: a hook that held its owner would
    drag the loader, its data set and its workers along.
    """

    def __init__(self, owner: Any) -> None:
        self.owner = weakref.ref(owner)

    def __deepcopy__(self, memo: Any) -> HookOfACopy:
        return HookOfACopy()

    def __reduce__(self) -> tuple[type[HookOfACopy], tuple[()]]:
        return HookOfACopy, ()


class HookOfACopy:
    """What a hook becomes in a copy of the model: nothing."""

    def __call__(self, *_: Any) -> None:
        return None


class _ModelHook(WeakHook):
    """Before the model runs."""

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        records = self.owner()
        if records is not None:
            records.model_called([*tensors_in(args), *tensors_in(kwargs)])


def tensors_in(output: Any) -> list[Tensor]:
    """The tensors of a batch, or of a module's inputs or output, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, tuple | list):
        return [t for part in output for t in tensors_in(part)]
    if isinstance(output, dict):
        return [t for part in output.values() for t in tensors_in(part)]
    return []


def _owner_of(given: list[Tensor], records: list[BatchRecord]) -> BatchRecord | None:
    """The batch that the model's input is, the latest first: by its memory, then by its values."""
    for same in (_same_memory, _same_values):
        for record in reversed(records):
            if any(same(x, t) for x in given for t in record.given):
                return record
    return None


def _same_memory(x: Tensor, t: Tensor) -> bool:
    return x.device == t.device and x.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()


def _same_values(x: Tensor, t: Tensor) -> bool:
    return x.shape == t.shape and x.dtype == t.dtype and torch.equal(x.detach().cpu(), t.detach().cpu())
