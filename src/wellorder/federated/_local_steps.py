"""Rounds of full-gradient local steps, many at a time.

Each function returns the points at which gradients were taken, in visiting order, then the server's new
point, (b·K+1, d), and for each client the sum of its local gradients, (b, d).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wellorder._compiled import fast, jit
from wellorder._order import Order
from wellorder.problems import Logistic, Quadratics
from wellorder.problems._problem import Matrix, Point, Problem, steps


@dataclass(frozen=True)
class Rounds:
    """How rounds go: γ, S clients each, K local steps a client."""

    step_size: float
    cohort: int
    local_steps: int


def rounds(problem: Problem, units: Order, w: Point, plan: Rounds) -> tuple[Matrix, Matrix]:
    """Train ``units``, a cohort at a time, from the server's point ``w``.

    A cohort of one is nothing but plain steps, K for each client, so it shares their arithmetic bit for bit.
    """
    if plan.cohort == 1:
        points, rows = steps(problem, np.repeat(units, plan.local_steps), w, plan.step_size)
        return points, in_turn(rows.reshape(len(units), plan.local_steps, len(w)).swapaxes(0, 1))
    if not isinstance(problem, Quadratics | Logistic):
        return loop_rounds(problem, units, w, plan)
    points, signals = np.empty((len(units) * plan.local_steps + 1, len(w))), np.zeros((len(units), len(w)))
    settings = units, w, plan.step_size, plan.cohort, plan.local_steps, points, signals
    if isinstance(problem, Quadratics):
        _quadratics(problem.a, problem.b, *settings)
    else:
        _logistic(problem.X, problem.y, problem.l2, *settings)
    return points, signals


def loop_rounds(problem: Problem, units: Order, w: Point, plan: Rounds) -> tuple[Matrix, Matrix]:
    """`rounds` for any problem, one client after the other."""
    K = plan.local_steps  # noqa: N806
    points, signals = np.empty((len(units) * K + 1, len(w))), np.empty((len(units), len(w)))
    for at in range(0, len(units), plan.cohort):
        ends = []
        for t in range(at, min(at + plan.cohort, len(units))):
            path, rows = steps(problem, np.repeat(units[t : t + 1], K), w, plan.step_size)
            points[t * K : (t + 1) * K] = path[:-1]
            signals[t] = in_turn(rows)
            ends.append(path[-1])
        w = in_turn(np.stack(ends)) / len(ends)
    points[-1] = w
    return points, signals


def in_turn(rows: Matrix) -> Matrix:
    """Add up ``rows`` over their first axis, one after the other (NumPy's own sum may pair them up)."""
    total: Matrix = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total


@jit
def _quadratics(a, b, units, w, step_size, cohort, local_steps, points, signals):  # type: ignore[no-untyped-def]
    dim = len(w)
    server, total = w.copy(), np.zeros(dim)
    for t in range(len(units)):
        unit = units[t]
        for k in range(dim):
            x = server[k]
            for step in range(local_steps):
                points[t * local_steps + step, k] = x
                g = 2.0 * a[unit, k] * x + b[unit, k]
                signals[t, k] += g
                x = x - step_size * g
            total[k] += x
        _close_round(t, len(units), cohort, server, total)
    points[-1] = server


@fast
def _logistic(X, y, l2, units, w, step_size, cohort, local_steps, points, signals):  # type: ignore[no-untyped-def]  # noqa: N803
    dim = len(w)
    server, total, x = w.copy(), np.zeros(dim), np.empty(dim)
    for t in range(len(units)):
        unit = units[t]
        x[:] = server
        for step in range(local_steps):
            points[t * local_steps + step] = x
            margin = 0.0
            for k in range(dim):
                margin += X[unit, k] * x[k]
            weight = -y[unit] * 0.5 * (1.0 + np.tanh(-0.5 * y[unit] * margin))
            for k in range(dim):
                g = weight * X[unit, k] + l2 * x[k]
                signals[t, k] += g
                x[k] -= step_size * g
        total += x
        _close_round(t, len(units), cohort, server, total)
    points[-1] = server


@jit
def _close_round(t, count, cohort, server, total):  # type: ignore[no-untyped-def]
    """Move the server to the mean after the round's last client; a short last round divides by its size."""
    if (t + 1) % cohort and t + 1 < count:
        return
    size = t % cohort + 1
    for k in range(len(server)):
        server[k] = total[k] / size
        total[k] = 0.0
