"""Training on a problem, one epoch at a time: what `wellorder.sgd` and `fedavg` do, with a clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wellorder._measure import at_once
from wellorder._order import Order, Policy
from wellorder._training import check_numbers, observe_fresh
from wellorder.federated._algorithm import amplified, check_rounds
from wellorder.federated._rounds import Rounds, rounds
from wellorder.problems._problem import Point, Problem, start_of


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
        check_numbers(step_size=self.step_size, epochs=self.epochs)
        check_rounds(n, self.cohort, self.local_steps, self.server_step)


@dataclass(frozen=True)
class Moment:
    """The start of an epoch: the point, the order about to be followed, and the cost so far."""

    epoch: int
    x: Point
    order: Order
    gradients: int
    seconds: float


def moments(problem: Problem, policy: Policy[Any], settings: Settings, seed: int) -> Iterator[Moment]:
    """Train, and stop at x_0, x_1, … x_Q for a look; bit for bit what `wellorder.sgd` or `fedavg` compute.

    Seconds are processor seconds of the training steps and all the policy's work, whatever else the machine
    does; what is done between the looks does not count.
    A run that diverges stops early.
    """
    settings.check(problem.n)
    plan = Rounds(settings.step_size, settings.cohort, settings.local_steps)
    clock = time.thread_time()
    state, x = policy.init(problem.n, seed=seed), start_of(problem)
    gradients, seconds = 0, time.thread_time() - clock
    for epoch in range(settings.epochs + 1):
        spent, clock = (gradients, seconds), time.thread_time()
        if epoch < settings.epochs:
            gradients += problem.n * policy.needs.at_start(state.epoch)
            state = observe_fresh(problem, policy, state, x)
        seconds += time.thread_time() - clock
        yield Moment(epoch, x, state.order, *spent)
        if epoch == settings.epochs:
            return
        clock = time.thread_time()
        with np.errstate(all="ignore"):
            trained = _epoch(problem, policy, state, x, plan)
        if trained is None:
            return
        state, w = trained
        x = amplified(x, w, settings.server_step)
        state = policy.advance(state)
        gradients += problem.n * settings.local_steps
        seconds += time.thread_time() - clock


def _epoch(
    problem: Problem, policy: Policy[Any], state: Any, w: Point, plan: Rounds
) -> tuple[Any, Point] | None:
    """Visit every unit; None if the points left the finite numbers."""
    order = state.order
    width = max(1, at_once(problem.dim) // (plan.cohort * plan.local_steps)) * plan.cohort
    for at in range(0, problem.n, width):
        units = order[at : at + width]
        points, signals = rounds(problem, units, w, plan)
        w = points[-1]
        if not (np.isfinite(w).all() and np.isfinite(signals).all()):
            return None
        if policy.needs.at_visits():
            state = policy.observe(state, units, signals)
    return state, w
