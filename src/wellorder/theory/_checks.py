"""Holding a recorded run against the theory, both sides of every inequality, and what of it was promised."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from wellorder._arguments import numbers, shown
from wellorder._kernels.sign_rules import Walk
from wellorder._measure import order_error
from wellorder._order import is_permutation
from wellorder._training import Run
from wellorder.problems import gradient
from wellorder.theory._bounds import bound, largest
from wellorder.theory._constants import METHODS, Constants, Method, check_rounds, constants, method_of
from wellorder.theory._estimates import Estimate, estimate
from wellorder.theory._setting import Keywords, Setting

Series = npt.NDArray[np.float64]
ROUNDING = 1e-9
EPS = float(np.finfo(np.float64).eps)
STORED = 2.0**-24
"""How far a number kept in float32, as Herding keeps its rows, may be off, relative to itself."""


@dataclass(frozen=True, eq=False)
class Check:
    """An inequality left ≤ right, evaluated once or once an epoch."""

    what: str
    label: str
    """The LaTeX label of the statement, or the heading of ``docs/theory.md`` that proves it."""
    left: Series
    right: Series
    probability: float
    """With what probability each entry is promised; 1 for certain."""
    reasons: tuple[str, ...] = ()
    """Why nothing is promised; empty where the statement's conditions were all met."""
    rounding: Series | float = field(default=0.0, repr=False)
    """How far float64 may have taken the two sides apart."""

    @property
    def promised(self) -> bool:
        """Whether the statement is proved for this run: its policy, sign rule, step size, exact constants."""
        return not self.reasons

    @property
    def slack(self) -> Series:
        """Right minus left."""
        return self.right - self.left

    @property
    def holds(self) -> npt.NDArray[np.bool_]:
        """Where the inequality holds, up to rounding."""
        near = ROUNDING * np.maximum(np.abs(self.left), np.abs(self.right)) + self.rounding
        return np.asarray(self.left <= self.right + near)

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
    """Evaluate the order-error assumption on a run (Assumption 1; for clients, at rounds' ends).

    Entry q compares φ̄_q² with ΣA_i·φ̄_{q−i}² + ΣB_i·‖∇f(x_{q−i})‖² + D, in the method's norm (measured
    again from the run's orders if it was recorded in another); the first ν epochs are compared with N²ς².
    The constants come from `estimate` at the points the run visited; θ and φ̄_0 of one-permutation methods
    and Herding's ρ from the run itself. Balancing methods are promised something only if they sign by a
    `Walk` whose c suffices for all vectors of the run; a c larger than ς asks for makes D larger too.

    Parameters
    ----------
    run
        What `wellorder.sgd` or `wellorder.federated.fedavg` returned; or, with a `Constants` of your own,
        `wellorder.federated.simulate` (then this is `check_order_errors`).
    method
        The row of the table to check, or a `Constants`, which must be for this N and these rounds; the row
        that covers the run's policy unless given. Any other row than that, AP and (for one permutation) OP
        is a comparison: ``reasons`` says so.
    delta
        δ, the probability with which an epoch may fail.

    >>> import wellorder
    >>> from wellorder.problems import quadratics
    >>> run = wellorder.sgd(quadratics(100, spread=0.0), wellorder.GraB(), step_size=1e-5, epochs=9, p=np.inf)
    >>> check = check_assumption(run)
    >>> check.fraction, check.first_violation, check.promised
    (1.0, None, False)
    >>> check.reasons
    ('rule=Deterministic() has no proof: the lemmas are about Walk(c)',)
    """
    recorded: Any = run
    if not isinstance(recorded, Run) and hasattr(recorded, "order_error"):
        if not isinstance(method, Constants):
            raise ValueError(
                f"method={shown(method)}: the constants of a network are not known; pass constants(…) with "
                "your own guess of ς, and the run's n, cohort, local_steps and server_step"
            )
        if hasattr(recorded, "config"):  # a simulation; what a loader reports has no rounds
            settings = recorded.config
            shape = (settings.cohort, settings.local_steps, settings.server_step)
            _same_shape(method, (recorded.orders.shape[1], *shape))
        return check_order_errors(recorded.order_error, method)
    known, found, reasons = _held_against(run, method, delta)
    if any(known.A) or any(known.B):
        reasons += _step_size(run, known)
    errors = order_errors(run, known.p)
    noise = _noise(run, found)
    return Check(
        f"order error of {known.method}, squared", known.label, errors**2,
        _right_side(known, errors, run.gradient_norm), known.epoch_probability, tuple(reasons),
        2 * errors * noise + noise**2,
    )  # fmt: skip


