"""The state of a policy that looks at no signals: an order, and how far the epoch has come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from wellorder._order import Order, Remembered, own_state, visit


@dataclass(frozen=True)
class Plan(Remembered):
    """An epoch's order and the number of steps already passed."""

    seed: int
    epoch: int
    order: Order
    seen: int = 0


def pass_by(self: Any, state: Plan, units: npt.ArrayLike, signals: Any) -> Plan:  # noqa: ARG001
    """Check that the units come in turn, and look at nothing else."""
    own_state(state, Plan)
    steps = visit(state.order, state.seen, units)
    return replace(state, seen=int(steps[-1]) + 1) if len(steps) else state
