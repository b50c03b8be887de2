"""A batch's life: it is given out, passes over it are made, gradients come to it, and it is settled."""

from __future__ import annotations

import math
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
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
_DRAWN_BEFORE = (
    "the model is trained on a batch of an epoch that is over, so its gradient cannot be noted: the batches "
    "were all drawn before, as list(loader) does. Iterate over the loader itself, and train on each batch "
    "before the next is drawn"
)
_REPEATED = (
    "the model is trained again on the batches of an epoch that is over, as itertools.cycle(loader) keeps "
    "them: no new epoch begins, so their order stays, and nothing more is observed. Iterate over the loader "
    "itself in every epoch: while True: for batch in loader: …"
)
_OTHER_THREAD = (
    "batches are drawn in another thread than the one that trains, ahead of it: signals that come while a "
    "batch is drawn may be lost, or be incomplete. Draw batches where they are trained on; to fetch them "
    "ahead, pass num_workers to the DataLoader"
)
_DRAWN_ELSEWHERE = (
    "another DataLoader draws this loader's batches through its sampler (as accelerate.skip_first_batches "
    "makes one): they come in the right order, but nothing is observed. Iterate over the OrderedLoader "
    "itself; to resume in mid-epoch, save its state_dict() and load it"
)
_FOREIGN = (
    "the model was also run on an input that is not this batch's, though as long: that pass is not counted "
    "as the batch's. If it is meant (a second loader, generated data), put it into `with loader.ignore():`, "
    "and this warning goes"
)
_SUMMED = (
    "one backward pass went through a pass over the batch and through one that does not count (ignored, or "
    'over other data); signals="batch" sees their sum only. Run a backward of its own for the latter, or use '
    'signals="sketch"'
)

LOOKS_AT_FIRST = 8
"""Passes after an epoch's end that are compared with its first batches."""
FEW = 4
"""So many examples must a batch have for its rows to be matched with a layer's by their values."""


class BatchRecord:
    """What one batch that was given out has revealed so far.

    ``parts`` is what the layers' gradients became, in the words of the source of signals; ``coordinates`` are
    numbers of the parameters' own gradients; ``done`` says that signals were made of them. ``alone`` says
    that no other batch was unsettled while this one was, so that whatever the parameters got is this batch's.
    ``awaited`` says that a gradient which comes after the next batch was drawn is still this batch's.
    """

    def __init__(
        self, size: int, given: Any, step: int, units: Order, *, alone: bool, awaited: bool = True
    ) -> None:
        self.size, self.step, self.units, self.alone, self._awaited = size, step, units, alone, awaited
        self.used = self.heard = self.reached = self.closed = self.ignored = self.done = False
        self.passes, self.own_pass, self.views = 0, False, 1
        self.derived_again, self.several_outputs = False, ""
        self.calls: dict[int, Any] = {}
        self.unlike: set[int] = set()
        self.foreign: set[int] = set()
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
        if self.heard or not self._awaited:
            return False
        return any(ref() is not None for ref in self.uses) if self.used else bool(self.given)


