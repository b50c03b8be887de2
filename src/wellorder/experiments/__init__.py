"""Experiments: compare orders on a task, reproduce the paper's figures."""

from wellorder.experiments.compare import Comparison, compare
from wellorder.experiments.folder import RunFolder
from wellorder.experiments.plan import Config
from wellorder.experiments.tasks import ProblemTask, Task, problem_task, task_of
from wellorder.experiments.tuning import Search, two_stage

__all__ = [
    "Comparison",
    "Config",
    "ProblemTask",
    "RunFolder",
    "Search",
    "Task",
    "compare",
    "problem_task",
    "task_of",
    "two_stage",
]
