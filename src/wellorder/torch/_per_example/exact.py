"""``signals="exact"``: every parameter's per-example gradients, by their products."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from wellorder.torch._batch_gradients import Coordinates
from wellorder.torch._batch_record import BatchRecord, BatchRecords, WeakHook
from wellorder.torch._hooks import LayerHooks, LayerUse, Scaler, transformed, unscaled
from wellorder.torch._per_example.factors import Rows
from wellorder.torch._per_example.layers import Layer, factors, survey
from wellorder.torch._per_example.replay import check_taken_apart, replayed
from wellorder.torch._per_example.rows import rows_of
from wellorder.torch._per_example.signals import ExactSignals, LastRequest, best_as_rows, positions
from wellorder.torch._per_example.uses import EarlyRows, Factored, Use, held, joined, merge

COORDINATES = 1024
"""Coordinates of each batch's gradient that are kept to estimate the order error."""


@dataclass(frozen=True)
class Exact:
    """Balance true per-example gradients, from each layer's inputs and output gradients.

    Meant for small models and for comparison: a step takes one and a half to two times as long. Needs a
    policy that works with products, such as `PairGraB`.

    Parameters
    ----------
    mean
        The loss is a mean over the batch (PyTorch's default), which is undone; False for a sum.
    """

    mean: bool = True


