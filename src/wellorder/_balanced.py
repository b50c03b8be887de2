"""Balanced orders for any framework: an endless stream of orders, and a stream of examples put in order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, function, numbers, room_for, seed_of, shown, whole_number
from wellorder._kernels.signals import SQUARED, dense
from wellorder._kernels.steer import Window
from wellorder._order import Order, Policy, Rows, policy_of, remembers, rng
from wellorder._waiting import waiting_for
from wellorder.policies import Steering
from wellorder.policies._latest_rows import SMALL

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
    with waiting_for(0):
        state = rule.init(len(array), seed=seed_of(seed), rows=array)
    return _orders(rule, state, epoch)


def _orders(policy: Any, state: Any, epoch: int) -> Iterator[Order]:
    while True:
        if state.epoch < epoch:
            with waiting_for(epoch):
                state = _opened(policy, state, epoch)
        yield state.order
        epoch += 1


def _opened(policy: Any, state: Any, epoch: int) -> Any:
    """The state at an epoch's start; a policy of somebody's own may know no way but through those before."""
    if hasattr(policy, "open"):
        return policy.open(state, epoch)
    while state.epoch < epoch:
        state = policy.advance(state)
    return state


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
    The same examples with the same arguments come in the same order, so a stream is entered again after k
    of them by ``itertools.islice(balanced_stream(…), k, None)``; ``wellorder.torch.ShardedDataset`` resumes
    without reading all again.

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
    function("row", row, "from an example to its row of numbers")
    whole_number("at_once", at_once, least=1)
    try:
        source = iter(examples)
    except TypeError:
        raise ValueError(f"examples={shown(examples)}: pass something to iterate over") from None
    draw = rng(seed_of(seed), whole_number("epoch", epoch, least=0), "steering")
    center = None if mean is None else numbers("mean", mean, cure="pass the mean row, a 1-D array of numbers")
    buffer = SteeringBuffer(row, window, candidates, draw, center)
    return _stream(source, buffer, at_once)


def _stream(examples: Iterator[E], buffer: SteeringBuffer[E], at_once: int) -> Iterator[E]:
    seen = 0
    while block := list(itertools.islice(examples, at_once)):
        leaving = buffer.push(block, np.arange(seen, seen + len(block)))
        seen += len(block)
        yield from buffer.pop(leaving)
    yield from buffer.pop(buffer.drain())


class SteeringBuffer(Generic[E]):
    """Examples that wait in a window, and those that have left it and are not given out yet.

    An example goes by a number of the caller's choice. Every number that is pushed leaves exactly once.
    """

    def __init__(
        self,
        row: Callable[[E], Any],
        window: int,
        candidates: int,
        draw: np.random.Generator,
        mean: npt.ArrayLike | None = None,
    ) -> None:
        self.size = whole_number("window", window, least=1)
        self.candidates = whole_number("candidates", candidates, least=1)
        self.row, self.draw = row, draw
        self.mean: Any = None if mean is None else np.asarray(mean, np.float64)
        if mean is not None and not np.all(np.abs(np.asarray(mean)) <= SQUARED):
            raise ValueError(f"mean={shown(mean)}: pass finite numbers, the mean of the rows")
        # Rows of label ⊗ anything are held without their zeros (see `Window`), where the mean is known.
        self._width: int | None = None if mean is None else getattr(row, "block_width", None)
        self.window: Window | None = None
        self.waiting: dict[int, E] = {}
        self.unit = 1.0
        """What rows are multiplied by where their products would leave float32: a power of two."""
        self._sized = self._width is not None
        self._total: Any = 0.0
        self._seen = 0

    def push(self, examples: Sequence[E], numbers: npt.NDArray[np.int64]) -> list[int]:
        """Take in some examples; returns the numbers of those that leave, in order, one for one if full."""
        rows, places, dim = self._rows(examples)
        if self.mean is not None and self.mean.shape != (dim,) and self.window is None:
            raise ValueError(f"mean of shape {self.mean.shape}: pass one number for each of a row's {dim}")
        window, center = self.opened(dim), self.mean
        self._seen += len(rows)
        if center is None:
            self._total = self._total + rows.sum(axis=0, dtype=np.float64)
            center = self._total / self._seen
        rows, center = self._brought_near_one(rows, center)
        leaving = window.take_in(rows, np.arange(len(rows)), numbers, center, places)
        self.waiting.update(zip(numbers.tolist(), examples, strict=True))
        leaving_now: list[int] = leaving.tolist()
        return leaving_now

    def _rows(self, examples: Sequence[E]) -> tuple[Rows, npt.NDArray[np.int64] | None, int]:
        """The examples' rows, or their blocks and these' places; and how many numbers a whole row has."""
        if self._width is None:
            rows = rows_by(self.row, examples, self._seen)
            return rows, None, rows.shape[1]
        maker: Any = self.row
        blocks, places = maker.blocks(examples)
        return blocks, places, maker.dim

    def _brought_near_one(self, rows: Rows, center: Any) -> tuple[Rows, Any]:
        """Rows and their mean, if they are not far from 1 in size; else both times the same for all."""
        if not self._sized:
            largest = max(float(np.abs(rows).max()), float(np.abs(center).max()))
            self._sized = largest > 0  # zeros are zeros in any unit
            if self._sized and not SMALL < largest < 1 / SMALL:
                self.unit = 2.0 ** min(-round(math.log2(largest)), 1000)
        return (rows, center) if self.unit == 1 else (rows.astype(np.float64) * self.unit, center * self.unit)

    def opened(self, dim: int) -> Window:
        """The window, for rows of ``dim`` numbers."""
        if self.window is None:
            with room_for("window", self.size):
                self.window = Window(self.size, dim, self.candidates, self.draw, self._width)
        if len(self.window.total) != dim:
            raise ValueError(f"row(example) of {dim} numbers, where others have {len(self.window.total)}")
        return self.window

    def drain(self) -> list[int]:
        """The numbers of all that wait, in the order in which they leave."""
        last: list[int] = [] if self.window is None else self.window.drain().tolist()
        return last

    def pop(self, numbers: Iterable[int]) -> Iterator[E]:
        """Give out examples that have left the window."""
        return map(self.waiting.pop, numbers)


def rows_by(row: Callable[[E], Any], examples: Sequence[E], first: int = 0) -> Rows:
    """The rows of some examples, by one call of ``row.many`` if there is such a method."""
    many = getattr(row, "many", None)
    made = many(examples) if many is not None else _stacked([_row_of(row(each)) for each in examples])
    return dense(made, len(examples), "row(example)", first=first)


def _row_of(row: Any) -> npt.NDArray[Any]:
    """A copy, for the next row may be written where this one is."""
    return array_of("row(example)", row, cure="return a 1-D array of numbers").copy()


def _stacked(rows: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    shapes = {each.shape for each in rows}
    if len(shapes) > 1 or len(rows[0].shape) != 1:
        raise ValueError(f"row(example) of shapes {sorted(shapes)}: pass 1-D arrays, equally long for all")
    return np.stack(rows)
