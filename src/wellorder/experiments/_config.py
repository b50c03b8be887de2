"""What to compare: the options as given, and the plan they resolve to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from wellorder._arguments import instance_of, shown
from wellorder._order import Policy, describe
from wellorder.experiments._known_rows import KNOWN, asks_of
from wellorder.experiments._names import check_policies, named_policies
from wellorder.experiments._tasks import Task, task_of
from wellorder.experiments._tasks.task import checked_task
from wellorder.experiments._training import Settings
from wellorder.policies import REGISTRY, entry_of
from wellorder.report._table import Metric

DEFAULT = tuple(entry.name for entry in REGISTRY if entry.compared)
"""What people would switch on; with these, what the labels allow (see `default_policies`)."""
VERBS = ("needs", "init", "observe", "advance")
TUNING = ("", "baseline", "each")


@dataclass(frozen=True)
class Config:
    """What to compare. None means the task's own default.

    >>> Config(epochs=5).given()
    {'epochs': 5}
    """

    policies: Sequence[str] | Mapping[str, Policy[Any]] | None = None
    """Names, with parameters and labels (``"RR"``, ``"GraB(reorders=2)"``, ``"mine=PairGraB"``), or policies
    by label. Unless given, those that people would switch on: random reshuffling, shuffling once,
    ``stratified`` and ``features`` where the task has labels, `PairGraB`, and `Steering`, the default of
    ``ordered``."""
    epochs: int | None = None
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    step_size: float | None = None
    tune: str = ""
    """Nothing, "baseline" to tune on the baseline and reuse, or "each" to tune every policy."""
    baseline: str | None = None
    """The label to judge against: the first random reshuffling among the policies, else the first of all."""
    cohort: int = 1
    local_steps: int = 1
    server_step: float = 1.0

    @classmethod
    def from_given(cls, data: Mapping[str, Any]) -> Config:
        """Undo `given`; refuses what it cannot have made.

        >>> Config.from_given({"epochs": "5"})
        Traceback (most recent call last):
        ValueError: holds epochs='5'
        """
        instance_of("data", data, Mapping, "pass what Config.given returned")
        for name, value in data.items():
            listed = {"policies": str, "seeds": int}.get(name)
            kinds = {"epochs": int, "cohort": int, "local_steps": int, "tune": str, "baseline": str}
            good = (
                isinstance(value, list) and all(type(entry) is listed for entry in value)
                if listed is not None
                else isinstance(value, kinds.get(name, (int, float))) and not isinstance(value, bool)
            )  # fmt: skip
            if not good or name not in {field.name for field in fields(cls)}:
                raise ValueError(f"holds {name}={shown(value)}")
        return cls(**data)

    def given(self) -> dict[str, Any]:
        """The options that differ from the defaults, as plain data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if "policies" in plain:
            named = plain["policies"]
            labelled = isinstance(named, Mapping)
            plain["policies"] = [f"{k}={describe(p)}" for k, p in named.items()] if labelled else list(named)
        if "seeds" in plain:
            plain["seeds"] = [int(seed) for seed in plain["seeds"]]
        return plain


@dataclass(frozen=True)
class ComparisonPlan:
    """A `Config` resolved for a task, and checked."""

    task: Task
    policies: dict[str, Policy[Any]]
    baseline: str
    seeds: tuple[int, ...]
    tune: str
    settings: Settings

    @property
    def metric(self) -> Metric:
        """The metric to judge by: the task's first."""
        return self.task.metrics[0]

    @property
    def test_metric(self) -> Metric | None:
        """The metric that answers for data that were not trained on: the task's first of these, if any."""
        return next((metric for metric in self.task.metrics if metric.held_out), None)

    @property
    def method(self) -> str:
        """How the task is trained, in words."""
        settings = self.settings
        if settings.cohort > 1 or settings.local_steps > 1 or settings.server_step != 1:
            return f"federated: {settings.cohort} clients a round, {settings.local_steps} local steps"
        return str(getattr(self.task, "method", "SGD, one unit a step"))

    @property
    def policy_texts(self) -> dict[str, str]:
        """The policies as text, by label."""
        return {label: describe(policy) for label, policy in self.policies.items()}

    def described(self) -> dict[str, Any]:
        """The plan as plain data: what two runs must share to be one run."""
        head: dict[str, Any] = {
            "task": self.task.name, "policies": self.policy_texts, "baseline": self.baseline,
        }  # fmt: skip
        fingerprint = getattr(self.task, "fingerprint", None)
        if fingerprint is not None:
            head["problem"] = fingerprint()
        return {**head, "seeds": list(self.seeds), "tune": self.tune, **asdict(self.settings)}