class Call:
    """What went into a layer, its ``buffers`` then, and the gradients that came to what came out."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], buffers: dict[str, Tensor]) -> None:
        self.args, self.kwargs, self.buffers = args, kwargs, buffers
        self.gradients: dict[int, Tensor] = {}


class ExactSource:
    """Collects factors while a batch is open, and hands them over as one block of signals."""

    folds = False

    def __init__(
        self,
        spec: Exact,
        model: nn.Module,
        seed: int = 0,
        scaler: Scaler | None = None,
        *,
        records: BatchRecords | None = None,
    ) -> None:
        self.spec = spec
        self.layers = survey(model)
        for layer in self.layers:
            check_taken_apart(layer)
        self.names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        self.slots: dict[str, slice] = {}
        self.dim = 0
        for name, p in model.named_parameters():
            if p.requires_grad:
                self.slots[name] = slice(self.dim, self.dim + p.numel())
                self.dim += p.numel()
        self.like = torch.zeros((), dtype=_widest(model), device=next(model.parameters()).device)
        self._names = {
            layer.name: {inner: self.names[id(p)] for inner, p in layer.parameters.items()}
            for layer in self.layers
        }
        self._to_replay: list[LayerUse] = []
        self._last_request, self._early = LastRequest(pairs=True), set[str]()
        self.records = BatchRecords() if records is None else records
        readers = {x: RunAgainReader(self, x) if x.run_again else self for x in self.layers}
        self._run_again = [x for x in readers.values() if isinstance(x, RunAgainReader)]
        self.hooks = LayerHooks(model, readers, self.records, scaler)
        self._check: FirstBatchCheck | None = FirstBatchCheck(model, self.records, scaler)
        self._coordinates = Coordinates(model, COORDINATES, seed, self.records, scaler, reveals=False)

    def settled(self, records: list[BatchRecord], *, now: bool = False) -> list[tuple[BatchRecord, Any]]:  # noqa: ARG002
        """The signals of batches that are closed; none waits for others."""
        return [(record, self.signals(record)) for record in records]

    def forget(self) -> None:
        """No batch waits."""

    def signals(self, record: BatchRecord) -> ExactSignals | None:
        """The signals of a batch that is closed; None if no gradient came."""
        uses, record.parts = record.parts, []
        if not uses:
            self.hooks.check_heard(record)
            return None
        # A parameter's gradient is summed over all batches of a backward: it is this one's if it is alone.
        total = self._coordinates.row(record) if record.alone else None
        with torch.no_grad():
            signals = self._merged(record.size, uses, total)
        if self._check is not None and record.alone and not (record.ignored or record.foreign):
            left_out = {
                n for x in self.layers if x.name in self.hooks.left_out for n in self._names[x.name].values()
            }
            if self._check.holds(record, signals, self.slots, left_out):
                self._check = None
        return signals

    def keep(self, _: LayerUse, args: tuple[Any, ...], kwargs: dict[str, Any], *__: Tensor) -> Call:
        """A layer's inputs, detached from the graph."""
        return Call(tuple(map(_detached, args)), {name: _detached(x) for name, x in kwargs.items()}, {})

    def take(self, use: LayerUse, _: int, gradient: Tensor) -> None:
        """Make factors of a plain layer's input and gradient; write rows out that will be asked for."""
        if transformed():  # a functional transform's tensors do not outlive it
            return
        call: Call = use.kept
        given = call.args[0] if call.args else next(iter(call.kwargs.values()))
        pairs = bool(self._last_request.pairs) and use.record.size % 2 == 0
        names = self._names[use.layer.name]
        for inner, factor in factors(use.layer.module, given, gradient, self.like.dtype):
            name, share, rows = names.get(inner), held(factor), None
            if name is None:
                continue
            # What the last batch's policy wanted written out is written now, while the layer's numbers are in
            # the processor's cache; what this batch's policy gets is the same either way.
            if name in self._early and isinstance(factor, Factored):
                rows = rows_of(factor, pairs=pairs)
                if not pairs:  # all that can be asked for
                    factor, rows = EarlyRows(rows, positions(factor)), None
            use.record.parts.append(Use(name, factor, rows, share))
        if not _graph_is_retained():
            call.args, call.kwargs = (), {}

    def run_again_after(self, use: LayerUse, place: int, gradient: Tensor) -> None:
        """Collect what a module is run again with when the backward pass is over."""
        if not self._to_replay:
            # A module may get gradients at several outputs: it is run again when all of this backward's have
            # come, and before the optimizer changes its weights.
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._replay)
        if use not in self._to_replay:
            self._to_replay.append(use)
        else:
            use.record.several_outputs = use.layer.name or type(use.layer.module).__name__
        before = use.kept.gradients.get(place)
        use.kept.gradients[place] = gradient if before is None else before + gradient

    def _merged(self, size: int, uses: list[Use], total: Tensor | None) -> ExactSignals:
        """All uses of each parameter together."""
        by_name: dict[str, list[Use]] = defaultdict(list)
        for use in uses:
            by_name[use.name].append(use)
        merged = {name: merge([use.factor for use in each]) for name, each in by_name.items()}
        rows = {name: found for name, each in by_name.items() if (found := joined(each)) is not None}
        scale = float(size) if self.spec.mean else 1.0
        allowance = 3 * sum(use.bytes for use in uses) // 2
        pairs = self._last_request.pairs
        self._early = set(best_as_rows(merged, allowance, self.like.element_size(), pairs=pairs))
        return ExactSignals(merged, self.slots, scale, self.like, allowance, rows, self._last_request, total)

    def _replay(self) -> None:
        """Run modules again whose gradients came in this backward pass."""
        uses, self._to_replay = self._to_replay, []
        start = time.thread_time()
        with torch.no_grad(), self.records.replay():
            for use in uses:
                call: Call = use.kept
                gradients = [call.gradients.get(place) for place in range(use.outputs)]
                rows = replayed(use.layer, call.args, call.kwargs, call.buffers, gradients)
                call.gradients = {}
                names = self._names[use.layer.name]
                use.record.parts += [
                    Use(names[n], Rows(r.values.to(self.like))) for n, r in rows.items() if n in names
                ]
        self.records.seconds += time.thread_time() - start

    def coverage(self) -> dict[str, str]:
        """How each trainable parameter's gradient is taken."""
        how = {
            id(p): self.hooks.coverage_of(layer, layer.kind)
            for layer in self.layers
            for p in layer.parameters.values()
        }
        return {name: how.get(key, "frozen") for key, name in self.names.items()}

    def attach(self) -> None:
        """Put the hooks on the model, if they are off."""
        self.hooks.attach()
        self._coordinates.attach()
        for reader in self._run_again:
            reader.attach()

    def pause(self) -> None:
        """Take no signals until the hooks are attached again."""
        self.hooks.pause()
        self._take_off()

    def remove(self) -> None:
        """Take the hooks off the model."""
        self.hooks.remove()
        self._take_off()

    def note(self) -> str:
        """What there is to say about the model."""
        return self.hooks.note()

    def _take_off(self) -> None:
        self._coordinates.remove()
        for reader in self._run_again:
            reader.remove()
        if self._check is not None:
            self._check.remove()


