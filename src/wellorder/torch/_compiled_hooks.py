"""Operators that carry a layer's input and gradient out of a compiled graph, without breaking it."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor

_HOOKS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_USES: dict[int, weakref.ref[Any]] = {}
_numbers = itertools.count(1)


def register(hook: Any) -> int:
    """Give a hook the number by which a compiled graph finds it again."""
    number = next(_numbers)
    _HOOKS[number] = hook
    return number


# Both are the identity, and give a copy: an operator may not return what it was given, and what it was given
# is the graph's to write over as soon as it returns.


@torch.library.custom_op("wellorder::heard", mutates_args=())
def heard(output: Tensor, given: Tensor, hook: int) -> tuple[Tensor, Tensor]:
    """A layer's output, and a number for the call."""
    owner = _HOOKS.get(hook)
    use = None if owner is None else owner.ran(given, output)
    number = 0
    if use is not None:
        number = next(_numbers)
        # The batch keeps the use until it is settled: there is no graph of Python's that could.
        use.record.calls[number] = use
        _USES[number] = weakref.ref(use, lambda _: _USES.pop(number, None))
    return output.clone(), torch.tensor(number)


@torch.library.custom_op("wellorder::returned", mutates_args=())
def returned(gradient: Tensor, call: Tensor, hook: int) -> Tensor:
    """The gradient of a layer's output."""
    reference, owner = _USES.get(int(call)), _HOOKS.get(hook)
    use = None if reference is None else reference()
    if use is not None and owner is not None:
        owner.returned(use, gradient)
    return gradient.clone()


@heard.register_fake
def _(output: Tensor, given: Tensor, hook: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return torch.empty_like(output), torch.empty((), dtype=torch.int64)


@returned.register_fake
def _(gradient: Tensor, call: Tensor, hook: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(gradient)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.hook = inputs[2]


def _backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None, None]:
    (call,) = ctx.saved_tensors
    return returned(gradient, call, ctx.hook), None, None


heard.register_autograd(_backward, setup_context=_setup)
