"""One round: every lane takes its local steps, and the servers move to the means of where their lanes end.

A lane is one client of one run: its own parameters, its own mini-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wellorder.federated._batched_models import BatchedModel, Gradients, Loss, stack, unstackable
from wellorder.federated._minibatches import Batches, bits
from wellorder.federated._parameters import Layout, frozen_of
from wellorder.federated._stateful_layers import (
    CountedDropout,
    forward_is_over,
    running_statistics,
    set_keys,
)

Mode = Literal["loop", "stacked", "vmap"]
Seen = Callable[[int, Tensor], None]
"""Shown a step and its gradients (L, width), which are good only until it returns."""
cross_entropy: Loss = partial(F.cross_entropy, reduction="none")
"""The default loss."""


@dataclass(frozen=True)
class Trainer:
    """How a lane's gradient is computed: one lane after the other, or all of them at once."""

    model: nn.Module
    layout: Layout
    loss: Loss
    mode: Mode
    clip: float = 0.0
    half: bool = False
    images: bool = False
    kernels: bool | None = field(default=None, kw_only=True)
    """Whether Triton's kernels are used, as in `stack`."""

    @cached_property
    def dropouts(self) -> list[CountedDropout]:
        """The layers that must be told what to draw from."""
        return [module for module in self.model.modules() if isinstance(module, CountedDropout)]

    @cached_property
    def batched(self) -> BatchedModel:
        """The model of all lanes at once."""
        forward = stack(self.model, half=self.half, kernels=self.kernels)
        if forward is None:
            raise ValueError(
                f"mode='stacked': {unstackable(self.model)} cannot be stacked; pass mode='auto' or 'vmap'"
            )
        return BatchedModel(forward, self.layout, self.loss, self.constants, self.half)

    @cached_property
    def constants(self) -> dict[str, Tensor]:
        """The model's frozen parameters."""
        return frozen_of(self.model)

    @cached_property
    def _held(self) -> _Held:
        return _Held(self.model)

    def gradients_at(self, lanes: Tensor) -> Gradients:
        """A function of one step's mini-batches: each lane's gradient, wherever ``lanes`` move in place.

        ``keys`` say what dropout draws from (None: nothing is dropped). What it returns is valid until it is
        called again.
        """
        if self.mode == "stacked":
            batched = self.batched.gradients_at(lanes)
            return lambda inputs, labels, real, _=None: batched(inputs, labels, real)
        if self.mode == "vmap":
            each = torch.func.vmap(torch.func.grad(self._masked), in_dims=(0, 0, 0, 0, 0))
            bare = torch.func.vmap(torch.func.grad(self._masked))

            def together(inputs: Tensor, labels: Tensor, real: Tensor, keys: Tensor | None = None) -> Tensor:
                ready = self._ready(inputs)
                found: Tensor = (
                    bare(lanes, ready, labels, real)
                    if keys is None
                    else each(lanes, ready, labels, real, keys)
                )
                return found

            return together
        apart = [self._alone_at(row) for row in lanes]

        def gradients(inputs: Tensor, labels: Tensor, real: Tensor, keys: Tensor | None = None) -> Tensor:
            own = zip(apart, self._ready(inputs), labels, real, strict=True)
            return torch.stack(
                [
                    gradient(x, y, mask, None if keys is None else keys[lane])
                    for lane, (gradient, x, y, mask) in enumerate(own)
                ]
            )

        return gradients

    def _ready(self, inputs: Tensor) -> Tensor:
        """Images as the model itself takes them: channels before height and width."""
        return inputs.movedim(-1, -3).contiguous() if self.images else inputs

    def _masked(
        self, row: Tensor, inputs: Tensor, labels: Tensor, real: Tensor, key: Tensor | None = None
    ) -> Tensor:
        set_keys(self.dropouts, key)
        outputs = torch.func.functional_call(self.model, self.layout.views(row), (inputs,))
        return (self.loss(outputs, labels) * real).sum() / real.sum()

    def _alone_at(self, row: Tensor) -> Gradients:
        """One lane by itself; its short batch is really short, which is what saves time on a CPU."""
        leaves, flat, places = self.layout.variables(row)
        variables = [*leaves.values()]
        views = self.layout.views(row)
        # Statistics change in place during the forward pass, which must not touch what autograd has saved.
        kept = {name: views[name].clone() for name in self.layout.statistics}

        named = {f"model.{name}": value for name, value in (leaves | kept).items()}

        def gradient(inputs: Tensor, labels: Tensor, real: Tensor, key: Tensor | None = None) -> Tensor:
            count = int(real.sum())
            set_keys(self.dropouts, key)

            def found(model: nn.Module) -> tuple[Tensor, ...]:
                mean = self.loss(model(inputs[:count]), labels[:count]).mean()
                forward_is_over(self.dropouts)
                return torch.autograd.grad(mean, variables, materialize_grads=True)

            torch._foreach_copy_(places, torch.func.functional_call(self._held, named, (found,)))
            for name, value in kept.items():
                views[name].copy_(value)
            return flat

        return gradient

    def local(self, lanes: Tensor, work: Batches, step_sizes: Tensor, seen: Seen | None = None) -> Tensor:
        """All local steps of all lanes: where each ends, (L, width); ``seen`` is shown the gradients.

        ``lanes`` are moved in place. They start, and are trained, independently of one another.
        """
        if self.mode == "loop" and seen is None:
            # One client after the other stays in the processor's cache; a place that nobody takes is free.
            for i, row in enumerate(lanes):
                if work.taken is None or work.taken[i]:
                    self._client(row, work, i, step_sizes[i])
            return lanes
        gradients = self.gradients_at(lanes)
        for step in range(work.inputs.shape[1]):
            keys = bits(work.keys, torch.full_like(work.keys, step)) if self.dropouts else None
            grads = gradients(work.inputs[:, step], work.labels[:, step], work.real[:, step], keys)
            if seen is not None:
                seen(step, grads)
            scales = self._clipped(grads, step_sizes) if self.clip else step_sizes
            lanes.addcmul_(grads, scales[:, None], value=-1)
        return lanes

    def _client(self, row: Tensor, work: Batches, lane: int, step_size: Tensor) -> None:
        gradient = self._alone_at(row)
        for step in range(work.inputs.shape[1]):
            inputs = self._ready(work.inputs[lane, step])
            key = bits(work.keys[lane], torch.full_like(work.keys[lane], step)) if self.dropouts else None
            grad = gradient(inputs, work.labels[lane, step], work.real[lane, step], key)
            row.addcmul_(grad, self._clipped(grad[None], step_size)[0] if self.clip else step_size, value=-1)

    def _clipped(self, grads: Tensor, step_sizes: Tensor) -> Tensor:
        """γ, shortened where a gradient is longer than ``clip``."""
        norms = torch.linalg.vector_norm(grads, dim=1)
        scales: Tensor = step_sizes * (self.clip / (norms + 1e-6)).clamp(max=1.0)
        return scales


