"""Which layers a model has, and how each one's input and output gradient become factors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from wellorder.torch._per_example.convolution import Convolution
from wellorder.torch._per_example.factors import Factor, Lookup, Outer, Rows

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
PLAIN = (nn.Linear, *CONVS, nn.Embedding, *NORMS)


@dataclass(frozen=True)
class Layer:
    """A module whose parameters are handled together; ``run_again``: its submodules' too, by `torch.func`."""

    name: str
    module: nn.Module
    run_again: bool = False

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Its trainable parameters, by their names inside the module."""
        named = self.module.named_parameters(recurse=self.run_again)
        return {name: p for name, p in named if p.requires_grad}

    @property
    def kind(self) -> str:
        """How its gradients are taken."""
        return "per-example torch.func" if self.run_again else type(self.module).__name__


def survey(model: nn.Module, *, inside: bool = False) -> list[Layer]:
    """All layers with trainable parameters, from the outside in, each once.

    ``inside`` goes on into modules that have parameters of their own too, and leaves those out.

    >>> [layer.kind for layer in survey(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.LSTM(3, 4)))]
    ['Linear', 'per-example torch.func']
    """
    return list(_survey("", model, set(), inside))


def _survey(name: str, module: nn.Module, seen: set[int], inside: bool) -> Iterator[Layer]:
    if id(module) in seen or not any(p.requires_grad for p in module.parameters()):
        return
    seen.add(id(module))
    if has_rule(module):
        yield Layer(name, module)
        return
    own = not inside and any(p.requires_grad for p in module.parameters(recurse=False))
    if own or hasattr(module, "parametrizations") or isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        yield Layer(name, module, run_again=True)
        return
    for child, inner in module.named_children():
        yield from _survey(f"{name}.{child}" if name else child, inner, seen, inside)


def has_rule(module: nn.Module) -> bool:
    """Whether one of the rules below describes the module: its forward is one of PyTorch's own."""
    if hasattr(module, "parametrizations"):
        return False
    if isinstance(module, nn.Embedding) and module.scale_grad_by_freq:
        return False
    # A weight that is no parameter is made anew before each call, as torch.nn.utils.weight_norm does it.
    if isinstance(getattr(module, "weight", None), Tensor) and "weight" not in module._parameters:
        return False
    if is_transposed_linear(module):
        return True
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in PLAIN)


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether it is GPT-2's linear layer, ``transformers.pytorch_utils.Conv1D``: x W + b, W is (i, o)."""
    if type(module).__name__ != "Conv1D" or isinstance(module, nn.Linear | _ConvNd):
        return False
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    outputs = getattr(module, "nf", None)
    return (
        weight is not None
        and bias is not None
        and weight.ndim == 2
        and weight.shape[1] == outputs == len(bias)
        and set(module._parameters) == {"weight", "bias"}
    )


def factors(module: Any, given: Tensor, gradient: Tensor, kind: torch.dtype) -> Iterator[tuple[str, Factor]]:
    """One factor for each trainable parameter of a plain layer, from its input and its output's gradient."""
    e, a = gradient, given if given.layout is torch.strided else given.to_dense()
    if isinstance(module, nn.Embedding):
        yield "weight", _lookup(module, a, e.to(kind))
        return
    weight, bias = module.weight, getattr(module, "bias", None)
    if weight is not None and weight.requires_grad:
        if isinstance(module, NORMS):
            yield "weight", Rows(_per_channel(module, e.to(kind) * _normalised(module, a.to(kind))))
        else:
            yield "weight", _of_weight(module, a, e, kind)
    if bias is not None and bias.requires_grad:
        norm = isinstance(module, NORMS)
        yield "bias", Rows(_per_channel(module, e.to(kind)) if norm else _of_bias(module, e, kind))


def _of_weight(module: Any, a: Tensor, e: Tensor, kind: torch.dtype) -> Outer | Convolution:
    """Per-example gradients of a linear layer's or a convolution's weight."""
    if isinstance(module, nn.Linear):
        return Outer(_positions(e), _positions(a), kind)
    if is_transposed_linear(module):
        return Outer(_positions(a), _positions(e), kind)
    return _convolution(module, a, e, kind)


def _of_bias(module: Any, e: Tensor, kind: torch.dtype) -> Tensor:
    """Per-example gradients of a linear layer's or a convolution's bias, (b, o)."""
    if e.ndim == 2:
        return e.to(kind)
    return (
        e.flatten(1, -2).sum(1, dtype=kind)
        if isinstance(module, nn.Linear) or is_transposed_linear(module)
        else e.flatten(2).sum(2, dtype=kind)
    )


def _positions(x: Tensor) -> Tensor:
    """(b, …, d) → (b, 1, T, d)."""
    return x.reshape(len(x), 1, -1, x.shape[-1])


def _lookup(module: nn.Embedding, ids: Tensor, e: Tensor) -> Lookup:
    flat, left = ids.reshape(len(ids), -1), e.reshape(len(e), -1, e.shape[-1])
    if module.padding_idx is not None:
        left = left * (flat != module.padding_idx).unsqueeze(-1)
    return Lookup(flat, left, module.num_embeddings)


def _convolution(module: _ConvNd, a: Tensor, e: Tensor, kind: torch.dtype) -> Convolution:
    sides = module._reversed_padding_repeated_twice
    padding = tuple(sides[::2][::-1])
    if module.padding_mode != "zeros" or sides[::2] != sides[1::2]:  # zeros on both sides need no copy
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        a, padding = functional.pad(a, sides, mode=mode), ()
    geometry = (module.stride, module.dilation, module.groups, module.kernel_size)
    return Convolution(a, e, *geometry, padding, kind)


def _normalised(module: Any, a: Tensor) -> Tensor:
    """The layer's output before its weight and bias."""
    if isinstance(module, nn.LayerNorm):
        return functional.layer_norm(a, module.normalized_shape, None, None, module.eps)
    if isinstance(module, nn.RMSNorm):
        return functional.rms_norm(a, module.normalized_shape, None, module.eps)
    if isinstance(module, nn.GroupNorm):
        return functional.group_norm(a, module.num_groups, None, None, module.eps)
    if module.training or module.running_mean is None:
        return functional.batch_norm(a, None, None, None, None, True, 0.0, module.eps)
    return functional.batch_norm(
        a, module.running_mean, module.running_var, None, None, False, 0.0, module.eps
    )


def _per_channel(module: Any, x: Tensor) -> Tensor:
    """Sum over all but the example and what the parameter has an entry for, (b, p)."""
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        own = len(module.normalized_shape)
        return x.reshape(len(x), -1, *x.shape[x.ndim - own :]).sum(1).flatten(1)
    return x.flatten(2).sum(2) if x.ndim > 2 else x