def check_order_errors(
    errors: npt.ArrayLike, known: Constants, gradient_norms: npt.ArrayLike | None = None
) -> Check:
    """Hold order errors that were measured elsewhere against the assumption with these constants.

    For runs that are not on a `wellorder.problems` problem, such as the ``order_error`` of what
    `wellorder.torch.ordered` reports. Nothing is promised of them: they are measured on sketches and along
    the way, and a network's constants are not known.

    Parameters
    ----------
    errors
        φ̄_0, φ̄_1, … in the norm that ``known.p`` says.
    known
        What `constants` returned, with your own guess of ς.
    gradient_norms
        ‖∇f(x_0)‖₂, ‖∇f(x_1)‖₂, …; left out, they count as 0, which makes the right side smaller.

    >>> from wellorder.theory import constants
    >>> check_order_errors([30.0, 12.0, 6.0], constants("PairGraB", 1000, sigma=0.1)).first_violation
    """
    if not isinstance(known, Constants):
        raise ValueError(f"known={shown(known)}: pass what wellorder.theory.constants returned")
    series = numbers("errors", errors, cure="pass finite order errors of 0 or more, one an epoch")
    slopes = np.zeros_like(series)
    if gradient_norms is not None:
        slopes = numbers("gradient_norms", gradient_norms, cure="pass one number an epoch")
    if series.ndim != 1 or not series.size or not np.isfinite(series).all() or series.min() < 0:
        raise ValueError(
            f"errors of shape {series.shape}: pass finite order errors of 0 or more, one an epoch"
        )
    if slopes.shape != series.shape:
        raise ValueError(f"gradient_norms of shape {slopes.shape}: pass one for each of {series.size} errors")
    return Check(
        f"order error of {known.method}, squared", known.label, series**2, _right_side(known, series, slopes),
        known.epoch_probability,
        ("order errors from elsewhere: nobody knows whether the constants are theirs", *known.caveats),
    )  # fmt: skip


def check_drift(run: Run) -> Check:
    """Evaluate the drift lemma on a run.

    Δ_q ≤ (32/31)·γ·(K/S)·(φ̄_q + N·‖∇f(x_q)‖_p + S·ς), the last term for clients only; in the run's own norm.
    """
    _checked_run(run)
    if not run.p >= 2:
        raise ValueError(
            f"run.p={run.p!r}: the lemma is about norms p >= 2; record the run with p=2 or p=inf"
        )
    found = _estimate(run)
    s = Setting(run.problem.n, **_setting_of(run, found))
    check_rounds(s)
    clients = federated(run)
    slopes = np.array([np.linalg.norm(gradient(run.problem, x), ord=run.p) for x in run.x[:-1]])
    scale = 32 / 31 * run.step_size * run.local_steps / run.cohort
    right = scale * (run.order_error + run.problem.n * slopes + clients * run.cohort * found.sigma)
    reasons = _outside(run) + _guessed(found, gap=False)
    if run.step_size * s.to_itself(run.p) * s.n * s.local_steps / s.cohort > 1 / 32 * (1 + ROUNDING):
        reasons.append(f"step_size={run.step_size:g}: the lemma needs γ·L_p·N·K/S of 1/32 or less")
    label = "lem:FL:parameter drift" if clients else "lem:parameter drift"
    far = np.linalg.norm(run.x[:-1], axis=1) + run.drift
    rounding = 8 * EPS * s.n * s.local_steps * far + scale * _noise(run, found)
    return Check("drift", label, run.drift, right, 1.0, tuple(reasons), rounding)