class _Held(nn.Module):
    """Lends the model to a function, with parameters in it that a lane has put there.

    Gradients are taken inside, too: activation checkpointing computes parts of the model again then, and must
    find the same parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[nn.Module], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        return function(self.model)


def train_round(
    trainer: Trainer,
    servers: Tensor,
    work: Batches,
    weights: Tensor,
    step_sizes: Tensor,
    seen: Seen | None = None,
) -> tuple[Tensor, Tensor]:
    """Train the clients (R·S lanes) of R servers once: the servers' next points, and the pseudo-gradients.

    Takes servers (R, width), weights (R, S) that sum to 1 for each server (0: nobody in this place), and
    step sizes (R,). The pseudo-gradients (R, S, width) are where the clients started minus where they ended.
    """
    runs, cohort = weights.shape
    gammas = step_sizes.repeat_interleave(cohort, output_size=runs * cohort)
    lanes = servers.repeat_interleave(cohort, dim=0, output_size=runs * cohort)
    ends = trainer.local(lanes, work, gammas, seen).view(runs, cohort, -1)
    moves = servers[:, None] - ends
    if servers.is_cuda:  # no product here: TensorFloat-32 would round the mean
        return servers - (weights[..., None] * moves).sum(dim=1), moves
    return servers - torch.bmm(weights[:, None], moves)[:, 0], moves


def pick_mode(model: nn.Module, device: torch.device, wanted: str) -> Mode:
    """Choose the cheapest way by rule, never by timing, so that a seed gives one result.

    On an accelerator all lanes go at once. On a CPU arithmetic is the cost, and oneDNN's convolutions are
    fastest one lane at a time; only models that are nothing but small linear layers gain from going together.
    """
    if wanted not in ("auto", "loop", "stacked", "vmap"):
        raise ValueError(f"mode={wanted!r}: pass 'auto', 'loop', 'stacked' or 'vmap'")
    if running_statistics(model):
        if wanted in ("stacked", "vmap"):
            raise ValueError(
                f"mode={wanted!r}: running statistics of normalisation layers are kept one client at a time; "
                "pass mode='auto', or freeze them with eval()"
            )
        return "loop"
    if wanted != "auto":
        return wanted  # type: ignore[return-value]
    together: Mode = "stacked" if stack(model) is not None else "vmap"
    if device.type != "cpu":  # cuDNN's recurrent layers cannot be batched over lanes
        return "loop" if any(isinstance(module, nn.RNNBase) for module in model.modules()) else together
    small = sum(p.numel() for p in model.parameters()) <= 100_000
    folds = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    return together if small and not folds else "loop"
