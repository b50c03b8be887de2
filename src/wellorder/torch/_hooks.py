"""Hooks on a model's layers: what goes in, the gradient that comes back to what came out, and whose it is."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.nn.utils.rnn import PackedSequence

from wellorder.torch import _compiled_hooks as compiled
from wellorder.torch._batch_record import (
    BatchRecord,
    BatchRecords,
    WeakHook,
    in_one_block,
    memory_of,
    tensors_in,
    views_of,
)
from wellorder.torch._per_example.layers import CONVS, Layer

# As `torch.compiler.disable`, which would import the compiler for everybody who does not use it.
_not_compiled: Any = getattr(torch, "_disable_dynamo", lambda call: call)
_eval_frame_callback: Any = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)

_TOO_LATE = (
    "a gradient came to a batch after its signals had been handed over, and was dropped: run all backward "
    "passes of a batch before the next one is drawn, or put those that do not count into "
    "`with loader.ignore():`"
)
_NO_LAYER_HEARD = (
    "gradients came to the model's parameters, but no layer was heard: this model, or one like it in this "
    "process, was compiled before, and the compiler runs the old graph, without hooks; or its layers were "
    "replaced, or their weights are used outside of them. Call torch.compiler.reset() before training; call "
    "ordered(...) on the model that is trained, after its layers are final and before torch.compile; call "
    'the layers themselves; or use signals="batch"'
)

_FEWER = (
    "a batch of {} rows came of {} examples, as where collate_fn leaves broken ones out, or joins several; "
    "which row is whose is not known, so such batches are not observed. Leave broken ones out of the data "
    'set instead (torch.utils.data.Subset), join them there, or use signals="batch"'
)


class Scaler(Protocol):
    """The part of ``torch.amp.GradScaler`` that is needed: it multiplies a tensor by its present scale."""

    def scale(self, outputs: Tensor) -> Tensor: ...


def unscaled(gradient: Tensor, scaler: Scaler | None) -> Tensor:
    """A gradient without the present loss scale, if there is one; then in float32."""
    if scaler is None:
        return gradient
    return gradient.float() / scaler.scale(gradient.new_ones((), dtype=torch.float32))


class LayerUse:
    """One call of a layer for a batch; ``kept`` is what its reader wants to find again with the gradient.

    ``length`` is that of the first tensor given, 0 if there was none, or nothing that could be a batch, such
    as ``packed`` sequences; ``views`` of each example were given, mostly one.
    """

    __slots__ = (
        "__weakref__", "kept", "layer", "length", "number", "outputs", "packed", "record", "shared", "views",
    )  # fmt: skip

    def __init__(self, record: BatchRecord, layer: Layer, length: int, outputs: int) -> None:
        self.record, self.layer, self.length, self.outputs = record, layer, length, outputs
        self.number, self.views = record.passes, 1
        self.packed, self.shared = "", False
        self.kept: Any = None


class LayerReader(Protocol):
    """Makes signals of a layer's input and of its outputs' gradients."""

    folds: bool
    """Whether it can take several views of each example in one call."""

    def keep(
        self, use: LayerUse, args: tuple[Any, ...], kwargs: dict[str, Any], first: Tensor, output: Tensor
    ) -> Any:
        """What is needed of a call when its gradient comes; None if it was not given a batch.

        What is given is part of the graph still.
        """
        ...

    def take(self, use: LayerUse, place: int, gradient: Tensor) -> None:
        """The gradient of the ``place``-th output came: note in ``use.record`` what it reveals."""
        ...


class Switch:
    """Whether hooks listen. A compiled graph watches it, and would not notice that hooks come or go."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


