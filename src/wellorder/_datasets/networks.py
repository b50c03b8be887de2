"""The networks of the experiments, by name. The only file of this package that imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from wellorder._arguments import shown, whole_number
from wellorder._order import rng


class Residual(nn.Module):
    """ReLU of a body plus a shortcut; the shortcut is the input itself unless given."""

    def __init__(self, body: nn.Sequential, shortcut: nn.Sequential | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut if shortcut is not None else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def logistic(channels: int = 1, size: int = 28, classes: int = 10) -> nn.Sequential:
    """Multinomial logistic regression on the pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))


def lenet(channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """LeNet: two 5×5 convolutions of 6 and 16 channels, then 120-84 (62,006 parameters on CIFAR-10)."""
    side = ((size - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * side * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, classes),
    )  # fmt: skip


def cnn(channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """The CNN of the paper's code: 5×5 convolutions of 64 channels, 384-192 (797,962 parameters, CIFAR)."""
    side = ((size - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * side * side, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(),
        nn.Linear(192, classes),
    )  # fmt: skip


def resnet10(channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:  # noqa: ARG001
    """The ResNet-10 of the paper's published code: widths 64–512, no normalisation (4,897,482 parameters)."""
    return _resnet(channels, classes, lambda _: [])


def resnet10_groupnorm(channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:  # noqa: ARG001
    """ResNet-10 with GroupNorm of 32 groups after each convolution."""
    return _resnet(channels, classes, lambda width: [nn.GroupNorm(32, width)])


NETWORKS: dict[str, Callable[[int, int, int], nn.Sequential]] = {
    "logistic": logistic,
    "lenet": lenet,
    "cnn": cnn,
    "resnet10": resnet10,
    "resnet10_groupnorm": resnet10_groupnorm,
}
"""The networks by name; each takes (channels, side of the square image, classes)."""


def network(name: str, *, channels: int, size: int, classes: int, seed: int = 0) -> nn.Sequential:
    """Make a network of `NETWORKS` by name, its first weights drawn from ``seed`` alone.

    >>> from wellorder.federated import network
    >>> sum(p.numel() for p in network("cnn", channels=3, size=32, classes=10).parameters())
    797962
    """
    if not isinstance(name, str) or name not in NETWORKS:
        raise ValueError(
            f"name={shown(name)}: pass one of {', '.join(NETWORKS)}, or an nn.Module of your own"
        )
    for key, count in (("channels", channels), ("size", size), ("classes", classes)):
        whole_number(key, count, least=1, most=2**16)
    smallest = {"lenet": 16, "cnn": 16}.get(name, 1)
    if size < smallest:
        raise ValueError(
            f"images of {size}×{size} pixels are too small for {name}, which needs {smallest}×{smallest}; "
            "use model='logistic'"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng(seed, 0, "weights").integers(2**62)))
        return NETWORKS[name](channels, size, classes)


def _resnet(channels: int, classes: int, norm: Callable[[int], list[nn.Module]]) -> nn.Sequential:
    def conv(inside: int, width: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(inside, width, kernel, stride, padding=kernel // 2, bias=False)
        return [layer, *norm(width)]

    layers: list[nn.Module] = [*conv(channels, 64, 3), nn.ReLU()]
    inside = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        body = nn.Sequential(*conv(inside, width, 3, stride), nn.ReLU(), *conv(width, width, 3))
        bridge = nn.Sequential(*conv(inside, width, 1, stride)) if inside != width else None
        layers.append(Residual(body, bridge))
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))
