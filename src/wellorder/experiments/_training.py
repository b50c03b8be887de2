"""Training on a problem, one epoch at a time: what `wellorder.sgd` and `fedavg` do, with a clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wellorder._arguments import real_number, whole_number
from wellorder._order import Policy
from wellorder._training import Moment, moments
from wellorder.federated._fedavg import amplified, at_a_time, check_rounds
from wellorder.federated._local_steps import Rounds, rounds
from wellorder.problems._problem import Problem, start_of


@dataclass(frozen=True)
class Settings:
    """How to train; a cohort of 1 with one local step is SGD."""

    step_size: float
    epochs: int
    cohort: int = 1
    local_steps: int = 1
    server_step: float = 1.0

    def check(self, n: int) -> None:
        """Refuse what cannot be run on ``n`` units."""
        whole_number("n", n, least=1)
        real_number("step_size", self.step_size, above=0)
        whole_number("epochs", self.epochs, least=1)
        check_rounds(n, self.cohort, self.local_steps, self.server_step)


def train(problem: Problem, policy: Policy[Any], settings: Settings, seed: int) -> Iterator[Moment]:
    """Train as `wellorder.sgd` or `fedavg` do, bit for bit, and stop at x_0, x_1, … x_Q for a look.

    A run that diverges stops early.
    """
    settings.check(problem.n)
    plan = Rounds(settings.step_size, settings.cohort, settings.local_steps)
    taken = problem.n * settings.local_steps
    for moment in moments(
        problem,
        policy,
        lambda units, w: rounds(problem, units, w, plan),
        lambda x, w: amplified(x, w, settings.server_step),
        settings.epochs,
        seed,
        start_of(problem),
        width=at_a_time(problem, plan),
        beyond=True,
    ):
        if not np.isfinite(moment.x).all():
            return
        yield replace(moment, gradients=moment.gradients + moment.epoch * taken)
