"""The policy's state, and what it was shown: observations, order errors, counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from wellorder._order import Order, Policy
from wellorder.torch import _herded as herded
from wellorder.torch._gauge import Gauge
from wellorder.torch._waiting import Batches, Waiting


class Journal:
    """Shows signals to a policy: products at once, rows many at a time."""

    def __init__(self, policy: Policy[Any], state: Any) -> None:
        self.policy, self.state = policy, state
        self.gauge, self.errors = Gauge(), list[float]()
        self.observed = self.unobserved = self.not_finite = self.steps = 0
        self.seconds = 0.0
        self._waiting = Waiting(len(state.order), whole=herded.keeps(policy))

    def take(self, step: int, units: Order, signals: Any, glimpsed: Tensor | None) -> None:
        """Take in the signals of the epoch's ``step``-th batch; None leaves its units unobserved."""
        self.steps += 1
        if signals is None:
            self.unobserved += len(units)
        elif not isinstance(signals, Tensor):
            self._show_products(units, signals, glimpsed)
        elif self._waiting.add(step, units, signals):
            self.flush()

    def flush(self) -> None:
        """Show the rows that wait, in the order of their visits."""
        batches = self._waiting.take()
        if batches is not None:
            self._show_rows(batches, self._measure(batches))

    def advance(self) -> None:
        """Close the epoch and open the next."""
        batches = self._waiting.take()
        finite = batches is not None and self._measure(batches)
        if batches is not None and finite and herded.serves(self.policy, self.state, batches.rows):
            self.state = herded.advance(self.policy, self.state, batches.units, batches.rows)
            self.observed += len(batches.units)
        else:
            if batches is not None:
                self._show_rows(batches, finite)
            self.state = self.policy.advance(self.state)
        if self.gauge.sums:
            self.errors.append(self.gauge.error())
        self.gauge = Gauge()

    def memory(self) -> int:
        """Bytes that stay between steps."""
        held = [getattr(self.state, name) for name in self.state.__dataclass_fields__]
        arrays = sum(int(v.nbytes) for v in held if hasattr(v, "nbytes"))
        return arrays + self._waiting.nbytes + sum(row.nbytes for row in self.gauge.sums)

    def _measure(self, batches: Batches) -> bool:
        """Note each batch's sum for the order error; says whether all are finite."""
        totals = batches.totals()
        for total, count in zip(totals, batches.counts, strict=True):
            self.gauge.add(total, count)
        return bool(np.isfinite(totals).all())

    def _show_rows(self, batches: Batches, finite: bool) -> None:
        units, rows = batches.units, batches.rows.cpu().numpy()
        if not finite:
            good = np.isfinite(rows).all(axis=1)
            self.not_finite += int((~good).sum())
            units, rows = units[good], rows[good]
        if len(rows) and self.policy.needs.at_visits():
            self.state = self.policy.observe(self.state, units, rows)
        self.observed += len(rows)

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
