"""Hooks on a model's layers: what goes in, the gradient that comes back to what came out, and whose it is."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from wellorder.torch._batch_record import BatchRecord, BatchRecords, WeakHook, tensors_in
from wellorder.torch._per_example.layers import Layer

_TOO_LATE = (
    "a gradient came to a batch after its signals had been handed over, and was dropped: run all backward "
    "passes of a batch before the next one is drawn, or put those that do not count into "
    "`with loader.ignore():`"
)
_NO_LAYER_HEARD = (
    "gradients came to the model's parameters, but no layer was heard: the model was compiled before, its "
    "layers were replaced, or their weights are used outside of them. Call ordered(...) on the model that is "
    "trained, after its layers are final and before torch.compile; call the layers themselves; or use "
    'signals="batch"'
)
NOTHING_OBSERVED = (
    "an epoch was trained and no example of it was observed: another copy of the model is trained than the "
    "one given to ordered(...), or its layers were replaced since. The order learns nothing; call "
    "ordered(...) on the model that is trained"
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

    ``length`` is that of the first tensor given, 0 if there was none, or nothing that could be a batch.
    """

    __slots__ = ("__weakref__", "kept", "layer", "length", "outputs", "record")

    def __init__(self, record: BatchRecord, layer: Layer, length: int, outputs: int) -> None:
        self.record, self.layer, self.length, self.outputs = record, layer, length, outputs
        self.kept: Any = None


class LayerReader(Protocol):
    """Makes signals of a layer's input and of its outputs' gradients."""

    def keep(self, args: tuple[Any, ...], kwargs: dict[str, Any], first: Tensor, output: Tensor) -> Any:
        """What is needed of a call when its gradient comes; None if it was not given a batch."""
        ...

    def take(self, use: LayerUse, place: int, gradient: Tensor) -> None:
        """The gradient of the ``place``-th output came: note in ``use.record`` what it reveals."""
        ...


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
        self.left_out: set[str] = set()
        self.heard: set[str] = set()
        self._readers = {layer.name: reader for layer, reader in readers.items()}
        self._strict = strict
        self._looks_at_ids: dict[str, tuple[int, Any]] = {}
        self._model, self._layers = model, list(readers)
        self._handles: list[Any] = []
        self._parameter_handles: list[Any] = []
        self.attach()

    def attach(self) -> None:
        """Put the hooks on the model, if they are off."""
        if self._handles:
            return
        self._handles = [self.records.watch(self._model)]
        for layer in self._layers:
            hook = _LayerHook(self, layer)
            self._handles.append(layer.module.register_forward_hook(hook, with_kwargs=True))
        # Until a layer was heard, the parameters are asked too: gradients that reach them and no layer mean
        # that the hooks are in the wrong place, which must not pass in silence.
        if not self.heard:
            self._parameter_handles = [
                p.register_hook(self._reached) for p in self._model.parameters() if p.requires_grad
            ]

    def forward(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A layer was called."""
        record = self.records.now
        if self.records.ignoring or record is None or not torch.is_grad_enabled():
            return
        start = time.thread_time()
        first = _first_of(args, kwargs)
        if first is not None and isinstance(layer.module, nn.Embedding):
            self._look_for_positions(layer, first, record)
        if layer.name in self.left_out:
            return
        record.used = True
        outputs = [output] if isinstance(output, Tensor) else tensors_in(output)
        if any(out.requires_grad for out in outputs):
            use = LayerUse(
                record, layer, first.shape[0] if first is not None and first.ndim else 0, len(outputs)
            )
            if first is not None and use.length == record.size:
                with torch.no_grad():
                    use.kept = self._readers[layer.name].keep(args, kwargs, first, outputs[0])
                use.length = 0 if use.kept is None else use.length
            record.uses.append(weakref.ref(use))
            # Not a backward hook of the module: a tensor hook on the output sees the gradient before the
            # layer's own backward, whatever is done to that output in place afterwards, and the graph, which
            # owns the hook, is all that keeps the use alive: no gradient, no memory.
            for place, out in enumerate(outputs):
                if out.requires_grad:
                    out.register_hook(partial(self._backward, use, place))
        self.records.seconds += time.thread_time() - start

    def _backward(self, use: LayerUse, place: int, gradient: Tensor) -> None:
        if self.records.ignoring:
            return
        start = time.thread_time()
        record, name = use.record, use.layer.name
        if record.closed:
            self.records.warn_once(_TOO_LATE)
            return
        if name in self.left_out:
            return
        if not gradient.ndim or gradient.shape[0] != record.size or use.length != record.size:
            self._leave_out(use.layer, use.length, tuple(gradient.shape), record.size)
            return
        record.heard = True
        self.heard.add(name)
        if self._parameter_handles:
            self._forget_parameters()
        with torch.no_grad():
            self._readers[name].take(use, place, unscaled(gradient, self.scaler).detach())
        self.records.seconds += time.thread_time() - start

    def check_heard(self, record: BatchRecord) -> None:
        """Refuse a batch whose gradients came to parameters and to none of the layers, ever."""
        if record.reached and not self.heard:
            raise ValueError(_NO_LAYER_HEARD)

    def coverage_of(self, layer: Layer, how: str) -> str:
        """How a layer's gradients are taken, unless none ever came, or none that belong to examples."""
        if layer.name in self.left_out:
            return "left out: its first dimension is not the batch"
        return "never heard" if self.records.any_settled and layer.name not in self.heard else how

    def remove(self) -> None:
        """Take the hooks off the model."""
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
                self._leave_out(layer, record.size, tuple(given.shape), record.size)

    def _leave_out(self, layer: Layer, given: int, back: tuple[int, ...], size: int) -> None:
        """Take no more signals from a layer whose first dimension is not the batch; refuse it if strict."""
        self.left_out.add(layer.name)
        if self._strict or len(self.left_out) == len(self._readers):
            raise ValueError(
                f"model.{layer.name} ({layer.kind}) was given {given} rows and got a gradient of shape "
                f"{back}, but the batch has {size} examples, or its input is the same for all batches: the "
                "batch must be the first dimension of every layer. Use batch_first=True; expand inputs that "
                "are shared by the batch, such as positions, to one row per example; and put passes over "
                "other data into `with loader.ignore():`"
            )


class _LayerHook(WeakHook):
    """After a layer ran."""

    def __init__(self, hooks: LayerHooks, layer: Layer) -> None:
        super().__init__(hooks)
        self._layer = layer

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        hooks = self.owner()
        if hooks is not None:
            hooks.forward(self._layer, args, kwargs, output)


class OptimizerSteps:
    """Counts the steps of all optimizers: signs that training goes on, whether or not it is observed."""

    def __init__(self) -> None:
        self.count = 0
        own = weakref.ref(self)

        def stepped(*_: Any) -> None:
            steps = own()
            if steps is not None:
                steps.count += 1

        handle = register_optimizer_step_post_hook(stepped)
        self.remove = weakref.finalize(self, handle.remove)


def _first_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The first tensor of a call, None if there is none."""
    if args and isinstance(args[0], Tensor):
        return args[0]
    return next(iter([*tensors_in(args), *tensors_in(kwargs)]), None)
