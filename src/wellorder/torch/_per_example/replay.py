"""Modules with parameters of their own are run again, example by example, for per-example gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from wellorder.torch._batch_record import tensors_in
from wellorder.torch._hooks import batch_axis
from wellorder.torch._per_example.factors import Rows
from wellorder.torch._per_example.layers import Layer


def check_taken_apart(layer: Layer) -> None:
    """Refuse layers whose gradients cannot be told apart by example: before training, where that is known."""
    for name, p in layer.parameters.items():
        if p.is_complex():
            raise ValueError(
                f"model.{layer.name}.{name} is complex, for which there are no exact signals; "
                'use signals="batch"'
            )
    if not layer.run_again:
        return
    for name, inner in layer.module.named_modules():
        where = f"{layer.name}.{name}".strip(".") or type(layer.module).__name__
        random = isinstance(inner, _DropoutNd) and inner.p > 0
        random = random or (isinstance(getattr(inner, "dropout", None), float) and inner.dropout > 0)
        if random or isinstance(inner, _BatchNorm):
            raise ValueError(
                f"model.{where}={type(inner).__name__} lies inside {layer.name or 'a model'} with parameters "
                "of its own, whose gradients are replayed example by example, and it cannot be replayed; "
                'use signals="sketch" or "batch", or move those parameters into nn.Linear, nn.Conv or '
                "nn.Embedding"
            )
        if isinstance(inner, nn.EmbeddingBag) and inner.sparse:
            raise ValueError(
                f"model.{where}=EmbeddingBag(sparse=True) cannot be run again example by example; use "
                'sparse=False, or signals="batch"'
            )


def replayed(
    layer: Layer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    buffers: dict[str, Tensor],
    gradients: list[Tensor | None],
) -> dict[str, Rows]:
    """Per-example gradients of all a module's parameters, by running it again (`torch.func`).

    Training does not notice: the module runs with copies of the ``buffers`` it had, what it sets on itself
    is put back, and so are the random numbers; a module that draws some is refused.
    """
    device = next(layer.module.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), _as_it_was(layer.module):
        before = _random_state(devices)
        try:
            rows = _rows(layer, args, kwargs, buffers, gradients)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise ValueError(
                f"model.{layer.name or type(layer.module).__name__} has parameters of its own, so it is run "
                "again example by example for exact signals, and that failed: it mixes the examples of a "
                'batch, or its first dimension is not the batch. Use signals="sketch" or "batch", or move '
                f"those parameters into nn.Linear, nn.Conv or nn.Embedding. ({error})"
            ) from error
        if any(not torch.equal(a, b) for a, b in zip(before, _random_state(devices), strict=True)):
            raise ValueError(
                f"model.{layer.name or type(layer.module).__name__} draws random numbers in forward (such as "
                "F.dropout) and has parameters of its own, so it cannot be run again with the same ones; use "
                'signals="sketch" or "batch", or move those parameters into nn.Linear, nn.Conv or '
                "nn.Embedding"
            )
    return rows


def _random_state(devices: list[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


@contextmanager
def _as_it_was(module: nn.Module) -> Iterator[None]:
    """Put back what modules set on themselves: counters, or the weight that weight_norm makes anew."""
    before = [(inner, dict(inner.__dict__), dict(inner._buffers)) for inner in module.modules()]
    try:
        yield
    finally:
        for inner, own, buffers in before:
            inner.__dict__.clear()
            inner.__dict__.update(own)
            inner._buffers.clear()
            inner._buffers.update(buffers)


def _rows(
    layer: Layer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    buffers: dict[str, Tensor],
    gradients: list[Tensor | None],
) -> dict[str, Rows]:
    params = {name: p.detach() for name, p in layer.parameters.items()}
    wanted = tuple(g for g in gradients if g is not None)
    ends = tuple(batch_axis(layer, place) for place, g in enumerate(gradients) if g is not None)
    states = isinstance(layer.module, nn.RNNBase)
    axes = (
        tuple(_axis("hx" if states and place else "", x) for place, x in enumerate(args)),
        {name: _axis(name, x) for name, x in kwargs.items()},
    )

    def one(inside: tuple[Any, ...], named: dict[str, Any], outputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        def run(p: dict[str, Tensor]) -> tuple[Tensor, ...]:
            batch = tuple(_one(x, axis) for x, axis in zip(inside, axes[0], strict=True))
            extra = {name: _one(x, axes[1][name]) for name, x in named.items()}
            own = {name: b.clone() for name, b in buffers.items()}
            out = torch.func.functional_call(layer.module, (p, own), batch, extra)
            return tuple(o for o, g in zip(tensors_in(out), gradients, strict=True) if g is not None)

        pull = torch.func.vjp(run, params)[1]
        gradient: dict[str, Tensor] = pull(
            tuple(g.unsqueeze(end) for g, end in zip(outputs, ends, strict=True))
        )[0]
        return gradient

    try:
        with _without_fused_kernels():
            rows = torch.vmap(one, in_dims=(axes[0], axes[1], ends))(args, kwargs, wanted)
    except (RuntimeError, NotImplementedError):  # a fused kernel that vmap does not know, such as an LSTM's
        with _without_fused_kernels():
            each = [
                one(
                    tuple(_pick(x, axis, i) for x, axis in zip(args, axes[0], strict=True)),
                    {name: _pick(x, axes[1][name], i) for name, x in kwargs.items()},
                    tuple(g.select(end, i) for g, end in zip(wanted, ends, strict=True)),
                )
                for i in range(wanted[0].shape[ends[0]])
            ]
        rows = {name: torch.stack([r[name] for r in each]) for name in params}
    return {
        name: Rows(value.detach().flatten(1).to(torch.promote_types(value.dtype, torch.float32)))
        for name, value in rows.items()
    }


@contextmanager
def _without_fused_kernels() -> Iterator[None]:
    """Without oneDNN, whose LSTM cannot be differentiated so, and without vmap's word on its own loops."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _axis(name: str, x: Any) -> Any:
    """Where the examples are: first; second in a recurrent layer's state; None for flags and shared masks."""
    if isinstance(x, tuple):
        return tuple(_axis(name, part) for part in x)
    if not isinstance(x, Tensor) or name == "attn_mask":
        return None
    return 1 if name == "hx" else 0


def _one(x: Any, axis: Any) -> Any:
    """Give an example its dimension back."""
    if isinstance(axis, tuple):
        return tuple(_one(part, where) for part, where in zip(x, axis, strict=True))
    return x if axis is None else x.unsqueeze(axis)


def _pick(x: Any, axis: Any, i: int) -> Any:
    if isinstance(axis, tuple):
        return tuple(_pick(part, where, i) for part, where in zip(x, axis, strict=True))
    return x if axis is None else x.select(axis, i)
