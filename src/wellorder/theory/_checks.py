"""Holding a recorded run against the theory, both sides of every inequality."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._kernels.sign_rules import Walk
from wellorder._measure import order_error
from wellorder._training import Run
from wellorder.problems import gradient
from wellorder.theory._assumptions import Constants, constants
from wellorder.theory._estimates import estimate
from wellorder.theory._methods import METHODS, method_of
from wellorder.theory._setting import Keywords
from wellorder.theory._theorems import bound, largest

Series = npt.NDArray[np.float64]
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Check:
    """An inequality left ≤ right, evaluated once or once an epoch."""

    what: str
    label: str
    """The LaTeX label of the statement."""
    left: Series
    right: Series
    probability: float
    """With what probability each entry is promised; 1 for certain."""
    promised: bool = True
    """Whether the statement's conditions were met (step size, exact constants, a proved sign rule)."""

    @property
    def slack(self) -> Series:
        """Right minus left."""
        return self.right - self.left

    @property
    def holds(self) -> npt.NDArray[np.bool_]:
        """Where the inequality holds, up to rounding."""
        return self.left <= self.right + ROUNDING * np.maximum(np.abs(self.left), np.abs(self.right))

    @property
    def fraction(self) -> float:
        """The fraction of entries where it holds."""
        return float(self.holds.mean())

    @property
    def first_violation(self) -> int | None:
        """The first entry (epoch) where it fails, or None."""
        bad = np.flatnonzero(~self.holds)
        return int(bad[0]) if bad.size else None


def check_assumption(run: Run, method: str | Constants | None = None, *, delta: float = 1e-4) -> Check:
    """Evaluate the order-error assumption on a run (``asm:order error``; ``asm:FL:order error`` for clients).

    Entry q compares φ̄_q² with ΣA_i·φ̄_{q−i}² + ΣB_i·‖∇f(x_{q−i})‖² + D, in the method's norm (measured
    again from the run's orders if it was recorded in another); the first ν epochs are compared with N²ς².
    The constants come from `estimate` at the points the run visited; θ and φ̄_0 of one-permutation methods
    from the run itself. Balancing methods are promised something only if they sign by a `Walk` whose c
    suffices for all vectors of the run; a c larger than ς asks for makes D larger too.

    Parameters
    ----------
    run
        What `wellorder.sgd` or `wellorder.federated.fedavg` returned.
    method
        The row of the table to check, or a `Constants` of your own; the row that covers the run's policy
        unless given.
    delta
        δ, the probability with which an epoch may fail.

    >>> import wellorder
    >>> from wellorder.problems import quadratics
    >>> run = wellorder.sgd(quadratics(100, spread=0.0), wellorder.GraB(), step_size=1e-5, epochs=9, p=np.inf)
    >>> check = check_assumption(run)
    >>> check.label, check.fraction, check.first_violation, check.promised  # the default rule has no proof
    ('ex:GraB', 1.0, None, False)
    """
    known, exact = constants_of(run, method, delta=delta)
    errors = order_errors(run, known.p) ** 2
    slopes = run.gradient_norm**2
    right = np.full(len(errors), known.D)
    for i, factor in enumerate(known.A, start=1):
        right[i:] += factor * errors[:-i]
    for i, factor in enumerate(known.B):
        right[i:] += factor * slopes[: len(slopes) - i]
    right[: known.nu] = (run.problem.n * known.setting.sigma) ** 2
    allowed = run.step_size <= largest(known) * (1 + ROUNDING) or known.p == 2
    what = f"order error of {known.method}, squared"
    return Check(what, known.label, errors, right, known.epoch_probability, allowed and exact)


