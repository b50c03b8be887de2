"""Hooks: what went into each layer, and the gradient that came back to its output."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from wellorder.torch._layers import Layer, tensors_in
from wellorder.torch._record import Record, owner_of

_TOO_LATE = (
    "a gradient came to a batch after its signals had been handed over, and was dropped: run all backward "
    "passes of a batch before the next one is drawn, or put those that do not count into "
    "`with loader.ignore():`"
)
_DRAWN_AHEAD = (
    "a batch was drawn while the one before had not been used, and the model's input is neither of them: if "
    "you draw batches ahead of training, signals may reach the wrong examples; draw one batch at a time"
)


class Scaler(Protocol):
    """The part of ``torch.amp.GradScaler`` that is needed: it multiplies a tensor by its present scale."""

    def scale(self, outputs: Tensor) -> Tensor: ...


def unscaled(gradient: Tensor, scaler: Scaler | None) -> Tensor:
    """A gradient without the present loss scale, if there is one; then in float32."""
    if scaler is None:
        return gradient
    return gradient.float() / scaler.scale(gradient.new_ones((), dtype=torch.float32))


class Visit:
    """One use of a layer for a batch: what is kept of it, and its outputs' gradients as far as they came.

    Kept is ``brief``, made of the first tensor given, or the inputs themselves. ``length`` is that tensor's,
    0 if the layer was given none, or nothing that could be a batch.
    """

    __slots__ = ("__weakref__", "args", "brief", "gradients", "kwargs", "layer", "length", "record")

    def __init__(self, record: Record, layer: Layer, length: int, outputs: int) -> None:
        self.record, self.layer, self.length = record, layer, length
        self.brief: Any = None
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.gradients: list[Tensor | None] = [None] * outputs

    @property
    def given(self) -> Tensor:
        """The layer's (first) input."""
        given: Tensor = self.args[0] if self.args else next(iter(self.kwargs.values()))
        return given