class BatchRecords:
    """The batches that are given out and not settled, and to which of them a pass belongs.

    Mostly there is one. The losses of several batches may be summed before one backward, though, so a batch
    stays until its gradient came; and where batches are drawn ahead, or the model is run several times in a
    step, the model's input tells which batch a pass works on, if any.
    """

    def __init__(self) -> None:
        self.open_records: list[BatchRecord] = []
        self.latest: BatchRecord | None = None
        self.now: BatchRecord | None = None
        self.ignoring = 0
        self.replaying = False
        self.passes = self.transformed_passes = 0
        self.views = 1
        """How many views of each example a layer was given last, where there were several."""
        self.any_settled = False
        self.seconds = 0.0
        self._in_doubt = self._skipped = self.warned = self._several = False
        self._compared, self._foreign_numbers = 0, set[int]()
        self._unused: list[BatchRecord] = []
        self._first: list[BatchRecord] = []
        self._looks_at_first = self._again = 0
        self._drawn_in = 0
        self.drawn_elsewhere: Callable[[], bool] = lambda: False
        self._in_backward: set[bool] = set()

    def open(
        self,
        size: int,
        given: Any = (),
        *,
        step: int = 0,
        units: Order | None = None,
        awaited: bool = True,
    ) -> BatchRecord:
        """Begin a batch of so many examples, of which ``given`` is handed out."""
        last = self.open_records[-1] if self.open_records else None
        # In an ordinary loop each batch is used before the next is drawn, and nothing has to be compared.
        self._in_doubt = awaited and (self._skipped or (last is not None and not last.used))
        whose = np.zeros(0, np.int32) if units is None else units
        record = BatchRecord(size, given, step, whose, alone=last is None, awaited=awaited)
        self.open_records.append(record)
        self.latest = self.now = record
        self._drawn_in = threading.get_ident()
        if step == 1:
            self._first, self._looks_at_first, self._again = [], LOOKS_AT_FIRST, 0
        if 0 < step <= 2:  # a record of its own, so that nothing that the batch reveals is kept
            self._first.append(BatchRecord(size, given, step, whose, alone=False))
        return record

    def model_called(self, given: list[Tensor], *, training: bool = True) -> None:
        """Find out which batch a forward pass is for."""
        if self.replaying:
            return
        if self.ignoring:
            if self.latest is not None:
                self.latest.ignored = True
            return
        if not torch.is_grad_enabled():
            return
        record = self.now = self.latest
        if torch._C._are_functorch_transforms_active():  # whose tensors cannot be looked at
            self.transformed_passes += 1
        elif record is None:
            self._look_among_unused(given)
            if training:
                self._look_among_first(given)
            if training and self.drawn_elsewhere():
                self.warn_once(_DRAWN_ELSEWHERE)
        else:
            self.passes += training
            if self._in_doubt:
                if self._drawn_in != threading.get_ident():
                    self.warn_once(_OTHER_THREAD)
                owner = _owner_of(given, self.open_records)
                if owner is None:
                    self.warn_once(_DRAWN_AHEAD)
                record = self.now = owner or record
            record.passes += 1
            if not self._in_doubt and self._is_foreign(given, record):
                self.now = None
                self.warn_once(_FOREIGN)

    def _is_foreign(self, given: list[Tensor], record: BatchRecord) -> bool:
        """Whether a pass is over other data: its input is not the batch's, and another pass's was.

        Where no pass's input is the batch's, it was changed beyond recognition on its way, and is trusted.
        Comparing waits for the device, so it is done for the first batches, and from then on only where the
        model is run several times in a step.
        """
        number = record.passes
        self._several = self._several or number > 1
        if not self._several and self._compared >= 2:
            return False
        self._compared += 1
        alike = _like_any(given, record)
        if alike:
            record.own_pass = True
            # The other data may come first: those passes are known now, and by their place from now on.
            self._foreign_numbers = record.foreign = set(record.unlike)
            if record.foreign:
                self.warn_once(_FOREIGN)
            return False
        if alike is None:
            return False
        record.unlike.add(number)
        if record.own_pass or number in self._foreign_numbers:
            record.foreign.add(number)
            return True
        return False

    def _look_among_unused(self, given: list[Tensor]) -> None:
        """Warn if the model is given a batch that was drawn in an epoch which is over.

        A lone one is the last of a loop that draws one ahead: it counts as not observed, and no more is lost.
        """
        if self._unused:
            if _owner_of(given, self._unused) is not None:
                if len(self._unused) > 1:
                    self.warn_once(_DRAWN_BEFORE)
                self._unused = []
            else:
                self._unused = self._unused[1:]  # not for ever: each look compares values

    def _look_among_first(self, given: list[Tensor]) -> None:
        """Warn if the first two batches of an epoch that is over come again: one alone may be a probe's."""
        if self._looks_at_first and len(self._first) == 2:
            self._looks_at_first -= 1  # not for ever: each look compares values
            if _owner_of(given, [self._first[self._again]]) is not None:
                self._again += 1
            if self._again == 2:
                self._looks_at_first = 0
                self.warn_once(_REPEATED)

    def gradient_came(self, *, counts: bool) -> None:
        """A gradient came to the output of a pass over the model that ``counts``, or that does not."""
        if not self._in_backward:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._in_backward.clear)
        self._in_backward.add(counts)

    def backward_counts(self) -> bool:
        """Whether what the parameters get in the backward pass that runs is a batch's, as far as is known."""
        if len(self._in_backward) == 2:
            self.warn_once(_SUMMED)
        return not self.ignoring and self._in_backward != {False}

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
            record.calls = {}
            if record in self.open_records:
                self.open_records.remove(record)
            self._skipped = not record.used
            if not (record.used or record.passes or record.ignored):
                self._unused = [*self._unused, record][-64:]
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

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Modules that are run again inside, for exact signals, are not heard again."""
        self.replaying = True
        try:
            yield
        finally:
            self.replaying = False

    def warn_once(self, words: str) -> None:
        """Warn of the first thing that goes wrong; what follows is mostly its consequence."""
        if not self.warned:
            self.warned = True
            warnings.warn(words, UserWarning, stacklevel=2)

    def watch(self, model: nn.Module, *, outputs: bool = False) -> list[Any]:
        """Put the hooks on the model that tell when it is called; returns the handles to take them off.

        With ``outputs``, its output's gradients are noted too, by `gradient_came`.
        """
        if isinstance(model, torch.jit.ScriptModule):  # takes no hooks
            return []
        handles = [model.register_forward_pre_hook(_ModelHook(self), with_kwargs=True)]
        if outputs:
            handles.append(model.register_forward_hook(_OutputHook(self)))
        return handles


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

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():  # a look at the input would break the graph
            return
        records = self.owner()
        if records is not None:
            given = [*tensors_in(args), *tensors_in(kwargs)]
            records.model_called(given, training=module.training)


class _OutputHook(WeakHook):
    """After the model ran."""

    def __call__(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        records = self.owner()
        if records is None or not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            return
        counts = not records.ignoring and records.now is not None
        for out in tensors_in(output):
            if out.requires_grad:
                out.register_hook(lambda _, counts=counts: records.gradient_came(counts=counts))


def tensors_in(output: Any) -> list[Tensor]:
    """The tensors of a batch, or of a module's inputs or output, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, tuple | list):
        return [t for part in output for t in tensors_in(part)]
    if isinstance(output, Mapping):
        return [t for part in output.values() for t in tensors_in(part)]
    return []


