"""``signals="exact"``: every parameter's per-example gradients, by their products."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wellorder.torch._compound import Heavy, Use, Written, held, joined, merge
from wellorder.torch._factors import Rows
from wellorder.torch._ghost import Ghost, Habit, as_rows, positions
from wellorder.torch._layers import check_whole, factors, replayed, survey
from wellorder.torch._microbatch import Coordinates
from wellorder.torch._presence import UNHEARD
from wellorder.torch._record import Record
from wellorder.torch._tape import Scaler, Tape, Visit, silenced, unscaled
from wellorder.torch._tie import Knot, tiable, transformed
from wellorder.torch._written import summed, written

GLIMPSE = 1024
"""Coordinates of each batch's gradient that are kept to estimate the order error."""


@dataclass(frozen=True)
class Exact:
    """Balance true per-example gradients, from each layer's inputs and output gradients.

    ``mean`` says that the loss is a mean over the batch (PyTorch's default), which is undone. ``deferred``
    lets the weights of linear layers and convolutions get the sum of the per-example gradients, where those
    are written out, instead of having their gradient made twice.
    """

    mean: bool = True
    deferred: bool = True


class ExactSource:
    """Collects factors while a batch is open, and hands them over as one block of signals."""

    def __init__(self, spec: Exact, model: nn.Module, seed: int = 0, scaler: Scaler | None = None) -> None:
        self.spec = spec
        self.layers = survey(model)
        for layer in self.layers:
            if layer.whole:
                check_whole(layer)
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
        self._running: list[Visit] = []
        self._habit, self._kept = Habit(pairs=True), set[str]()
        tied = [layer for layer in self.layers if spec.deferred and tiable(layer)]
        self._knots = {layer.name: Knot(layer.module) for layer in tied}  # their hooks come before the tape's
        self.tape = Tape(self.layers, self._arrived, scaler, model)
        self._proof: Proof | None = Proof(model, scaler)
        self._glimpse = Coordinates(model, GLIMPSE, seed, scaler)
        self.glimpsed: Tensor | None = None

    def open(self, batch: int, given: Any = ()) -> Record:
        """Begin to record a batch of this many examples."""
        for knot in self._knots.values():
            knot.mend()  # a forward pass may have been interrupted
        self._glimpse.open()
        self._running = []
        if self._proof is not None:
            self._proof.clear(first=not self.tape.records)
        return self.tape.open(batch, given)

    def pause(self) -> None:
        """Passes from now on belong to no batch."""
        self.tape.pause()
        self._glimpse.pause()

    def close(self, record: Record | None = None) -> Ghost | None:
        """The batch's signals; None if no gradient came."""
        record = record or self.tape.record
        if record is None:
            return None
        self.glimpsed = None
        simple = record.alone and self.tape.records[-1:] == [record]  # all gradients are this batch's
        if simple:
            self.glimpsed = self._glimpse.close()
        self.tape.close(record)
        visits, whole = record.visits, record.whole
        record.visits, record.whole = [], []
        if not visits and not whole:
            if self._proof is not None and not self.tape.heard:
                self._proof.refuse_silence()
            return None
        with torch.no_grad():
            signals = self._signals(record.size, [*visits, *(use for rows in whole for use in rows)])
        if self._proof is not None and simple and self._proof.holds(signals, self.slots):
            self._proof = None
        return signals

    def silent(self) -> AbstractContextManager[None]:
        """Record nothing inside."""
        return silenced(self.tape, self._glimpse, *([self._proof] if self._proof is not None else []))

    def _signals(self, size: int, uses: list[Use]) -> Ghost:
        """All uses of each parameter together."""
        by_name: dict[str, list[Use]] = defaultdict(list)
        for use in uses:
            by_name[use.name].append(use)
        merged = {name: merge([use.factor for use in each]) for name, each in by_name.items()}
        rows = {name: found for name, each in by_name.items() if (found := joined(each)) is not None}
        scale = float(size) if self.spec.mean else 1.0
        allowance = 3 * sum(use.bytes for use in uses) // 2
        self._kept = set(as_rows(merged, allowance, self.like.element_size(), pairs=self._habit.pairs))
        return Ghost(merged, self.slots, scale, self.like, allowance, rows, self._habit)

    def _arrived(self, visit: Visit, place: int, gradient: Tensor) -> None:
        if not visit.layer.whole:
            self._take(visit, gradient)
            return
        if not self._running:  # at the end of this backward, before the optimizer changes the weights
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._replay)
        if visit not in self._running:
            self._running.append(visit)
        before = visit.gradients[place]
        visit.gradients[place] = gradient if before is None else before + gradient

    def _take(self, visit: Visit, gradient: Tensor) -> None:
        """Make factors of a layer's input and output gradient; write rows out that will be asked for."""
        if transformed():  # a functional transform's tensors do not outlive it
            return
        layer, names = visit.layer, self._names[visit.layer.name]
        knot = self._knots.get(layer.name)
        tied = knot is not None and knot.seen is not None
        pairs = bool(self._habit.pairs) and visit.record.size % 2 == 0
        for inner, factor in factors(layer.module, visit.given, gradient, self.like.dtype):
            name, rows, total = names.get(inner), None, None
            if name is None:
                continue
            keep = name in self._kept
            if tied and isinstance(factor, Heavy) and factor.worthy():
                total, rows = summed(factor, keep=keep, pairs=pairs)
            elif tied and isinstance(factor, Rows):
                total = factor.values.sum(0)
            elif keep and isinstance(factor, Heavy):
                rows = written(factor, pairs=pairs)
            if knot is not None and total is not None:
                knot.made[inner] = self._scaled(total)
            elif knot is not None and tied and isinstance(factor, Heavy) and self._plain(gradient):
                knot.box = []
                factor = replace(factor, box=knot.box)
            share = held(factor)
            if rows is not None and not pairs:  # all that can be asked for
                factor, rows = Written(rows, positions(factor)), None
            visit.record.visits.append(Use(name, factor, rows, share))
        if not _retained():
            visit.args, visit.kwargs = (), {}

    def _plain(self, gradient: Tensor) -> bool:
        """Whether the gradient that the weights get is of the signals' own precision and scale."""
        return gradient.dtype == self.like.dtype and self.tape.scaler is None

    def _scaled(self, gradient: Tensor) -> Tensor:
        """Multiplied by the present loss scale again."""
        return gradient if self.tape.scaler is None else self.tape.scaler.scale(gradient)

    def _replay(self) -> None:
        """Run modules again whose gradients came in this backward pass."""
        visits, self._running = self._running, []
        start = time.thread_time()
        with torch.no_grad(), silenced(self.tape):
            for visit in visits:
                rows = replayed(visit.layer, visit.args, visit.kwargs, visit.gradients)
                visit.gradients = [None] * len(visit.gradients)
                names = self._names[visit.layer.name]
                uses = [Use(names[n], Rows(r.values.to(self.like))) for n, r in rows.items() if n in names]
                visit.record.whole.append(uses)
        self.tape.seconds += time.thread_time() - start

    def coverage(self) -> dict[str, str]:
        """How each trainable parameter's gradient is taken."""
        how = {id(p): self.tape.spoken(x, x.kind) for x in self.layers for p in x.parameters.values()}
        return {name: how.get(key, "frozen") for key, name in self.names.items()}

    def remove(self) -> None:
        """Take the hooks off the model."""
        self.tape.remove()
        for knot in self._knots.values():
            knot.remove()
        self._glimpse.remove()
        if self._proof is not None:
            self._proof.remove()


