"""Fashion-MNIST and CIFAR-10 with small networks, or your own network and data, trained through torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wellorder._datasets import files
from wellorder._order import Policy
from wellorder.experiments._tasks.task import LOSS, ORDER_ERROR, TEST_ACCURACY
from wellorder.experiments._training import Settings
from wellorder.report._table import Metric
from wellorder.torch._training import RECIPES, Recipe, Split, train


@dataclass(frozen=True)
class NetworkTask:
    """The task of training a network on labelled data: your own ``recipe`` and ``load``, or one of ours.

    ``load`` is a function of a module (or a `functools.partial` of one) that gives the data, so that the task
    can travel to other processes.
    """

    name: str
    title: str
    recipe: Recipe
    load: Callable[[], Split]
    epochs: int = 10
    examples: int | None = None
    device: str = "cpu"
    find: Callable[[], object] | None = None
    """Called before anything is computed; a `ValueError` says which files are missing."""
    metrics: tuple[Metric, ...] = (LOSS, ORDER_ERROR, TEST_ACCURACY)

    @property
    def step_size(self) -> float:
        return self.recipe.step_size

    @property
    def grid(self) -> tuple[float, ...]:
        return (self.step_size / 10, self.step_size, self.step_size * 10)

    def check(self, settings: Settings) -> None:
        self._check_settings(settings)
        if self.find is not None:
            self.find()

    def _check_settings(self, settings: Settings) -> None:
        if settings.cohort != 1 or settings.local_steps != 1 or settings.server_step != 1:
            raise ValueError(
                f"cohort={settings.cohort}, local_steps={settings.local_steps}, "
                f"server_step={settings.server_step}: {self.name} trains one model; leave all at 1"
            )
        settings.check(2)

    def train(self, policy: Policy[Any], seed: int, settings: Settings) -> Iterator[dict[str, float]]:
        self._check_settings(settings)
        recipe = replace(self.recipe, step_size=settings.step_size)
        split = self.load().to(self.device, self.examples)
        yield from train(recipe, split, policy, seed=seed, epochs=settings.epochs)


def split_of(name: str) -> Split:
    """A data set's images in float32, each channel centred and scaled; from files in ``$WELLORDER_DATA``."""
    data = files.fashion_mnist() if name == "fashion_mnist" else files.cifar10()
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (data.mean, data.std))

    def ready(images: Any) -> Tensor:
        return torch.tensor(images).float().div_(255).sub_(mean).div_(std)

    labels = (torch.tensor(data.train_labels), torch.tensor(data.test_labels))
    return Split(ready(data.train_images), labels[0], ready(data.test_images), labels[1])


def _task(name: str, title: str, data: str) -> NetworkTask:
    return NetworkTask(
        name, title, RECIPES[name], partial(split_of, data), find=partial(files.DATASETS[data], None)
    )


fashion_mnist = partial(_task, "fashion-mnist", "LeNet on Fashion-MNIST, batch 16", "fashion_mnist")
fashion_mnist_logistic = partial(
    _task, "fashion-mnist-logistic", "Logistic regression on Fashion-MNIST, batch 16", "fashion_mnist"
)
cifar10 = partial(_task, "cifar10", "LeNet on CIFAR-10, batch 16, weight decay 0.01", "cifar10")
cifar10_cnn = partial(_task, "cifar10-cnn", "CNN on CIFAR-10, batch 32", "cifar10")
