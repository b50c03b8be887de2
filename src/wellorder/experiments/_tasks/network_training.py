"""The loop that trains a network: one model, one policy, one seed, with a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import Sampler

from wellorder._order import Needs, Policy
from wellorder.experiments._known_rows import RULE, asks_of
from wellorder.experiments._tasks.network_data import Examples, on_device, rebuilt
from wellorder.torch import ordered


@dataclass(frozen=True)
class Stepping:
    """A network, and what a step does with it."""

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    scheduled_by_batch: bool = False
    own: Callable[[Any, Any, Any], object] | None = None
    """The user's own step, of the model, a batch and the optimizer."""

    def step(self, batch: Any) -> None:
        """Train on one batch."""
        if self.own is not None:
            self.own(self.model, batch, self.optimizer)
        else:
            self.optimizer.zero_grad()
            self.loss(*seen(self.model, batch)).backward()
            self.optimizer.step()
        if self.scheduler is not None and self.scheduled_by_batch:
            self.scheduler.step()

    def close_epoch(self, loss: float) -> None:
        """Let the scheduler know; ``loss`` is that of the epoch's start."""
        if self.scheduler is None or self.scheduled_by_batch:
            return
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        else:
            self.scheduler.step()


class Training:
    """Epochs in a policy's order, and the seconds that they and all the ordering took so far.

    Policies that look at gradients or know rows work through `ordered`; for the others there is a plain
    loader, since that is what people have.
    """

    def __init__(
        self, stepping: Stepping, data: Examples, policy: Policy[Any], seed: int, device: str
    ) -> None:
        self.stepping, self.data, self.device, self.seconds = stepping, data, device, 0.0
        alone = device == "cpu" and not data.loader.num_workers
        self.clock = time.process_time if alone else time.perf_counter
        start = self.clock()
        self._order: _PlainOrder | None = None
        if asks_of(policy):
            known: Any = policy
            rows = known.rows(data.inputs, data.labels)
            self.batches: Any = ordered(data.loader, policy=RULE, rows=rows, seed=seed)
        elif policy.needs is not Needs.NOTHING:
            self.batches = ordered(data.loader, stepping.model, policy, seed=seed)
        else:
            self._order = _PlainOrder(policy, len(data), seed)
            draws = torch.Generator().manual_seed(
                seed
            )  # seeds of workers; the training's numbers are its own
            self.batches = rebuilt(data.loader, sampler=self._order, generator=draws)
        self.seconds += self.clock() - start

    def one_epoch(self, loss: float) -> None:
        """Train for an epoch, from a point of this training loss."""
        self._synchronize()  # what was launched before is none of this epoch's
        start = self.clock()
        for batch in self.batches:
            self.stepping.step(on_device(batch, self.device))
        self.stepping.close_epoch(loss)
        if self._order is not None:
            self._order.advance()
        self._synchronize()
        self.seconds += self.clock() - start

    def _synchronize(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


class _PlainOrder(Sampler[int]):
    """The orders of a policy that looks at nothing."""

    def __init__(self, policy: Policy[Any], n: int, seed: int) -> None:
        self.policy, self.state = policy, policy.init(n, seed=seed)

    def __iter__(self) -> Iterator[int]:
        return iter(self.state.order.tolist())

    def __len__(self) -> int:
        return len(self.state.order)

    def advance(self) -> None:
        """Go on to the next epoch's order."""
        self.state = self.policy.advance(self.state)


def is_pair(batch: Any) -> bool:
    """Whether a batch is inputs and labels."""
    return isinstance(batch, tuple | list) and len(batch) == 2


def seen(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """What losses and metrics are shown: outputs and labels of a pair, else the model and the batch."""
    return (model(batch[0]), batch[1]) if is_pair(batch) else (model, batch)
