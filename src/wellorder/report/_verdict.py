"""Verdicts in plain words: what a table says about each policy against a baseline.

Three questions, each answered over the seeds: fewer epochs? less time, all overhead counted? better on data
that were not trained on? From the answers follows what a person would conclude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from wellorder._arguments import instance_of, shown
from wellorder.report._table import (
    Metric,
    Table,
    checked_metric,
    checked_table,
    curves,
    number,
    policies_of,
)

Floats = npt.NDArray[np.float64]
Pair = tuple[float, float]
LEVEL = 0.03
"""Costs that differ by less are not told apart."""
CLOCKS = 0.8
"""The share of the seeds that must agree about time: clocks are noisy where other work goes on."""
SHARES = {0.1: "a tenth", 0.2: "a fifth", 0.25: "a quarter", 1 / 3: "a third", 0.5: "half"}
COST = Metric("cost", "cost")


class Kind(Enum):
    """What the seeds allow to be said about one quantity."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference"
    UNJUDGED = "not judged"


class Conclusion(Enum):
    """What a person would conclude."""

    WORTH = "worth it"
    TRADE = "a gain that costs time"
    COSTLY = "not worth its time"
    EVEN = "no clear gain"
    WORSE = "worse"
    UNJUDGED = "not judged"


@dataclass(frozen=True)
class Verdict:
    """One policy against the baseline; ratios are lower medians over seeds, NaN where most missed it."""

    policy: str
    baseline: str
    kind: Kind
    """Of the final value of the judged metric alone; `conclusion` weighs everything."""
    fewer_epochs: Kind
    """Of the epochs that it took to reach the baseline's final value; better is fewer."""
    less_time: Kind | None
    """Of the seconds that it took, all overhead counted; None where the table has no clock."""
    whole_time: Kind | None
    """Of the seconds of all epochs; None where the table has no clock."""
    test: Kind | None
    """Of the final value on data that were not trained on; None where there are none."""
    conclusion: Conclusion
    answers: str
    """The three answers in words."""
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


@np.errstate(over="ignore")  # a run on its way to infinity has values whose squares are there already
def verdicts(table: Table, metric: Metric, baseline: str, test: Metric | None = None) -> list[Verdict]:
    """Judge every other policy of ``table`` against ``baseline`` by ``metric``; best final value first.

    ``test`` is the metric of data that were not trained on, if there is one; it may be ``metric`` itself.

    Seeds are paired: a seed's data and start are the same for all policies. A difference is outside the
    seeds' spread if all seeds agree on its sign and the 95 % t-interval of the paired differences (of the
    logarithms, for a metric on a log axis that is positive throughout) leaves out zero. Seeds in which one of
    the two diverged are counted in words; with fewer than two others nothing is judged, and a policy that
    diverged more often than the baseline is not called better.
    """
    checked_metric(metric, checked_table(table))
    if test is not None:
        checked_metric(test, table, "test")
    names = policies_of(table)
    if not isinstance(baseline, str) or baseline not in names:
        raise ValueError(f"baseline={shown(baseline)} is not in the table; choose one of {', '.join(names)}")
    ends = {name: final_values(_values(table, metric, name)) for name in names}
    logs = metric.log and all(bool((end > 0).all()) for end in ends.values())
    found = [_judge(table, metric, test, name, baseline, logs) for name in names if name != baseline]
    sign = 1.0 if metric.lower_is_better else -1.0
    return sorted(found, key=lambda v: sign * float(np.median(ends[v.policy])))


def headline(found: Sequence[Verdict], baseline: str) -> str:
    """What a person would conclude from all verdicts, in one sentence."""
    if not isinstance(found, list | tuple) or not all(isinstance(v, Verdict) for v in found):
        raise ValueError(f"found={shown(found)}: pass a list of what verdicts returned")
    instance_of("baseline", baseline, str, "pass the label of a policy")
    if not found:
        return f"{baseline} alone was trained: nothing to compare."
    if all(v.kind is Kind.UNJUDGED for v in found):
        return _unjudged(found, baseline)
    judged = sorted((v for v in found if v.kind is not Kind.UNJUDGED), key=_by_use)
    best, also = judged[0], [v.policy for v in judged[1:] if v.conclusion is Conclusion.WORTH]
    if best.conclusion is Conclusion.WORTH or (best.conclusion is not Conclusion.WORSE and _gains(best)):
        line = f"{best.policy}: {best.answers}: {best.conclusion.value}"
        line += f" (so {'is' if len(also) == 1 else 'are'} {_listed(also)})" if also else ""
    else:
        nearest = best.policy if len(found) == 1 else f"the nearest is {best.policy}"
        line = f"No policy is worth it here; {nearest}: {best.answers}"
    lost = {baseline: found[0].baseline_lost} | {v.policy: v.lost for v in found}
    diverged = [f"{name} in {count} of {found[0].seeds} seeds" for name, count in lost.items() if count]
    return f"{line}. Diverged: {_listed(diverged)}." if diverged else f"{line}."


