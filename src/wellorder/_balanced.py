"""Balanced orders for any framework: an endless stream of orders, and a stream of examples put in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, function, numbers, room_for, seed_of, shown, whole_number
from wellorder._kernels.signals import dense
from wellorder._kernels.steer import Window
from wellorder._order import Order, Policy, Rows, policy_of, remembers
from wellorder.policies import Steering

E = TypeVar("E")


def balanced(
    rows: npt.ArrayLike, *, policy: Policy[Any] | None = None, seed: int = 0, start: int = 0
) -> Iterator[Order]:
    """Orders of the examples whose ``rows`` are known: fresh in every epoch, balanced, without end.

    Parameters
    ----------
    rows
        One row of numbers for each example: `features(x, y)`, embeddings, gradients.
    policy
        `Steering()` unless given; any policy that takes ``rows`` will do.
    seed
        Decides every random choice.
    start
        The epoch to begin with: ``balanced(rows, start=k)`` goes on where the first k orders end.

    >>> import numpy as np
    >>> from wellorder import features
    >>> x, y = np.random.default_rng(0).normal(size=(100, 5)), np.arange(100) % 3
    >>> for epoch, order in zip(range(10), balanced(features(x, y), seed=0)):
    ...     pass   # x[order], y[order]: this epoch's examples, in order
    """
    rule: Any = Steering() if policy is None else policy_of(policy)
    epoch = whole_number("start", start, least=0)
    if not remembers(rule):
        raise ValueError(f"policy={rule!r}: it takes no rows; use Steering() or Herding()")
    cure = "pass a 2-D array, one row of numbers for each example"
    array: Any = rows if hasattr(rows, "detach") else array_of("rows", rows, cure=cure)
    if array.ndim != 2 or not len(array):
        raise ValueError(f"rows of shape {tuple(array.shape)}: {cure}")
    state = rule.init(len(array), seed=seed_of(seed), rows=array)
    return _orders(rule, state, epoch)


def _orders(policy: Any, state: Any, epoch: int) -> Iterator[Order]:
    while True:
        yield state.order if state.epoch == epoch else policy.open(state, epoch).order
        epoch += 1


def balanced_stream(
    examples: Iterable[E],
    row: Callable[[E], Any],
    *,
    window: int = 1024,
    candidates: int = 16,
    seed: int = 0,
    epoch: int = 0,
    mean: npt.ArrayLike | None = None,
    at_once: int = 256,
) -> Iterator[E]:
    """The same examples, each exactly once, in balanced order: where others have a shuffle buffer.

    Examples enter a window; at each step the one leaves, of a few random members, whose row turns the running
    sum back (`Steering`). Any objects will do. Memory: the window's examples and rows, and ``at_once`` more.

    Parameters
    ----------
    examples
        Any iterable; it is read once, in order.
    row
        From an example to its row: a 1-D array of numbers, equally long for all. If it has a method ``many``
        (as ``survey.row`` has), that makes the rows of a list of examples.
    window, candidates
        How many examples wait to be chosen from, and how many of them are looked at for each choice.
    seed, epoch
        Decide every random choice.
    mean
        The mean row of the whole data, if it is known (from a survey); otherwise that of the rows seen so
        far.
    at_once
        How many examples are read between two calls of the compiled kernel.

    >>> import numpy as np
    >>> labels = [0] * 50 + [1] * 50
    >>> out = list(balanced_stream(labels, lambda label: np.eye(2)[label], window=100))
    >>> sorted(out) == labels, max(abs(np.cumsum(out) - np.arange(1, 101) / 2)) < 4
    (True, np.True_)
    """
    whole_number("window", window, least=1)
    whole_number("candidates", candidates, least=1)
    whole_number("at_once", at_once, least=1)
    whole_number("epoch", epoch, least=0)
    function("row", row, "from an example to its row of numbers")
    try:
        source = iter(examples)
    except TypeError:
        raise ValueError(f"examples={shown(examples)}: pass something to iterate over") from None
    center = None if mean is None else numbers("mean", mean, cure="pass the mean row, a 1-D array of numbers")
    return _stream(source, row, window, candidates, (seed_of(seed), epoch), center, at_once)


def _stream(
    examples: Iterator[E],
    row: Callable[[E], Any],
    window: int,
    candidates: int,
    draws: tuple[int, int],
    mean: npt.NDArray[np.float64] | None,
    at_once: int,
) -> Iterator[E]:
    held: Window | None = None
    waiting: dict[int, E] = {}
    center: Any = mean
    total: Any = 0.0
    seen = 0
    while block := list(_some(examples, at_once)):
        rows = rows_by(row, block)
        numbers = np.arange(seen, seen + len(block))
        seen += len(block)
        if mean is None:
            total = total + rows.sum(axis=0, dtype=np.float64)
            center = total / seen
        if center.shape != (rows.shape[1],):
            raise ValueError(f"mean of shape {center.shape}: rows have {rows.shape[1]} numbers")
        if held is None:
            with room_for("window", window):
                held = Window(window, rows.shape[1], candidates, *draws)
        waiting.update(zip(numbers.tolist(), block, strict=True))
        for number in held.take_in(rows, np.arange(len(block)), numbers, center).tolist():
            yield waiting.pop(number)
    if held is not None:
        for number in held.drain().tolist():
            yield waiting.pop(number)


def rows_by(row: Callable[[E], Any], examples: Sequence[E]) -> Rows:
    """The rows of some examples, by one call of ``row.many`` if there is such a method."""
    many = getattr(row, "many", None)
    made = many(examples) if many is not None else _stacked([_row_of(row(each)) for each in examples])
    return dense(made, len(examples), "row(example)")


def _row_of(row: Any) -> npt.NDArray[Any]:
    return array_of("row(example)", row, cure="return a 1-D array of numbers")


def _stacked(rows: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    shapes = {each.shape for each in rows}
    if len(shapes) > 1 or len(rows[0].shape) != 1:
        raise ValueError(f"row(example) of shapes {sorted(shapes)}: pass 1-D arrays, equally long for all")
    return np.stack(rows)


def _some(examples: Iterator[E], count: int) -> Iterator[E]:
    for _, example in zip(range(count), examples, strict=False):
        yield example
