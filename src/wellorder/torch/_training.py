"""A plain training loop with a look after every epoch: what comparisons of orders are made with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from wellorder._datasets.networks import cnn, lenet, logistic
from wellorder._order import Policy
from wellorder.torch._loader import ordered


@dataclass(frozen=True)
class Split:
    """Inputs and labels to train on, and to test on."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def to(self, device: str, examples: int | None = None) -> Split:
        """The same data on a device; only the first ``examples`` to train on."""
        parts = (self.x[:examples], self.y[:examples], self.test_x, self.test_y)
        return Split(*(part.to(device) for part in parts))


@dataclass(frozen=True)
class Recipe:
    """A network, and the SGD that trains it; ``model`` is a function of a module, so that it can travel."""

    model: Callable[[], nn.Module]
    step_size: float
    batch: int = 16
    momentum: float = 0.9
    weight_decay: float = 0.0


RECIPES = {
    "fashion-mnist": Recipe(partial(lenet, 1, 28), 1e-3),
    "fashion-mnist-logistic": Recipe(logistic, 1e-2, momentum=0.0),
    "cifar10": Recipe(lenet, 1e-3, weight_decay=1e-2),
    "cifar10-cnn": Recipe(cnn, 2e-2, batch=32, momentum=0.0),
}
"""By task; "cifar10" is the setting of Lu et al. (2022)."""


def train(
    recipe: Recipe,
    split: Split,
    policy: Policy[Any],
    *,
    seed: int = 0,
    epochs: int = 10,
    signals: Any = "sketch",
) -> Iterator[dict[str, float]]:
    """Train a classifier on ``split``; one row at the start of each epoch and one at the end.

    Seeds differ in the first weights and in the policy's randomness; policies share the first weights and the
    first order. The last row repeats the last epoch's order error. Seconds are processor time of the
    training, on an accelerator the wall clock's. A policy that looks at no signals is timed without any; its
    order error comes from a second model that is trained in the same way, watched, and not timed.
    """
    timed = _Training(recipe, split, policy, seed, signals if policy.needs.at_visits() else "auto")
    watched = timed if policy.needs.at_visits() else _Training(recipe, split, policy, seed, signals)
    seconds, error = 0.0, float("nan")
    for epoch in range(epochs + 1):
        seen = look(timed.model, split)
        row = {"epoch": epoch, **seen, "gradients": epoch * len(split.x), "seconds": seconds}
        if epoch < epochs:
            if watched is not timed:
                with torch.random.fork_rng(_cuda_devices(split)):  # both draw the same numbers, for dropout
                    watched.one_epoch()
            seconds += timed.one_epoch()
            error = next(iter(watched.loader.report().order_error[-1:]), error)
        yield {**row, "order_error": error}


class _Training:
    """A model and all that trains it."""

    def __init__(self, recipe: Recipe, split: Split, policy: Policy[Any], seed: int, signals: Any) -> None:
        torch.manual_seed(seed)
        self.model = recipe.model().to(split.x.device)
        self.optimizer = optimizer_of(recipe, self.model)
        self.loader = ordered(loader_of(recipe, split), self.model, policy, seed=seed, signals=signals)

    def one_epoch(self) -> float:
        """Train for an epoch, and say how long it took."""
        return one_epoch(self.model, self.loader, self.optimizer)


def _cuda_devices(split: Split) -> list[torch.device]:
    return [split.x.device] if split.x.is_cuda else []


def optimizer_of(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """The recipe's SGD."""
    return torch.optim.SGD(
        model.parameters(), lr=recipe.step_size, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )


def loader_of(recipe: Recipe, split: Split) -> DataLoader[Any]:
    """Shuffled batches of the training data, each gathered in one go where the data lie."""
    places: Any = Places(len(split.x))
    return DataLoader(places, recipe.batch, shuffle=True, collate_fn=Gather(split.x, split.y))


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


def look(model: nn.Module, split: Split) -> dict[str, float]:
    """Loss on the training data (infinite once diverged) and accuracy on the test data."""
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in split.x.split(4096)])
        loss = float(functional.cross_entropy(outputs, split.y).nan_to_num(float("inf")))
        guesses = torch.cat([model(part).argmax(1) for part in split.test_x.split(4096)])
    model.train()
    return {"loss": loss, "test_accuracy": float((guesses == split.test_y).float().mean())}


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