class Proof:
    """Compares the first batch's signals with the gradient that autograd made: nothing is missed silently."""

    def __init__(self, model: nn.Module, scaler: Scaler | None) -> None:
        self._scaler = scaler
        self.deaf = 0
        self._reached = False
        self._seen: dict[str, Tensor] = {}
        self._handles = [
            p.register_hook(lambda g, name=name: self._add(name, g))
            for name, p in model.named_parameters()
            if p.requires_grad
        ]

    def _add(self, name: str, gradient: Tensor) -> None:
        if self.deaf:
            return
        self._reached = True
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        gradient = unscaled(gradient, self._scaler)
        self._seen[name] = self._seen[name] + gradient if name in self._seen else gradient.clone()

    def clear(self, *, first: bool) -> None:
        """Begin a batch."""
        self._seen = {}
        self._reached = self._reached and not first

    def refuse_silence(self) -> None:
        """Raise if parameters got gradients and no layer was heard."""
        if self._reached:
            raise ValueError(UNHEARD)

    def holds(self, signals: Ghost, slots: dict[str, slice]) -> bool:
        """Whether the signals were seen to add up to the gradient; raises if they do not."""
        plain = Ghost(signals.factors, slots, 1.0, signals.like)
        ours = plain.combine(np.ones(len(signals)))
        seen, self._seen = self._seen, {}
        if not all(bool(torch.isfinite(g).all()) for g in seen.values()):
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


def _retained() -> bool:
    """Whether the graph outlives this backward pass, so that its layers' inputs may be asked for again."""
    ask: Any = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or bool(ask())


def _widest(model: nn.Module) -> torch.dtype:
    kinds: list[Any] = [p.dtype for p in model.parameters() if p.requires_grad]
    return torch.float64 if torch.float64 in kinds else torch.float32
