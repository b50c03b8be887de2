"""Hooks: what went into each layer, and the gradient that came back to its output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from wellorder.torch.layers import Layer, tensors_in


class Scaler(Protocol):
    """The part of ``torch.amp.GradScaler`` that is needed: it multiplies a tensor by its present scale."""

    def scale(self, outputs: Tensor) -> Tensor: ...


class Visit:
    """One use of a layer in the open batch: its inputs, and its outputs' gradients as far as they came."""

    __slots__ = ("args", "gradients", "kwargs", "layer")

    def __init__(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> None:
        self.layer, self.args, self.kwargs = layer, args, kwargs
        self.gradients: list[Tensor | None] = [None] * count

    @property
    def given(self) -> Tensor:
        """The layer's (first) input."""
        given: Tensor = self.args[0] if self.args else next(iter(self.kwargs.values()))
        return given


class Tape:
    """Records the visits of the open batch that get a gradient; passes without one leave nothing.

    A tensor hook on a layer's output sees the gradient before the layer's own backward, whatever is done
    to that output in place afterwards.
    """

    def __init__(
        self, layers: Iterable[Layer], arrived: Callable[[Visit, int, Tensor], None], scaler: Scaler | None
    ):
        self.batch, self.deaf, self.seconds = 0, False, 0.0
        self.scaler = scaler
        self._arrived = arrived
        self._handles = [self._attach(layer) for layer in layers]

    def _attach(self, layer: Layer) -> Any:
        def forward(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if self.deaf or not self.batch or not torch.is_grad_enabled():
                return
            outputs = tensors_in(output)
            visit = Visit(
                layer, tuple(_cut(x) for x in args), {k: _cut(x) for k, x in kwargs.items()}, len(outputs)
            )
            for place, out in enumerate(outputs):
                if out.requires_grad:
                    out.register_hook(lambda e, place=place: self._backward(visit, place, e))

        return layer.module.register_forward_hook(forward, with_kwargs=True)

    def _backward(self, visit: Visit, place: int, gradient: Tensor) -> None:
        if self.deaf or not self.batch:
            return
        start = time.thread_time()
        gradient = gradient.detach()
        first = visit.given
        if len(gradient) != self.batch or len(first) != self.batch:
            raise ValueError(_not_first(visit.layer, tuple(first.shape), tuple(gradient.shape), self.batch))
        if self.scaler is not None:
            gradient = gradient.float() / self.scaler.scale(gradient.new_ones((), dtype=torch.float32))
        with torch.no_grad():
            self._arrived(visit, place, gradient)
        self.seconds += time.thread_time() - start

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _cut(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


@contextmanager
def silenced(*listeners: Any) -> Iterator[None]:
    """Make hooks deaf for a while."""
    for listener in listeners:
        listener.deaf = True
    try:
        yield
    finally:
        for listener in listeners:
            listener.deaf = False


def _not_first(layer: Layer, given: tuple[int, ...], back: tuple[int, ...], batch: int) -> str:
    return (
        f"model.{layer.name} ({layer.kind}) was given {given} and got a gradient of {back}, but the batch "
        f"has {batch} examples: the batch must be the first dimension of every layer. Use batch_first=True; "
        "expand inputs that are shared by the batch, such as positions, to one row per example; and put "
        "passes over other data into `with loader.ignore():`"
    )