def _gains(v: Verdict) -> bool:
    return Kind.BETTER in (v.kind, v.fewer_epochs, v.test)


def _by_use(v: Verdict) -> tuple[int, bool, float]:
    """What a person would look at first: by conclusion, then gains before none, then the cheapest."""
    rank = (Conclusion.WORTH, Conclusion.TRADE, Conclusion.EVEN, Conclusion.COSTLY, Conclusion.WORSE)
    cost = v.epochs if np.isnan(v.seconds) else v.seconds
    return rank.index(v.conclusion), not _gains(v), np.inf if np.isnan(cost) else cost


def _unjudged(found: Sequence[Verdict], baseline: str) -> str:
    seeds = found[0].seeds
    if found[0].baseline_lost == seeds:
        who = "All policies" if all(v.lost == seeds for v in found) else baseline
        return f"{who} diverged in every seed: nothing to judge; try a smaller --lr."
    if found[0].baseline_lost or any(v.lost for v in found):
        return "Runs diverged, and too few seeds are left to judge: try a smaller --lr."
    return "One seed has no spread: take more seeds to judge a difference."


def _judge(
    table: Table, metric: Metric, test: Metric | None, policy: str, baseline: str, logs: bool
) -> Verdict:
    """Judge one policy against the baseline, by ratios or by differences."""
    mine, theirs = (_values(table, metric, name) for name in (policy, baseline))
    if mine.shape != theirs.shape:
        raise ValueError(
            f"{policy}: {mine.shape} seeds and epochs, {baseline}: {theirs.shape}; compare equal runs"
        )
    ends, target = final_values(mine), final_values(theirs)
    both = np.isfinite(ends) & np.isfinite(target)
    differences = np.log(ends[both] / target[both]) if logs else ends[both] - target[both]
    lost, theirs_lost = (int((~np.isfinite(values)).sum()) for values in (ends, target))
    kind = _kind(metric, differences)
    if kind is Kind.BETTER and lost > theirs_lost:
        kind = Kind.UNJUDGED
    at, theirs_at = _first(metric, mine, target), _first(metric, theirs, target)
    spent = {
        name: (_at(curves(table, policy, name), at), _at(curves(table, baseline, name), theirs_at))
        for name in ("epoch", "gradients", "seconds")
        if name in table.column_names
    }
    middle_seed = {name: _middle(*pair) for name, pair in spent.items()}
    cost = {name: mine / theirs if theirs else np.nan for name, (mine, theirs) in middle_seed.items()}
    clock = "seconds" in spent
    whole = tuple(curves(table, name, "seconds" if clock else "epoch")[:, -1] for name in (policy, baseline))
    middle = float(np.median(differences)) if len(differences) else np.nan
    verdict = Verdict(
        policy=policy,
        baseline=baseline,
        kind=kind,
        fewer_epochs=_cost_kind(*spent["epoch"]),
        less_time=_cost_kind(*spent["seconds"], agreeing=CLOCKS) if clock else None,
        whole_time=_cost_kind(whole[0], whole[1], CLOCKS) if clock else None,
        test=None if test is None else _test_kind(table, test, policy, baseline),
        conclusion=Conclusion.UNJUDGED,
        answers="",
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
    told = _costs_in_words(verdict, middle_seed)
    told.append(
        _ended(test or metric, verdict, *(_end(table, test or metric, n) for n in (policy, baseline)))
    )
    if verdict.whole_time is Kind.WORSE and verdict.less_time not in (Kind.BETTER, Kind.WORSE):
        pair = _middle(whole[0], whole[1])
        told.append(f"all epochs {_amount(pair[0] / pair[1], Kind.WORSE, 'time', '', durations(*pair))}")
    return replace(
        verdict,
        conclusion=_conclusion(verdict),
        answers=", ".join(told),
        text=_text(metric, verdict),
    )


def _cost_kind(mine: Floats, theirs: Floats, agreeing: float = 1.0) -> Kind:
    """Whether a cost differs over the seeds in which the baseline paid one; not to arrive costs the most."""
    known = np.isfinite(theirs) & (theirs > 0)
    if known.sum() < 2:
        return Kind.UNJUDGED
    ratios = mine[known] / theirs[known]
    if abs(np.quantile(ratios, 0.5, method="lower") - 1) < LEVEL:
        return Kind.SAME
    if not np.isfinite(ratios).all():
        return Kind.WORSE if (ratios > 1).all() else Kind.SAME
    logs: Floats = np.log(np.maximum(ratios, 1e-12))
    return _kind(COST, logs, agreeing)


def _test_kind(table: Table, test: Metric, policy: str, baseline: str) -> Kind:
    ends, target = (final_values(_values(table, test, name)) for name in (policy, baseline))
    both = np.isfinite(ends) & np.isfinite(target)
    return _kind(test, ends[both] - target[both])


def _end(table: Table, metric: Metric, policy: str) -> float:
    return float(np.median(final_values(_values(table, metric, policy))))


def _conclusion(v: Verdict) -> Conclusion:
    """Worth it: less time, or a better end (on test data if there are any) in no more time."""
    if v.kind is Kind.UNJUDGED:
        return Conclusion.UNJUDGED
    time = v.fewer_epochs if v.less_time is None else v.less_time
    if v.test is Kind.WORSE or (v.kind is Kind.WORSE and v.test is not Kind.BETTER):
        return Conclusion.WORSE
    end = v.kind if v.test is None else v.test
    dear = Kind.WORSE in (time, v.whole_time)
    if time is Kind.BETTER or (end is Kind.BETTER and not dear):
        return Conclusion.WORTH
    if v.test is Kind.BETTER or (end is Kind.BETTER and time is not Kind.WORSE):
        return Conclusion.TRADE
    if time is Kind.WORSE:
        return Conclusion.COSTLY if _gains(v) else Conclusion.WORSE
    return Conclusion.EVEN


def _costs_in_words(v: Verdict, spent: Mapping[str, Pair]) -> list[str]:
    """Fewer epochs? less time? As people say it, with both values."""
    if np.isnan(v.epochs):
        often = f"gets as far as {v.baseline} in {v.reached} of {v.seeds} seeds"
        return [f"nothing to reach, for {v.baseline} made no progress" if v.risen else often]
    counts = "{:.0f} against {:.0f}".format(*spent["epoch"])
    told = [_amount(v.epochs, v.fewer_epochs, "epochs", "fewer", counts, v.baseline)]
    if v.less_time is not None and not np.isnan(v.seconds):  # a clock may be too coarse for it
        told.append(_amount(v.seconds, v.less_time, "time", "less", durations(*spent["seconds"])))
    return told


def _ended(metric: Metric, v: Verdict, mine: float, theirs: float) -> str:
    """The third answer: where it ended, on test data if there are any; "better" is left to the reader."""
    kind, what = (v.kind, f"final {metric.label}") if v.test is None else (v.test, metric.label)
    both = [number(value, metric) for value in (mine, theirs)]
    if kind not in (Kind.BETTER, Kind.WORSE):
        same = both[0] == both[1]
        return (
            f"same {what} ({both[0]})"
            if same
            else f"no clear difference in {what} ({' against '.join(both)})"
        )
    lower, more = (kind is Kind.BETTER) == metric.lower_is_better, 0
    while both[0] == both[1] and more < 12:  # "lower (1.41 against 1.41)" would be no answer
        more += 1
        both = [number(value, metric, more) for value in (mine, theirs)]
    return f"{'lower' if lower else 'higher'} {what} ({' against '.join(both)})"


def _amount(ratio: float, kind: Kind, what: str, less: str, values: str, whose: str = "") -> str:
    """A ratio as people say it, and the two values that it comes from.

    >>> [_amount(r, Kind.BETTER, "epochs", "fewer", f"{50 * r:.0f} against 50", "RR") for r in (0.52, 0.6)]
    ["about half of RR's epochs (26 against 50)", '40 % fewer epochs than RR (30 against 50)']
    >>> [_amount(r, Kind.WORSE, "time", "less", f"{r} s against 1 s") for r in (1.3, 2.3)]
    ['30 % more time (1.3 s against 1 s)', '2.3 times the time (2.3 s against 1 s)']
    """
    if kind not in (Kind.BETTER, Kind.WORSE):
        return f"no clear difference in {what} ({values})"
    owned, than = (f"{whose}'s {what}", f" than {whose}") if whose else (f"the {what}", "")
    near = next((name for share, name in SHARES.items() if abs(ratio / share - 1) <= 0.1), None)
    if near is not None:
        return f"about {near} of {owned} ({values})"
    if ratio >= 1.95:
        return f"{ratio:.1f} times {owned} ({values})"
    return f"{abs(100 * (1 - ratio)):.0f} % {less if ratio < 1 else 'more'} {what}{than} ({values})"


def durations(mine: float, theirs: float) -> str:
    """Two durations in the unit that suits the longer one.

    >>> durations(0.0123, 0.02), durations(90, 150), durations(3600, 9000)
    ('12 ms against 20 ms', '1.5 min against 2.5 min', '1.0 h against 2.5 h')
    """
    units = ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"))
    size, unit = next((each for each in units if max(mine, theirs) >= 2 * each[0]), units[-1])
    pair = [value / size for value in (mine, theirs)]
    digits = 0 if min(pair) >= 10 else 1 if min(pair) >= 1 else 2
    return " against ".join(f"{value:.{digits}f} {unit}" for value in pair)


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


def _kind(metric: Metric, differences: Floats, agreeing: float = 1.0) -> Kind:
    """Judge paired differences, of which at least the share ``agreeing`` must have one sign."""
    if len(differences) < 2:
        return Kind.UNJUDGED
    if max((differences > 0).sum(), (differences < 0).sum()) < agreeing * len(differences):
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


def _middle(mine: Floats, theirs: Floats) -> Pair:
    """What both paid in the seed whose ratio is the lower median; NaN unless half of the seeds got there."""
    known = np.flatnonzero(np.isfinite(theirs) & (theirs > 0))
    if not len(known):
        return np.nan, np.nan
    at = known[np.argsort(mine[known] / theirs[known], kind="stable")[(len(known) - 1) // 2]]
    return (float(mine[at]), float(theirs[at])) if np.isfinite(mine[at]) else (np.nan, np.nan)


def _text(metric: Metric, v: Verdict) -> str:
    """The small print: who got there, and whether chance would do as much."""
    lost = _diverged(v)
    if not v.pairs:
        return f"{lost}: no seed is left to judge; try a smaller --lr."
    spread = {
        Kind.BETTER: "yes, in its favour",
        Kind.WORSE: "yes, against it",
        Kind.SAME: "no, so no difference is shown",
        Kind.UNJUDGED: "cannot be told from one seed",
    }[v.kind]
    if v.kind is Kind.UNJUDGED and v.pairs > 1:
        spread = "not judged, for it diverged more often"
    how = f"{lost}; where neither did, {_reached(metric, v)}" if lost else _reached(metric, v)
    return f"{how}; difference of its final {metric.label} outside the seeds' spread: {spread}."


def _reached(metric: Metric, v: Verdict) -> str:
    """In how many seeds the policy met the baseline's final value."""
    what, often = f"{v.baseline}'s final {metric.label}", f"in {v.reached} of {v.seeds} seeds"
    if np.isnan(v.epochs) and v.risen:
        return f"{v.baseline} made no progress, so there is nothing for {v.policy} to reach"
    if not v.reached:
        return f"{v.policy} did not reach {what}"
    only = "only " if v.reached < v.seeds else ""
    return f"{v.policy} reached {what} {only}{often}"


def _diverged(v: Verdict) -> str:
    counts = {v.policy: v.lost, v.baseline: v.baseline_lost}
    lost = [f"{name} diverged in {count} of {v.seeds} seeds" for name, count in counts.items() if count]
    return _listed(lost) if lost else ""


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
