"""Layers that do more than compute: BatchNorm, which keeps statistics, and Dropout, which draws numbers.

BatchNorm in training mode normalises by the statistics of each local mini-batch; its running statistics are
part of what a client sends, and the server averages them as it averages parameters. Frozen (``layer.eval()``)
they stay as they are. Dropout draws by counter: from the seed, epoch, visit and step, the layer and its call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wellorder._arguments import instance_of
from wellorder._clients.updates import STATISTICS
from wellorder._kernels.random_bits import GOLDEN
from wellorder.federated._config import Config
from wellorder.federated._minibatches import bits, signed

Named = dict[str, Tensor]
_DROPPED = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class CountedDropout(nn.Module):
    """`nn.Dropout` (and its kin for whole channels) whose mask is a function of ``key`` and of the call."""

    def __init__(self, p: float, whole: bool, number: int) -> None:
        super().__init__()
        self.p, self.whole, self.number = p, whole, number
        self.key: Tensor | None = None
        self.calls = self.called = 0
        """How often it was called since it was told what to draw from, and in the forward pass before."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.key is None:
            return x
        if self.called > 1:
            raise ValueError(
                "model: a Dropout that is called several times in a forward pass cannot be computed again "
                "(activation checkpointing): which call is meant? Use a layer for each"
            )
        shape = x.shape[:2] if self.whole and x.ndim > 2 else x.shape
        index = torch.arange(shape.numel(), device=x.device)
        key = self.key if not self.calls else bits(self.key, torch.full_like(self.key, self.calls))
        self.calls += 1
        noise = bits(key + signed(GOLDEN) * self.number, index) >> 40 & 0xFFFFFF
        kept = (noise.view(shape) >= self.p * 2**24).to(x.dtype) / (1 - self.p)
        return x * kept.view(*shape, *(1,) * (x.ndim - len(shape)))


def with_counted_dropout(model: nn.Module) -> nn.Module:
    """A copy of the model whose active dropout layers draw by counter."""
    model = copy.deepcopy(model)
    made: dict[nn.Module, CountedDropout] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # a layer may have several names
            if not isinstance(child, nn.modules.dropout._DropoutNd) or not child.training or not child.p:
                continue
            p = float(child.p)
            if type(child) not in _DROPPED or p >= 1:
                raise ValueError(
                    f"model: {type(child).__name__}(p={p}) cannot be drawn from the run's seed; "
                    "use nn.Dropout with p below 1, or call its eval() first"
                )
            if child not in made:
                made[child] = CountedDropout(p, type(child) is not nn.Dropout, len(made))
            setattr(parent, name, made[child])
    return model


def set_keys(layers: list[CountedDropout], key: Tensor | None) -> None:
    """Tell the layers of one lane what to draw from, until they are told anew."""
    for layer in layers:
        layer.key, layer.calls, layer.called = key, 0, 0


def forward_is_over(layers: list[CountedDropout]) -> None:
    """What is computed again from now on, under activation checkpointing, draws what it drew before."""
    for layer in layers:
        layer.calls, layer.called = 0, layer.calls


def running_statistics(model: nn.Module) -> Named:
    """The buffers that training changes: those of normalisation in training mode, by name."""
    found: Named = {}
    for path, module in model.named_modules():
        tracks = isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None
        if not (tracks and module.training):
            continue
        if module.momentum is None:
            raise ValueError(
                f"model: {path or 'it'} is a {type(module).__name__} with momentum=None, whose running "
                "statistics depend on how often it was called; pass a number, e.g. 0.1"
            )
        for name in STATISTICS:
            found[f"{path}.{name}" if path else name] = getattr(module, name)
    return found


@torch.no_grad()
def check_forward(
    model: nn.Module, inputs: Tensor, labels: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Try the model on a few examples: what cannot be trained here is refused in words, before training."""
    trial, kept = copy.deepcopy(model), running_statistics(model)
    state = {name: value.clone() for name, value in trial.named_buffers()}
    outputs = []
    with torch.random.fork_rng(devices=[]):
        for seed in (0, 1):
            torch.manual_seed(seed)
            try:
                outputs.append(trial(inputs))
            except (RuntimeError, TypeError, IndexError, ValueError) as error:
                raise ValueError(
                    f"model: its forward fails on inputs of shape {tuple(inputs.shape)} and {inputs.dtype} "
                    f"({str(error).splitlines()[0]}); pass inputs that it takes (integers stay integers)"
                ) from error
            moved = [name for name, value in trial.named_buffers() if not torch.equal(value, state[name])]
            strange = [n for n in moved if n not in kept and not n.endswith("num_batches_tracked")]
            if strange:
                raise ValueError(
                    f"model: its forward changes the buffer {strange[0]}, which no server averages; only the "
                    "running statistics of normalisation layers may change"
                )
    if isinstance(outputs[0], Tensor) and not torch.allclose(outputs[0], outputs[1], equal_nan=True):
        raise ValueError(
            "model: its forward draws random numbers of its own, which no seed of the run decides; "
            "use nn.Dropout layers, or call model.eval() first"
        )
    cure = "return a tensor with one loss for each example"
    told = instance_of("loss(outputs, labels)", loss(outputs[0], labels), Tensor, cure)
    if tuple(told.shape) != (len(labels),):
        raise ValueError(
            f"loss: it returns shape {tuple(told.shape)} for {len(labels)} examples; return one for each, "
            "e.g. with reduction='none'"
        )


def check_single_examples(
    model: nn.Module, one: Tensor, sizes: npt.NDArray[np.int64], config: Config
) -> None:
    """Refuse mini-batches of one example where the model cannot take them, as BatchNorm often cannot.

    ``one`` is an example of the shape that the model takes.
    """
    batch = config.batch or int(sizes.max())
    count = -(-sizes // batch)
    # Without an order of their own, later mini-batches of a pass than a visit has steps never come.
    alone = (sizes - (count - 1) * batch == 1) & ((count <= config.local_steps) | (config.local is not None))
    if not alone.any():
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(model)(one)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        client = int(np.flatnonzero(alone)[0])
        raise ValueError(
            f"batch={config.batch}: client {client} has {sizes[client]} examples, so that one of its "
            f"mini-batches is a single one, which the model cannot take ({str(error).splitlines()[0]}); pass "
            "another batch, leave such clients out, or freeze normalisation with eval()"
        ) from error