def check_bound(run: Run, method: str | Constants | None = None, *, delta: float = 1e-4) -> Check:
    """Hold min_q ‖∇f(x_q)‖² against Theorem 1, for clients Theorem 2; entry q is the case Q = q+1.

    Refuses a step size for which nothing is proved: then there is no right side.
    """
    known, found, reasons = _held_against(run, method, delta, gap=True)
    if run.proximal:
        reasons.append(f"proximal={run.proximal:g}: the theorems are about runs without a proximal step")
    epochs = len(run.gradient_norm)
    bounds = [bound(known, run.step_size, q + 1) for q in range(epochs)]
    left = np.minimum.accumulate(run.gradient_norm**2)
    noise = _noise(run, found)
    height = EPS * (abs(run.problem.value(run.x[0])) + found.gap)
    lost = np.array([8 * height * b.descent for b in bounds]) / max(known.setting.gap, height, math.ulp(0.0))
    return Check(
        f"smallest gradient of {known.method}, squared", "thm:FL" if known.federated else "thm:SGD", left,
        np.array([b.total for b in bounds]), known.probability(epochs), tuple(reasons),
        lost + 2 * run.gradient_norm * noise + noise**2,
    )  # fmt: skip


def _right_side(known: Constants, errors: Series, slopes: Series) -> Series:
    right = np.full(len(errors), known.D)
    for i, factor in enumerate(known.A, start=1):
        right[i:] += factor * errors[:-i] ** 2
    for i, factor in enumerate(known.B):
        right[i:] += factor * slopes[: len(slopes) - i] ** 2
    right[: known.nu] = (known.setting.n * known.setting.sigma) ** 2
    return right


def _held_against(
    run: Run, method: str | Constants | None, delta: float, *, gap: bool = False
) -> tuple[Constants, Estimate, list[str]]:
    """The constants that a run is to be held against, what it showed, and why they are no promise for it."""
    _checked_run(run)
    if method is not None and not isinstance(method, str | Constants):
        raise ValueError(f"method={shown(method)}: pass a row's name, such as 'RR', or a Constants")
    found = _estimate(run)
    given = method.method if isinstance(method, Constants) else method
    clients = federated(run)
    covering = _covering(run, clients, asked=given is None)
    row = METHODS.get(given or covering)
    facts = _setting_of(run, found, row) | cast(Keywords, {"delta": delta})
    reasons = _outside(run) + _guessed(found, gap=gap)
    if row is not None:
        if row.federated and not clients:  # one client a round, one step: Algorithm 2 is Algorithm 1
            covering = _covering(run, True, asked=False)
        facts |= _own_numbers(run, row) if row.name == covering else {}
    if isinstance(method, Constants):
        _same_shape(method, (run.problem.n, run.cohort, run.local_steps, run.server_step))
        known = method
        reasons += _claimed(known, row, Setting(run.problem.n, **facts), gap=gap)
    else:
        known = constants(given or covering, run.problem.n, **facts)
    if row is not None:
        reasons += _uncovered(run, row, covering, known)
    return known, found, reasons


def _checked_run(run: Any) -> None:
    if not isinstance(run, Run):
        raise ValueError(f"run={shown(run)}: pass what wellorder.sgd or wellorder.federated.fedavg returned")


def _covering(run: Run, clients: bool, *, asked: bool) -> str:
    """The row that covers the run's policy; where none does, a refusal if it was ``asked`` for, else AP."""
    try:
        return method_of(run.policy, federated=clients, n=run.problem.n, cohort=run.cohort)
    except ValueError:
        if asked:
            raise
        return "FL-AP" if clients else "AP"


