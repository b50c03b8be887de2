"""Networks trained through torch: your own model and data, or ours on Fashion-MNIST and CIFAR-10.

`NetworkTask` is what `compare` sees; `train` is the loop behind it; the published tasks stand at the end.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from wellorder._arguments import instance_of, shown, whole_number
from wellorder._datasets import files
from wellorder._datasets.networks import cnn, lenet, logistic
from wellorder._order import Policy, policy_of
from wellorder.experiments._tasks.task import LOOK, LOSS, ORDER_ERROR, TEST_ACCURACY
from wellorder.experiments._training import Settings
from wellorder.report._table import Metric
from wellorder.torch import ordered


@dataclass(frozen=True)
class LabelledData:
    """Inputs and labels to train on, and to test on: tensors whose rows are examples."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def to(self, device: str, examples: int | None = None) -> LabelledData:
        """The same data on a device; only the first ``examples`` to train on."""
        if not isinstance(device, str) or not re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", device):
            raise ValueError(f"device={shown(device)}: pass such as 'cpu' or 'cuda'")
        if examples is not None:
            whole_number("examples", examples, least=1)
        parts = (self.x[:examples], self.y[:examples], self.test_x, self.test_y)
        return LabelledData(*(part.to(device) for part in parts))


@dataclass(frozen=True)
class Recipe:
    """A network, and the SGD that trains it; ``model`` is a function of a module, so that it can travel."""

    model: Callable[[], nn.Module]
    step_size: float
    batch: int = 16
    momentum: float = 0.9
    weight_decay: float = 0.0


@dataclass(frozen=True)
class NetworkTask:
    """The task of training a network on labelled data: your own ``recipe`` and ``load``, or one of ours.

    ``load`` is a function of a module (or a `functools.partial` of one) that gives the data, so that the task
    can travel to other processes.
    """

    name: str
    title: str
    recipe: Recipe
    load: Callable[[], LabelledData]
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

    @property
    def method(self) -> str:
        """How it trains, in words: model, optimizer, batch."""
        recipe, known = self.recipe, self._identity
        words = [
            f"{known['model']} ({known['parameters']:,} parameters)",
            f"SGD in batches of {recipe.batch}",
        ]
        words += [f"momentum {recipe.momentum:g}"] if recipe.momentum else []
        words += [f"weight decay {recipe.weight_decay:g}"] if recipe.weight_decay else []
        return ", ".join(words)

    def fingerprint(self) -> dict[str, Any]:
        """What tells this task from another of its name: model, optimizer, batch, and a look at the data."""
        return dict(self._identity)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        recipe = self.recipe
        with torch.random.fork_rng([]):  # a look draws no random numbers of anybody's
            model = recipe.model()
        data = self.load().to("cpu", self.examples)
        return {
            "kind": "network",
            "model": _name(recipe.model, model),
            "parameters": sum(p.numel() for p in model.parameters()),
            "layers": f"{zlib.crc32(repr(model).encode()):08x}",
            "batch": recipe.batch,
            "momentum": recipe.momentum,
            "weight_decay": recipe.weight_decay,
            "metrics": [metric.column for metric in self.metrics],
            "n": len(data.x),
            "tests": len(data.test_x),
            "inputs": list(data.x.shape[1:]),
            "data": _look(data.x, data.y),
            "test_data": _look(data.test_x, data.test_y),
        }

    def check(self, settings: Settings) -> None:
        self._check_settings(settings)
        if self.find is not None:
            self.find()

    def _check_settings(self, settings: Settings) -> None:
        instance_of("settings", settings, Settings, "pass a wellorder.experiments.Settings")
        if settings.cohort != 1 or settings.local_steps != 1 or settings.server_step != 1:
            raise ValueError(
                f"cohort={settings.cohort}, local_steps={settings.local_steps}, "
                f"server_step={settings.server_step}: {self.name} trains one model; leave all at 1"
            )
        settings.check(2)

    def train(self, policy: Policy[Any], seed: int, settings: Settings) -> Iterator[dict[str, float]]:
        self._check_settings(settings)
        policy_of(policy)
        whole_number("seed", seed, least=0)
        recipe = replace(self.recipe, step_size=settings.step_size)
        data = self.load().to(self.device, self.examples)
        yield from train(recipe, data, policy, seed=seed, epochs=settings.epochs)


def _name(make: Callable[[], nn.Module], model: nn.Module) -> str:
    """What to call a model: its class, or what makes it where the class says nothing."""
    kind = type(model).__name__
    maker = make.func if isinstance(make, partial) else make
    return getattr(maker, "__name__", kind) if kind == "Sequential" else kind


