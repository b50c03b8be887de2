"""Jobs on worker processes, with every row reported as it is made; or on anybody's executor."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from wellorder._order import Policy
from wellorder.experiments._tasks.task import Task
from wellorder.experiments._training import Settings

EpochRow = dict[str, float]


@dataclass(frozen=True)
class Job:
    """One training run: a policy, a seed, and how to train."""

    task: Task
    label: str
    policy: Policy[Any]
    seed: int
    settings: Settings


@dataclass(frozen=True)
class JobEvent:
    """What a job said: a row, or (``row`` is None) that it has ended."""

    job: int
    row: EpochRow | None


class JobError(RuntimeError):
    """A job raised an exception; the message carries the worker's traceback."""


def train(job: Job, warm: set[str]) -> Iterator[EpochRow]:
    """Yield a job's rows, after warming up if the task can and the policy is new to this process."""
    warm_up = getattr(job.task, "warm_up", None)
    known = f"{job.task.name} {job.policy!r}"
    if warm_up is not None and known not in warm:
        warm.add(known)
        warm_up(job.policy, job.seed, job.settings)
    yield from job.task.train(job.policy, job.seed, job.settings)


def work_off(jobs: Sequence[Job], processes: int, executor: Executor | None = None) -> Iterator[JobEvent]:
    """Run all jobs on so many processes (1: in this one) or an executor; reports of jobs may interleave."""
    if executor is not None:
        yield from _submitted(jobs, executor)
        return
    if processes <= 1 or len(jobs) <= 1:
        warm: set[str] = set()
        for number, job in enumerate(jobs):
            for row in _explained(job, warm):
                yield JobEvent(number, row)
            yield JobEvent(number, None)
        return
    _check_travel(jobs)
    workers: list[tuple[Connection, Any]] = []
    try:
        for _ in range(min(processes, len(jobs))):
            workers.append(_hire())  # noqa: PERF401  (each is known at once, to be ended)
        yield from _serve(jobs, dict(workers))
    finally:
        for line, process in workers:
            line.close()
            process.terminate()
        for _, process in workers:
            process.join()


_ONE_AT_A_TIME, _WARM = threading.Lock(), set[str]()


def train_whole(job: Job) -> list[EpochRow]:
    """All rows of a job, where an executor runs it.

    Threads of one process take turns: they would share its clock and its random numbers.
    """
    with _ONE_AT_A_TIME:
        return list(train(job, _WARM))


def _submitted(jobs: Sequence[Job], executor: Executor) -> Iterator[JobEvent]:
    futures: dict[Any, int] = {}
    try:
        for number, job in enumerate(jobs):
            futures[_sent(executor, job)] = number
        for done in as_completed(futures):
            job = jobs[futures[done]]
            try:
                rows = done.result()
            except Exception as error:
                raise JobError(f"{job.label}, seed {job.seed}: {type(error).__name__}: {error}") from error
            for row in rows:
                yield JobEvent(futures[done], row)
            yield JobEvent(futures[done], None)
    finally:
        for future in futures:
            future.cancel()


def _sent(executor: Executor, job: Job) -> Any:
    try:
        return executor.submit(train_whole, job)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{job.label} cannot travel to the executor ({error}); use functions of a module"
        ) from error


def _explained(job: Job, warm: set[str]) -> Iterator[EpochRow]:
    try:
        yield from train(job, warm)
    except Exception as error:
        raise JobError(f"{job.label}, seed {job.seed}: {error}") from error


def _serve(jobs: Sequence[Job], workers: dict[Any, Any]) -> Iterator[JobEvent]:
    waiting, idle = list(range(len(jobs)))[::-1], list(workers)
    busy: dict[Any, int] = {}
    while waiting or busy:
        while waiting and idle:
            free, number = idle.pop(), waiting.pop()
            free.send(jobs[number])
            busy[free] = number
        for ready in wait(list(busy)):
            line: Any = ready
            number = busy[line]
            try:
                kind, value = line.recv()
            except (EOFError, ConnectionError):
                raise JobError(f"a worker process died while training {jobs[number].label}") from None
            if kind == "error":
                raise JobError(value)
            yield JobEvent(number, value)
            if value is None:
                del busy[line]
                idle.append(line)


def _hire() -> tuple[Connection, Any]:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_line, args=(theirs,), daemon=True)
    with _uninterrupted():
        process.start()
    theirs.close()
    return ours, process


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back: children are born deaf to it, and this process hears of it afterwards.

    A mask is one thread's, and Ctrl-C may come to another, such as a linear algebra library's: so the main
    thread notes it meanwhile.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # when it starts, it lets signals through again
    heard: list[Any] = []
    usual = signal.getsignal(signal.SIGINT)
    listens = callable(usual) and threading.current_thread() is threading.main_thread()
    if listens:
        signal.signal(signal.SIGINT, lambda *what: heard.append(what))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if listens:
            signal.signal(signal.SIGINT, usual)
            if heard and callable(usual):
                usual(*heard[0])


def _serve_line(line: Connection) -> None:
    """Train whatever comes in; ends when the other side does, whatever killed it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm: set[str] = set()
    with suppress(EOFError, ConnectionError):
        while True:
            job = line.recv()
            try:
                for row in train(job, warm):
                    line.send(("row", row))
                line.send(("row", None))
            except (EOFError, ConnectionError):
                raise
            except Exception:
                line.send(("error", traceback.format_exc()))
    os._exit(0)


def _check_travel(jobs: Sequence[Job]) -> None:
    for job in {job.label: job for job in jobs}.values():
        try:
            pickle.dumps(job)
        except Exception as error:
            raise ValueError(f"{job.label} cannot travel to a worker process ({error}); use jobs=1") from None