def check_drift(run: Run) -> Check:
    """Evaluate the drift lemma on a run (``lem:parameter drift``; ``lem:FL:parameter drift`` for clients).

    Δ_q ≤ (32/31)·γ·(K/S)·(φ̄_q + N·‖∇f(x_q)‖_p + S·ς), the last term for clients only; in the run's own norm.
    """
    found = estimate(run.problem, run.x[:-1])
    if run.p not in (2, np.inf):
        raise ValueError(
            f"run.p={run.p!r}: smoothness is known here for 2 and numpy.inf; record the run with one of them"
        )
    clients = federated(run)
    slopes = np.array([np.linalg.norm(gradient(run.problem, x), ord=run.p) for x in run.x[:-1]])
    scale = 32 / 31 * run.step_size * run.local_steps / run.cohort
    right = scale * (run.order_error + run.problem.n * slopes + clients * run.cohort * found.sigma)
    curved = found.smoothness if run.p == 2 else found.smoothness_inf
    small = run.step_size * curved * run.problem.n * run.local_steps / run.cohort <= 1 / 32 * (1 + ROUNDING)
    label = "lem:FL:parameter drift" if clients else "lem:parameter drift"
    return Check("drift", label, run.drift, right, 1.0, small and _trusted(found.how))


def check_bound(run: Run, method: str | Constants | None = None, *, delta: float = 1e-4) -> Check:
    """Hold min_q ‖∇f(x_q)‖² against Theorem ``thm:SGD`` or ``thm:FL``; entry q is the case Q = q+1.

    Refuses a step size for which nothing is proved: then there is no right side.
    """
    known, exact = constants_of(run, method, delta=delta)
    epochs = len(run.gradient_norm)
    right = np.array([bound(known, run.step_size, q + 1).total for q in range(epochs)])
    left = np.minimum.accumulate(run.gradient_norm**2)
    label = "thm:FL" if known.federated else "thm:SGD"
    return Check(
        f"smallest gradient of {known.method}, squared", label, left, right, known.probability(epochs), exact
    )


def constants_of(
    run: Run, method: str | Constants | None = None, *, delta: float = 1e-4
) -> tuple[Constants, bool]:
    """The constants that a run is to be held against, and whether they are certain."""
    if isinstance(method, Constants):
        return method, True
    found = estimate(run.problem, run.x[:-1])
    name = method or method_of(run.policy, federated=federated(run))
    setting: Keywords = {**found.known, "delta": delta}
    if federated(run):
        setting = {
            **setting, "cohort": run.cohort, "local_steps": run.local_steps, "server_step": run.server_step,
        }  # fmt: skip
    if name in METHODS and METHODS[name].one:
        away = float(np.linalg.norm(run.x[:-1] - run.x[0], axis=1).max())
        setting = {**setting, "theta": away, "first_error": float(order_errors(run, 2)[0])}
    known, fits = _walked(run, constants(name, run.problem.n, **setting))
    return known, fits and _trusted(found.how)


def _walked(run: Run, known: Constants) -> tuple[Constants, bool]:
    """The constants for the run's own sign rule, and whether it is proved.

    A walk with c is proved for vectors no longer than √(c/C), and its reach is C times that. So D holds with
    that length instead of ς, if it is larger, and the run's vectors must not be longer: they are within ς
    of each other's mean at the epoch's first point, plus smoothness times drift where they are stale.
    """
    row, rule = METHODS[known.method], getattr(run.policy, "rule", None)
    if row.p == 2:
        return known, True
    if not isinstance(rule, Walk) or run.p not in (2, math.inf):
        return known, False
    s = known.setting
    times = (2 if row.pairs else 1) * (s.local_steps if row.stale else 1)
    length = math.sqrt(rule.c / s.walk(pairs=row.pairs)) / times
    moved = (2 if row.pairs else 3) * s.two_to(run.p) * float(run.drift.max()) if row.stale else 0.0
    wider = replace(s, sigma=max(s.sigma, length))
    return replace(known, D=row.D(wider)), s.sigma + moved <= length * (1 + ROUNDING)


def federated(run: Run) -> bool:
    """Whether a run has rounds, local steps or an amplified epoch."""
    return not run.cohort == run.local_steps == run.server_step == 1


def order_errors(run: Run, p: float) -> Series:
    """Each epoch's order error in the norm p, measured again where the run was recorded in another."""
    if p == run.p:
        return run.order_error
    return np.array([_measured(run, q, p) for q in range(len(run.orders))])


def _measured(run: Run, q: int, p: float) -> float:
    def rows(units: Any) -> Any:
        return run.problem.gradients(units, run.x[q])

    return order_error(rows, run.orders[q], p=p, every=run.cohort)


def _trusted(how: Any) -> bool:
    """Whether a run's promises stand on these constants: ς over its own points is all that the proofs use."""
    return all(not text.endswith("too small") for text in how.values())
