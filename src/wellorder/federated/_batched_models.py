"""Many models of one shape in one go: every lane (a client of a run) has its own parameters and batch.

Lanes never mix, so the gradient of the summed losses holds each lane's own gradient: plain autograd will do.
Images are kept channels last, (lane, batch, height, width, channel), where a convolution is one batched
product of its patches; what `stack` does not know is left to ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wellorder._datasets.networks import Residual
from wellorder.federated import _batched_models_cuda as cuda
from wellorder.federated._parameters import Layout

Parameters = Mapping[str, Tensor]
Layer = Callable[[Parameters, Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs (b, …) and labels (b, …) to one loss each, (b,)."""
Gradients = Callable[..., Tensor]
"""Inputs (L, B, …), labels (L, B) and a mask of the real examples to each lane's gradient (L, width)."""
WEIGHTED = (nn.Sequential, Residual, nn.Conv2d, nn.Linear, nn.GroupNorm, nn.Embedding)
"""Known layers; their subclasses are not, for they may compute something else."""
Way = Literal["grouped", "kernels", "patches"]
"""How a convolution is computed: by cuDNN, a group a lane; by our kernels; or as products of patches."""
SMALL = 256
"""Pixels of an image that cuDNN's grouped gradients are too slow for."""
PAD = 8
"""Patches are padded to a multiple of so many numbers, which tensor cores need."""


@dataclass(frozen=True)
class BatchedModel:
    """A model, many times over: the forward pass of all lanes at once, and its gradients."""

    forward: Layer
    layout: Layout
    loss: Loss
    constants: Parameters
    """Frozen parameters, which all lanes share."""
    half: bool = False
    """Whether `stack` was told so."""

    def gradients_at(self, lanes: Tensor) -> Gradients:
        """A function of mini-batches: each lane's gradient, wherever ``lanes`` (L, width) move in place.

        What the function returns is valid until it is called again.
        """
        constants = {name: p.expand(len(lanes), *p.shape) for name, p in self.constants.items()}
        leaves, flat, places = self.layout.variables(lanes)
        variables = [*leaves.values()]
        given = Prepared({**leaves, **constants})
        given.places = dict(zip(leaves, places, strict=True))
        rounded = torch.empty_like(lanes, dtype=torch.bfloat16) if self.half else lanes
        given.rounded = self.layout.views(rounded) if self.half else {}

        def gradients(inputs: Tensor, labels: Tensor, real: Tensor) -> Tensor:
            if self.half:
                rounded.copy_(lanes)
            outputs = self.forward(given, inputs).flatten(0, 1)
            losses = self.loss(outputs.to(lanes.dtype), labels.flatten(0, 1)).view(real.shape)
            # Lanes never mix, so the gradient of the sum holds each lane's own.
            total = ((losses * real).sum(dim=1) / real.sum(dim=1)).sum()
            found = torch.autograd.grad(total, variables, materialize_grads=True)
            away = [i for i, own in enumerate(found) if own.data_ptr() != places[i].data_ptr()]
            if away:
                torch._foreach_copy_([places[i] for i in away], [found[i] for i in away])
            return flat

        return gradients


class Prepared(dict[str, Tensor]):
    """Parameters by name, and what spares a step copies of each by itself."""

    places: Parameters
    """Where gradients go; a layer may write its own there."""
    rounded: Parameters
    """All parameters in bfloat16, or none."""


def stack(model: nn.Module, *, half: bool = False, kernels: bool | None = None) -> Layer | None:
    """The forward pass of many lanes, or None for tied weights or a layer that is not known here.

    Takes parameters (L, *shape) by name and inputs (L, B, …), images channels last; gives (L, B, classes).
    With ``half``, convolutions and linear layers compute in bfloat16. ``kernels`` says whether Triton's are
    used where they can be: None on CUDA alone, True on a CPU too (in Triton's interpreter), False nowhere.
    """
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(names) > len(list(model.parameters())):
        return None
    return _layer(model, "", Options(half, kernels))


def unstackable(model: nn.Module) -> str:
    """The first layer that `stack` does not know, in words."""
    for name, module in model.named_modules():
        if not [*module.children()] and _layer(module, "", PLAIN) is None:
            return f"layer {name} ({type(module).__name__})" if name else type(module).__name__
    return "a model with tied weights or a forward of its own"