def first_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The first tensor of a call, None if there is none."""
    if args and isinstance(args[0], Tensor):
        return args[0]
    return next(iter([*tensors_in(args), *tensors_in(kwargs)]), None)


class Tape:
    """Records the visits that get a gradient, each for the batch it was made in; others leave nothing.

    A tensor hook on a layer's output sees the gradient before the layer's own backward, whatever is done
    to that output in place afterwards. A batch's record stays until its gradient came: the losses of several
    batches may be summed before one backward. Where batches are drawn ahead, the model's input tells which
    one it works on. A layer whose first dimension is not the batch is refused, or left out if not ``strict``.
    With ``brief``, a layer's input is not kept until its gradient comes, but only what is made of it.
    """

    def __init__(
        self,
        layers: Iterable[Layer],
        arrived: Callable[[Visit, int, Tensor], None],
        scaler: Scaler | None,
        model: nn.Module,
        *,
        strict: bool = True,
        brief: Callable[[Layer, Tensor, Tensor], Any] | None = None,
    ) -> None:
        layers = list(layers)
        self._brief = brief
        self.strict, self._count = strict, len(layers)
        self.left_out: set[str] = set()
        self.record: Record | None = None
        self.records: list[Record] = []
        self.deaf, self.seconds, self.stale = 0, 0.0, 0
        self.scaler = scaler
        self._arrived = arrived
        self._now: Record | None = None
        self.heard: set[str] = set()
        self._settled = False
        self._looks: dict[str, tuple[int, Any]] = {}
        self._doubt = self._skipped = self._warned = False
        self._handles: list[Any] = [model.register_forward_pre_hook(Entrance(self), with_kwargs=True)]
        for layer in layers:
            self._handles.append(layer.module.register_forward_hook(Ear(self, layer), with_kwargs=True))

    def open(self, size: int, given: Any = ()) -> Record:
        """Begin a batch of so many examples, of which ``given`` was handed out."""
        last = self.records[-1] if self.records else None
        self._doubt = self._skipped or (last is not None and not last.used)
        self.record = self._now = Record(size, given, alone=not self.records)
        self.records.append(self.record)
        return self.record

    def close(self, record: Record) -> None:
        """Take no more gradients for this batch."""
        record.closed, self._settled = True, True
        if record in self.records:
            self.records.remove(record)
        self._skipped = not record.used
        if record is self.record:
            self.pause()

    def pause(self) -> None:
        """Passes from now on belong to no batch; gradients still come to those that were made."""
        self.record = self._now = None

    def enter(self, given: list[Tensor]) -> None:
        """The model is called: find out for which batch, where there is doubt."""
        if self.deaf or self.record is None or not torch.is_grad_enabled():
            return
        self._now = self.record
        if self._doubt:
            owner = owner_of(given, self.records)
            if owner is None:
                self._warn(_DRAWN_AHEAD)
            self._now = owner or self.record

    def forward(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A layer was called."""
        record = self._now
        if self.deaf or record is None or not torch.is_grad_enabled():
            return
        start = time.thread_time()
        outputs = [output] if isinstance(output, Tensor) else tensors_in(output)
        first = first_of(args, kwargs)
        if first is not None and isinstance(layer.module, nn.Embedding):
            self._look_for_positions(layer, first, record)
        if layer.name in self.left_out:
            return
        visit = Visit(record, layer, first.shape[0] if first is not None and first.ndim else 0, len(outputs))
        if self._brief is None:
            visit.args, visit.kwargs = tuple(map(_cut, args)), {k: _cut(x) for k, x in kwargs.items()}
        elif first is not None and visit.length == record.size and outputs and outputs[0].requires_grad:
            with torch.no_grad():
                visit.brief = self._brief(layer, first, outputs[0])
            visit.length = 0 if visit.brief is None else visit.length
        record.visited(visit)
        for place, out in enumerate(outputs):
            if out.requires_grad:
                out.register_hook(partial(self._backward, visit, place))
        self.seconds += time.thread_time() - start

    def _backward(self, visit: Visit, place: int, gradient: Tensor) -> None:
        if self.deaf:
            return
        start = time.thread_time()
        record, name = visit.record, visit.layer.name
        if record.closed:
            self.stale += 1
            self._warn(_TOO_LATE)
            return
        if name in self.left_out:
            return
        if not gradient.ndim or gradient.shape[0] != record.size or visit.length != record.size:
            self._leave_out(visit.layer, visit.length, tuple(gradient.shape), record.size)
            return
        record.heard = True
        self.heard.add(name)
        with torch.no_grad():
            self._arrived(visit, place, unscaled(gradient, self.scaler).detach())
        self.seconds += time.thread_time() - start

    def _look_for_positions(self, layer: Layer, given: Tensor, record: Record) -> None:
        """Twice 0, 1, 2, … are positions, one for all examples, even if they are as many as the examples."""
        looks, seen = self._looks.get(layer.name, (0, None))
        if looks < 2 and seen is not record:
            counts = given.ndim == 1 and given.shape[0] == record.size > 3
            counts = counts and torch.equal(given, torch.arange(record.size).to(given))
            self._looks[layer.name] = (looks + 1 if counts else 2), record
            if counts and looks:
                self._leave_out(layer, record.size, tuple(given.shape), record.size)

    def _leave_out(self, layer: Layer, given: int, back: tuple[int, ...], size: int) -> None:
        """Take no more signals from a layer whose first dimension is not the batch; refuse it if strict."""
        self.left_out.add(layer.name)
        if self.strict or len(self.left_out) == self._count:
            raise ValueError(_not_first(layer, given, back, size))

    def spoken(self, layer: Layer, how: str) -> str:
        """How a layer's gradients are taken, unless none ever came, or none that belong to examples."""
        if layer.name in self.left_out:
            return "left out: its first dimension is not the batch"
        return "never heard" if self._settled and layer.name not in self.heard else how

    def _warn(self, words: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(words, UserWarning, stacklevel=2)

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class Deaf:
    """What a hook becomes in a copy of the model: nothing."""

    def __call__(self, *_: Any) -> None:
        return None


class Hook:
    """A hook that keeps its owner not alive, and that copies of the model do without."""

    def __init__(self, owner: Any) -> None:
        self.owner = weakref.ref(owner)

    def __deepcopy__(self, memo: Any) -> Deaf:
        return Deaf()

    def __reduce__(self) -> tuple[type[Deaf], tuple[()]]:
        return Deaf, ()


class Ear(Hook):
    """A layer's forward hook."""

    def __init__(self, tape: Tape, layer: Layer) -> None:
        super().__init__(tape)
        self._layer = layer

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        tape = self.owner()
        if tape is not None:
            tape.forward(self._layer, args, kwargs, output)


class Entrance(Hook):
    """The model's own hook: before it runs."""

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tape = self.owner()
        if tape is not None:
            tape.enter([*tensors_in(args), *tensors_in(kwargs)])


def _cut(x: Any) -> Any:
    if type(x) is tuple:
        return tuple(_cut(part) for part in x)
    return x.detach() if isinstance(x, Tensor) else x


@contextmanager
def silenced(*listeners: Any) -> Iterator[None]:
    """Make hooks deaf for a while."""
    for listener in listeners:
        listener.deaf += 1
    try:
        yield
    finally:
        for listener in listeners:
            listener.deaf -= 1


def _not_first(layer: Layer, given: int, back: tuple[int, ...], size: int) -> str:
    return (
        f"model.{layer.name} ({layer.kind}) was given {given} rows and got a gradient of shape {back}, but "
        f"the batch has {size} examples, or its input is the same for all batches: the batch must be the "
        "first dimension of every layer. Use batch_first=True; expand inputs that are shared by the batch, "
        "such as positions, to one row per example; and put passes over other data into "
        "`with loader.ignore():`"
    )
