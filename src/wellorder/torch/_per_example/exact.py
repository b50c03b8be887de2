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

from wellorder.torch._batch_gradients import Coordinates
from wellorder.torch._batch_record import BatchRecord, BatchRecords
from wellorder.torch._hooks import LayerHooks, LayerUse, Scaler, unscaled
from wellorder.torch._per_example.factors import Rows
from wellorder.torch._per_example.layers import factors, survey
from wellorder.torch._per_example.replay import check_replayable, replayed
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
    """What went into a layer, and the gradients of what came out as far as they came."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.gradients: dict[int, Tensor] = {}


class ExactSource:
    """Collects factors while a batch is open, and hands them over as one block of signals."""

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
            if layer.run_again:
                check_replayable(layer)
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
        self.hooks = LayerHooks(model, dict.fromkeys(self.layers, self), self.records, scaler)
        self._check: FirstBatchCheck | None = FirstBatchCheck(model, self.records, scaler)
        self._coordinates = Coordinates(model, COORDINATES, seed, self.records, scaler, reveals=False)

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
        if self._check is not None and record.alone and self._check.holds(record, signals, self.slots):
            self._check = None
        return signals

    def keep(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Tensor, __: Tensor) -> Call:
        """A layer's inputs, detached from the graph."""
        return Call(tuple(map(_detached, args)), {name: _detached(x) for name, x in kwargs.items()})

    def take(self, use: LayerUse, place: int, gradient: Tensor) -> None:
        """Make factors of a plain layer's input and gradient; collect what a module is run again with."""
        if not use.layer.run_again:
            self._take_plain(use, gradient)
            return
        if not self._to_replay:
            # A module may get gradients at several outputs: it is run again when all of this backward's have
            # come, and before the optimizer changes its weights.
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._replay)
        if use not in self._to_replay:
            self._to_replay.append(use)
        before = use.kept.gradients.get(place)
        use.kept.gradients[place] = gradient if before is None else before + gradient

    def _take_plain(self, use: LayerUse, gradient: Tensor) -> None:
        """Make factors of a layer's input and output gradient; write rows out that will be asked for."""
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
        with torch.no_grad(), self.records.ignore():
            for use in uses:
                call: Call = use.kept
                gradients = [call.gradients.get(place) for place in range(use.outputs)]
                rows = replayed(use.layer, call.args, call.kwargs, gradients)
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

    def remove(self) -> None:
        """Take the hooks off the model."""
        self.hooks.remove()
        self._coordinates.remove()
        if self._check is not None:
            self._check.remove()


class FirstBatchCheck:
    """Compares the first batch's signals with the gradient that autograd made: nothing is missed silently."""

    def __init__(self, model: nn.Module, records: BatchRecords, scaler: Scaler | None) -> None:
        self._records, self._scaler = records, scaler
        self._record: BatchRecord | None = None
        self._seen: dict[str, Tensor] = {}
        self._handles = [
            p.register_hook(lambda g, name=name: self._add(name, g))
            for name, p in model.named_parameters()
            if p.requires_grad
        ]

    def _add(self, name: str, gradient: Tensor) -> None:
        if self._records.ignoring or self._records.latest is None:
            return
        if self._record is not self._records.latest:
            self._record, self._seen = self._records.latest, {}
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        gradient = unscaled(gradient, self._scaler)
        self._seen[name] = self._seen[name] + gradient if name in self._seen else gradient.clone()

    def holds(self, record: BatchRecord, signals: ExactSignals, slots: dict[str, slice]) -> bool:
        """Whether the signals were seen to add up to the gradient; raises if they do not."""
        seen, self._seen = self._seen if record is self._record else {}, {}
        plain = ExactSignals(signals.factors, slots, 1.0, signals.like)
        ours = plain.combine(np.ones(len(signals)))
        if not seen or not all(bool(torch.isfinite(g).all()) for g in seen.values()):
            return False
        for name, gradient in seen.items():
            off = ours[slots[name]] - gradient.flatten().to(ours)
            allowed = 0.05 * float(gradient.norm()) + 1e-6 * math.sqrt(gradient.numel())
            if not float(off.norm()) <= allowed:
                raise ValueError(_does_not_add_up(name))
        self.remove()
        return True

    def remove(self) -> None:
        """Look no further."""
        for handle in self._handles:
            handle.remove()


def _does_not_add_up(name: str) -> str:
    return (
        f"model.{name}: the gradients seen at its layers do not add up to the one autograd made, so the "
        "parameter is also used outside its module (such as F.linear(x, module.weight)), or its input is "
        "shared by the batch. Call the module itself, expand shared inputs to one row per example, or use "
        'signals="sketch" or "batch"'
    )


def _graph_is_retained() -> bool:
    """Whether the graph outlives this backward pass, so that its layers' inputs may be asked for again."""
    ask: Any = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or bool(ask())


def _widest(model: nn.Module) -> torch.dtype:
    kinds: list[Any] = [p.dtype for p in model.parameters() if p.requires_grad]
    return torch.float64 if torch.float64 in kinds else torch.float32


def transformed() -> bool:
    """Whether `torch.func` or a compiler is at work."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active or torch.compiler.is_compiling()


def _detached(x: Any) -> Any:
    if type(x) is tuple:
        return tuple(_detached(part) for part in x)
    return x.detach() if isinstance(x, Tensor) else x
