"""When to observe an epoch; and orders made ahead, in the background, while an epoch shows nothing."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from wellorder._arguments import shown, whole_number
from wellorder._order import Order, Policy, remembers
from wellorder._waiting import PATIENCE, say_progress, waiting_for

Observe = str | int | Callable[[int], bool]
Schedule = Callable[[int], bool]
CURE = (
    'pass "auto", "always", a function from the epoch to True or False (such as {0, 4}.__contains__), or, to '
    "observe every so-manyth epoch"
)


def doubling(epoch: int) -> bool:
    """Whether an epoch is 0, 1, 2, 4, 8, 16, …: rows age slowly once training settles.

    >>> [epoch for epoch in range(40) if doubling(epoch)]
    [0, 1, 2, 4, 8, 16, 32]
    """
    return epoch & (epoch - 1) == 0 if epoch else True


def always(_: int) -> bool:
    """Every epoch."""
    return True


def schedule_of(observe: Any, policy: Policy[Any]) -> Schedule:
    """Settle which epochs are observed; a policy that learns and remembers nothing must see them all."""
    if isinstance(observe, str):
        if observe not in ("auto", "always"):
            raise ValueError(f"observe={shown(observe)}: {CURE}, an int >= 1")
        return doubling if observe == "auto" and remembers(policy) else always
    if policy.needs.at_visits() and not remembers(policy):
        raise ValueError(
            f"observe={shown(observe)}: {type(policy).__name__} needs signals at every visit of every epoch; "
            'use Steering() or Herding(), which remember them, or observe="always"'
        )
    if callable(observe):
        return lambda epoch: bool(observe(epoch))
    every = whole_number("observe", observe, least=1, cure=CURE)
    return lambda epoch: epoch % every == 0


def makes_orders_in_parts(policy: Policy[Any]) -> bool:
    """Whether a policy's ``advancing`` gives the order of its `advance` part by part.

    Not if it was inherited, and `advance` was not.
    """
    kinds = type(policy).__mro__
    advancing = next((kind for kind in kinds if "advancing" in vars(kind)), None)
    return advancing is not None and advancing is next(kind for kind in kinds if "advance" in vars(kind))


class StateInTheMaking:
    """A policy's state that a thread makes of the one before, which may be in the making, too.

    The kernels work without the interpreter's lock, so that training goes on meanwhile. The thread is a
    daemon: a process that ends, or is told to, does not wait for it. One that was forked has no such thread:
    there, whoever waits makes the state.
    """

    def __init__(self, before: Any, epoch: int, name: str) -> None:
        self.epoch = epoch
        self._before, self._process = before, os.getpid()
        self._made: list[Any] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _UNDERWAY.add(self)

    def get(self) -> Any:
        """Wait for the state; an error in the making is raised here."""
        while not self._wait(PATIENCE):
            self._say()
        made, error = self._made
        if error is not None:
            raise error
        return made

    def end(self, seconds: float | None = None) -> None:
        """Wait for the thread."""
        # Not by `join` alone: before Python 3.13 one that is interrupted takes a thread at work for ended.
        if self._wait(seconds):
            self._thread.join(seconds)

    def _wait(self, seconds: float | None) -> bool:
        """Wait until the state is made, but no longer; says whether it is."""
        self._make_in_a_fork()
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._made, seconds))

    def _make_in_a_fork(self) -> None:
        """Make the state here, if the thread that was at it is another process's."""
        if self._process == os.getpid():
            return
        self._process, self._changed = os.getpid(), threading.Condition()  # who held the other is not here
        if not self._made:
            self._run()

    def _say(self) -> None:
        """Tell whoever waits long that something is under way."""

    def _run(self) -> None:
        before = self._before
        try:
            if isinstance(before, StateInTheMaking):
                before._wait(None)  # nobody who would want to be told waits here
                before = before.get()
            made = [self._make(before), None]
        except BaseException as error:  # whatever it is, it is the caller's to see
            made = [None, error]
        with self._changed:
            self._made, self._before = made, None
            self._changed.notify_all()

    def _make(self, state: Any) -> Any:
        raise NotImplementedError


_UNDERWAY: weakref.WeakSet[StateInTheMaking] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_UNDERWAY.clear)  # a forked process has none of these threads


def let_threads_end(kind: type[StateInTheMaking] = StateInTheMaking, seconds: float | None = None) -> None:
    """Wait for every state of this kind that is in the making, for any loader in this process.

    To be called before a fork: a process that is forked has this thread alone. What another one held, a lock
    of the memory's or of a compiler's, nobody lets go there, and a data loader's worker might wait for ever.
    """
    until = None if seconds is None else time.monotonic() + seconds
    for each in list(_UNDERWAY):
        if isinstance(each, kind) and each._thread is not threading.current_thread():
            each.end(None if until is None else max(0.0, until - time.monotonic()))


class NextState(StateInTheMaking):
    """The state of the next epoch, made while this one runs.

    `advance` of a policy that remembers leaves the old state valid, so that saving and reporting go on
    meanwhile. Where a policy gives its order part by part, an epoch can begin before it is whole.
    """

    def __init__(self, policy: Policy[Any], before: Any) -> None:
        self._policy: Any = policy
        self._parts: list[Order] = []
        self._count = len(before.order) if hasattr(before, "order") else 0
        super().__init__(before, before.epoch + 1, "wellorder-next-order")

    def batches(self, size: int, count: int) -> Iterator[list[int]]:
        """The order as it is made, ``size`` units ``count`` times, the last time what is left."""
        rest: Order = np.zeros(0, np.int32)
        used = 0
        for _ in range(count):
            while len(rest) < size and (part := self._part(used)) is not None:
                rest, used = np.concatenate([rest, part]), used + 1
            yield rest[:size].tolist()
            rest = rest[size:]

    def _part(self, number: int) -> Order | None:
        """Wait for a part of the order; None after the last."""
        self._make_in_a_fork()
        with self._changed:
            while not self._changed.wait_for(lambda: len(self._parts) > number or self._made, PATIENCE):
                self._say()
            if len(self._parts) > number:
                return self._parts[number]
        self.get()  # raises what went wrong
        return None

    def _say(self) -> None:
        say_progress(self.epoch, sum(map(len, self._parts)), self._count)

    def _make(self, state: Any) -> Any:
        self._parts = []  # in a fork there may be some already
        return advanced(self._policy, state, self._take)

    def _take(self, part: Order) -> None:
        with self._changed:
            self._parts.append(part)
            self._changed.notify_all()


def advanced(policy: Any, state: Any, take: Callable[[Order], None] | None = None) -> Any:
    """A policy's state in the next epoch; ``take`` is given its order part by part, where there are parts.

    Without ``take``, says now and then how far it is.
    """
    if not makes_orders_in_parts(policy):
        if take is not None:  # in a thread, whose result others wait for
            return policy.advance(state)
        with waiting_for(state.epoch + 1):
            return policy.advance(state)
    advancing: Generator[Order, None, Any] = policy.advancing(state)
    made, said = 0, time.monotonic()
    while True:
        try:
            part = next(advancing)
        except StopIteration as end:
            return end.value
        made += len(part)
        if take is not None:
            take(part)
        elif time.monotonic() > said + PATIENCE:
            say_progress(state.epoch + 1, made, len(state.order))
            said = time.monotonic()
