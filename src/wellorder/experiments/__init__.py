"""Experiments: compare orders on a task, reproduce the paper's figures."""

from wellorder.experiments._compare import Comparison, compare
from wellorder.experiments._folder import RunFolder
from wellorder.experiments._plan import Config
from wellorder.experiments._tasks import ProblemTask, Task, problem_task, task_of
from wellorder.experiments._tuning import Search, two_stage

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
