"""Training on a problem, epoch by epoch: Algorithm 1, and the loop that Algorithm 2 and `compare` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import (
    instance_of,
    norm_order,
    one_of,
    real_number,
    room_for,
    seed_of,
    whole_number,
)
from wellorder._kernels.signals import KEPT, SUMMED, usable
from wellorder._measure import at_once, drift, order_error
from wellorder._notebook import axes_for, html_table, plot_series, some_of
from wellorder._order import Order, Policy, describe, policy_of, remembers
from wellorder.policies._registry import line_of
from wellorder.problems._problem import Matrix, Point, Problem, gradient, start_of, steps

if TYPE_CHECKING:
    from wellorder._notebook import Axes

Visit = Callable[[Order, Point], tuple[Matrix, Matrix]]
"""From some units and the point before them to the points passed (the last is where they end) and signals."""
Close = Callable[[Point, Point], Point]
"""From an epoch's first point and where its visits ended to the next epoch's first point."""
SERIES = {
    "distance": "distance to the minimiser", "gradient_norm": "gradient norm", "order_error": "order error",
    "drift": "drift",
}  # fmt: skip
"""What a run has for each epoch, in words."""


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
    problem: Problem
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
    proximal: float = 0.0
    """w, the weight of the proximal step at each epoch's end; 0 for none."""
    extras: tuple[str, ...] = ()
    """What it did that Algorithms 1 and 2 do not know (a local solver of its own), in words."""

    def plot(self, quantity: str = "", *, axes: Axes | None = None, label: str = "") -> Axes:
        """Draw a series against epochs, on axes of yours or on new ones.

        Parameters
        ----------
        quantity
            ``"distance"``, ``"gradient_norm"``, ``"order_error"`` or ``"drift"``; the distance to the
            minimiser if that is known, else the gradient's norm.
        axes, label
            Matplotlib axes to draw on, so that runs can be compared, and what the legend says.
        """
        name = self._natural() if isinstance(quantity, str) and not quantity else quantity
        values = getattr(self, one_of("quantity", name, tuple(SERIES)))
        words = instance_of("label", label, str, "pass a line of text") or type(self.policy).__name__
        drawn = axes_for(axes, "Run.plot")
        plot_series(drawn, range(len(values)), values, label=words, log=True, **line_of(self.policy))
        drawn.set(xlabel="epoch", ylabel=SERIES[name])
        return drawn

    def __repr__(self) -> str:
        name = self._natural()
        first, last = getattr(self, name)[[0, -1]]
        epochs, n = self.orders.shape
        return (
            f"Run: {describe(self.policy)}, {epochs} epochs of {n} units, step size {self.step_size:.3g}, "
            f"seed {self.seed}; {SERIES[name]} from {first:.3g} to {last:.3g}"
        )

    def _repr_html_(self) -> str:
        known = [name for name in SERIES if np.isfinite(getattr(self, name)).any()]
        rows = [[q, *(float(getattr(self, name)[q]) for name in known)] for q in some_of(len(self.orders))]
        return html_table(["epoch", *(SERIES[name] for name in known)], rows, title=repr(self))

    def _natural(self) -> str:
        return "distance" if np.isfinite(self.distance).any() else "gradient_norm"


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
    """Permutation-based SGD (Algorithm 1): visit every unit, then let the policy permute.

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
    step_size = real_number("step_size", step_size, above=0)
    epochs = whole_number("epochs", epochs, least=1)
    weight = real_number("proximal", proximal, least=0)
    policy_of(policy)
    first = start_of(problem, start)

    def visit(units: Order, x: Point) -> tuple[Matrix, Matrix]:
        return steps(problem, units, x, step_size)

    def close(_: Point, x: Point) -> Point:
        return drawn_back(x, first, weight)

    record = Recorder(problem, policy, step_size, epochs, seed, p, proximal=weight)
    for moment in moments(problem, policy, visit, close, epochs, seed, first, watch=record.watch):
        record.look(moment)
    return record.run()


def drawn_back(x: Point, first: Point, weight: float) -> Point:
    """The proximal step that ends an epoch: the point between x and x_0 that a weight of w asks for."""
    return (x + weight * first) / (1 + weight) if weight else x


@dataclass(frozen=True)
class Moment:
    """The start of an epoch: the point, the order about to be followed, and the cost so far."""

    epoch: int
    x: Point
    order: Order
    """Of the last moment, after all epochs: the order that the last epoch followed, or that comes next."""
    gradients: int
    """Fresh gradients that the policy asked for, beside those of the visits."""
    seconds: float
    """Processor seconds of the visits and of all the policy's work; looks in between do not count."""


