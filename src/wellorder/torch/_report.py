"""What an ordered loader tells of itself: what is collected and why, what it costs, what it brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Report:
    """What ordering does, costs, and brings: plain numbers, and a page when printed.

    Attributes
    ----------
    signals, why, policy, units
        What is collected, the reason, the rule that makes the orders, and how many units it orders.
    epoch, step, steps
        Where the loader is, and how many steps an epoch has.
    observed, unobserved, not_finite
        Visits that the policy learns from, those without a backward pass, and those with a NaN or infinity.
    seconds_per_step
        Processor time spent on signals and the policy; on an accelerator the host's part.
    memory
        Bytes that stay between steps.
    order_error
        One estimate for each epoch that was observed, the present one's so far at the end.
    coverage
        How each trainable parameter's gradient is taken.
    rows
        What is known of the units, and from when.
    overhead
        Our processor time in the training's thread, by the time that the epochs took.
    rank, ranks
        Which of how many processes this is.
    sent
        Bytes that this process gave to the others.
    """

    signals: str
    why: str
    policy: str
    units: int
    epoch: int
    step: int
    steps: int
    observed: int
    unobserved: int
    not_finite: int
    seconds_per_step: float
    memory: int
    order_error: tuple[float, ...]
    coverage: Mapping[str, str]
    rows: str
    overhead: float
    rank: int = 0
    ranks: int = 1
    sent: int = 0

    def __str__(self) -> str:
        errors = ", ".join(f"{value:.4g}" for value in self.order_error[-5:]) or "none yet"
        lines = [
            f"signals      {self.signals}: {self.why}",
            f"policy       {self.policy}, {self.units} units",
            f"where        epoch {self.epoch}, step {self.step} of {self.steps}",
            f"visits       {self.observed} observed, {self.unobserved} without a gradient, "
            f"{self.not_finite} not finite",
            f"known        {self.rows}",
            f"cost         {1e3 * self.seconds_per_step:.3f} ms an observed step, "
            f"{100 * self.overhead:.1f} % of the time so far, {self.memory / 2**20:.1f} MiB kept",
            f"order error  {errors}",
        ]
        if self.ranks > 1:
            lines.append(
                f"ranks        {self.rank} of {self.ranks}, {self.sent / 2**20:.1f} MiB sent from here"
            )
        if self.coverage:
            width = max(map(len, self.coverage))
            lines += ["parameters", *(f"  {name:<{width}}  {how}" for name, how in self.coverage.items())]
        return "\n".join(lines)


def rows_in_words(known: Any, seen_in: int) -> str:
    """What is known of the units (a mark for each, None where nothing is kept), and from which epoch."""
    if known is None:
        return "none kept"
    count = int(known.sum())
    if not count:
        return "none yet: the order is a shuffle"
    when = f"last seen in epoch {seen_in}" if seen_in >= 0 else "given before training"
    return f"{count} of {len(known)} units, {when}"
