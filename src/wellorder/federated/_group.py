"""Runs of one balancing policy, balanced on the device side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder.federated import _signing as signing
from wellorder.federated import _stacked as stacked
from wellorder.federated._balancer import Balancer, rows_of
from wellorder.federated._plan import Epoch
from wellorder.policies import GraB, PairGraB

if TYPE_CHECKING:
    from wellorder.federated._engine import Engine


class Group:
    """Runs of one balancing policy class, balanced on the device side by side."""

    def __init__(
        self, engine: Engine, kind: type[GraB] | type[PairGraB], members: list[int], width: int
    ) -> None:
        self.engine, self.members = engine, members
        self.pairs = kind is PairGraB
        self.policies: list[Any] = [engine.runs[r].policy for r in members]
        if members:
            cohort, device = engine.config.cohort, engine.servers.device
            self.index = torch.tensor(members, device=device)
            self.balancer = Balancer(self.policies[0], engine.step_sizes[self.index], cohort, width)
            self.rows: Tensor | None = None

    @property
    def changed(self) -> list[Tensor]:
        return [*self.balancer.buffers, self.values]

    def open(self, plan: Epoch, rounds: int) -> None:
        """Say for the whole epoch which rows form differences, and by which thresholds they are decided."""
        cohort, count = self.engine.config.cohort, self.balancer.count
        per_run = [rows_of(plan.counts[:, r], cohort, pairs=self.pairs) for r in self.members]
        offsets = (np.arange(len(self.members)) * (cohort + 1))[:, None, None]
        self._rows = np.stack([rows for rows, _ in per_run], axis=1) + offsets
        self._real = np.stack([real for _, real in per_run], axis=1)
        self._thresholds = np.zeros((len(plan.counts), len(self.members), count))
        for g, r in enumerate(self.members):
            real, state = self._real[:, g], self.engine.runs[r].state
            drawn = self.policies[g].rule.thresholds(state.seed, state.epoch, 0, int(real.sum()))
            self._thresholds[:, g][np.arange(count) < real[:, None]] = drawn
        regular = self.pairs and cohort % 2 == 0 and bool((self._real == cohort // 2).all())
        if self.rows is None:
            device = self.engine.servers.device
            self.rows = torch.zeros(rounds, *self._rows.shape[1:], dtype=torch.int64, device=device)
            self.thresholds = torch.zeros(
                rounds, *self._thresholds.shape[1:], dtype=torch.float64, device=device
            )
            self.values = torch.zeros_like(self.thresholds)
            always = type(self.engine.config.availability).__name__ == "Always"
            self.regular = regular and always
        self._decided: list[npt.NDArray[np.float64]] = []
        self.balancer.load([self.engine.runs[r].state for r in self.members])

    def fill(self, start: int, stop: int) -> None:
        self.rows[: stop - start] = torch.from_numpy(self._rows[start:stop])  # type: ignore[index]
        self.thresholds[: stop - start] = torch.from_numpy(self._thresholds[start:stop])

    def step(self, signals: Tensor, at: Tensor) -> None:
        thresholds = self.thresholds.index_select(0, at)[0]
        if self.regular and stacked.FUSED and signing.serves(signals):
            self.balancer.pair_up(signals, self.index, thresholds)
            self.values.index_copy_(0, at, self.balancer.values[None])
            return
        rows = self.rows.index_select(0, at)[0]  # type: ignore[union-attr]
        own = signals if len(self.members) == len(signals) else signals.index_select(0, self.index)
        self.balancer.step(own, rows, thresholds, self.regular)
        self.values.index_copy_(0, at, self.balancer.values[None])

    def read(self, start: int, stop: int) -> None:
        self._decided.append(np.array(self.values[: stop - start].cpu().numpy()))

    def close(self) -> None:
        """Write the epoch's decisions into the runs' states."""
        values = np.concatenate(self._decided)
        mask = np.arange(self.balancer.count) < self._real[..., None]
        decided = [values[:, g][mask[:, g]] for g in range(len(self.members))]
        states = [self.engine.runs[r].state for r in self.members]
        for r, state in zip(self.members, self.balancer.close(states, decided, self.policies), strict=True):
            self.engine.runs[r].state = state