def pools(model: nn.Module) -> bool:
    """Whether a convolution of the model is pooled before anything else, which saves batched layers work."""
    children = [[*module.children()] for module in model.modules() if isinstance(module, nn.Sequential)]
    return any(_pooled_next(own[i], own[i + 1 : i + 3]) for own in children for i in range(len(own)))


def _pooled_next(conv: nn.Module, rest: Sequence[nn.Module]) -> bool:
    """Whether bias, ReLU and pooling come next."""
    kinds = [type(module) for module in rest]
    return type(conv) is nn.Conv2d and conv.bias is not None and kinds == [nn.ReLU, nn.MaxPool2d]


@dataclass(frozen=True)
class Options:
    """How layers compute: in bfloat16 or not, and by which kernels."""

    half: bool = False
    kernels: bool | None = None

    def fused(self, x: Tensor, out: int) -> bool:
        """Whether Triton's kernels take these inputs and so many output channels."""
        wanted = x.is_cuda if self.kernels is None else self.kernels
        return wanted and cuda.serves(x, out)

    def way(self, x: Tensor, out: int, stride: int) -> Way:
        """How a convolution of images (L, B, H, W, C) is computed; by rule, never by timing.

        In TensorFloat-32, which our kernels make poor use of, cuDNN's grouped convolutions are three times as
        fast; where they have a stride, or few input channels, products of patches are.
        """
        if self.kernels is None and x.is_cuda and x.dtype == torch.float32 and cuda.precision() == "tf32":
            return "grouped" if stride == 1 and x.shape[4] % 32 == 0 else "patches"
        return "kernels" if self.fused(x, out) else "patches"


def _layer(module: nn.Module, name: str, how: Options) -> Layer | None:
    if type(module) not in WEIGHTED:
        return _plain(module)
    if isinstance(module, nn.Sequential):
        return _sequence(module, name, how)
    if isinstance(module, Residual):
        body = _layer(module.body, f"{name}body.", how)
        bridge = _layer(module.shortcut, f"{name}shortcut.", how)
        return None if body is None or bridge is None else lambda p, x: torch.relu(body(p, x) + bridge(p, x))
    if isinstance(module, nn.Conv2d):
        return _conv(module, name, how)
    if isinstance(module, nn.Linear):
        return _linear(module, name, how)
    if isinstance(module, nn.GroupNorm):
        return _group_norm(module, name)
    if isinstance(module, nn.Embedding):
        return _embedding(module, name)
    return _plain(module)


def _plain(module: nn.Module) -> Layer | None:
    if isinstance(module, nn.ReLU):
        return lambda _, x: torch.relu(x)
    if isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1:
        return lambda _, x: x.movedim(-1, 2).flatten(2) if x.ndim > 4 else x.flatten(2)  # images, or not
    if isinstance(module, nn.MaxPool2d) and not (module.ceil_mode or module.return_indices):
        return lambda _, x: _pooled(module, x)
    if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size in (1, (1, 1)):
        return lambda _, x: x.mean(dim=(2, 3), keepdim=True)
    return None