def default_policies(task: Task) -> tuple[str, ...]:
    """The policies that people would switch on for a task.

    >>> from wellorder.experiments import task_of
    >>> default_policies(task_of("digits"))
    ('RandomReshuffling', 'ShuffleOnce', 'PairGraB', 'Steering', 'stratified', 'features')
    """
    known = getattr(task, "knows", ())
    return (*DEFAULT, *(name for name, kind in KNOWN.items() if set(kind.asks) <= set(known)))


def resolve(task: Task | str, config: Config) -> ComparisonPlan:
    """Check everything that can be checked before anything is computed."""
    instance_of("config", config, Config, "pass a wellorder.experiments.Config")
    chosen = task_of(task) if isinstance(task, str) else task
    checked_task(chosen, task)
    asked = default_policies(chosen) if config.policies is None else config.policies
    named = dict(asked) if isinstance(asked, Mapping) else named_policies(asked)
    for label, policy in named.items():
        if not isinstance(label, str) or not label.strip() or not label.isprintable():
            raise ValueError(f"policies: the label {label!r} cannot be shown; pass a line of printable text")
        if isinstance(policy, type) or not all(hasattr(policy, verb) for verb in VERBS):
            raise ValueError(
                f"policies: {label!r} is {policy!r}, not a policy; pass such as wellorder.GraB()"
            )
    if not named:
        raise ValueError("policies=(): pass at least one policy")
    seeds = tuple(config.seeds) if isinstance(config.seeds, Iterable) else ()
    if not seeds or not all(_is_seed(seed) for seed in seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"seeds={config.seeds!r}: pass a list of one or more different whole numbers, 0 to 2**63 - 1"
        )
    if config.tune not in TUNING:
        raise ValueError(f"tune={config.tune!r}: pass 'baseline' or 'each', or nothing")
    if config.tune and config.step_size is not None:
        raise ValueError(f"step_size={config.step_size}: either give the step size or tune it, not both")
    settings = Settings(
        chosen.step_size if config.step_size is None else config.step_size,
        chosen.epochs if config.epochs is None else config.epochs,
        config.cohort, config.local_steps, config.server_step,
    )  # fmt: skip
    units = chosen.check(settings)
    if units is not None:
        check_policies(named, units)
    fits = getattr(chosen, "check_policy", None)
    for label, policy in named.items():
        if fits is not None:
            fits(policy)
        lacking = [what for what in asks_of(policy) if what not in getattr(chosen, "knows", ())]
        if lacking:
            raise ValueError(
                f"policy {label}: {chosen.name} does not tell the {' and '.join(lacking)} of all its "
                "examples before training; leave it out, or pass the data as (x, y)"
            )
    return ComparisonPlan(
        chosen, named, _baseline(named, config.baseline), tuple(map(int, seeds)), config.tune, settings
    )


def _baseline(named: Mapping[str, Policy[Any]], wanted: str | None) -> str:
    entries = {label: entry_of(policy) for label, policy in named.items()}
    reshuffling = [label for label, entry in entries.items() if entry is not None and entry.short == "RR"]
    label = wanted or [*reshuffling, *named][0]
    if label not in named:
        raise ValueError(f"baseline={label!r} is not among the policies: {', '.join(named)}")
    return label


def _is_seed(seed: Any) -> bool:
    """Whether the tables' 64-bit column of seeds can hold it."""
    return isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= int(seed) < 2**63
