"""A model's parameters as one flat row, and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wellorder.federated._stateful_layers import running_statistics

ALIGN = 8
"""Every parameter starts at a multiple of so many numbers, so that tensor cores may read it in place."""

BLOCK = 2048
"""Rows of large models are whole blocks of so many numbers."""


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in a row of ``width`` numbers; the gaps are and stay zero.

    Behind the parameters lie the running statistics of normalisation layers, which are averaged too. With
    ``channels_last``, kernels of convolutions (parameters of four dimensions) are stored in that order, as
    batched convolutions read them; their views have the usual shape.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    statistics: tuple[str, ...] = ()
    statistics_shapes: tuple[tuple[int, ...], ...] = ()
    channels_last: bool = False

    @cached_property
    def dim(self) -> int:
        """d, the number of parameters."""
        return sum(prod(shape) for shape in self.shapes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The place that each parameter takes, its gap included."""
        return tuple(-(-prod(shape) // ALIGN) * ALIGN for shape in self.shapes)

    @cached_property
    def trained(self) -> int:
        """The parameters' part of a row: whole blocks, so that long products can be cut into equal parts."""
        return -(-sum(self.sizes) // BLOCK) * BLOCK if self.dim > BLOCK else sum(self.sizes)

    @cached_property
    def width(self) -> int:
        """The length of a row."""
        return self.trained + sum(-(-prod(shape) // ALIGN) * ALIGN for shape in self.statistics_shapes)

    @cached_property
    def _cuts(self) -> tuple[tuple[str, int, int, tuple[int, ...]], ...]:
        """Each parameter's name, first place, numbers and shape; then those of the statistics."""
        found, at = [], 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            found.append((name, at, prod(shape), shape))
            at += -(-prod(shape) // ALIGN) * ALIGN
        at = self.trained
        for name, shape in zip(self.statistics, self.statistics_shapes, strict=True):
            found.append((name, at, prod(shape), shape))
            at += -(-prod(shape) // ALIGN) * ALIGN
        return tuple(found)

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Rows (…, width) as named parameters (…, *shape), sharing memory; autograd passes through."""
        return {
            name: self._shaped(rows.narrow(-1, start, count), shape) if shape else rows[..., start]
            for name, start, count, shape in self._cuts
        }

    def _shaped(self, numbers: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self.channels_last and len(shape) == 4:
            out, channels, high, wide = shape
            last: Tensor = numbers.unflatten(-1, (out, high, wide, channels))
            return last.movedim(-1, -3)
        shaped: Tensor = numbers.unflatten(-1, shape)
        return shaped

    def variables(self, rows: Tensor) -> tuple[dict[str, Tensor], Tensor, list[Tensor]]:
        """What gradients at ``rows`` are taken in and go to: leaves by name, zeros like rows, their views.

        The leaves share memory with ``rows`` and follow when those are moved in place, so that all steps of a
        round can do with one set of views.
        """
        views, gradients = self.views(rows), torch.zeros_like(rows)
        leaves = {name: views[name].detach().requires_grad_() for name in self.names}
        places = self.views(gradients)
        return leaves, gradients, [places[name] for name in self.names]

    def flat(self, parameters: dict[str, Tensor]) -> Tensor:
        """One row of float64 from named parameters."""
        row = torch.zeros(self.width, dtype=torch.float64)
        for name, view in self.views(row).items():
            view.copy_(parameters[name].detach())
        return row

    def named(self, row: Tensor) -> dict[str, npt.NDArray[np.floating]]:
        """Copy a row into NumPy arrays by name."""
        return {name: view.detach().cpu().numpy().copy() for name, view in self.views(row).items()}


def frozen_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that stay as they are (``requires_grad=False``), by name."""
    return {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}


def layout_of(model: nn.Module, *, channels_last: bool = False) -> Layout:
    """Lay out the trainable parameters of a model, and the running statistics that training changes."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ValueError("model has no parameters that can be trained; pass one with requires_grad=True")
    kept = running_statistics(model)
    shapes, others = (tuple(tuple(p.shape) for p in part.values()) for part in (named, kept))
    return Layout(tuple(named), shapes, tuple(kept), others, channels_last)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