def _sequence(module: nn.Sequential, name: str, how: Options) -> Layer | None:
    children = [(f"{name}{key}.", child) for key, child in module._modules.items() if child is not None]
    layers: list[Layer] = []
    while children:
        (key, child), *rest = children
        layer: Layer | None
        if isinstance(child, nn.Conv2d) and _pooled_next(child, [other for _, other in rest[:2]]):
            layer, children = _conv_relu_pool(child, key, how, rest[1][1]), rest[2:]
        else:
            layer, children = _layer(child, key, how), rest
        if layer is None:
            return None
        layers.append(layer)

    def run(p: Parameters, x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(p, x)
        return x

    return run


def _conv_relu_pool(conv: nn.Conv2d, name: str, how: Options, pool: nn.Module) -> Layer | None:
    """Pool first: bias and ReLU are monotone, so the result is the same at a quarter of the work."""
    product, pooled = _conv(conv, name, how, bias=False), _layer(pool, "", how)
    if product is None or pooled is None:
        return None
    halves = isinstance(pool, nn.MaxPool2d) and pool.kernel_size == pool.stride == 2 and not pool.padding

    def run(p: Parameters, x: Tensor) -> Tensor:
        y = product(p, x)
        if halves and not (y.shape[2] % 2 or y.shape[3] % 2) and how.fused(y, y.shape[4]):
            z: Tensor = cuda.PoolReLU.apply(y, p[f"{name}bias"])  # type: ignore[no-untyped-call]
            return z
        return torch.relu(pooled(p, y) + _bias(p, name, x, how))

    return run


def _bias(p: Parameters, name: str, x: Tensor, how: Options) -> Tensor:
    bias = p[f"{name}bias"]
    bias = bias.bfloat16() if how.half else bias
    return bias.reshape(len(x), *(1,) * (x.ndim - 2), -1)


def _conv(module: nn.Conv2d, name: str, how: Options, *, bias: bool = True) -> Layer | None:
    square = len({*module.kernel_size}) == len({*module.stride}) == 1
    padding = module.padding
    if not square or module.groups != 1 or set(module.dilation) != {1} or module.padding_mode != "zeros":
        return None
    if isinstance(padding, str) or len({*padding}) != 1:
        return None
    stride, margin = module.stride[0], int(padding[0])
    biased = bias and module.bias is not None

    def run(p: Parameters, x: Tensor) -> Tensor:
        own = f"{name}weight"
        weight = _last(p[own])
        x = x.bfloat16() if how.half else x
        means = Means(stride, margin, how.way(x, weight.shape[1], stride), how.fused(x, weight.shape[1]))
        if isinstance(p, Prepared):
            means.rounded = _last(p.rounded[own]) if own in p.rounded else None
            means.place = _last(p.places[own]) if own in p.places else None
        y: Tensor = Convolution.apply(x, weight, means)  # type: ignore[no-untyped-call]
        return y + _bias(p, name, y, how) if biased else y

    return run


def _last(kernels: Tensor) -> Tensor:
    """Kernels (L, O, C, k, k) with their channels last."""
    return kernels.permute(0, 1, 3, 4, 2)


def _linear(module: nn.Linear, name: str, how: Options) -> Layer:
    def run(p: Parameters, x: Tensor) -> Tensor:
        weight = p[f"{name}weight"]
        if how.half:
            x, weight = x.bfloat16(), weight.bfloat16()
        rows = torch.bmm(weight, x.flatten(1, -2).transpose(1, 2)).transpose(1, 2)
        y: Tensor = rows.unflatten(1, x.shape[1:-1])
        return y + _bias(p, name, y, how) if module.bias is not None else y

    return run


def _embedding(module: nn.Embedding, name: str) -> Layer | None:
    if module.padding_idx is not None or module.max_norm is not None or module.sparse:
        return None

    def run(p: Parameters, x: Tensor) -> Tensor:
        weight = p[f"{name}weight"]
        lane = torch.arange(len(x), device=x.device).view(-1, *(1,) * (x.ndim - 1))
        return F.embedding(x + lane * weight.shape[1], weight.flatten(0, 1))

    return run


def _group_norm(module: nn.GroupNorm, name: str) -> Layer:
    def run(p: Parameters, x: Tensor) -> Tensor:
        normed = F.group_norm(x.flatten(0, 1).movedim(-1, 1), module.num_groups, eps=module.eps)
        y: Tensor = normed.movedim(1, -1).unflatten(0, x.shape[:2])
        if not module.affine:
            return y
        shape = (len(x), *(1,) * (x.ndim - 2), -1)
        return y * p[f"{name}weight"].reshape(shape) + p[f"{name}bias"].reshape(shape)

    return run


def _pooled(module: nn.MaxPool2d, x: Tensor) -> Tensor:
    images = x.flatten(0, 1).permute(0, 3, 1, 2)
    y = F.max_pool2d(images, module.kernel_size, module.stride, module.padding, module.dilation)
    back: Tensor = y.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])
    return back


PLAIN = Options()