class RunAgainReader:
    """Keeps what one module has to be run again with: its inputs, and its buffers as they were before.

    A module may change its buffers while it runs (spectral_norm does), and must find the old ones again.
    """

    folds = False

    def __init__(self, source: ExactSource, layer: Layer) -> None:
        self._source, self._module = source, layer.module
        self._buffers: dict[str, Tensor] = {}
        self._handle: Any = None
        self.attach()

    def attach(self) -> None:
        """Look at the buffers before each call, if there are any."""
        if self._handle is None and next(self._module.buffers(), None) is not None:
            # First of all: old-style spectral_norm changes its buffers in a pre-hook of its own.
            self._handle = self._module.register_forward_pre_hook(_BuffersHook(self), prepend=True)

    def remove(self) -> None:
        """Look no further."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def before(self) -> None:
        """The module is about to run."""
        records = self._source.records
        if records.now is not None and not records.replaying and torch.is_grad_enabled():
            self._buffers = {name: b.detach().clone() for name, b in self._module.named_buffers()}

    def keep(self, use: LayerUse, args: tuple[Any, ...], kwargs: dict[str, Any], *_: Tensor) -> Call:
        call = self._source.keep(use, args, kwargs)
        call.buffers, self._buffers = self._buffers, {}
        return call

    def take(self, use: LayerUse, place: int, gradient: Tensor) -> None:
        self._source.run_again_after(use, place, gradient)


class _BuffersHook(WeakHook):
    """Before a module runs that is run again later."""

    def __call__(self, *_: Any) -> None:
        reader = self.owner()
        if reader is not None:
            reader.before()


class FirstBatchCheck:
    """Compares the first batch's signals with the gradient that autograd made: nothing is missed silently."""

    def __init__(self, model: nn.Module, records: BatchRecords, scaler: Scaler | None) -> None:
        self._records, self._scaler = records, scaler
        self._record: BatchRecord | None = None
        self._seen: dict[str, Tensor] = {}
        self._parameters = dict(model.named_parameters())
        self._twice = False
        self._handles = [
            p.register_hook(lambda g, name=name: self._add(name, g))
            for name, p in model.named_parameters()
            if p.requires_grad
        ]

    def _add(self, name: str, gradient: Tensor) -> None:
        if self._records.latest is None or not self._records.backward_counts():
            return
        self._twice = (
            self._twice or torch.is_grad_enabled()
        )  # only a backward that is derived again has it on
        if self._record is not self._records.latest:
            self._record, self._seen = self._records.latest, {}
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        gradient = unscaled(gradient, self._scaler)
        self._seen[name] = self._seen[name] + gradient if name in self._seen else gradient.clone()

    def holds(
        self, record: BatchRecord, signals: ExactSignals, slots: dict[str, slice], left_out: set[str]
    ) -> bool:
        """Whether the signals were seen to add up to the gradient; raises if they do not."""
        seen, self._seen = self._seen if record is self._record else {}, {}
        plain = ExactSignals(signals.factors, slots, 1.0, signals.like)
        ours = plain.combine(np.ones(len(signals)))
        if not seen or not all(bool(torch.isfinite(g).all()) for g in seen.values()):
            return False
        wrong: dict[str, Tensor] = {}
        for name in seen.keys() - left_out:
            gradient = seen[name]
            off = gradient.flatten().to(ours) - ours[slots[name]]
            allowed = 0.05 * float(gradient.norm()) + 1e-6 * math.sqrt(gradient.numel())
            if not float(off.norm()) <= allowed:
                wrong[name] = off
        if wrong:  # the largest tells most about the cause
            name = max(wrong, key=lambda name: (len(wrong[name]), name))
            raise ValueError(self._does_not_add_up(name, wrong[name], record))
        self.remove()
        return True

    def _does_not_add_up(self, name: str, off: Tensor, record: BatchRecord) -> str:
        """The cause, as far as the difference tells it, and the cure."""
        begin = f"model.{name}: the gradients seen at its layers do not add up to the one autograd made"
        cure = 'or use signals="sketch" or "batch"'
        weight = self._parameters[name].detach().flatten().to(off)
        if self._twice or record.derived_again:
            return (
                f"{begin}: a gradient was itself differentiated (a gradient penalty, create_graph=True), "
                "which reaches the weights past the layers. Take the penalty's backward in `with "
                f"loader.ignore():`, {cure}"
            )
        along = [functional.cosine_similarity(off, w, dim=0) for w in (weight, weight.sign())]
        if len(off) > 2 and float(torch.stack(along).abs().max()) > 0.99:
            return (
                f"{begin}: the loss has a penalty on the weights themselves, which is no example's. Use the "
                "optimizer's weight_decay, take the penalty's backward in `with loader.ignore():`, "
                f"{cure}"
            )
        if record.several_outputs:
            return (
                f"{begin}: model.{record.several_outputs} gives several outputs, one of which seems to be "
                "computed from another (as the state of an LSTMCell), so that their gradients overlap. Use a "
                f"module that gives one output, as nn.LSTM does for a sequence, {cure}"
            )
        return (
            f"{begin}, so the parameter is also used outside its module (such as F.linear(x, "
            "module.weight)), its input is shared by the batch, or examples of a batch are mixed in a module "
            "that is run again one by one. Call the module itself, expand shared inputs to one row per "
            f"example, {cure}"
        )

    def remove(self) -> None:
        """Look no further."""
        for handle in self._handles:
            handle.remove()


def _graph_is_retained() -> bool:
    """Whether the graph outlives this backward pass, so that its layers' inputs may be asked for again."""
    ask: Any = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or bool(ask())


def _widest(model: nn.Module) -> torch.dtype:
    kinds: list[Any] = [p.dtype for p in model.parameters() if p.requires_grad]
    return torch.float64 if torch.float64 in kinds else torch.float32


def _detached(x: Any) -> Any:
    if type(x) is tuple:
        return tuple(_detached(part) for part in x)
    return x.detach() if isinstance(x, Tensor) else x
