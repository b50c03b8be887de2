"""Balancing on the device: the decisions of a whole epoch without asking the host.

The host knows ahead who is visited when, so it says which rows form a difference; the device computes the
products, decides each sign by the scalar recursion, and keeps the values it decided by. At the epoch's end
the host reads them once and tells the policies. All in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder._clients.queue import Queue, Rounds
from wellorder._kernels.balance import TIE
from wellorder._order import Policy
from wellorder.federated import _device_balancing_cuda as cuda
from wellorder.federated._parameters import BLOCK

Ints = npt.NDArray[np.int64]
KINDS = ("centred", "pairs")
"""What the device can sign: each signal about a stale mean, or differences of consecutive ones."""


def kind_of(policy: Policy[Any]) -> str:
    """What the device would sign for this policy, as its class attribute ``balances`` says; else nothing."""
    said = getattr(policy, "balances", "")
    return said if said in KINDS else ""


class DeviceBalancing:
    """The runs of one kind of balancing, side by side: R runs, rows of ``width``, S lanes a round."""

    def __init__(
        self, kind: str, members: list[int], step_sizes: Tensor, cohort: int, width: int, rounds: int
    ) -> None:
        self.members, self.pairs, self.cohort = members, kind == "pairs", cohort
        device, runs = step_sizes.device, len(members)
        self.index = torch.tensor(members, device=device)
        self.step_sizes = step_sizes[self.index].double()
        self.count = (cohort + 1) // 2 if self.pairs else cohort
        f64: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.vectors = torch.zeros(runs, self.count + 1, width, **f64)  # differences, then the running sum
        self.head = torch.zeros(runs, 1, width, **f64)  # the row without a partner, or last epoch's mean
        self.summed = torch.zeros(0 if self.pairs else runs, width, **f64)
        # What a stretch of rounds is told, and what it decides; a captured round reads and writes by number.
        self.rows = torch.zeros(rounds, runs, self.count + 1, 2, dtype=torch.int64, device=device)
        self.thresholds = torch.zeros(rounds, runs, self.count, **f64)
        self.values = torch.zeros(rounds, runs, self.count, **f64)
        self.regular: bool | None = None
        self.fused: bool | None = None
        """Whether Triton's kernels balance whole pairs; None: on CUDA."""
        self.sketched = False
        """Whether its rows are sketches, which the caller makes."""

    @property
    def changed(self) -> list[Tensor]:
        """All that a round changes."""
        return [self.vectors, self.head, self.summed, self.values]

    def open(self, queues: Sequence[Queue], plans: Sequence[Rounds], whole: bool) -> None:
        """Say for the whole epoch which rows form differences, and by which thresholds they are decided.

        ``whole`` promises that every epoch of the run has the rounds of this one: a captured round holds the
        way it was captured by, which may be the short one for whole pairs only then.
        """
        own = [queues[r] for r in self.members]
        length = max(len(plan.counts) for plan in plans)
        per_run = [rows_of(_padded(plans[r].counts, length), self.cohort, self.pairs) for r in self.members]
        offsets = (np.arange(len(own)) * (self.cohort + 1))[:, None, None]
        self._rows = np.stack([rows for rows, _ in per_run], axis=1) + offsets
        self._real = np.stack([real for _, real in per_run], axis=1)
        self._thresholds = np.zeros((length, len(own), self.count))
        for g, queue in enumerate(own):
            real, state = self._real[:, g], queue.state
            drawn = queue.policy.rule.thresholds(state.seed, state.epoch, 0, int(real.sum()))  # type: ignore[attr-defined]
            self._thresholds[:, g][np.arange(self.count) < real[:, None]] = drawn
        if self.regular is None:
            pairs = self.pairs and self.cohort % 2 == 0 and bool((self._real == self.cohort // 2).all())
            self.regular = whole and pairs
        self._decided: list[npt.NDArray[np.float64]] = []
        for buffer in (self.vectors, self.head, self.summed):
            buffer.zero_()
        for g, queue in enumerate(own if not self.pairs else []):
            if len(queue.state.stale):
                stale = torch.from_numpy(_host(queue.state.stale)).to(self.head.device)
                self.head[g, 0] = stale * self.step_sizes[g]

    def fill(self, start: int, stop: int) -> None:
        """Bring what the rounds from ``start`` to ``stop`` are told to the device."""
        self.rows[: stop - start] = torch.from_numpy(self._rows[start:stop])
        self.thresholds[: stop - start] = torch.from_numpy(self._thresholds[start:stop])

    def own(self, signals: Tensor) -> Tensor:
        """The members' part of all runs' signals."""
        return signals if len(self.members) == len(signals) else signals.index_select(0, self.index)

    def step(self, signals: Tensor, at: Tensor) -> None:
        """Balance the members' pseudo-gradients (R, S, width) of the round that ``at`` numbers."""
        fused = cuda.serves(signals, self.count) if self.fused is None else self.fused
        if self.regular and fused:
            total = self.vectors[:, self.count]
            cuda.balance_pairs(signals, total, self.step_sizes, self.thresholds, self.values, at, TIE)
            return
        thresholds = self.thresholds.index_select(0, at)[0]
        rows = self.rows.index_select(0, at)[0]
        values = self._balanced(signals, rows, thresholds)
        self.values.index_copy_(0, at, values[None])

    def _balanced(self, signals: Tensor, rows: Tensor, thresholds: Tensor) -> Tensor:
        """The values of a round's decisions; signals are pseudo-gradients over γ.

        ``rows`` (R, count + 1, 2) holds numbers of rows of [head, signals], all runs' stacked: the first
        minus the second is a difference (equal numbers: none); the last entry names the row that waits.
        """
        differences, total = self.vectors[:, : self.count], self.vectors[:, self.count]
        if self.regular:
            torch.sub(signals[:, 0::2].double(), signals[:, 1::2], out=differences)
        else:
            stacked = torch.cat([self.head, signals.double()], dim=1).flatten(0, 1)
            first, second = rows[:, :-1, 0].reshape(-1), rows[:, :-1, 1].reshape(-1)
            differences.copy_((stacked[first] - stacked[second]).view(differences.shape))
            if self.pairs:
                self.head.copy_(stacked[rows[:, -1, 0]][:, None])
            else:
                used = (rows[:, :-1, 0] != rows[:, :-1, 1]).double()
                self.summed += (used[..., None] * signals.double()).sum(dim=1)
        products = _gram(self.vectors) / (self.step_sizes**2)[:, None, None]
        values = _decided(products, thresholds)
        total += torch.bmm(_signs(values, thresholds)[:, None], differences)[:, 0]
        return values

    def read(self, rounds: int) -> None:
        """Read the decisions of the stretch's first rounds."""
        self._decided.append(np.array(self.values[:rounds].cpu().numpy()))

    def saved(self, rounds: int) -> dict[str, Any]:
        """The epoch so far, for a checkpoint after the stretch's first ``rounds``."""
        now = self.values[:rounds].cpu().numpy()
        buffers = {"vectors": self.vectors, "head": self.head, "summed": self.summed}
        held = {name: buffer.cpu().numpy() for name, buffer in buffers.items()}
        return {**held, "decided": np.concatenate([*self._decided, now])}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on in an epoch just opened where `saved` was."""
        for name in ("vectors", "head", "summed"):
            getattr(self, name).copy_(torch.from_numpy(saved[name]))
        self._decided = [saved["decided"]]

    def close(self, queues: Sequence[Queue]) -> None:
        """Tell the policies an epoch's decisions, run by run in visiting order."""
        values = np.concatenate(self._decided)
        mask = np.arange(self.count) < self._real[..., None]
        for g, r in enumerate(self.members):
            queue, gamma, decided = queues[r], self.step_sizes[g], values[:, g][mask[:, g]]
            sums = {"total": _host(self.vectors[g, self.count] / gamma)}
            if not self.pairs:
                sums["summed"] = _host(self.summed[g] / gamma)
            queue.state = queue.policy.take_balanced(queue.state, decided, **sums)  # type: ignore[attr-defined]


def rows_of(counts: Ints, cohort: int, pairs: bool) -> tuple[Ints, Ints]:
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


def _padded(counts: Ints, length: int) -> Ints:
    return np.pad(counts, (0, length - len(counts)))


def _gram(vectors: Tensor) -> Tensor:
    """All inner products (R, b, b), cut into blocks so that a long sum is shared among many processors."""
    runs, count, width = vectors.shape
    if width % BLOCK:
        return torch.bmm(vectors, vectors.transpose(1, 2))
    parts = vectors.view(runs, count, width // BLOCK, BLOCK).transpose(1, 2).flatten(0, 1)
    return torch.bmm(parts, parts.transpose(1, 2)).view(runs, width // BLOCK, count, count).sum(dim=1)


def _decided(products: Tensor, thresholds: Tensor) -> Tensor:
    """The values ⟨s, z_t⟩ by the recursion ⟨s + εz_t, z_j⟩ = ⟨s, z_j⟩ + ε⟨z_t, z_j⟩, as on the host.

    A product that is zero up to rounding is a tie, by the rule of `TIE`.
    """
    count = thresholds.shape[1]
    along = products[:, count, :count]
    norms = products.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    lengths = norms[:, count : count + 1] + norms[:, :count].cumsum(dim=1)
    slack = TIE * lengths * norms[:, :count]
    found = []
    for t in range(count):
        value = along[:, t]
        value = torch.where(value.abs() <= slack[:, t], 0.0, value)
        found.append(value)
        along = torch.addcmul(along, _signs(value, thresholds[:, t])[:, None], products[:, t, :count])
    return torch.stack(found, dim=1)


def _signs(values: Tensor, thresholds: Tensor) -> Tensor:
    return (values < thresholds).double() * 2 - 1


def _host(vector: Any) -> npt.NDArray[np.float64]:
    return np.array(vector.cpu().numpy() if hasattr(vector, "cpu") else vector, np.float64)
