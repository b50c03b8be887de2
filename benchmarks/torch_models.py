"""What the torch benchmarks share: ResNets, a transformer LM, an MLP; labelled data; how they are trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from wellorder.experiments._tasks.network_data import Gather, Places


class Block(nn.Module):
    """A basic residual block with GroupNorm, or BatchNorm, or none."""

    def __init__(self, inputs: int, width: int, stride: int, norm: type | None) -> None:
        super().__init__()
        make = (lambda: nn.GroupNorm(8, width)) if norm is nn.GroupNorm else (norm and (lambda: norm(width)))
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = (make(), make()) if make else (nn.Identity(), nn.Identity())
        same = stride == 1 and inputs == width
        self.short = nn.Identity() if same else nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    """Residual network with a 3×3 stem: blocks (1, 1, 1, 1) for ResNet-10, (2, 2, 2, 2) for ResNet-18."""

    def __init__(
        self, blocks: tuple[int, ...], norm: type | None = nn.GroupNorm, classes: int = 10, first: int = 64
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, first, 3, 1, 1, bias=False), nn.ReLU()]
        width = first
        for stage, count in enumerate(blocks):
            for block in range(count):
                wide = first * 2**stage
                layers.append(Block(width, wide, 2 if stage and not block else 1, norm))
                width = wide
        self.body, self.head = nn.Sequential(*layers), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Attention(nn.Module):
    """A pre-norm block: causal attention, then a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.mix(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class LM(nn.Module):
    """A decoder-only language model with learned positions and a tied output layer."""

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Attention(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))


def mlp(*widths: int) -> nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True)
class LabelledData:
    """Inputs and labels to train on, and to test on: tensors whose rows are examples."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    looked_at: int | None = None
    """About so many examples of each kind, evenly spread, are looked at; all of them unless given."""

    def to(self, device: str) -> LabelledData:
        x, y, test_x, test_y = (part.to(device) for part in (self.x, self.y, self.test_x, self.test_y))
        return replace(self, x=x, y=y, test_x=test_x, test_y=test_y)

    def loader(self, batch: int) -> DataLoader[Any]:
        """Shuffled batches of the training data, each gathered in one go where the data lie."""
        return DataLoader(Places(len(self.x)), batch, shuffle=True, collate_fn=Gather(self.x, self.y))

    def look(self, model: nn.Module) -> dict[str, float]:
        """Loss on the training data (infinite once diverged), loss and accuracy on the test data."""
        every, other = (max(1, len(part) // (self.looked_at or len(part))) for part in (self.x, self.test_x))
        model.eval()
        with torch.no_grad():
            loss, _ = _judged(model, self.x[::every], self.y[::every])
            test_loss, test_accuracy = _judged(model, self.test_x[::other], self.test_y[::other])
        model.train()
        return {"loss": loss, "test_loss": test_loss, "test_accuracy": test_accuracy}


def _judged(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean loss and accuracy, of labels or of every token; a part at a time."""
    losses, right = [], []
    at_once = 4096 // (y.shape[1] if y.ndim > 1 else 1)
    for inputs, labels in zip(x.split(at_once), y.split(at_once), strict=True):
        outputs, wanted = model(inputs).float().flatten(0, -2), labels.flatten()
        losses.append(functional.cross_entropy(outputs, wanted, reduction="sum"))
        right.append((outputs.argmax(1) == wanted).sum())
    loss = float((torch.stack(losses).sum() / y.numel()).nan_to_num(float("inf")))
    return loss, float(torch.stack(right).sum()) / y.numel()
