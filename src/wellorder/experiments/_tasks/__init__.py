"""Tasks to compare orders on, by name."""

from __future__ import annotations

from importlib import import_module

from wellorder._arguments import flag, instance_of, path_of, shown
from wellorder._extras import needed_by
from wellorder.experiments._names import meant
from wellorder.experiments._tasks.task import ProblemTask, Task, problem_task

HERE = "wellorder.experiments._tasks"
TASKS = {
    "quadratics": (f"{HERE}.embedded:quadratics", "1,000 one-dimensional quadratics, those of Figure 1"),
    "digits": (f"{HERE}.embedded:digits", "logistic regression on handwritten digits"),
    "digits-mlp": (f"{HERE}.embedded:digits_mlp", "a network with 32 hidden units on handwritten digits"),
    "fashion-mnist": (f"{HERE}.official:fashion_mnist", "LeNet on Fashion-MNIST's official files"),
    "fashion-mnist-logistic": (f"{HERE}.official:fashion_mnist_logistic", "logistic regression on the same"),
    "cifar10": (f"{HERE}.official:cifar10", "LeNet on CIFAR-10's official files"),
    "cifar10-cnn": (f"{HERE}.official:cifar10_cnn", "a CNN with 0.8 million parameters on the same"),
}
"""Where each task is made, a module and a function imported on demand, and a few words about it."""


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
    module, function = TASKS[name][0].split(":")
    try:
        with needed_by(f"task {name!r}", "torch", "experiments"):
            make = getattr(import_module(module), function)
            if module.endswith("official"):
                task: Task = make(folder=folder, download=download)
            elif folder is not None or download:
                raise ValueError(f"task {name!r} comes with its data; leave out --data and --download")
            else:
                task = make()
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    return task


__all__ = ["TASKS", "ProblemTask", "Task", "problem_task", "task_of"]
