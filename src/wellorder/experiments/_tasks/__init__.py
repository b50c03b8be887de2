"""Tasks to compare orders on, by name."""

from __future__ import annotations

from importlib import import_module

from wellorder._arguments import flag, instance_of, path_of, shown
from wellorder._extras import needed_by
from wellorder.experiments._names import meant
from wellorder.experiments._tasks.task import ProblemTask, Task, problem_task

TASKS = {
    "quadratics": "wellorder.experiments._tasks.embedded:quadratics",
    "digits": "wellorder.experiments._tasks.embedded:digits",
    "digits-mlp": "wellorder.experiments._tasks.embedded:digits_mlp",
    "fashion-mnist": "wellorder.experiments._tasks.networks:fashion_mnist",
    "fashion-mnist-logistic": "wellorder.experiments._tasks.networks:fashion_mnist_logistic",
    "cifar10": "wellorder.experiments._tasks.networks:cifar10",
    "cifar10-cnn": "wellorder.experiments._tasks.networks:cifar10_cnn",
}
"""Where each task is made: a module and a function without arguments. Modules are imported on demand."""


def task_of(name: str, *, folder: str | None = None, download: bool = False) -> Task:
    """Make the task called ``name``; one that reads official files finds them in ``folder``.

    Without one they are in ``$WELLORDER_DATA``; ``download`` fetches them if they are missing.

    >>> task_of("digit")
    Traceback (most recent call last):
    ValueError: task 'digit' is unknown; did you mean digits?
    """
    instance_of("name", name, str, f"pass one of {', '.join(TASKS)}")
    flag("download", download)
    if folder is not None:
        path_of("folder", folder)
    if name not in TASKS:
        raise ValueError(f"task {shown(name)} is unknown; {meant(name, list(TASKS))}")
    module, function = TASKS[name].split(":")
    try:
        with needed_by(f"task {name!r}", "torch", "experiments"):
            make = getattr(import_module(module), function)
            if module.endswith("networks"):
                task: Task = make(folder=folder, download=download)
            elif folder is not None or download:
                raise ValueError(f"task {name!r} comes with its data; leave out --data and --download")
            else:
                task = make()
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    return task


__all__ = ["TASKS", "ProblemTask", "Task", "problem_task", "task_of"]