def moments(
    problem: Problem,
    policy: Policy[Any],
    visit: Visit,
    close: Close,
    epochs: int,
    seed: int,
    first: Point,
    *,
    width: int = 0,
    watch: Callable[[Point, Matrix], object] | None = None,
    beyond: bool = False,
) -> Iterator[Moment]:
    """Train, and stop at x_0, x_1, … x_Q for a look.

    Parameters
    ----------
    visit, close
        What a visit does, and what an epoch's end does: `sgd`, `fedavg` and `compare` differ in these alone.
    width
        Units visited at a time; as many as fit a cache unless given.
    watch
        Shown each epoch's first point and the points passed from there, block by block.
    beyond
        Whether the last moment has the next order, which costs one more `advance` (and, of a list of orders,
        one more order) than training needs.
    """
    clock = time.thread_time()
    state, x, width = policy.init(problem.n, seed=seed), first, width or at_once(problem.dim)
    gradients, seconds = 0, time.thread_time() - clock
    for epoch in range(epochs):
        spent, clock = gradients, time.thread_time()
        paid = seconds
        if policy.needs.at_start(state.epoch):
            gradients += problem.n
            state = _observe_fresh(problem, policy, state, x)
        seconds += time.thread_time() - clock
        yield Moment(epoch, x, state.order, spent, paid)
        clock = time.thread_time()
        state, x = _epoch(problem.n, policy, state, x, visit, close, width, watch)
        if beyond or epoch + 1 < epochs:
            state = policy.advance(state)
        seconds += time.thread_time() - clock
    yield Moment(epochs, x, state.order, gradients, seconds)


@np.errstate(over="ignore", invalid="ignore")
def _epoch(
    n: int,
    policy: Policy[Any],
    state: Any,
    first: Point,
    visit: Visit,
    close: Close,
    width: int,
    watch: Callable[[Point, Matrix], object] | None,
) -> tuple[Any, Point]:
    """Visit every unit in the state's order, and show the policy what the visits revealed."""
    order, x = state.order, first
    for at in range(0, n, width):
        units = order[at : at + width]
        points, signals = visit(units, x)
        x = points[-1]
        if watch is not None:
            watch(first, points)
        if policy.needs.at_visits():
            state = _observe_usable(policy, state, units, signals)
    return state, close(first, x)


@np.errstate(over="ignore", invalid="ignore")
def _observe_fresh(problem: Problem, policy: Policy[Any], state: Any, x: Point) -> Any:
    """Show the policy every unit's gradient at ``x``, in visiting order."""
    order, width = state.order, at_once(problem.dim)
    for at in range(0, problem.n, width):
        units = order[at : at + width]
        state = _observe_usable(policy, state, units, problem.gradients(units, x))
    return state


def _observe_usable(policy: Policy[Any], state: Any, units: Order, signals: Matrix) -> Any:
    """Show the policy the signals that can be balanced; those of a run that diverged stay unobserved."""
    good = usable(signals, KEPT if remembers(policy) else SUMMED)
    if good.all():
        return policy.observe(state, units, signals)
    return policy.observe(state, units[good], signals[good])


class Recorder:
    """Collects a `Run` from its moments; ``more`` holds what it has beyond plain SGD."""

    def __init__(
        self,
        problem: Problem,
        policy: Policy[Any],
        step_size: float,
        epochs: int,
        seed: int,
        p: float,
        **more: Any,
    ) -> None:
        self.problem, self.policy, self.step_size, self.seed, self.p = problem, policy, step_size, seed, p
        self.epochs, self.more = epochs, more
        norm_order(p)
        seed_of(seed)
        with room_for("epochs", epochs):
            self.x = np.empty((epochs + 1, problem.dim))
            self.orders = np.empty((epochs, problem.n), np.int32)
        self.order_error, self.gradient_norm, self.distance = np.empty((3, epochs))
        self.drift = np.zeros(epochs)
        self._now = 0

    def watch(self, first: Point, points: Matrix) -> None:
        """Note how far the points stray; the first of a block was the last of the one before."""
        points[0] = first  # saves a copy of the block: the point that it replaces has been counted
        self.drift[self._now] = np.maximum(self.drift[self._now], drift(points, p=self.p))

    @np.errstate(over="ignore", invalid="ignore")
    def look(self, moment: Moment) -> None:
        """Record the point, and what is about to be done there."""
        problem, x, q = self.problem, moment.x, moment.epoch
        self.x[q], self._now = x, q
        if q == self.epochs:
            return
        best = getattr(problem, "minimiser", None)
        self.orders[q] = moment.order
        self.order_error[q] = order_error(
            lambda units: problem.gradients(units, x),
            moment.order,
            p=self.p,
            every=self.more.get("cohort", 1),
        )
        self.gradient_norm[q] = np.linalg.norm(gradient(problem, x))
        self.distance[q] = np.nan if best is None else np.linalg.norm(x - best)

    def run(self) -> Run:
        """The finished record."""
        return Run(
            self.x, self.orders, self.order_error, self.gradient_norm, self.distance, self.drift,
            self.problem, self.policy, self.step_size, self.seed, self.p, **self.more,
        )  # fmt: skip
