"""``signals="exact"``: every parameter's per-example gradients, by their products."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wellorder.torch.compound import merge
from wellorder.torch.factors import Factor, Rows
from wellorder.torch.ghost import Ghost
from wellorder.torch.layers import Layer, check_whole, factors, replayed, survey
from wellorder.torch.microbatch import Coordinates
from wellorder.torch.presence import UNHEARD
from wellorder.torch.record import Record
from wellorder.torch.tape import Scaler, Tape, Visit, silenced

GLIMPSE = 1024
"""Coordinates of each batch's gradient that are kept to estimate the order error."""


@dataclass(frozen=True)
class Exact:
    """Balance true per-example gradients, from each layer's inputs and output gradients.

    ``mean`` says that the loss is a mean over the batch (PyTorch's default), which is undone.
    """

    mean: bool = True


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
        self._running: list[Visit] = []
        self.tape = Tape(self.layers, self._arrived, scaler, model)
        self._proof: Proof | None = Proof(model, scaler)
        self._glimpse = Coordinates(model, GLIMPSE, seed, scaler)
        self.glimpsed: Tensor | None = None

    def open(self, batch: int, given: Any = ()) -> Record:
        """Begin to record a batch of this many examples."""
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
        uses: dict[str, list[Factor]] = defaultdict(list)
        with torch.no_grad():
            for visit, gradient in visits:
                for name, factor in factors(visit.layer.module, visit.given, gradient, self.like.dtype):
                    self._note(uses, visit.layer, name, factor)
            for layer, rows_of in whole:
                for name, rows in rows_of.items():
                    self._note(uses, layer, name, rows)
            activations = sum(visit.given.numel() + gradient.numel() for visit, gradient in visits)
            merged = {name: merge(each) for name, each in uses.items()}
            scale = float(record.size) if self.spec.mean else 1.0
            signals = Ghost(merged, self.slots, scale, self.like, 3 * activations // 2)
        if self._proof is not None and simple and self._proof.holds(signals, self.slots):
            self._proof = None
        return signals

    def silent(self) -> AbstractContextManager[None]:
        """Record nothing inside."""
        return silenced(self.tape, self._glimpse, *([self._proof] if self._proof is not None else []))

    def _note(self, uses: dict[str, list[Factor]], layer: Layer, inner: str, factor: Factor) -> None:
        """Keep a factor under its parameter's name; what was frozen when the loader was made has none."""
        name = self.names.get(id(layer.parameters[inner]))
        if name is not None:
            uses[name].append(Rows(factor.values.to(self.like)) if isinstance(factor, Rows) else factor)

    def _arrived(self, visit: Visit, place: int, gradient: Tensor) -> None:
        if not visit.layer.whole:
            visit.record.visits.append((visit, gradient))
            return
        if not self._running:  # at the end of this backward, before the optimizer changes the weights
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._replay)
        if visit not in self._running:
            self._running.append(visit)
        before = visit.gradients[place]
        visit.gradients[place] = gradient if before is None else before + gradient

    def _replay(self) -> None:
        """Run modules again whose gradients came in this backward pass."""
        visits, self._running = self._running, []
        start = time.thread_time()
        with torch.no_grad(), silenced(self.tape):
            for visit in visits:
                rows = replayed(visit.layer, visit.args, visit.kwargs, visit.gradients)
                visit.gradients = [None] * len(visit.gradients)
                visit.record.whole.append((visit.layer, rows))
        self.tape.seconds += time.thread_time() - start

    def coverage(self) -> dict[str, str]:
        """How each trainable parameter's gradient is taken."""
        how = {id(p): self.tape.spoken(x, x.kind) for x in self.layers for p in x.parameters.values()}
        return {name: how.get(key, "frozen") for key, name in self.names.items()}

    def remove(self) -> None:
        """Take the hooks off the model."""
        self.tape.remove()
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
        if self._scaler is not None:
            gradient = gradient.float() / self._scaler.scale(gradient.new_ones((), dtype=torch.float32))
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
        ours = signals.combine(np.full(len(signals), 1.0 / signals.scale))
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


def _widest(model: nn.Module) -> torch.dtype:
    kinds: list[Any] = [p.dtype for p in model.parameters() if p.requires_grad]
    return torch.float64 if torch.float64 in kinds else torch.float32
