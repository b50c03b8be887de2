"""Balancing on the device: the decisions of a whole epoch without asking the host.

The host knows ahead who is visited when, so it says which rows form a difference; the device computes the
products, decides each sign by the scalar recursion, and keeps the values it decided by. At the epoch's end
the host reads them once and writes the signs into the policy's state. All in float64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder._order import Policy
from wellorder.federated import _signing as signing
from wellorder.federated._layout import BLOCK
from wellorder.policies import GraB, PairGraB

Ints = npt.NDArray[np.int64]


def balances(policy: Policy[Any]) -> bool:
    """Whether the device can do this policy's balancing."""
    return isinstance(policy, GraB | PairGraB)


class Balancer:
    """The accumulators of some runs of one policy class: R runs, rows of ``width``, S lanes a round."""

    def __init__(self, policy: GraB | PairGraB, step_sizes: Tensor, cohort: int, width: int) -> None:
        self.pairs = isinstance(policy, PairGraB)
        self.runs, self.cohort, self.step_sizes = len(step_sizes), cohort, step_sizes.double()
        runs, device = self.runs, step_sizes.device
        self.count = (cohort + 1) // 2 if self.pairs else cohort
        f64: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.vectors = torch.zeros(
            runs, self.count + 1, width, **f64
        )  # the differences, then the running sum
        self.head = torch.zeros(runs, 1, width, **f64)  # the waiting row (pairs), or last epoch's mean
        self.summed = torch.zeros(0 if self.pairs else runs, width, **f64)
        self.values = torch.zeros(runs, self.count, **f64)

    @property
    def buffers(self) -> list[Tensor]:
        """All that changes in a round."""
        return [self.vectors, self.head, self.summed, self.values]

    def load(self, states: list[Any]) -> None:
        """Open an epoch: no sum, nothing waiting; GraB's stale means come from the states."""
        for buffer in self.buffers:
            buffer.zero_()
        if not self.pairs:
            for run, state in enumerate(states):
                if len(state.stale):
                    stale = torch.from_numpy(_host(state.stale)).to(self.head.device)
                    self.head[run, 0] = stale * self.step_sizes[run]

    def step(self, signals: Tensor, rows: Tensor, thresholds: Tensor, regular: bool) -> None:
        """Balance a round's pseudo-gradients (R, S, width), where signals are those over γ.

        ``rows`` (R, count + 1, 2) holds numbers of rows of [head, signals], all runs' stacked: the first
        minus the second is a difference (equal numbers: none); the last entry names the row that waits.
        ``regular`` promises whole pairs and nobody waiting.
        """
        runs, count = self.runs, self.count
        differences = self.vectors[:, :count]
        if regular and self.pairs:
            torch.sub(signals[:, 0::2].double(), signals[:, 1::2], out=differences)
        else:
            stacked = torch.cat([self.head, signals.double()], dim=1).flatten(0, 1)
            first, second = rows[:, :-1, 0].reshape(-1), rows[:, :-1, 1].reshape(-1)
            differences.copy_((stacked[first] - stacked[second]).view(runs, count, -1))
            if self.pairs:
                self.head.copy_(stacked[rows[:, -1, 0]][:, None])
            else:
                used = (rows[:, :-1, 0] != rows[:, :-1, 1]).double()
                self.summed += (used[..., None] * signals.double()).sum(dim=1)
        products = _gram(self.vectors) / (self.step_sizes**2)[:, None, None]
        self.values.copy_(_decide(products, thresholds))
        signs = _signs(self.values, thresholds)
        self.vectors[:, count] += torch.bmm(signs[:, None], differences)[:, 0]

    def pair_up(self, signals: Tensor, runs: Tensor, thresholds: Tensor) -> None:
        """`step` for whole pairs in a few launches; ``runs`` are the places of these runs in the signals."""
        total, scale = self.vectors[:, self.count], self.step_sizes**2
        signing.balance_pairs(signals, runs, total, scale, thresholds, self.values)

    def close(
        self, states: list[Any], values: list[npt.NDArray[np.float64]], policies: list[Any]
    ) -> list[Any]:
        """Write an epoch's decisions, run by run in visiting order, into the policies' states."""
        closed = []
        for run, (state, decided, policy) in enumerate(zip(states, values, policies, strict=True)):
            thresholds = policy.rule.thresholds(state.seed, state.epoch, 0, len(decided))
            signs = np.where(decided < thresholds, 1, -1).astype(np.int8)
            visits = 2 * len(signs) if self.pairs else len(signs)
            by_step = np.zeros(len(state.order), np.int8)
            by_step[:visits] = np.column_stack([signs, -signs]).ravel() if self.pairs else signs
            gamma = self.step_sizes[run]
            changes: dict[str, Any] = {} if self.pairs else {"summed": _host(self.summed[run] / gamma)}
            clipped = int((np.abs(decided) > policy.rule.limit).sum())
            closed.append(
                replace(
                    state,
                    signs=by_step,
                    seen=visits,
                    observed=visits,
                    clipped=state.clipped + clipped,
                    total=_host(self.vectors[run, self.count] / gamma),
                    **changes,
                )
            )
        return closed


