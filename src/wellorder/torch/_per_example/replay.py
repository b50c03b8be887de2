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
from wellorder.torch._per_example.factors import Rows
from wellorder.torch._per_example.layers import Layer


def check_replayable(layer: Layer) -> None:
    """Refuse what cannot be replayed example by example: random masks and statistics of the batch."""
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


def replayed(
    layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: list[Tensor | None]
) -> dict[str, Rows]:
    """Per-example gradients of all a module's parameters, by running it again (`torch.func`)."""
    params = {name: p.detach() for name, p in layer.parameters.items()}
    wanted = tuple(g for g in gradients if g is not None)
    states = isinstance(layer.module, nn.RNNBase)
    axes = (
        tuple(_axis("hx" if states and place else "", x) for place, x in enumerate(args)),
        {name: _axis(name, x) for name, x in kwargs.items()},
    )

    def one(inside: tuple[Any, ...], named: dict[str, Any], outputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        def run(p: dict[str, Tensor]) -> tuple[Tensor, ...]:
            batch = tuple(_one(x, axis) for x, axis in zip(inside, axes[0], strict=True))
            extra = {name: _one(x, axes[1][name]) for name, x in named.items()}
            out = torch.func.functional_call(layer.module, p, batch, extra)
            return tuple(o for o, g in zip(tensors_in(out), gradients, strict=True) if g is not None)

        pull = torch.func.vjp(run, params)[1]
        gradient: dict[str, Tensor] = pull(tuple(g.unsqueeze(0) for g in outputs))[0]
        return gradient

    try:
        with _without_fused_kernels():
            rows = torch.vmap(one, in_dims=(axes[0], axes[1], 0))(args, kwargs, wanted)
    except (RuntimeError, NotImplementedError):  # a fused kernel that vmap does not know, such as an LSTM's
        with _without_fused_kernels():
            each = [
                one(
                    tuple(_pick(x, axis, i) for x, axis in zip(args, axes[0], strict=True)),
                    {name: _pick(x, axes[1][name], i) for name, x in kwargs.items()},
                    tuple(g[i] for g in wanted),
                )
                for i in range(len(wanted[0]))
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
