"""One round: every lane takes its local steps, and the servers move to the means of where their lanes end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wellorder.federated._layout import Layout, frozen_of
from wellorder.federated._stacked import Layer, stack

Mode = Literal["loop", "stacked", "vmap"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs (b, …) and labels (b, …) to one loss each, (b,)."""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The default loss."""
    return F.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True)
class Batches:
    """A round's work: inputs (L, K, B, …), labels (L, K, B), and a mask of the real examples."""

    inputs: Tensor
    labels: Tensor
    real: Tensor
    taken: tuple[bool, ...] | None = None
    """Which lanes really have a client, where the host knows; the others need not be trained."""


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

    @cached_property
    def forward(self) -> Layer:
        """The model of all lanes at once."""
        layer = stack(self.model, half=self.half)
        if layer is None:
            raise ValueError("mode='stacked': the model has a layer that cannot be stacked; pass mode='vmap'")
        return layer

    @cached_property
    def constants(self) -> dict[str, Tensor]:
        """The model's frozen parameters."""
        return frozen_of(self.model)

    def gradients(self, lanes: Tensor, work: Batches, step: int) -> Tensor:
        """Each lane's gradient (L, width) of its mean loss over its mini-batch of ``step``."""
        inputs, labels, real = work.inputs[:, step], work.labels[:, step], work.real[:, step]
        if self.mode == "stacked":
            return self._stacked(lanes, inputs, labels, real)
        if self.images:
            inputs = inputs.movedim(-1, 2).contiguous()
        if self.mode == "vmap":
            grads: Tensor = torch.func.vmap(torch.func.grad(self._masked))(lanes, inputs, labels, real)
            return grads
        rows = [self._alone(*lane) for lane in zip(lanes, inputs, labels, real, strict=True)]
        return torch.stack(rows)

    def _stacked(self, lanes: Tensor, inputs: Tensor, labels: Tensor, real: Tensor) -> Tensor:
        flat = lanes.detach().requires_grad_()
        constants = {name: p.expand(len(lanes), *p.shape) for name, p in self.constants.items()}
        outputs = self.forward({**self.layout.views(flat), **constants}, inputs).flatten(0, 1)
        losses = self.loss(outputs.to(lanes.dtype), labels.flatten(0, 1)).view(real.shape)
        means = (losses * real).sum(dim=1) / real.sum(dim=1)
        return torch.autograd.grad(means.sum(), flat)[0]

    def _masked(self, row: Tensor, inputs: Tensor, labels: Tensor, real: Tensor) -> Tensor:
        outputs = torch.func.functional_call(self.model, self.layout.views(row), (inputs,))
        return (self.loss(outputs, labels) * real).sum() / real.sum()

    def _alone(self, row: Tensor, inputs: Tensor, labels: Tensor, real: Tensor) -> Tensor:
        """One lane by itself; its short batch is really short, which is what saves time on a CPU."""
        flat = row.detach().requires_grad_()
        count = int(real.sum())
        outputs = torch.func.functional_call(self.model, self.layout.views(flat), (inputs[:count],))
        return torch.autograd.grad(self.loss(outputs, labels[:count]).mean(), flat)[0]

    def local(self, lanes: Tensor, work: Batches, step_sizes: Tensor, seen: Seen | None = None) -> Tensor:
        """All local steps of all lanes: where each ends, (L, width); ``seen`` is shown the gradients."""
        if self.mode == "loop" and seen is None:
            taken = work.taken or (True,) * len(lanes)
            rows = [
                self._client(i, row, work, step_sizes[i]) if taken[i] else row for i, row in enumerate(lanes)
            ]
            return torch.stack(rows)
        for step in range(work.inputs.shape[1]):
            grads = self.gradients(lanes, work, step)
            if seen is not None:
                work = seen(step, grads, work)
            lanes = torch.addcmul(lanes, grads, self._scales(grads, step_sizes)[:, None], value=-1)
        return lanes

    def _client(self, lane: int, row: Tensor, work: Batches, step_size: Tensor) -> Tensor:
        for step in range(work.inputs.shape[1]):
            inputs = work.inputs[lane, step]
            if self.images:
                inputs = inputs.movedim(-1, 1).contiguous()
            grad = self._alone(row, inputs, work.labels[lane, step], work.real[lane, step])
            row = torch.addcmul(row, grad, self._scales(grad[None], step_size), value=-1)
        return row

    def _scales(self, grads: Tensor, step_sizes: Tensor) -> Tensor:
        """γ, shortened where a gradient is longer than ``clip``."""
        if not self.clip:
            return step_sizes
        norms = torch.linalg.vector_norm(grads, dim=1)
        scales: Tensor = step_sizes * (self.clip / (norms + 1e-6)).clamp(max=1.0)
        return scales


Seen = Callable[[int, Tensor, Batches], Batches]
"""Shown a step, its gradients (L, width) and the work; returns the work to go on with."""


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
    gammas = step_sizes[:, None].expand(runs, cohort).reshape(-1)
    lanes = servers[:, None].expand(runs, cohort, -1).reshape(runs * cohort, -1)
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
    known = stack(model) is not None
    if wanted in ("loop", "stacked", "vmap"):
        return wanted  # type: ignore[return-value]
    if wanted != "auto":
        raise ValueError(f"mode={wanted!r}: pass 'auto', 'loop', 'stacked' or 'vmap'")
    if device.type != "cpu":
        return "stacked" if known else "vmap"
    small = sum(p.numel() for p in model.parameters()) <= 100_000
    folds = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    if not small or folds:
        return "loop"
    return "stacked" if known else "vmap"