def _uncovered(run: Run, row: Method, covering: str, known: Constants) -> list[str]:
    """Why a row of the table is no promise for this run; nothing if it is one."""
    reasons = []
    kept = bool((run.orders == run.orders[0]).all())
    general = row.name in ("AP", "FL-AP") or (row.name in ("OP", "FL-OP") and kept)
    if row.expected:
        reasons.append(f"{row.name} is about the mean over runs, and this is one of them")
    elif not general and row.name != covering:
        reasons.append(f"{row.name} is not the row of {run.policy!r}, which is {covering}: a comparison")
    elif row.one and not kept:
        reasons.append(f"{row.name} is about one order for all epochs, and they differ")
    measured = row.one and known.setting.first_error is not None
    if row.walks and not measured and not reasons:
        reasons += _unwalked(run, row, known.setting)
    if (any(known.A) or any(known.B)) and run.proximal:
        reasons.append(f"proximal={run.proximal:g}: the relation between epochs does not know that step")
    return reasons


def _unwalked(run: Run, row: Method, s: Setting) -> list[str]:
    """Why the run's sign rule is not proved: it must be the walk, with a c for vectors as long as the run's.

    They are within ς of each other's mean at the epoch's first point, plus smoothness times the way since.
    """
    rule = getattr(run.policy, "rule", None)
    if type(rule) is not Walk:
        return [f"rule={rule!r} has no proof: the lemmas are about Walk(c)"]
    if s.c != rule.c:
        return [f"c={s.c!r}: the run's rule is {rule!r}"]
    if row.name.endswith("Herding"):
        behind = 2 * s.two_to(math.inf) * (s.moved or _moved(run, s))
    else:
        behind = (
            (2 if row.pairs else 3) * s.two_to(max(run.p, 2)) * float(run.drift.max()) if row.stale else 0.0
        )
    if s.sigma + behind <= row.length(s) * (1 + ROUNDING):
        return []
    return [
        f"c={rule.c:g} is proved for deviations up to {row.length(s):.3g} alone, and this run's may reach "
        f"{s.sigma + behind:.3g}; pass Walk(c) with c of {row.least_c(s, s.sigma + behind):.4g} or more"
    ]


def _same_shape(known: Constants, mine: tuple[int, int, int, float]) -> None:
    """Refuse constants of another N, cohort, number of local steps or amplification than the run's."""
    s = known.setting
    theirs = (s.n, s.cohort, s.local_steps, s.server_step)
    if theirs != mine:
        names = ("n", "cohort", "local_steps", "server_step")
        other = ", ".join(
            f"{k}={a:g} (the run: {b:g})" for k, a, b in zip(names, theirs, mine, strict=True) if a != b
        )
        raise ValueError(f"method={known.method!r} with {other}: make the constants for this run's shape")


def _claimed(known: Constants, row: Method | None, facts: Setting, *, gap: bool) -> list[str]:
    """What a `Constants` claims that is not proved, or less than the run showed."""
    if row is None:
        return list(known.caveats)
    s = known.setting
    proved = constants(row.name, s.n, **_keywords(s))
    if _bare(known) not in (_bare(proved), _bare(proved.tight())):
        return [f"A, B, D, c₁, c₂ or the limits are not those of {row.name}"]
    pairs = {
        "dim": (s.dim, facts.dim),
        "sigma": (s.sigma, facts.sigma),
        "smoothness": (s.smoothness, facts.smoothness),
        "smoothness_2inf": (s.two_to(math.inf), facts.two_to(math.inf) if row.p == math.inf else 0.0),
        "smoothness_inf": (s.to_itself(math.inf), facts.to_itself(math.inf) if row.p == math.inf else 0.0),
        "theta": (s.theta, facts.theta if row.one else 0.0),
        "gap": (s.gap, facts.gap if gap else 0.0),
    }
    if row.one and s.first_error is not None:
        pairs["first_error"] = (s.first_error, facts.first_error or 0.0)
    if s.moved is not None:
        pairs["moved"] = (s.moved, facts.moved or 0.0)
    if row.walks and s.passes != facts.passes and not (row.one and s.first_error is not None):
        return [f"passes={s.passes}: the run's policy has passes={facts.passes}"]
    return [
        f"{name}={mine:g}: the run showed {seen:g}"
        for name, (mine, seen) in pairs.items()
        if mine < seen * (1 - ROUNDING)
    ]


