"""Weights tied to their layer's output: where per-example gradients are made, the weights get their sum.

Autograd would make the weights' gradient a second time. A layer's forward therefore runs with its weights cut
off, and its output is passed through a function whose backward returns the gradient of the weights, so that
hooks, accumulation, clipping and data-parallel wrappers see it as usual.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wellorder.torch._layers import CONVS, Layer, of_bias, of_weight
from wellorder.torch._tape import Hook


def tiable(layer: Layer) -> bool:
    """Whether a layer's weights can be tied to its output."""
    return not layer.whole and isinstance(layer.module, (nn.Linear, *CONVS))


class Knot:
    """One layer's tie: ``made`` are the weights' gradients for the output gradient ``seen``, if any.

    A copy of the weight's gradient is laid into ``box``, if somebody put one.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.seen: Tensor | None = None
        self.made: dict[str, Tensor] = {}
        self.box: list[Tensor] | None = None
        self._cut: dict[str, nn.Parameter] = {}
        self._handles = [
            module.register_forward_pre_hook(Loosen(self)),
            module.register_forward_hook(Fasten(self), prepend=True, always_call=True),
        ]

    def loosen(self, args: tuple[Any, ...]) -> None:
        """Cut the weights off before the layer runs."""
        self.mend()
        if not args or not _fits(self.module, args[0]) or not torch.is_grad_enabled() or transformed():
            return
        held = {name: self.module._parameters.get(name) for name in ("weight", "bias")}
        cut = {name: p for name, p in held.items() if p is not None and p.requires_grad}
        if "weight" in cut and all(p.is_leaf and not p.is_complex() for p in cut.values()):
            self._cut = cut
            self.module._parameters.update({name: p.detach() for name, p in cut.items()})

    def mend(self) -> dict[str, nn.Parameter]:
        """Undo `loosen`; returns what was cut."""
        cut, self._cut = self._cut, {}
        self.module._parameters.update(cut)
        return cut

    def fasten(self, args: tuple[Any, ...], output: Any) -> Tensor | None:
        """Tie the weights to the output of the layer that ran; there is none if it raised."""
        cut = self.mend()
        if not cut or not isinstance(output, Tensor):
            return None
        whole = output.clone() if output._is_view() else output  # a view's history cannot be replaced
        tied: Tensor = Tie.apply(whole, args[0], self, tuple(cut), *cut.values())  # type: ignore[no-untyped-call]
        tied.register_hook(self.see)
        return tied

    def see(self, gradient: Tensor) -> None:
        """The output's gradient came, and is about to be heard."""
        self.seen, self.made, self.box = gradient, {}, None

    def gradients(self, gradient: Tensor, given: Tensor, names: tuple[str, ...]) -> list[Tensor]:
        """The weights' gradients: those that were made of the same tensor, the others as autograd does."""
        same = gradient is self.seen and not torch.is_grad_enabled()
        made = self.made if same else {}
        found = [made[name] if name in made else self._plain(name, given, gradient) for name in names]
        if same and self.box is not None and "weight" not in made:
            self.box.append(found[0].clone())
        self.seen, self.made, self.box = None, {}, None
        held = [self.module._parameters[name] for name in names]
        return [g.view(p.shape).to(p.dtype) for g, p in zip(found, held, strict=True)]

    def _plain(self, name: str, given: Tensor, gradient: Tensor) -> Tensor:
        if name == "bias":
            return of_bias(self.module, gradient).sum(0)
        return of_weight(self.module, given, gradient, gradient.dtype).total()

    def remove(self) -> None:
        """Take the hooks off."""
        self.mend()
        for handle in self._handles:
            handle.remove()


class Tie(torch.autograd.Function):
    """The layer's output as it is; backward hands the weights their gradients."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, given: Tensor, knot: Knot, names: tuple[str, ...], *cut: Tensor
    ) -> Tensor:
        ctx.mark_dirty(output)
        ctx.save_for_backward(given, *(cut[:1] if given.requires_grad else ()))
        ctx.knot, ctx.names = knot, names
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (given, *weight), gradient, more = ctx.saved_tensors, gradients[0], None
        with torch.autocast(gradient.device.type, enabled=False):
            if torch.is_grad_enabled() and weight:
                more = _unseen(ctx.knot.module, given, gradient, weight[0])
            return (gradient, more, None, None, *ctx.knot.gradients(gradient, given, ctx.names))


def _unseen(module: Any, given: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    """Zeros, whose derivative is that of the input's gradient for the weights, which were cut off from it."""
    x, w = given.detach().to(gradient.dtype).requires_grad_(), weight.to(gradient.dtype)
    found = []
    for each in (w, w.detach()):
        out = (
            functional.linear(x, each)
            if isinstance(module, nn.Linear)
            else module._conv_forward(x, each, None)
        )
        found.append(torch.autograd.grad(out, x, gradient, create_graph=True)[0])
    return (found[0] - found[1]).to(given.dtype)


class Loosen(Hook):
    """A layer's hook before it runs."""

    def __call__(self, *call: Any) -> Any:
        knot = self.owner()
        if knot is not None:
            knot.loosen(call[1])


class Fasten(Hook):
    """A layer's hook after it ran."""

    def __call__(self, *call: Any) -> Any:
        knot = self.owner()
        return None if knot is None else knot.fasten(*call[1:])


def _fits(module: Any, given: Any) -> bool:
    """Whether an input is one for ties: a batch; not of single positions, where there is nothing to gain."""
    if not isinstance(given, Tensor) or given.is_nested or given.layout is not torch.strided:
        return False
    return given.ndim > 2 if isinstance(module, nn.Linear) else given.ndim == len(module.kernel_size) + 2


def transformed() -> bool:
    """Whether `torch.func` or a compiler is at work, which know no ties."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active or torch.compiler.is_compiling()
