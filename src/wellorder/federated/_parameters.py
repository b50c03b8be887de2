"""A model's parameters as one flat row, and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

ALIGN = 8
"""Every parameter starts at a multiple of so many numbers, so that tensor cores may read it in place."""

BLOCK = 2048
"""Rows of large models are whole blocks of so many numbers."""


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in a row of ``width`` numbers; the gaps are and stay zero."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def dim(self) -> int:
        """d, the number of parameters."""
        return sum(prod(shape) for shape in self.shapes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The place that each parameter takes, its gap included."""
        return tuple(-(-prod(shape) // ALIGN) * ALIGN for shape in self.shapes)

    @cached_property
    def width(self) -> int:
        """The length of a row: whole blocks, so that long products can be cut into equal parts."""
        return -(-sum(self.sizes) // BLOCK) * BLOCK if self.dim > BLOCK else sum(self.sizes)

    @cached_property
    def _cuts(self) -> tuple[tuple[str, int, int, tuple[int, ...]], ...]:
        """Each parameter's name, first place, numbers and shape."""
        starts = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        counts = [prod(shape) for shape in self.shapes]
        return tuple(zip(self.names, starts, counts, self.shapes, strict=True))

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Rows (…, width) as named parameters (…, *shape), sharing memory; autograd passes through."""
        return {
            name: rows.narrow(-1, start, count).unflatten(-1, shape) if shape else rows[..., start]
            for name, start, count, shape in self._cuts
        }

    def variables(self, rows: Tensor) -> tuple[dict[str, Tensor], Tensor, list[Tensor]]:
        """What gradients at ``rows`` are taken in and go to: leaves by name, zeros like rows, their views.

        The leaves share memory with ``rows`` and follow when those are moved in place, so that all steps of a
        round can do with one set of views.
        """
        leaves = {name: view.detach().requires_grad_() for name, view in self.views(rows).items()}
        gradients = torch.zeros_like(rows)
        return leaves, gradients, [*self.views(gradients).values()]

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


def layout_of(model: nn.Module) -> Layout:
    """Lay out the trainable parameters of a model; refuses what averaging them alone cannot train."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            raise ValueError(
                f"model: {name or 'it'} is a {kind}, whose running statistics no server averages; "
                "use GroupNorm"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 and module.training:
            raise ValueError(
                f"model: {name or 'it'} is {kind}(p={module.p}), which draws unseeded numbers; "
                "set p=0 or call model.eval() first"
            )
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ValueError("model has no parameters that can be trained; pass one with requires_grad=True")
    return Layout(tuple(named), tuple(tuple(p.shape) for p in named.values()))
