"""Verdicts in plain words: what a table says about each policy against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from wellorder.report.table import Metric, Table, curves, policies_of

Floats = npt.NDArray[np.float64]


class Kind(Enum):
    """What the seeds allow to be said."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference"
    UNJUDGED = "not judged"


@dataclass(frozen=True)
class Verdict:
    """One policy against the baseline; ratios are medians over seeds, NaN where half missed the target."""

    policy: str
    baseline: str
    kind: Kind
    epochs: float
    """Epochs to the baseline's final value, as a fraction of the epochs that the baseline took."""
    gradients: float
    seconds: float
    final: float
    """The final value as a multiple of the baseline's (log metrics), or the difference to it."""
    ratio: bool
    """Whether ``final`` is a multiple."""
    reached: int
    """In how many of the seeds the baseline's final value was reached."""
    seeds: int
    lost: int
    """In how many of the seeds the policy diverged."""
    text: str


def final_values(values: Floats) -> Floats:
    """Where each seed ended: the median of its last tenth of epochs (at least the last one).

    >>> final_values(np.array([[3.0, 2.0, 1.0]]))
    array([1.])
    """
    return _ahead(values)[:, -1]


def verdicts(table: Table, metric: Metric, baseline: str) -> list[Verdict]:
    """Judge every other policy of ``table`` against ``baseline`` by ``metric``; best final value first.

    Seeds are paired: a seed's data and start are the same for all policies. A difference is outside the
    seeds' spread if all seeds agree on its sign and the 95 % t-interval of the paired differences (of the
    logarithms, for a metric on a log axis) leaves out zero. One seed has no spread and is not judged.
    """
    names = policies_of(table)
    if baseline not in names:
        raise ValueError(f"baseline={baseline!r} is not in the table; choose one of {', '.join(names)}")
    found = [judge(table, metric, name, baseline) for name in names if name != baseline]
    sign = 1.0 if metric.lower_is_better else -1.0
    return sorted(found, key=lambda v: np.inf if np.isnan(v.final) else sign * v.final)


def headline(found: Sequence[Verdict], baseline: str) -> str:
    """All verdicts in one sentence."""
    if not found:
        return f"{baseline} alone was trained: nothing to compare."
    better = [v for v in found if v.kind is Kind.BETTER]
    if all(v.kind is Kind.UNJUDGED for v in found):
        return "One seed has no spread: take more seeds to judge a difference."
    if not better:
        return f"No policy does better than {baseline} here, outside the seeds' spread."
    best, names = better[0], _listed([v.policy for v in better])
    line = f"{names} {'does' if len(better) == 1 else 'do'} better than {baseline} here"
    if np.isfinite(best.epochs) and best.epochs < 1:
        line += f": {best.policy} needs {best.epochs:.2f} of its epochs"
    return line + "."


def judge(table: Table, metric: Metric, policy: str, baseline: str) -> Verdict:
    """Judge one policy against the baseline."""
    mine, theirs = (_worst_if_lost(metric, curves(table, name, metric.column)) for name in (policy, baseline))
    if mine.shape != theirs.shape:
        raise ValueError(
            f"{policy}: {mine.shape} seeds and epochs, {baseline}: {theirs.shape}; compare equal runs"
        )
    ends, target = final_values(mine), final_values(theirs)
    logs = metric.log and bool((ends > 0).all() and (target > 0).all())
    both = np.isfinite(ends) & np.isfinite(target)
    differences = np.log(ends[both] / target[both]) if logs else (ends - target)[both]
    kind = _kind(metric, ends, target, differences)
    at, theirs_at = _first(metric, mine, target), _first(metric, theirs, target)
    cost = {
        name: _ratio(_at(curves(table, policy, name), at), _at(curves(table, baseline, name), theirs_at))
        for name in ("epoch", "gradients", "seconds")
        if name in table.column_names
    }
    middle = float(np.median(differences)) if len(differences) else np.nan
    verdict = Verdict(
        policy=policy,
        baseline=baseline,
        kind=kind,
        epochs=cost["epoch"],
        gradients=cost.get("gradients", np.nan),
        seconds=cost.get("seconds", np.nan),
        final=float(np.exp(middle)) if logs else middle,
        ratio=logs,
        reached=int((at >= 0).sum()),
        seeds=len(ends),
        lost=int((~np.isfinite(ends)).sum()),
        text="",
    )
    return replace(verdict, text=_text(metric, verdict))


