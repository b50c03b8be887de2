"""The tasks that need official files: networks on Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from wellorder._datasets import files
from wellorder._datasets.networks import cnn, lenet, logistic
from wellorder.experiments._tasks.networks import NetworkTask


@dataclass(frozen=True)
class Recipe:
    """A network, and the SGD that trains it."""

    model: Callable[[], nn.Module]
    step_size: float
    batch: int = 16
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __call__(self, params: Any) -> torch.optim.Optimizer:
        """The optimizer of these parameters."""
        return torch.optim.SGD(
            params, lr=self.step_size, momentum=self.momentum, weight_decay=self.weight_decay
        )


RECIPES = {
    "fashion-mnist": Recipe(partial(lenet, 1, 28), 1e-3),
    "fashion-mnist-logistic": Recipe(logistic, 1e-2, momentum=0.0),
    "cifar10": Recipe(lenet, 1e-3, weight_decay=1e-2),
    "cifar10-cnn": Recipe(cnn, 2e-2, batch=32, momentum=0.0),
}
"""By task; "cifar10" is the setting of Lu et al. (2022)."""


@lru_cache(maxsize=1)
def images_of(name: str, folder: str | None = None, download: bool = False) -> tuple[Tensor, ...]:
    """A data set's images in float32, each channel centred and scaled, with their labels: to train, to test.

    The official files are in ``$WELLORDER_DATA``, unless a folder is given.
    """
    data = files.DATASETS[name](folder, download=download)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (data.mean, data.std))

    def ready(images: Any) -> Tensor:
        return torch.tensor(images).float().div_(255).sub_(mean).div_(std)

    labels = (torch.tensor(data.train_labels), torch.tensor(data.test_labels))
    return ready(data.train_images), labels[0], ready(data.test_images), labels[1]


def _half(part: slice, name: str, folder: str | None, download: bool) -> tuple[Tensor, ...]:
    return images_of(name, folder, download)[part]


def _task(
    name: str, title: str, data: str, *, folder: str | None = None, download: bool = False
) -> NetworkTask:
    recipe = RECIPES[name]
    train, test = (partial(_half, part, data, folder, download) for part in (slice(2), slice(2, 4)))
    return NetworkTask(
        recipe.model, train, optimizer=recipe, batch_size=recipe.batch, test=test, name=name, title=title
    )


fashion_mnist = partial(_task, "fashion-mnist", "LeNet on Fashion-MNIST", "fashion_mnist")
fashion_mnist_logistic = partial(
    _task, "fashion-mnist-logistic", "Logistic regression on Fashion-MNIST", "fashion_mnist"
)
cifar10 = partial(_task, "cifar10", "LeNet on CIFAR-10", "cifar10")
cifar10_cnn = partial(_task, "cifar10-cnn", "CNN on CIFAR-10", "cifar10")
