"""Verdicts in plain words: what a table says about each policy against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from wellorder.report._table import Metric, Table, curves, policies_of

Floats = npt.NDArray[np.float64]


class Kind(Enum):
    """What the seeds allow to be said."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference"
    UNJUDGED = "not judged"


@dataclass(frozen=True)
class Verdict:
    """One policy against the baseline; ratios are lower medians over seeds, NaN where most missed it."""

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
    baseline_lost: int
    """In how many of the seeds the baseline diverged."""
    pairs: int
    """In how many of the seeds neither did: these are judged."""
    risen: int
    """In how many of the seeds the baseline ended no better than it began: there is nothing to reach."""
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
    logarithms, for a metric on a log axis that is positive throughout) leaves out zero. Seeds in which one of
    the two diverged are counted in words; with fewer than two others nothing is judged, and a policy that
    diverged more often than the baseline is not called better.
    """
    names = policies_of(table)
    if baseline not in names:
        raise ValueError(f"baseline={baseline!r} is not in the table; choose one of {', '.join(names)}")
    ends = {name: final_values(_values(table, metric, name)) for name in names}
    logs = metric.log and all(bool((end > 0).all()) for end in ends.values())
    found = [_judge(table, metric, name, baseline, logs) for name in names if name != baseline]
    sign = 1.0 if metric.lower_is_better else -1.0
    return sorted(found, key=lambda v: sign * float(np.median(ends[v.policy])))


def headline(found: Sequence[Verdict], baseline: str) -> str:
    """All verdicts in one sentence."""
    if not found:
        return f"{baseline} alone was trained: nothing to compare."
    if all(v.kind is Kind.UNJUDGED for v in found):
        return _unjudged(found, baseline)
    better = [v for v in found if v.kind is Kind.BETTER]
    if not better:
        line = f"No policy does better than {baseline} here, outside the seeds' spread"
    else:
        best, names = better[0], _listed([v.policy for v in better])
        line = f"{names} {'does' if len(better) == 1 else 'do'} better than {baseline} here"
        if np.isfinite(best.epochs) and best.epochs < 1:
            line += f": {best.policy} needs {best.epochs:.2f} of its epochs"
    lost = {baseline: found[0].baseline_lost} | {v.policy: v.lost for v in found}
    diverged = [f"{name} in {count} of {found[0].seeds} seeds" for name, count in lost.items() if count]
    return f"{line}. Diverged: {_listed(diverged)}." if diverged else f"{line}."


def _unjudged(found: Sequence[Verdict], baseline: str) -> str:
    seeds = found[0].seeds
    if found[0].baseline_lost == seeds:
        who = "All policies" if all(v.lost == seeds for v in found) else baseline
        return f"{who} diverged in every seed: nothing to judge; try a smaller --lr."
    if found[0].baseline_lost or any(v.lost for v in found):
        return "Runs diverged, and too few seeds are left to call a policy better: try a smaller --lr."
    return "One seed has no spread: take more seeds to judge a difference."


def _judge(table: Table, metric: Metric, policy: str, baseline: str, logs: bool) -> Verdict:
    """Judge one policy against the baseline, by ratios or by differences."""
    mine, theirs = (_values(table, metric, name) for name in (policy, baseline))
    if mine.shape != theirs.shape:
        raise ValueError(
            f"{policy}: {mine.shape} seeds and epochs, {baseline}: {theirs.shape}; compare equal runs"
        )
    ends, target = final_values(mine), final_values(theirs)
    both = np.isfinite(ends) & np.isfinite(target)
    differences = np.log(ends[both] / target[both]) if logs else (ends - target)[both]
    lost, theirs_lost = (int((~np.isfinite(values)).sum()) for values in (ends, target))
    kind = _kind(metric, differences)
    if kind is Kind.BETTER and lost > theirs_lost:
        kind = Kind.UNJUDGED
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
        lost=lost,
        baseline_lost=theirs_lost,
        pairs=int(both.sum()),
        risen=int((theirs_at == 0).sum()),
        text="",
    )
    return replace(verdict, text=_text(metric, verdict))


def _ahead(values: Floats) -> Floats:
    """Medians of each epoch and those after it, a tenth of all, as far as there are so many."""
    width = max(1, (values.shape[1] - 1) // 10)
    windows = np.lib.stride_tricks.sliding_window_view(values, width, axis=1)
    medians: Floats = np.median(windows, axis=2)
    return medians


def _values(table: Table, metric: Metric, policy: str) -> Floats:
    """A policy's curves, where what is not finite is the worst there is."""
    values = curves(table, policy, metric.column)
    return np.where(np.isfinite(values), values, np.inf if metric.lower_is_better else -np.inf)


def _kind(metric: Metric, differences: Floats) -> Kind:
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
    """Each seed's first epoch at its target, if the median of the tenth of a run from there is too; or −1.

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
    """Lower median over seeds; NaN unless at least half of them reached the target."""
    known = np.isfinite(theirs) & (theirs > 0)
    middle = float(np.quantile(mine[known] / theirs[known], 0.5, method="lower")) if known.any() else np.nan
    return middle if np.isfinite(middle) else np.nan


def _text(metric: Metric, v: Verdict) -> str:
    lost = _diverged(v)
    if not v.pairs:
        return f"{lost}: no seed is left to judge; try a smaller --lr."
    size = f"is {v.final:.3g} times as large" if v.ratio else f"differs by {_signed(metric, v.final)}"
    spread = {
        Kind.BETTER: "yes, better",
        Kind.WORSE: "yes, worse",
        Kind.SAME: "no, so no difference is shown",
        Kind.UNJUDGED: "cannot be told from one seed",
    }[v.kind]
    if v.kind is Kind.UNJUDGED and v.pairs > 1:
        spread = "not judged, for it diverged more often"
    how = f"{lost}; where neither did, {_reached(metric, v)}" if lost else _reached(metric, v)
    return f"{how}; its own final {metric.label} {size}; difference outside the seeds' spread: {spread}."


def _reached(metric: Metric, v: Verdict) -> str:
    """Whether, how soon, and in how many seeds the policy met the baseline's final value."""
    what, often = f"{v.baseline}'s final {metric.label}", f"in {v.reached} of {v.seeds} seeds"
    if np.isnan(v.epochs) and v.risen:
        return f"{v.baseline} ended no better than it began, so there is nothing for {v.policy} to reach"
    if not v.reached:
        return f"{v.policy} did not reach {what}"
    if np.isnan(v.epochs):
        return f"{v.policy} reached {what} only {often}"
    how = f"{v.policy} reached {what} in {v.epochs:.2f} of its epochs"
    if not np.isnan(v.seconds):
        how += f" and {v.seconds:.2f} of its time"
    return how if v.reached == v.seeds else f"{how} ({often})"


def _diverged(v: Verdict) -> str:
    counts = {v.policy: v.lost, v.baseline: v.baseline_lost}
    lost = [f"{name} diverged in {count} of {v.seeds} seeds" for name, count in counts.items() if count]
    return _listed(lost) if lost else ""


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _signed(metric: Metric, value: float) -> str:
    return f"{100 * value:+.2f} points" if metric.percent else f"{value:+.3g}"
