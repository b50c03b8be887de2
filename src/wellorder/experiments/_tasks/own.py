"""A task of the user's own, by where it stands: ``mytask.py:task``, or ``package.module:task``."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from wellorder.experiments._named_object import made_object, named_object

EXAMPLE = "mytask.py:task"
USUAL = ("network", "problem")
"""Names that nobody chose."""


class OwnTask:
    """A task that travels as the text that names it: the other process imports the file itself.

    So nothing in the file needs to be picklable. All that a task is asked for is the user's task's.
    """

    def __init__(self, place: str, home: str, typed: str, task: Any) -> None:
        self.place, self.home, self.typed, self.task = place, home, typed, task
        stem = Path(place.rpartition(":")[0]).stem
        self.name = stem if task.name in USUAL else task.name
        self.title = typed if task.title in USUAL else task.title
        self.command = [typed]

    def __reduce__(self) -> Any:
        return _task_at, (self.place, self.home, self.typed)

    def __getattr__(self, part: str) -> Any:
        if part in ("task", "__setstate__"):
            raise AttributeError(part)
        return getattr(self.task, part)

    def fingerprint(self) -> dict[str, Any]:
        """The task's own, and a hash of the file that makes it."""
        own: dict[str, Any] = getattr(self.task, "fingerprint", dict)()
        return {**own, "source": hashlib.sha256(_file(self.place).read_bytes()).hexdigest()[:16]}


def own_task(text: str) -> OwnTask:
    """The task that ``FILE.py:NAME`` or ``MODULE:NAME`` names: an object, or a function that makes one."""
    place, _, name = text.rpartition(":")
    if place.endswith(".py"):
        place = str(Path(place).resolve())
    return _task_at(f"{place}:{name}", str(Path.cwd()), text)


@lru_cache(maxsize=4)
def _task_at(place: str, home: str, typed: str) -> OwnTask:
    """Import a task; once in each process, so that its data are loaded once."""
    if home not in sys.path:
        sys.path.insert(0, home)
    found = named_object(place if Path(place).is_absolute() else typed, EXAMPLE)
    task = made_object(found, typed, "a task", is_task)
    return OwnTask(place, home, typed, task)


def is_task(found: Any) -> bool:
    """Whether something is a task, not a function or class that makes one.

    >>> is_task(print)
    False
    """
    return not isinstance(found, type) and hasattr(found, "train") and hasattr(found, "check")


def _file(place: str) -> Path:
    module = place.rpartition(":")[0]
    if module.endswith(".py"):
        return Path(module)
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):  # noqa: PTH113
        raise ValueError(f"{place}: {module} has no source file to remember; put the task into a .py file")
    return Path(spec.origin)
