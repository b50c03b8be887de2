"""When to observe an epoch; and orders made ahead, in the background, while an epoch shows nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from wellorder._arguments import shown, whole_number
from wellorder._order import Policy, remembers

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
                f'observe={shown(observe)}: pass "auto", "always", an int (every so-manyth epoch), or a function '
                "from the epoch to True or False"
            )
        return doubling if observe == "auto" and remembers(policy) else always
    if policy.needs.at_visits() and not remembers(policy):
        raise ValueError(
            f"observe={shown(observe)}: {type(policy).__name__} needs signals at every visit of every epoch; use "
            'Steering() or Herding(), which remember them, or observe="always"'
        )
    if callable(observe):
        return lambda epoch: bool(observe(epoch))
    every = whole_number("observe", observe, least=1, cure='observe every so-manyth epoch, or pass "auto"')
    return lambda epoch: epoch % every == 0


class NextState:
    """The state of the next epoch, made in a thread while this one runs.

    The kernels work without the interpreter's lock, and `advance` of a policy that remembers leaves the old
    state valid, so that training, saving and reporting go on meanwhile. The thread is a daemon: a process
    that ends, or is told to, does not wait for it.
    """

    def __init__(self, policy: Policy[Any], state: Any) -> None:
        self._made: list[Any] = []
        self._thread = threading.Thread(
            target=self._make, args=(policy, state), name="wellorder-next-order", daemon=True
        )
        self._thread.start()

    def get(self) -> Any:
        """Wait for the state; an error in the making is raised here."""
        self._thread.join()
        made, error = self._made
        if error is not None:
            raise error
        return made

    def _make(self, policy: Policy[Any], state: Any) -> None:
        try:
            self._made = [policy.advance(state), None]
        except BaseException as error:  # whatever it is, it is the caller's to see
            self._made = [None, error]