@dataclass
class Means:
    """A convolution's stride and padding, and by which means it is computed."""

    stride: int
    padding: int
    way: Way = "patches"
    fused: bool = False
    """Whether Triton's kernels take patches apart and put them together."""
    rounded: Tensor | None = None
    """The kernels in the images' precision, if they are at hand."""
    place: Tensor | None = None
    """Where the kernels' gradient goes, if it may be written there at once."""


class Convolution(torch.autograd.Function):
    """Each lane's own convolution, of images (L, B, H, W, C) by kernels (L, O, k, k, C); and its gradients.

    As patches it is one batched product, patches(x)·W, and its gradients are two more. Kernels are rounded to
    the images' precision; their gradient is not.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, means: Means) -> Tensor:
        lanes, out, kernel = weight.shape[:3]
        weight = weight.to(x.dtype) if means.rounded is None else means.rounded
        ctx.means, ctx.shape = means, x.shape
        if means.way == "grouped":
            images = _as_groups(x)
            ctx.save_for_backward(images, weight)
            return _grouped(images, weight, means.padding)
        if means.way == "kernels":
            x = x.contiguous()
            ctx.save_for_backward(x, weight)
            return cuda.convolve(x, weight, means.stride, means.padding)
        columns, sides = patches(x, kernel, means.stride, means.padding, fused=means.fused)
        ctx.save_for_backward(columns, weight)
        matrix = _padded(weight.flatten(2), columns.shape[2]).transpose(1, 2)
        return torch.bmm(columns, matrix).view(lanes, x.shape[1], *sides, out)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None]:
        seen, weight = ctx.saved_tensors
        means: Means = ctx.means
        lanes, out, kernel, _, inside = weight.shape
        margin = kernel - 1 - means.padding
        if means.way == "grouped":
            images = _as_groups(dy)
            dw = _grouped_weights(images, seen, weight, means)
            if not ctx.needs_input_grad[0]:
                return None, dw, None
            return _grouped(images, weight.flip(2, 3).permute(0, 4, 2, 3, 1), margin), dw, None
        dy = dy.contiguous()
        rows = dy.view(lanes, -1, out)
        if means.way == "kernels":
            dw = cuda.weigh(seen, dy, kernel, means.stride, means.padding, means.place)
            dw = dw.unflatten(2, (kernel, kernel, inside))
        else:
            dw = _weights(rows, seen, weight, means, dy.shape[1])
        if not ctx.needs_input_grad[0]:
            return None, dw, None
        if means.stride > 1:
            parts = torch.bmm(rows, weight.flatten(2)).view(*dy.shape[:4], kernel, kernel, inside)
            gathered = cuda.gather if means.fused else _gathered
            return gathered(parts, ctx.shape, means.stride, means.padding), dw, None
        if means.way == "kernels" and cuda.serves(dy, inside):
            return cuda.convolve(dy, weight, 1, margin, back=True), dw, None
        spread, _ = patches(dy, kernel, 1, margin, fused=means.fused)
        matrix = weight.flip(2, 3).permute(0, 4, 2, 3, 1).flatten(2)
        dx = torch.bmm(spread, _padded(matrix, spread.shape[2]).transpose(1, 2))
        return dx.view(ctx.shape), dw, None


def _as_groups(x: Tensor) -> Tensor:
    """Images (L, B, H, W, C) as (B, L·C, H, W), channels last; no copy of what `_as_lanes` gave."""
    return x.permute(1, 2, 3, 0, 4).contiguous().flatten(3).permute(0, 3, 1, 2)


def _as_lanes(x: Tensor, lanes: int) -> Tensor:
    """The other way round: a view."""
    split: Tensor = x.permute(0, 2, 3, 1).unflatten(3, (lanes, -1))
    return split.permute(3, 0, 1, 2, 4)


def _grouped(images: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Images (B, L·C, H, W) by kernels (L, O, k, k, C), a group a lane: (L, B, H', W', O)."""
    kernels = weight.flatten(0, 1).permute(0, 3, 1, 2)
    return _as_lanes(F.conv2d(images, kernels, None, 1, padding, groups=len(weight)), len(weight))


