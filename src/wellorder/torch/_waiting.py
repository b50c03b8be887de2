"""Rows that wait to be shown to a policy, many batches at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder._order import Order

ROOM = 1 << 21
"""Numbers that wait before a policy sees them: a step pays for a copy of its rows, and not for the policy."""


class Batches(NamedTuple):
    """The units of some batches in the order of their visits, how many each has, and all their rows."""

    units: Order
    counts: list[int]
    rows: Tensor

    def totals(self) -> npt.NDArray[np.float32]:
        """Sum of each batch's rows."""
        size, even = self.counts[0], len(self.counts)
        if any(count != size for count in self.counts[:-1]):
            even = 0
        elif self.counts[-1] != size:
            even -= 1
        first = self.rows[: even * size].reshape(even, size, self.rows.shape[1]).sum(1)
        rest = self.rows[even * size :].split(self.counts[even:])
        return torch.cat([first, *(part.sum(0, keepdim=True) for part in rest)]).cpu().numpy()


class Waiting:
    """Batches' rows on the device that they were made on, until they are taken.

    Where a policy keeps them anyway, a device holds those of a whole epoch (``units`` of them, so n·k
    numbers), and nothing waits for it before the epoch's end. Elsewhere it is time to take them when `ROOM`
    is used up.
    """

    def __init__(self, units: int, *, whole: bool = False) -> None:
        self._most, self._whole = units, whole
        self._batches: list[tuple[int, Order]] = []
        self._buffer: Tensor | None = None
        self._used = 0

    def add(self, step: int, units: Order, rows: Tensor) -> bool:
        """Copy the rows of the epoch's ``step``-th batch; says whether it is time to take them."""
        whole = self._whole and rows.device.type != "cpu"
        end = self._used + len(rows)
        if self._buffer is None or end > len(self._buffer):
            count = self._most if whole else min(self._most, ROOM // rows.shape[1])
            larger = rows.new_empty(max(count, end), rows.shape[1])
            if self._buffer is not None:
                larger[: self._used] = self._buffer[: self._used]
            self._buffer = larger
        self._buffer[self._used : end] = rows
        self._batches.append((step, units))
        self._used = end
        return not whole and end + len(rows) > len(self._buffer)

    def take(self) -> Batches | None:
        """All that waits, by steps, and begin anew; the rows are good until the next are added."""
        if not self._batches or self._buffer is None:
            return None
        rows, steps = self._buffer[: self._used], [step for step, _ in self._batches]
        units = [each for _, each in self._batches]
        if steps != sorted(steps):  # a gradient that came late
            parts, right = rows.split([len(each) for each in units]), np.argsort(steps, kind="stable")
            units, rows = [units[i] for i in right], torch.cat([parts[i] for i in right])
        self._batches, self._used = [], 0
        if self._buffer.device.type != "cpu":
            self._buffer = None
        return Batches(np.concatenate(units), [len(each) for each in units], rows)

    @property
    def nbytes(self) -> int:
        """Bytes taken."""
        return 0 if self._buffer is None else int(self._buffer.nbytes)