def _look(x: Tensor, y: Tensor) -> str:
    """A checksum of all labels and of some inputs, rounded, for last bits may differ elsewhere."""
    some = x[:: max(1, len(x) // LOOK)].double()
    scale = float(some.abs().max()) or 1.0 if some.numel() else 1.0
    seen = (some / scale * 1e4).round().to(torch.int64)
    labels = y.double() if y.is_floating_point() else y.to(torch.int64)
    return f"{zlib.crc32(labels.numpy().tobytes(), zlib.crc32(seen.numpy().tobytes())):08x}"


def train(
    recipe: Recipe,
    data: LabelledData,
    policy: Policy[Any],
    *,
    seed: int = 0,
    epochs: int = 10,
    signals: Any = "sketch",
) -> Iterator[dict[str, float]]:
    """Train a classifier on ``data``; one row at the start of each epoch and one at the end.

    Seeds differ in the first weights and in the policy's randomness; policies share the first weights and the
    first order. The last row repeats the last epoch's order error. Seconds are processor time of the
    training, on an accelerator the wall clock's. A policy that looks at no signals is timed without any; its
    order error comes from a second model that is trained in the same way, watched, and not timed.
    """
    timed = _Training(recipe, data, policy, seed, signals if policy.needs.at_visits() else "auto")
    watched = timed if policy.needs.at_visits() else _Training(recipe, data, policy, seed, signals)
    seconds, error = 0.0, float("nan")
    for epoch in range(epochs + 1):
        seen = look(timed.model, data)
        row = {"epoch": epoch, **seen, "gradients": epoch * len(data.x), "seconds": seconds}
        if epoch < epochs:
            if watched is not timed:
                with torch.random.fork_rng(_cuda_devices(data)):  # both draw the same numbers, for dropout
                    watched.one_epoch()
            seconds += timed.one_epoch()
            error = next(iter(watched.loader.report().order_error[-1:]), error)
        yield {**row, "order_error": error}


class _Training:
    """A model and all that trains it."""

    def __init__(
        self, recipe: Recipe, data: LabelledData, policy: Policy[Any], seed: int, signals: Any
    ) -> None:
        torch.manual_seed(seed)
        self.model = recipe.model().to(data.x.device)
        self.optimizer = optimizer_of(recipe, self.model)
        self.loader = ordered(loader_of(recipe, data), self.model, policy, seed=seed, signals=signals)

    def one_epoch(self) -> float:
        """Train for an epoch, and say how long it took."""
        return one_epoch(self.model, self.loader, self.optimizer)


def _cuda_devices(data: LabelledData) -> list[torch.device]:
    return [data.x.device] if data.x.is_cuda else []


def optimizer_of(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """The recipe's SGD."""
    return torch.optim.SGD(
        model.parameters(), lr=recipe.step_size, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )


def loader_of(recipe: Recipe, data: LabelledData) -> DataLoader[Any]:
    """Shuffled batches of the training data, each gathered in one go where the data lie."""
    places: Any = Places(len(data.x))
    return DataLoader(places, recipe.batch, shuffle=True, collate_fn=Gather(data.x, data.y))


def one_epoch(model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer) -> float:
    """Train for an epoch, and say how long it took."""
    device = next(model.parameters()).device.type
    clock = time.process_time if device == "cpu" else time.perf_counter
    if device == "cuda":  # what was launched before is none of this epoch's
        torch.cuda.synchronize()
    start = clock()
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def look(model: nn.Module, data: LabelledData) -> dict[str, float]:
    """Loss on the training data (infinite once diverged) and accuracy on the test data."""
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in data.x.split(4096)])
        loss = float(functional.cross_entropy(outputs, data.y).nan_to_num(float("inf")))
        guesses = torch.cat([model(part).argmax(1) for part in data.test_x.split(4096)])
    model.train()
    return {"loss": loss, "test_accuracy": float((guesses == data.test_y).float().mean())}


class Places(Dataset[int]):
    """Examples as their own numbers."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        """A whole batch of numbers, as it is."""
        return indices


class Gather:
    """Turn the numbers of a batch into its inputs and labels."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __call__(self, places: list[int]) -> tuple[Tensor, Tensor]:
        where = torch.tensor(places).to(self.x.device, non_blocking=True)
        return self.x[where], self.y[where]


RECIPES = {
    "fashion-mnist": Recipe(partial(lenet, 1, 28), 1e-3),
    "fashion-mnist-logistic": Recipe(logistic, 1e-2, momentum=0.0),
    "cifar10": Recipe(lenet, 1e-3, weight_decay=1e-2),
    "cifar10-cnn": Recipe(cnn, 2e-2, batch=32, momentum=0.0),
}
"""By task; "cifar10" is the setting of Lu et al. (2022)."""


def data_of(name: str, folder: str | None = None) -> LabelledData:
    """A data set's images in float32, each channel centred and scaled.

    The official files are in ``$WELLORDER_DATA``, unless a folder is given.
    """
    data = files.DATASETS[name](folder)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (data.mean, data.std))

    def ready(images: Any) -> Tensor:
        return torch.tensor(images).float().div_(255).sub_(mean).div_(std)

    labels = (torch.tensor(data.train_labels), torch.tensor(data.test_labels))
    return LabelledData(ready(data.train_images), labels[0], ready(data.test_images), labels[1])


def _task(
    name: str, title: str, data: str, *, folder: str | None = None, download: bool = False
) -> NetworkTask:
    find = partial(files.DATASETS[data], folder, download=download)
    return NetworkTask(name, title, RECIPES[name], partial(data_of, data, folder), find=find)


fashion_mnist = partial(_task, "fashion-mnist", "LeNet on Fashion-MNIST", "fashion_mnist")
fashion_mnist_logistic = partial(
    _task, "fashion-mnist-logistic", "Logistic regression on Fashion-MNIST", "fashion_mnist"
)
cifar10 = partial(_task, "cifar10", "LeNet on CIFAR-10", "cifar10")
cifar10_cnn = partial(_task, "cifar10-cnn", "CNN on CIFAR-10", "cifar10")