def _bare(known: Constants) -> tuple[Any, ...]:
    return tuple(getattr(known, f.name) for f in fields(known) if f.name != "caveats")


def _keywords(s: Setting) -> Keywords:
    return cast(Keywords, {f.name: getattr(s, f.name) for f in fields(s) if f.name != "n"})


def _setting_of(run: Run, found: Estimate, row: Method | None = None) -> Keywords:
    """What the run showed, as far as the row asks for it."""
    setting = found.known
    if federated(run):
        setting = {
            **setting, "cohort": run.cohort, "local_steps": run.local_steps, "server_step": run.server_step,
        }  # fmt: skip
    if row is not None and row.one:
        away = float(np.linalg.norm(run.x[:-1] - run.x[0], axis=1).max())
        setting = {**setting, "theta": away, "first_error": float(order_errors(run, 2)[0])}
    if row is not None and row.name.endswith("Herding"):
        setting = {**setting, "moved": _moved(run, Setting(run.problem.n, **setting))}
    return setting


def _own_numbers(run: Run, row: Method) -> Keywords:
    """The policy's own passes, and its walk's c."""
    rule, numbers = getattr(run.policy, "rule", None), Keywords()
    if row.walks and hasattr(run.policy, "passes"):
        numbers["passes"] = run.policy.passes
    if row.walks and type(rule) is Walk:
        numbers["c"] = rule.c
    return numbers


def _moved(run: Run, s: Setting) -> float:
    """ρ: how far x_q is from where its rows were seen, an epoch ago, at most; float32 counts as a way too."""
    if len(run.x) < 3:
        return 0.0
    there = np.abs(np.diff(run.x[:-1], axis=0)).max(axis=1) + run.drift[:-1]
    longest = run.gradient_norm[:-1] + s.sigma + s.two_to(max(run.p, 2)) * run.drift[:-1]
    return float((there + STORED * longest / s.to_itself(math.inf)).max())


def _step_size(run: Run, known: Constants) -> list[str]:
    if run.step_size <= largest(known) * (1 + ROUNDING):
        return []
    return [f"step_size={run.step_size:g}: {known.method} is proved for {largest(known):.6g} or less"]


def _outside(run: Run) -> list[str]:
    """What the run did that neither theorem knows."""
    reasons = [f"{what}: the theorems do not know it" for what in run.extras]
    if not all(is_permutation(order, run.problem.n) for order in run.orders):
        reasons.append("an order was no permutation of the units")
    return reasons


def _guessed(found: Estimate, *, gap: bool) -> list[str]:
    """Which constants rest on probes; ς over the run's own points is all that the proofs use."""
    return [
        f"{name} is an estimate ({how})"
        for name, how in found.how.items()
        if how.endswith("too small") and (gap or name != "gap")
    ]


def _estimate(run: Run) -> Estimate:
    if not (
        np.isfinite(run.x[:-1]).all() and np.isfinite(run.order_error).all() and np.isfinite(run.drift).all()
    ):
        raise ValueError(
            f"run: it diverged with step_size={run.step_size:g}, so nothing can be checked; take a smaller"
        )
    return estimate(run.problem, run.x[:-1])


def _noise(run: Run, found: Estimate) -> Series:
    """How far rounding may take an epoch's order error: n gradients, which may be small by cancellation."""
    terms = run.gradient_norm + found.sigma + found.smoothness * np.linalg.norm(run.x[:-1], axis=1)
    return np.asarray(8 * EPS * run.problem.n * terms)


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