def rows_of(counts: Ints, cohort: int, *, pairs: bool) -> tuple[Ints, Ints]:
    """Which rows of [head, lanes] form differences, for rounds of ``counts`` clients in one run.

    Gives (T, count + 1, 2), whose last row names the lane that waits afterwards, and how many differences
    each round really has.
    """
    places = (cohort + 1) // 2 if pairs else cohort
    rows, real = np.zeros((len(counts), places + 1, 2), np.int64), np.zeros(len(counts), np.int64)
    waiting = False
    for turn, count in enumerate(counts):
        if not pairs:
            rows[turn, :count, 0] = 1 + np.arange(count)
            real[turn] = count
            continue
        line = np.arange(0 if waiting else 1, count + 1)
        real[turn] = len(line) // 2
        rows[turn, : real[turn]] = line[: 2 * real[turn]].reshape(-1, 2)
        waiting = len(line) % 2 == 1
        rows[turn, -1, 0] = line[-1] if waiting else 0
    return rows, real


def _gram(vectors: Tensor) -> Tensor:
    """All inner products (R, b, b), cut into blocks so that a long sum is shared among many processors."""
    runs, count, width = vectors.shape
    if width % BLOCK:
        return torch.bmm(vectors, vectors.transpose(1, 2))
    parts = vectors.view(runs, count, width // BLOCK, BLOCK).transpose(1, 2).flatten(0, 1)
    return torch.bmm(parts, parts.transpose(1, 2)).view(runs, width // BLOCK, count, count).sum(dim=1)


def _decide(products: Tensor, thresholds: Tensor) -> Tensor:
    """The values ⟨s, z_t⟩ by the recursion ⟨s + εz_t, z_j⟩ = ⟨s, z_j⟩ + ε⟨z_t, z_j⟩, as on the host.

    A product that is zero up to rounding is a tie.
    """
    count = thresholds.shape[1]
    along = products[:, count, :count]
    norms = products.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    lengths = norms[:, count : count + 1] + norms[:, :count].cumsum(dim=1) - norms[:, :count]
    slack = 2.3e-16 * lengths * norms[:, :count]
    values = []
    for t in range(count):
        value = along[:, t]
        value = torch.where(value.abs() <= slack[:, t], 0.0, value)
        values.append(value)
        along = torch.addcmul(along, _signs(value, thresholds[:, t])[:, None], products[:, t, :count])
    return torch.stack(values, dim=1)


def _signs(values: Tensor, thresholds: Tensor) -> Tensor:
    return (values < thresholds).double() * 2 - 1


def _host(vector: Any) -> npt.NDArray[np.float64]:
    return np.array(vector.cpu().numpy() if hasattr(vector, "cpu") else vector, np.float64)
