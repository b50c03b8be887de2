"""The policy's state, and what it was shown: observations, order errors, counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from wellorder.order import Order, Policy
from wellorder.torch.gauge import Gauge

FLUSH = 4096
"""Rows brought from an accelerator to the host at a time, at the epoch's end."""


class Journal:
    """Shows signals to a policy: at once if they are at hand, at the epoch's end if they lie on a device."""

    def __init__(self, policy: Policy[Any], state: Any) -> None:
        self.policy, self.state = policy, state
        self.gauge, self.errors = Gauge(), list[float]()
        self.observed = self.unobserved = self.not_finite = self.steps = 0
        self.seconds = 0.0
        self._waiting: list[tuple[Order, Tensor]] = []

    def take(self, units: Order, signals: Any, glimpsed: Tensor | None) -> None:
        """Take in a batch's signals; None leaves its units unobserved."""
        self.steps += 1
        if signals is None:
            self.unobserved += len(units)
        elif isinstance(signals, Tensor) and signals.device.type != "cpu":
            self._waiting.append((units, signals))
        elif isinstance(signals, Tensor):
            self._show_rows(units, signals.numpy())
        else:
            self._show_products(units, signals, glimpsed)

    def flush(self) -> None:
        """Bring waiting rows to the host, in few large copies, and show them in the order of their visits."""
        waiting, self._waiting = self._waiting, []
        while waiting:
            count, rows = 0, 0
            while count < len(waiting) and rows < FLUSH:
                rows += len(waiting[count][1])
                count += 1
            part, waiting = waiting[:count], waiting[count:]
            joined = part[0][1].new_empty((rows, part[0][1].shape[1]))
            at = 0
            for _, block in part:
                joined[at : at + len(block)] = block
                at += len(block)
            host, at = joined.cpu().numpy(), 0
            for units, block in part:
                self._show_rows(units, host[at : at + len(block)])
                at += len(block)

    def advance(self) -> None:
        """Close the epoch and open the next."""
        self.flush()
        self.state = self.policy.advance(self.state)
        if self.gauge.sums:
            self.errors.append(self.gauge.error())
        self.gauge = Gauge()

    def memory(self) -> int:
        """Bytes that stay between steps."""
        held = [getattr(self.state, name) for name in self.state.__dataclass_fields__]
        arrays = sum(int(v.nbytes) for v in held if hasattr(v, "nbytes"))
        return (
            arrays
            + sum(block.nbytes for _, block in self._waiting)
            + sum(row.nbytes for row in self.gauge.sums)
        )

    def _show_rows(self, units: Order, rows: npt.NDArray[np.float32]) -> None:
        total = rows.sum(axis=0)
        self.gauge.add(total, len(rows))
        if not np.isfinite(total).all():
            finite = np.isfinite(rows).all(axis=1)
            self.not_finite += int((~finite).sum())
            units, rows = units[finite], rows[finite]
        self.observed += len(rows)
        if len(rows) and self.policy.needs.at_visits():
            self.state = self.policy.observe(self.state, units, rows)

    def _show_products(self, units: Order, signals: Any, glimpsed: Tensor | None) -> None:
        if glimpsed is not None:
            self.gauge.add(glimpsed.cpu().numpy() * signals.scale, len(signals))
        finite = np.ones(len(signals), bool)
        if self.policy.needs.at_visits():
            finite = self._observe_finite(units, signals)
        self.observed += int(finite.sum())
        self.not_finite += int((~finite).sum())

    def _observe_finite(self, units: Order, signals: Any) -> npt.NDArray[np.bool_]:
        """Show products; where the policy finds one that is not finite, show it the others."""
        try:
            self.state = self.policy.observe(self.state, units, signals)
        except ValueError:
            finite: npt.NDArray[np.bool_] = signals.finite()
            if finite.all():
                raise
            if finite.any():
                rest = signals.take(np.flatnonzero(finite))
                self.state = self.policy.observe(self.state, units[finite], rest)
            return finite
        return np.ones(len(signals), bool)