class LayerHooks:
    """Shows each layer's reader the calls that get a gradient, each for the batch it was made in.

    A layer whose first dimension is not the batch is refused, or left out if not ``strict``.
    """

    def __init__(
        self,
        model: nn.Module,
        readers: Mapping[Layer, LayerReader],
        records: BatchRecords,
        scaler: Scaler | None = None,
        *,
        strict: bool = True,
    ) -> None:
        self.records, self.scaler = records, scaler
        self.left_out: dict[str, str] = {}
        self.heard: set[str] = set()
        self.compiled = self.split = self._called = False
        self._readers = {layer.name: reader for layer, reader in readers.items()}
        self._strict = strict
        self._looks_at_ids: dict[str, tuple[int, Any]] = {}
        self._model, self._layers = model, list(readers)
        self._switch = Switch()
        self._handles: list[Any] = []
        self._parameter_handles: list[Any] = []
        self.attach()

    def attach(self) -> None:
        """Put the hooks on the model, if they are off."""
        self._switch.on = True
        if not self._handles:
            self._handles = self.records.watch(self._model)
            for layer in self._layers:
                hook = _LayerHook(self, layer, self._switch)
                self._handles.append(layer.module.register_forward_hook(hook, with_kwargs=True))
        # Until a layer was heard, the parameters are asked too: gradients that reach them and no layer mean
        # that the hooks are in the wrong place, which must not pass in silence.
        if not self.heard and not self._parameter_handles:
            self._parameter_handles = [
                p.register_hook(self._reached) for p in self._model.parameters() if p.requires_grad
            ]

    def called_plainly(self) -> None:
        """A layer was called while the hooks do not listen, and no compiler looked on: they can go."""
        self._called = True
        if not self.compiled:
            self.remove()

    def forward(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A layer was called."""
        self._called = True
        if not torch.is_grad_enabled() or (torch._C._are_functorch_transforms_active() and _vmapped()):
            return
        # Here and below: what every layer runs in every step is written to touch little.
        if isinstance(output, Tensor):
            outputs, wanted = [output], output.requires_grad
        else:
            outputs = tensors_in(output)
            wanted = any(out.requires_grad for out in outputs)
        if not wanted:
            if self.records.now is not None and not self.records.ignoring and not self.records.replaying:
                self.records.now.used = True
            return
        use = self.begun(layer, args, kwargs, outputs)
        if use is not None:
            # Not a backward hook of the module: a tensor hook on the output sees the gradient before the
            # layer's own backward, whatever is done to that output in place afterwards, and the graph, which
            # owns the hook, is all that keeps the use alive: no gradient, no memory.
            for place, out in enumerate(outputs):
                if out.requires_grad:
                    out.register_hook(partial(self.take_gradient, use, place))

    def begun(
        self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]
    ) -> LayerUse | None:
        """Note a call whose output may get a gradient; None if it is no batch's."""
        record = self.records.now
        if self.records.ignoring:
            if self.records.latest is not None:
                self.records.latest.ignored = True
            return None
        if record is None or self.records.replaying:
            return None
        start = time.perf_counter()
        first = args[0] if args and isinstance(args[0], Tensor) else _first_of(args, kwargs)
        if first is not None and isinstance(layer.module, nn.Embedding):
            self._look_for_positions(layer, first, record)
        if layer.name in self.left_out:
            return None
        record.used = True
        packed = "packed" if args and isinstance(args[0], PackedSequence) else ""
        packed = "nested" if first is not None and first.is_nested else packed
        length = first.shape[0] if first is not None and first.ndim and not packed else 0
        use = LayerUse(record, layer, length, len(outputs))
        use.packed = packed
        self._keep(use, args, kwargs, first, outputs[0])
        record.uses.append(weakref.ref(use))
        self.records.seconds += time.perf_counter() - start
        return use

    def _keep(
        self, use: LayerUse, args: tuple[Any, ...], kwargs: dict[str, Any], first: Tensor | None, out: Tensor
    ) -> None:
        """Let the layer's reader keep what it needs, if the layer was given the batch."""
        record, reader = use.record, self._readers[use.layer.name]
        if first is None or use.packed:
            return
        if use.length != record.size and reader.folds and not transformed():
            use.views = views_of(first, record, self.records.views)
            if use.views > 1:
                self.records.views = use.views
        if use.length == use.views * record.size:
            use.kept = reader.keep(use, args, kwargs, first, out)
            use.length = 0 if use.kept is None else use.length
        elif use.length == 1:
            lookup = isinstance(use.layer.module, nn.Embedding)
            use.shared = lookup or (not transformed() and self._is_buffer(first))

    def _is_buffer(self, given: Tensor) -> bool:
        place = memory_of(given)
        return place is not None and any(memory_of(b) == place for b in self._model.buffers())

    def take_gradient(self, use: LayerUse, place: int, gradient: Tensor) -> None:
        """The gradient of a layer's ``place``-th output came."""
        if self.records.ignoring:
            return
        start = time.perf_counter()  # not the thread's time, which takes longer to ask for than a small layer
        record, name = use.record, use.layer.name
        if record.closed:
            self.records.warn_once(_TOO_LATE)
            return
        if name in self.left_out or use.number in record.foreign:
            return
        rows, axis = use.views * record.size, batch_axis(use.layer, place)
        if use.length != rows or gradient.ndim <= axis or gradient.shape[axis] != rows:
            if self._examples_are_missing(use):
                return
            self._leave_out(use, () if gradient.is_nested else tuple(gradient.shape))
            return
        record.heard = True
        self.heard.add(name)
        if self._parameter_handles:
            self._forget_parameters()
        record.derived_again = record.derived_again or torch.is_grad_enabled()  # else off in a backward pass
        gradient = gradient.detach() if gradient.requires_grad else gradient
        self._readers[name].take(use, place, unscaled(gradient, self.scaler))
        self.records.seconds += time.perf_counter() - start

    def check_heard(self, record: BatchRecord) -> None:
        """Refuse a batch whose gradients came to parameters and to none of the layers, ever."""
        if record.reached and not self.heard and not record.ignored:
            raise ValueError(_NO_LAYER_HEARD)

    def coverage_of(self, layer: Layer, how: str) -> str:
        """How a layer's gradients are taken, unless none ever came, or none that belong to examples."""
        if layer.name in self.left_out:
            return self.left_out[layer.name]
        return "never heard" if self.records.any_settled and layer.name not in self.heard else how

    def note(self) -> str:
        """What a compiled model means for the hooks; nothing where it is not compiled."""
        if not self.compiled:
            return ""
        how = "split at modules that are run again" if self.split else "one with our operators in it"
        return f"; compiled: in observed epochs the graph is {how}, in others the plain one"

    def pause(self) -> None:
        """Listen no more until `attach`: take the hooks off, or off switch those that a graph was made with.

        A compiled graph does not notice that hooks come or go. It notices the switch, and there are two
        graphs: one with the hooks, and one for when they do not listen. So a model that was never called
        (after a resume) keeps its hooks until then: who calls it decides whether it is compiled.
        """
        self._switch.on = False
        if not self.compiled and self._called:
            self.remove()

    def remove(self) -> None:
        """Take the hooks off the model."""
        self._switch.on = False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._forget_parameters()

    def _reached(self, _: Tensor) -> None:
        if not self.records.ignoring and self.records.latest is not None:
            self.records.latest.reached = True

    def _forget_parameters(self) -> None:
        for handle in self._parameter_handles:
            handle.remove()
        self._parameter_handles = []

    def _look_for_positions(self, layer: Layer, given: Tensor, record: BatchRecord) -> None:
        """Twice 0, 1, 2, … are positions, one for all examples, even if they are as many as the examples."""
        looks, seen = self._looks_at_ids.get(layer.name, (0, None))
        if looks < 2 and seen is not record:
            counts = given.ndim == 1 and given.shape[0] == record.size > 3
            counts = counts and torch.equal(given, torch.arange(record.size).to(given))
            self._looks_at_ids[layer.name] = (looks + 1 if counts else 2), record
            if counts and looks:
                self._leave_out(LayerUse(record, layer, record.size, 1), tuple(given.shape))

    def _examples_are_missing(self, use: LayerUse) -> bool:
        """Whether all of the batch has as many rows as the layer, but fewer than there are examples."""
        record = use.record
        shapes = [tuple(t.shape) for t in record.given if in_one_block(t) and t.ndim]
        if {shape[0] for shape in shapes} != {use.length} or use.length >= record.size:
            return False
        if any(record.size in shape[1:] for shape in shapes):  # the batch comes later
            return False
        record.foreign.add(use.number)
        record.ignored = True
        self.records.warn_once(_FEWER.format(use.length, record.size))
        return True

    def _leave_out(self, use: LayerUse, back: tuple[int, ...]) -> None:
        """Take no more signals from a layer whose first dimension is not the batch; refuse it if strict."""
        layer = use.layer
        self.left_out[layer.name] = "left out: its first dimension is not the batch"
        if use.shared:
            self.left_out[layer.name] = "left out: its input is shared by the batch"
        if (self._strict and not use.shared) or len(self.left_out) == len(self._readers):
            rows = f"{use.packed} sequences" if use.packed else f"{use.length} rows"
            raise ValueError(
                f"model.{layer.name} ({layer.kind}) was given {rows} and got a gradient of shape {back}, but "
                f"the batch has {use.record.size} examples, and must be the first dimension of every layer: "
                f"{_not_the_batch(use, back)}"
            )


def _not_the_batch(use: LayerUse, back: tuple[int, ...]) -> str:
    """Why a layer's rows are not the batch's examples, and what to do."""
    length, size = use.length, use.record.size
    if use.packed:
        others = '"sketch" or "batch"' if use.packed == "packed" else '"batch"'
        return (
            f"a {use.packed} sequence does not tell its examples apart. Pad the sequences instead, or use "
            f"signals={others}"
        )
    if length <= 1 or length == size or (isinstance(use.layer.module, nn.Embedding) and len(back) == 2):
        return (
            "its input is the same for all examples. Expand inputs that are shared by the batch, such as "
            'positions, to one row per example, or use signals="batch"'
        )
    if length > size and length % size == 0:
        return (
            f"there are {length // size} rows for each example, several views or positions, whose places are "
            'not known. Use signals="batch", or call the model once for each view'
        )
    # The last length is a layer's width, and a convolution's are channels and an image's: as long by chance.
    if size in back[1:-1] and not isinstance(use.layer.module, CONVS):
        return "the batch comes later. Use batch_first=True, or transpose the input"
    part = "If they are a part of the batch, make batch_size as small, and accumulate over batches. "
    return (
        f"these are other rows. {part * (length < size)}Use batch_first=True; expand inputs that are shared "
        "by the batch, such as positions, to one row per example; put passes over other data into "
        '`with loader.ignore():`; or use signals="batch"'
    )


def batch_axis(layer: Layer, place: int) -> int:
    """Where the examples are in a layer's ``place``-th output: first, but second in a recurrent state."""
    return int(layer.run_again and isinstance(layer.module, nn.RNNBase) and place > 0)


class _LayerHook(WeakHook):
    """After a layer ran.

    The compiler follows `__call__`: it guards on the switch, so that there is one graph for observed epochs
    and one for others. In the former, a layer's output goes through operators of ours that the compiler does
    not look into, and the graph stays whole.
    """

    def __init__(self, hooks: LayerHooks, layer: Layer, switch: Switch) -> None:
        super().__init__(hooks)
        self._layer, self._switch, self._number = layer, switch, compiled.register(self)
        self._plain = not layer.run_again

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not self._switch.on:
            if not torch.compiler.is_compiling() and not _compiler_looks_on():
                hooks = self.owner()
                if hooks is not None:
                    hooks.called_plainly()
            return None
        if not torch.compiler.is_compiling():
            if _compiler_looks_on():  # a frame that it gave up has called us
                self._apart(args, kwargs, output, compiling=False)
            else:
                hooks = self.owner()
                if hooks is not None:
                    hooks.forward(self._layer, args, kwargs, output)
            return None
        if self._plain and isinstance(output, Tensor):
            first = _first_of(args, kwargs)
            if first is None or not output.requires_grad:
                return None
            return compiled.heard(output, first, self._number)[0]
        self._apart(args, kwargs, output, compiling=True)
        return None

    def _listen_apart(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, *, compiling: bool
    ) -> None:
        hooks = self.owner()
        if hooks is not None:
            hooks.compiled = hooks.split = hooks.compiled or compiling
            hooks.forward(self._layer, args, kwargs, output)

    _apart = _not_compiled(_listen_apart)

    def ran(self, given: Tensor, output: Tensor) -> LayerUse | None:
        """A compiled graph called the layer; what it was given is the graph's to write over."""
        hooks = self.owner()
        if hooks is None or not self._switch.on:
            return None
        hooks.compiled = True
        use: LayerUse | None = hooks.begun(self._layer, (given.clone(),), {}, [output])
        return use

    def returned(self, use: LayerUse, gradient: Tensor) -> None:
        """The gradient of the output came."""
        hooks = self.owner()
        if hooks is not None:
            hooks.take_gradient(use, 0, gradient.clone())


def _compiler_looks_on() -> bool:
    """Whether the compiler would try to compile what is called now."""
    return _eval_frame_callback is not None and _eval_frame_callback() is not None


def _vmapped() -> bool:
    """Whether `torch.vmap` is at work, so that a layer sees one example without its dimension."""
    active = retrieve_all_functorch_interpreters()
    return any(each.key() == torch._C._functorch.TransformType.Vmap for each in active)


def transformed() -> bool:
    """Whether `torch.func` or a compiler is at work."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active or torch.compiler.is_compiling()


def _first_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The first tensor of a call, None if there is none."""
    if args and isinstance(args[0], Tensor):
        return args[0]
    return next(iter([*tensors_in(args), *tensors_in(kwargs)]), None)
