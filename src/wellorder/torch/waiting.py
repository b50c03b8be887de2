"""Rows that wait to be shown to a policy, many batches at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder.order import Order

ROOM = 1 << 21
"""Numbers that wait on the host: a step pays for a copy of its rows, and not for the policy."""


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
        first = self.rows[: even * size].view(even, size, -1).sum(1)
        rest = self.rows[even * size :].split(self.counts[even:])
        return torch.cat([first, *(part.sum(0, keepdim=True) for part in rest)]).cpu().numpy()


class Waiting:
    """Batches' rows in the order of their visits, on the device that they were made on.

    The host's buffer is emptied when it is full; that of a device holds a whole epoch, n·k numbers, so that
    nothing waits for the device before its end.
    """

    def __init__(self, units: int) -> None:
        self._most = units
        self._units: list[Order] = []
        self._buffer: Tensor | None = None
        self._used = 0

    def add(self, units: Order, rows: Tensor) -> bool:
        """Copy a batch's rows; says whether it is time to take them."""
        if self._buffer is None:
            own = rows.device.type != "cpu"
            count = self._most if own else min(self._most, max(ROOM // rows.shape[1], 1))
            self._buffer = rows.new_empty(max(count, len(rows)), rows.shape[1])
        end = self._used + len(rows)
        self._buffer[self._used : end] = rows
        self._units.append(units)
        self._used = end
        return end + len(rows) > len(self._buffer)

    def take(self) -> Batches | None:
        """All that waits, and begin anew; the rows are good until the next are added."""
        if not self._units or self._buffer is None:
            return None
        taken = Batches(
            np.concatenate(self._units), [len(units) for units in self._units], self._buffer[: self._used]
        )
        self._units, self._used = [], 0
        if self._buffer.device.type != "cpu":
            self._buffer = None
        return taken

    @property
    def nbytes(self) -> int:
        """Bytes taken."""
        return 0 if self._buffer is None else int(self._buffer.nbytes)
