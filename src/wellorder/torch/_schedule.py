"""When to observe an epoch; and orders made ahead, in the background, while an epoch shows nothing."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from wellorder._arguments import shown, whole_number
from wellorder._order import Order, Policy, remembers

Observe = str | int | Callable[[int], bool]
Schedule = Callable[[int], bool]


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
            raise ValueError(
                f'observe={shown(observe)}: pass "auto", "always", an int (every so-manyth epoch), or a '
                "function from the epoch to True or False"
            )
        return doubling if observe == "auto" and remembers(policy) else always
    if policy.needs.at_visits() and not remembers(policy):
        raise ValueError(
            f"observe={shown(observe)}: {type(policy).__name__} needs signals at every visit of every epoch; "
            'use Steering() or Herding(), which remember them, or observe="always"'
        )
    if callable(observe):
        return lambda epoch: bool(observe(epoch))
    every = whole_number("observe", observe, least=1, cure='observe every so-manyth epoch, or pass "auto"')
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
    daemon: a process that ends, or is told to, does not wait for it.
    """

    def __init__(self, before: Any, epoch: int, name: str) -> None:
        self.epoch = epoch
        self._made: list[Any] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(before,), name=name, daemon=True)
        _UNDERWAY.add(self)
        self._thread.start()

    def get(self) -> Any:
        """Wait for the state; an error in the making is raised here."""
        self._thread.join()
        made, error = self._made
        if error is not None:
            raise error
        return made

    def _run(self, before: Any) -> None:
        try:
            made = [self._make(before.get() if isinstance(before, StateInTheMaking) else before), None]
        except BaseException as error:  # whatever it is, it is the caller's to see
            made = [None, error]
        with self._changed:
            self._made = made
            self._changed.notify_all()

    def _make(self, state: Any) -> Any:
        raise NotImplementedError


_UNDERWAY: weakref.WeakSet[StateInTheMaking] = weakref.WeakSet()


def let_threads_end(kind: type[StateInTheMaking] = StateInTheMaking, seconds: float | None = None) -> None:
    """Wait for every state of this kind that is in the making, for any loader in this process.

    To be called before a fork: a process that is forked has this thread alone. What another one held, a lock
    of the memory's or of a compiler's, nobody lets go there, and a data loader's worker might wait for ever.
    """
    until = None if seconds is None else time.monotonic() + seconds
    for each in list(_UNDERWAY):
        if isinstance(each, kind) and each._thread is not threading.current_thread():
            each._thread.join(None if until is None else max(0.0, until - time.monotonic()))


class NextState(StateInTheMaking):
    """The state of the next epoch, made while this one runs.

    `advance` of a policy that remembers leaves the old state valid, so that saving and reporting go on
    meanwhile. Where a policy gives its order part by part, an epoch can begin before it is whole.
    """

    def __init__(self, policy: Policy[Any], before: Any) -> None:
        self._policy: Any = policy
        self._parts: list[Order] = []
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
        with self._changed:
            self._changed.wait_for(lambda: len(self._parts) > number or self._made)
            if len(self._parts) > number:
                return self._parts[number]
        self.get()  # raises what went wrong
        return None

    def _make(self, state: Any) -> Any:
        if not makes_orders_in_parts(self._policy):
            return self._policy.advance(state)
        advancing: Generator[Order, None, Any] = self._policy.advancing(state)
        while True:
            try:
                part = next(advancing)
            except StopIteration as end:
                return end.value
            with self._changed:
                self._parts.append(part)
                self._changed.notify_all()
