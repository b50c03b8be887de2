"""Algorithm 1: permutation-based SGD on a problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._kernels.signals import usable
from wellorder._measure import at_once, drift, order_error
from wellorder._order import Order, Policy
from wellorder.problems._problem import Problem, gradient, start_of, steps


@dataclass(frozen=True, eq=False)
class Run:
    """What a run did. Entry q of each series describes epoch q, measured at its first point x_q."""

    x: npt.NDArray[np.float64]
    """(epochs+1, dim): x_0 … x_Q."""
    orders: Order
    """(epochs, n)."""
    order_error: npt.NDArray[np.float64]
    gradient_norm: npt.NDArray[np.float64]
    """‖∇f(x_q)‖₂."""
    distance: npt.NDArray[np.float64]
    """‖x_q − x*‖₂; NaN where the problem has no known minimiser."""
    drift: npt.NDArray[np.float64]
    problem: Problem = field(repr=False)
    policy: Any
    step_size: float
    seed: int
    p: float = 2
    """The norm of the order error and the drift."""
    cohort: int = 1
    """S, the clients of a round; 1 for SGD."""
    local_steps: int = 1
    """K, the local steps of a client; 1 for SGD."""
    server_step: float = 1.0
    """η, the amplification at the epoch's end; 1 for SGD."""


@np.errstate(over="ignore", invalid="ignore")
def sgd(
    problem: Problem,
    policy: Policy[Any],
    *,
    step_size: float,
    epochs: int,
    seed: int = 0,
    start: npt.ArrayLike | None = None,
    p: float = 2,
    proximal: float = 0.0,
) -> Run:
    """Permutation-based SGD (Algorithm ``alg:SGD``): visit every unit, then let the policy permute.

    A run that diverges goes on to its end, and its record says so by infinities and NaN.

    Parameters
    ----------
    problem, policy
        What to minimise, and the order in which to visit its units.
    step_size, epochs, seed
        γ, Q, and the seed of the policy's randomness.
    start
        The first point; the problem's own unless given.
    p
        The norm of the order error and the drift.
    proximal
        Weight w ≥ 0 of a proximal step at each epoch's end, x ← (x + w·x_0)/(1 + w), which keeps x near x_0
        for one-permutation policies.

    >>> from wellorder import PairGraB, RandomReshuffling
    >>> from wellorder.problems import quadratics
    >>> problem = quadratics(1000)
    >>> worse = sgd(problem, RandomReshuffling(), step_size=1e-3, epochs=30)
    >>> better = sgd(problem, PairGraB(), step_size=1e-3, epochs=30)
    >>> bool(better.distance[-1] < worse.distance[-1] / 10)
    True
    """
    check_numbers(step_size=step_size, epochs=epochs, proximal=proximal)
    first = start_of(problem, start)
    record = Recorder(problem, policy, step_size, epochs, seed, p, first)
    state, x, width = policy.init(problem.n, seed=seed), first, at_once(problem.dim)
    for epoch in range(epochs):
        state = observe_fresh(problem, policy, state, x)
        order, here, far = state.order, x, 0.0
        for at in range(0, problem.n, width):
            units = order[at : at + width]
            points, signals = steps(problem, units, x, step_size)
            x = points[-1]
            points[0] = here
            far = float(np.maximum(far, drift(points, p=p)))
            if policy.needs.at_visits():
                state = observe_usable(policy, state, units, signals)
        if proximal:
            x = (x + proximal * first) / (1 + proximal)
        record.epoch(epoch, order, far, x)
        if epoch + 1 < epochs:
            state = policy.advance(state)
    return record.run()


def observe_fresh(problem: Problem, policy: Policy[Any], state: Any, x: npt.NDArray[np.float64]) -> Any:
    """Show the policy every unit's gradient at ``x``, in visiting order, if it asks for that now."""
    if policy.needs.at_start(state.epoch):
        order, width = state.order, at_once(problem.dim)
        for at in range(0, problem.n, width):
            units = order[at : at + width]
            state = observe_usable(policy, state, units, problem.gradients(units, x))
    return state


def observe_usable(policy: Policy[Any], state: Any, units: Order, signals: npt.NDArray[np.float64]) -> Any:
    """Show the policy the signals that can be balanced; those of a run that diverged stay unobserved."""
    good = usable(signals)
    return (
        policy.observe(state, units, signals)
        if good.all()
        else policy.observe(state, units[good], signals[good])
    )


class Recorder:
    """Collects a `Run`, epoch by epoch; ``federated`` holds its cohort, local_steps and server_step."""

    def __init__(
        self,
        problem: Problem,
        policy: Policy[Any],
        step_size: float,
        epochs: int,
        seed: int,
        p: float,
        first: npt.NDArray[np.float64],
        **federated: Any,
    ) -> None:
        self.problem, self.policy, self.step_size, self.seed, self.p = problem, policy, step_size, seed, p
        self.federated = federated
        self.x = np.empty((epochs + 1, problem.dim))
        self.x[0] = first
        self.orders = np.empty((epochs, problem.n), np.int32)
        self.order_error, self.gradient_norm, self.distance, self.drift = np.empty((4, epochs))

    def epoch(self, q: int, order: Order, far: float, after: npt.NDArray[np.float64]) -> None:
        """Record epoch ``q``, which followed ``order``, strayed ``far`` and ended at ``after``."""
        problem, x = self.problem, self.x[q]
        best = getattr(problem, "minimiser", None)
        self.orders[q], self.drift[q], self.x[q + 1] = order, far, after
        self.order_error[q] = order_error(
            lambda units: problem.gradients(units, x), order, p=self.p, every=self.federated.get("cohort", 1)
        )
        self.gradient_norm[q] = np.linalg.norm(gradient(problem, x))
        self.distance[q] = np.nan if best is None else np.linalg.norm(x - best)

    def run(self) -> Run:
        """The finished record."""
        return Run(
            self.x, self.orders, self.order_error, self.gradient_norm, self.distance, self.drift,
            self.problem, self.policy, self.step_size, self.seed, self.p, **self.federated,
        )  # fmt: skip


def check_numbers(*, step_size: float, epochs: int, **others: float) -> None:
    """Refuse impossible settings of a run before it starts."""
    if not (np.isfinite(step_size) and step_size > 0):
        raise ValueError(f"step_size={step_size!r}: pass a positive number")
    if not isinstance(epochs, int | np.integer) or epochs < 1:
        raise ValueError(f"epochs={epochs!r}: pass an int >= 1")
    for name, value in others.items():
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{name}={value!r}: pass a number of 0 or more")