def _grouped_weights(dy: Tensor, images: Tensor, weight: Tensor, means: Means) -> Tensor:
    """The kernels' gradient, (L, O, k, k, C). Of small images cuDNN takes one group after the other."""
    lanes = len(weight)
    if dy.shape[2] * dy.shape[3] < SMALL:
        columns, _ = patches(_as_lanes(images, lanes), weight.shape[2], 1, means.padding, fused=means.fused)
        rows = _as_lanes(dy, lanes).flatten(1, 3)
        return _weights(rows, columns, weight, means, len(dy))
    shape = weight.flatten(0, 1).permute(0, 3, 1, 2)
    sides: tuple[Any, ...] = [1, 1], [means.padding] * 2, [1, 1], False, [0, 0]
    wanted = [False, True, False]
    dw: Tensor = torch.ops.aten.convolution_backward(dy, images, shape, None, *sides, lanes, wanted)[1]
    kernels: Tensor = dw.permute(0, 2, 3, 1).unflatten(0, (lanes, -1))
    return kernels


def _weights(rows: Tensor, columns: Tensor, weight: Tensor, means: Means, batch: int) -> Tensor:
    """The gradient in kernels (L, O, k, k, C), rowsᵀ·patches for each lane, in its place if it may go there.

    Where it is small, products of an image at a time keep the device busy.
    """
    lanes, out, kernel, _, inside = weight.shape
    width, padded = kernel * kernel * inside, columns.shape[2]
    place = means.place if means.fused and padded == width else None
    if columns.is_cuda and padded * out <= 128 * 128:
        several = rows.reshape(lanes * batch, -1, out).transpose(1, 2)
        parts = torch.bmm(several, columns.view(lanes * batch, -1, padded))
        product = parts.view(lanes, batch, out, padded).sum(dim=1)
    elif place is not None and place.dtype == rows.dtype:
        product = torch.bmm(rows.transpose(1, 2), columns, out=place.flatten(2))
    else:
        product = torch.bmm(rows.transpose(1, 2), columns)
    return product[..., :width].unflatten(2, (kernel, kernel, inside))  # type: ignore[no-any-return]


def patches(
    x: Tensor, kernel: int, stride: int, padding: int, *, fused: bool = False
) -> tuple[Tensor, tuple[int, int]]:
    """The patches of images (L, B, H, W, C) as rows (L, B·H'·W', k·k·C padded), and (H', W')."""
    width = kernel * kernel * x.shape[4]
    padded = -(-width // PAD) * PAD
    high, wide = cuda.sides_of(x.shape[2:4], kernel, stride, padding)
    if fused:
        return cuda.copy_patches(x, kernel, stride, padding, padded), (high, wide)
    if padding:
        x = F.pad(x, (0, 0, padding, padding, padding, padding))
    view = x.unfold(2, kernel, stride).unfold(3, kernel, stride).permute(0, 1, 2, 3, 5, 6, 4)
    lanes, batch = view.shape[:2]
    if padded == width:
        return view.reshape(lanes, batch * high * wide, width), (high, wide)
    rows = x.new_empty(lanes, batch * high * wide, padded)
    rows[..., width:] = 0
    inner = rows.view(lanes, batch, high, wide, padded)[..., :width].unflatten(
        -1, (kernel, kernel, x.shape[4])
    )
    inner.copy_(view)
    return rows, (high, wide)


def _padded(matrix: Tensor, width: int) -> Tensor:
    """A matrix (L, rows, columns) with zeros behind, up to ``width`` columns."""
    missing = width - matrix.shape[2]
    return F.pad(matrix, (0, missing)) if missing else matrix


def _gathered(parts: Tensor, shape: torch.Size, stride: int, padding: int) -> Tensor:
    """Add patches' gradients (L, B, H', W', k, k, C) back to the pixels (L, B, H, W, C) = ``shape``."""
    lanes, batch, high, wide, channels = shape
    dx = parts.new_zeros(lanes, batch, high + 2 * padding, wide + 2 * padding, channels)
    for i in range(parts.shape[4]):
        for j in range(parts.shape[5]):
            rows = slice(i, i + stride * parts.shape[2], stride)
            cols = slice(j, j + stride * parts.shape[3], stride)
            dx[:, :, rows, cols] += parts[:, :, :, :, i, j]
    return dx[:, :, padding : padding + high, padding : padding + wide].contiguous()