def _owner_of(given: list[Tensor], records: list[BatchRecord]) -> BatchRecord | None:
    """The batch that the model's input is, the latest first: by its memory, then by its values."""
    for same in (_same_memory, _same_values):
        for record in reversed(records):
            if any(same(x, t) for x in given for t in record.given):
                return record
    return None


def memory_of(x: Tensor) -> int | None:
    """Where a tensor's numbers lie; None where they have no one place, as in sparse and nested ones."""
    try:
        return x.untyped_storage().data_ptr()
    except RuntimeError:
        return None


def in_one_block(*tensors: Tensor) -> bool:
    """Whether these are neither sparse nor nested, of which little can be asked."""
    return all(x.layout is torch.strided and not x.is_nested for x in tensors)


def _same_memory(x: Tensor, t: Tensor) -> bool:
    if x is t:
        return True
    return x.device == t.device and (place := memory_of(x)) is not None and place == memory_of(t)


def _same_values(x: Tensor, t: Tensor) -> bool:
    alike = in_one_block(x, t) and x.shape == t.shape and x.dtype == t.dtype
    return alike and torch.equal(x.detach().cpu(), t.detach().cpu())


def views_of(given: Tensor, record: BatchRecord, before: int = 1) -> int:
    """How many views of each example a layer was given, one after the other as `torch.cat` puts them.

    1 where it was given as many rows as the batch has, or where the rows cannot be matched with the batch's.
    In a batch of too few examples to match them there are as many as ``before``.
    """
    count, rest = divmod(len(given), record.size)
    if count < 2 or rest or record.views == count:
        return 1 if count < 2 or rest else count
    if not in_one_block(given):
        return 1
    blocks = given.detach().chunk(count)
    alike = (record.size < FEW and count == before) or all(
        any(
            t.ndim
            and len(t) == record.size
            and t.numel() == block.numel()
            and _alike(block.reshape(t.shape), t)
            for t in record.given
        )
        for block in blocks
    )
    record.views = count if alike else 1
    return record.views


def _like_any(given: list[Tensor], record: BatchRecord) -> bool | None:
    """Whether the model's input is the batch, perhaps changed a little; None if they cannot be compared."""
    pairs = [(x, t) for x in given for t in record.given]
    if any(_same_memory(x, t) for x, t in pairs):
        return True
    found = [_alike(x, t) for x, t in pairs]
    return True if True in found else False if False in found else None


def _alike(x: Tensor, t: Tensor) -> bool | None:
    """Whether rows of one resemble the same rows of the other more than chance would have it.

    A batch that was moved, normalised, or disturbed is still like itself; another batch is not.
    """
    numbers = x.is_floating_point()
    if not in_one_block(x, t) or x.is_complex() or t.is_complex():
        return None
    if not x.ndim or x.shape[:1] != t.shape[:1]:
        return None
    if x.shape != t.shape or len(x) < FEW:
        # As many ids in longer or shorter sequences are other ids; an image may have been cropped.
        same_kind = x.ndim == t.ndim > 1 and not numbers and not t.is_floating_point()
        return False if same_kind and len(x) >= FEW else None
    a, b = (z.detach().cpu().double().flatten(1) for z in (x, t))
    a, b = a - a.mean(0), b - b.mean(0)
    size = float(a.norm() * b.norm())
    if not size or not math.isfinite(size):  # a mask of ones, say, tells nothing
        return None
    chance = 4 / math.sqrt(len(x) * min(a.shape[1], 32))
    return float((a * b).sum()) / size > min(max(0.2, chance), 0.9)
