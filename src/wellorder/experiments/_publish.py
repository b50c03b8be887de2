"""A finished comparison on disk: summary, pictures and report, all read from its table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wellorder._arguments import instance_of
from wellorder._order import describe
from wellorder._saving import write_text
from wellorder.experiments._compare import Comparison
from wellorder.experiments._config import ComparisonPlan, Config, resolve
from wellorder.experiments._folder import machine, versions
from wellorder.experiments._names import named_policies, policy_of
from wellorder.experiments._tasks import TASKS
from wellorder.experiments._tuning import plot as tuning_curves
from wellorder.report._page import Page, render
from wellorder.report._pictures import costs, picture, save_picture
from wellorder.report._table import curves
from wellorder.report._verdict import Kind, final_values, headline


def publish(done: Comparison) -> Path:
    """Write ``summary.json``, ``report.html`` and the pictures into the run's folder.

    The pictures are ``overview.png``, ``costs.png`` and, where step sizes were searched, ``tuning.png``.
    """
    instance_of("done", done, Comparison, "pass what compare returned")
    if done.folder is None:
        raise ValueError("done: this comparison was kept in no folder; pass out=... to compare")
    path, metrics = done.folder.path, done.plan.task.metrics
    write_text(path / "summary.json", json.dumps(summary(done), indent=2, ensure_ascii=False))
    save_picture(picture(done.table, metrics, done.plan.task.title), path / "overview.png")
    save_picture(costs(done.table, metrics[0], done.plan.task.title), path / "costs.png")
    figures = {}
    if done.searches:
        save_picture(tuning_curves(done.searches, metrics[0]), path / "tuning.png")
        figures["the final value for every step size tried"] = (path / "tuning.png").read_bytes()
    write_text(path / "report.html", render(page_of(done, figures)))
    return path / "report.html"


def summary(done: Comparison) -> dict[str, Any]:
    """The answer as plain data, for scripts: verdicts and final values; what is not finite is null."""
    instance_of("done", done, Comparison, "pass what compare returned")
    finals = {
        label: {m.column: _spread(curves(done.table, label, m.column)) for m in done.plan.task.metrics}
        for label in done.plan.policies
    }
    ratios = ("epochs", "gradients", "seconds", "final")
    kinds = ("kind", "fewer_epochs", "less_time", "whole_time", "test")
    return {
        "task": done.plan.task.name,
        "baseline": done.plan.baseline,
        "headline": headline(done.verdicts, done.plan.baseline),
        "verdicts": [
            {"policy": v.policy, "conclusion": v.conclusion.value, "answers": v.answers,
             **{name: _word(getattr(v, name)) for name in kinds},
             **{name: _finite(getattr(v, name)) for name in ratios},
             "text": v.text}
            for v in done.verdicts
        ],
        "final": finals,
        "step_sizes": done.step_sizes,
        "searches": {label: search.note for label, search in done.searches.items()},
        "tuning": {
            label: [[size, _finite(value)] for size, value in zip(*search.curve(), strict=True)]
            for label, search in done.searches.items()
        },
    }  # fmt: skip


def page_of(done: Comparison, figures: Mapping[str, bytes] | None = None) -> Page:
    """The report of a comparison, with further pictures by what they show."""
    plan, settings = done.plan, done.plan.settings
    sizes = sorted(set(done.step_sizes.values()))
    shared = len(sizes) == 1
    chosen = f"step size {sizes[0]:.3g}" if shared else "step sizes tuned for each policy"
    facts = {
        "Seeds": ", ".join(map(str, plan.seeds)),
        "Step sizes": "; ".join(f"{label} {value:.3g}" for label, value in done.step_sizes.items()),
        "Machine": ", ".join(f"{name} {value}" for name, value in machine().items() if name != "byteorder"),
        "Versions": ", ".join(f"{name} {value}" for name, value in versions().items()),
        "Seconds": "processor time of training and ordering, without compilation and measurements",
        "Bands": "median over seeds, in a band from the least to the largest seed",
        "Data": "table.parquet and timings.parquet (also as CSV) beside this page hold every number shown",
    }
    return Page(
        title=f"Orders compared: {plan.task.title}",
        subtitle=f"{plan.method} · {settings.epochs} epochs · {len(plan.seeds)} seeds · {chosen}",
        table=done.table, metrics=plan.task.metrics, baseline=plan.baseline,
        headline=headline(done.verdicts, plan.baseline), verdicts=done.verdicts, command=command_of(plan),
        notes=_notes(done), how=facts, figures=figures or {},
    )  # fmt: skip


def _notes(done: Comparison) -> list[str]:
    found = [f"{label}: {search.note}." for label, search in done.searches.items()]
    mixed = done.folder.mixed() if done.folder is not None else ""
    return [*found, mixed] if mixed else found


def command_of(plan: ComparisonPlan) -> str:
    """The command that runs the plan again, as far as there is one."""
    settings, named = plan.settings, plan.policy_texts
    texts = [label if _names(label, rule) else f"{label}={rule}" for label, rule in named.items()]
    task = ["--task", plan.task.name] if plan.task.name in TASKS else list(getattr(plan.task, "command", ()))
    if not task or not _make(texts, named):
        return "wellorder.experiments.compare(task, config), with the options of config.json"
    words = ["wellorder", "compare", *task]
    words += [word for text in texts for word in ("--policy", text)]
    words += ["--epochs", str(settings.epochs)]
    if plan.seeds == tuple(range(len(plan.seeds))):
        words += ["--seeds", str(len(plan.seeds))]
    else:
        words += [word for seed in plan.seeds for word in ("--seed", str(seed))]
    words += {"": ["--lr", repr(settings.step_size)], "baseline": ["--tune"], "each": ["--tune-each"]}[
        plan.tune
    ]
    for option, value, usual in (
        ("--cohort", settings.cohort, 1), ("--local-steps", settings.local_steps, 1),
        ("--server-step", settings.server_step, 1.0), ("--baseline", plan.baseline, _usual(plan)),
    ):  # fmt: skip
        words += [] if value == usual else [option, str(value)]
    return shlex.join(words)


def _names(label: str, rule: str) -> bool:
    """Whether the label by itself makes the policy."""
    try:
        return describe(policy_of(label)) == rule
    except ValueError:
        return False


def _make(texts: list[str], named: dict[str, str]) -> bool:
    """Whether the texts, typed, make the described policies under their labels."""
    try:
        return {label: describe(policy) for label, policy in named_policies(texts).items()} == named
    except ValueError:
        return False


def _usual(plan: ComparisonPlan) -> str:
    return resolve(plan.task, Config(policies=plan.policies)).baseline


def _word(kind: Kind | None) -> str | None:
    return None if kind is None else kind.value


def _spread(values: Any) -> dict[str, float | None]:
    ends = final_values(values)
    return {"median": _finite(np.median(ends)), "min": _finite(ends.min()), "max": _finite(ends.max())}


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