def summary_line(table: Table, metric: Metric, policy: str) -> tuple[float, float, float]:
    """Median, least and largest final value of a policy over its seeds."""
    ends = final_values(curves(table, policy, metric.column))
    return float(np.median(ends)), float(ends.min()), float(ends.max())


def _ahead(values: Floats) -> Floats:
    """Medians of each epoch and those after it, a tenth of all, as far as there are so many."""
    width = max(1, (values.shape[1] - 1) // 10)
    windows = np.lib.stride_tricks.sliding_window_view(values, width, axis=1)
    medians: Floats = np.median(windows, axis=2)
    return medians


def _worst_if_lost(metric: Metric, values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.inf if metric.lower_is_better else -np.inf)


def _kind(metric: Metric, ends: Floats, target: Floats, differences: Floats) -> Kind:
    lost, theirs = (~np.isfinite(ends)).sum(), (~np.isfinite(target)).sum()
    if lost != theirs:
        return Kind.WORSE if lost > theirs else Kind.BETTER
    if len(differences) < 2:
        return Kind.UNJUDGED
    if not (np.all(differences > 0) or np.all(differences < 0)):
        return Kind.SAME
    from scipy.special import stdtrit  # slow to import, and workers never judge

    half = stdtrit(len(differences) - 1, 0.975) * differences.std(ddof=1) / np.sqrt(len(differences))
    if abs(differences.mean()) <= half:
        return Kind.SAME
    return Kind.BETTER if (differences.mean() < 0) == metric.lower_is_better else Kind.WORSE


def _first(metric: Metric, values: Floats, target: Floats) -> npt.NDArray[np.intp]:
    """Each seed's first epoch at its target, if the median of a tenth of all epochs from there on is too; or −1.

    One lucky epoch of a curve that jumps about does not count, and no epoch before the target is met does.
    Windows that would leave the run end with it.
    """
    steady = _ahead(values)
    steady = np.pad(steady, ((0, 0), (0, values.shape[1] - steady.shape[1])), mode="edge")
    goal = target[:, None]
    slow = (
        np.maximum(values, steady) <= goal if metric.lower_is_better else np.minimum(values, steady) >= goal
    )
    there = slow & np.isfinite(goal)
    return np.where(there.any(axis=1), there.argmax(axis=1), -1)


def _at(costs: Floats, epochs: npt.NDArray[np.intp]) -> Floats:
    return np.where(epochs < 0, np.inf, costs[np.arange(len(costs)), epochs])


def _ratio(mine: Floats, theirs: Floats) -> float:
    """Median over seeds; NaN unless at least half of them reached the target."""
    known = np.isfinite(theirs) & (theirs > 0)
    middle = float(np.median(mine[known] / theirs[known])) if known.any() else np.nan
    return middle if np.isfinite(middle) else np.nan


def _text(metric: Metric, v: Verdict) -> str:
    what, final = f"{v.baseline}'s final {metric.label}", f"its own final {metric.label}"
    if v.lost:
        return f"{v.policy} diverged in {v.lost} of {v.seeds} seeds."
    if np.isnan(v.epochs):
        how = f"{v.policy} did not reach {what}"
    else:
        how = f"{v.policy} reached {what} in {v.epochs:.2f} of its epochs"
        if not np.isnan(v.seconds):
            how += f" and {v.seconds:.2f} of its time"
    if v.reached < v.seeds and not np.isnan(v.epochs):
        how += f" (in {v.reached} of {v.seeds} seeds)"
    size = (
        f"{final} is {v.final:.3g} times as large"
        if v.ratio
        else f"{final} differs by {_signed(metric, v.final)}"
    )
    spread = {Kind.UNJUDGED: "cannot be told from one seed", Kind.SAME: "no, so no difference is shown"}
    return (
        f"{how}; {size}; difference outside the seeds' spread: {spread.get(v.kind, f'yes, {v.kind.value}')}."
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _signed(metric: Metric, value: float) -> str:
    return f"{100 * value:+.2f} points" if metric.percent else f"{value:+.3g}"
