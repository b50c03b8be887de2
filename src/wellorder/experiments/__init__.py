"""Experiments: compare orders on a task of your own or of ours, keep the run as data, publish a report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wellorder._extras import needed_by

with needed_by("wellorder.experiments", "experiments"):
    from wellorder.experiments._compare import Comparison, Watch, compare
    from wellorder.experiments._config import ComparisonPlan, Config
    from wellorder.experiments._folder import RunFolder
    from wellorder.experiments._pool import JobError
    from wellorder.experiments._tasks import ProblemTask, Task, problem_task, task_of
    from wellorder.experiments._training import Settings
    from wellorder.experiments._tuning import Search, two_stage

if TYPE_CHECKING:
    from wellorder.experiments._publish import publish, summary
    from wellorder.experiments._tasks.networks import NetworkTask
    from wellorder.experiments._tasks.tables import table_task

__all__ = [
    "Comparison",
    "ComparisonPlan",
    "Config",
    "JobError",
    "NetworkTask",
    "ProblemTask",
    "RunFolder",
    "Search",
    "Settings",
    "Task",
    "Watch",
    "compare",
    "problem_task",
    "publish",
    "summary",
    "table_task",
    "task_of",
    "two_stage",
]

_LAZY = {
    "NetworkTask": ("wellorder.experiments._tasks.networks", ("torch", "experiments")),
    "table_task": ("wellorder.experiments._tasks.tables", ("torch", "experiments")),
    "publish": ("wellorder.experiments._publish", ("experiments",)),
    "summary": ("wellorder.experiments._publish", ("experiments",)),
}
"""Loaded at first use: worker processes need neither torch nor plotting libraries unless the task does."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extras = _LAZY[name]
    with needed_by(f"wellorder.experiments.{name}", *extras):
        return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return list(__all__)
