"""Rows that wait to be shown to a policy, many batches at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from torch import Tensor

from wellorder.order import Order

ROOM = 1 << 21
"""Numbers in a buffer: a step pays for a copy into it, and not for the policy."""


class Waiting:
    """Batches' rows in the order of their visits, in buffers on the device that they were made on.

    The host's one buffer is emptied when it is full; a device's stay until the epoch's end, n·k numbers in
    all, so that nothing waits for the device before.
    """

    def __init__(self) -> None:
        self._units: list[Order] = []
        self._full: list[Tensor] = []
        self._buffer: Tensor | None = None
        self._used = 0

    def add(self, units: Order, rows: Tensor) -> bool:
        """Copy a batch's rows; says whether it is time to drain."""
        buffer, end = self._buffer, self._used + len(rows)
        if buffer is None or end > len(buffer):
            if buffer is not None:
                self._full.append(buffer[: self._used])
            buffer = rows.new_empty(max(ROOM // rows.shape[1], len(rows)), rows.shape[1])
            self._buffer, self._used, end = buffer, 0, len(rows)
        buffer[self._used : end] = rows
        self._units.append(units)
        self._used = end
        return end + len(rows) > len(buffer) and rows.device.type == "cpu"

    def drain(self) -> Iterator[tuple[list[Order], npt.NDArray[np.float32]]]:
        """Hand all over, a buffer at a time: the units of each batch, and the rows of all of them."""
        units, buffers = self._units, self._full
        if self._buffer is not None and self._used:
            buffers = [*buffers, self._buffer[: self._used]]
        self._units, self._full, self._used = [], [], 0
        if self._buffer is not None and self._buffer.device.type != "cpu":
            self._buffer = None
        at = 0
        for buffer in buffers:
            first, rows = at, 0
            while rows < len(buffer):
                rows += len(units[at])
                at += 1
            yield units[first:at], buffer.cpu().numpy()

    @property
    def nbytes(self) -> int:
        """Bytes taken."""
        return sum(buffer.nbytes for buffer in (*self._full, self._buffer) if buffer is not None)
