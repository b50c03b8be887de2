"""What `OrderedLoader.report` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """What ordering does, costs, and brings: plain numbers, and a page when printed.

    ``seconds_per_step`` is the processor time spent on signals and the policy (on an accelerator: the host's
    part); ``memory`` the bytes that stay between steps; ``order_error`` one estimate per finished
    epoch; ``unobserved`` counts visits without a backward pass, ``not_finite`` those with a NaN or infinity.
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

    def __str__(self) -> str:
        errors = ", ".join(f"{value:.4g}" for value in self.order_error[-5:]) or "none yet"
        lines = [
            f"signals      {self.signals}: {self.why}",
            f"policy       {self.policy}, {self.units} units",
            f"where        epoch {self.epoch}, step {self.step} of {self.steps}",
            f"visits       {self.observed} observed, {self.unobserved} without a gradient, "
            f"{self.not_finite} not finite",
            f"cost         {1e3 * self.seconds_per_step:.3f} ms a step, {self.memory / 2**20:.1f} MiB kept",
            f"order error  {errors}",
        ]
        if self.coverage:
            width = max(map(len, self.coverage))
            lines += ["parameters", *(f"  {name:<{width}}  {how}" for name, how in self.coverage.items())]
        return "\n".join(lines)
