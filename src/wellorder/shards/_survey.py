"""A survey of shards: what is in each, as a row; made once, saved, and good for every epoch."""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, flag, function, named_path, seed_of, whole_number
from wellorder._balanced import rows_by
from wellorder._kernels.features import WITHOUT_LABELS
from wellorder._order import describe, frozen
from wellorder._saving import load_state, save_state
from wellorder.shards._features import (
    FeatureRows,
    InputSketch,
    ShardSums,
    pair,
    settle,
    sides_for,
    sums_of,
    taking,
)
from wellorder.shards._reading import Read, ShardError, checked_failed, listed, marks_of, name_of, reading

KIND = "wellorder survey 2"
EMPTY = "every shard is empty, by sizes or by what read(shard) yields: pass shards with examples"
ROOM = 1 << 24
"""Numbers in all shards' rows together, above which rows are made shorter: 64 MiB."""
SAVE_EVERY = 30.0
"""Seconds of work that a killed survey may lose."""
AT_ONCE = 256
"""Examples whose rows are made together."""

Row = Callable[[Any], Any]
XY = Callable[[Any], tuple[Any, Any]] | tuple[str | None, str | None]
Look = tuple[ShardSums, int]
"""What a shard left, and its size."""


@dataclass(frozen=True)
class Survey:
    """What is known of each shard: the mean row of its examples, and how many they are.

    ``survey.row`` makes an example's row, about ``survey.mean``, for `balanced_stream` and
    ``wellorder.torch.ShardedDataset``. A row function of the user's own is not saved: `load` asks for it.
    """

    rows: npt.NDArray[np.float32] = field(repr=False)
    """The mean row of each shard, zero where it is empty or could not be read."""
    sizes: npt.NDArray[np.int64] = field(repr=False)
    """Examples in each shard; -1 where only a sample was read."""
    mean: npt.NDArray[np.float64] = field(repr=False)
    """The mean row of all examples."""
    marks: npt.NDArray[np.uint64] = field(repr=False)
    """A hash of each shard's name."""
    failed: tuple[str, ...] = ()
    """Shards that could not be read, and were skipped."""
    row: Row | None = field(default=None, repr=False)
    settings: str = ""
    spread: float = math.nan
    """The mean squared distance of an example's row from ``mean``; NaN if nobody counted."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """The sizes; where they are not known, the mean of those that are, or 1."""
        known = self.sizes >= 0
        rest = float(self.sizes[known].mean()) if known.any() and self.sizes[known].any() else 1.0
        return np.where(known, self.sizes, rest)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the survey into an npz file; whole or not at all."""
        with named_path("path", path) as file:
            save_state(file, {"kind": KIND, "complete": True, **_plain(self)})

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        row: Row | None = None,
        xy: XY = pair,
    ) -> Survey:
        """Read what `save` wrote. Functions are not saved: pass ``row`` or ``xy`` as `survey` had them."""
        by = taking(xy)
        with named_path("path", path) as file:
            state = _loaded(file)
        if not state["complete"]:
            raise ValueError(
                f"{os.fspath(path)!r} is a survey that was interrupted: call survey(..., path=...) with the "
                "same arguments, and it goes on"
            )
        return _from_plain(state, row, by)

    def check(self, shards: Sequence[Any]) -> None:
        """Refuse a list of shards that is not the one surveyed; names what is new, missing or moved."""
        _compare(self.marks, listed(shards), "the survey")


def survey(
    shards: Sequence[Any],
    read: Read,
    *,
    row: Row | None = None,
    xy: XY = pair,
    sample: int | None = None,
    sizes: Sequence[int] | Callable[[Any], int] | None = None,
    size: int | None = None,
    seed: int = 0,
    path: str | os.PathLike[str] | None = None,
    threads: int = 4,
    failed: str = "raise",
    progress: bool | None = None,
) -> Survey:
    """Look into every shard once, and keep its mean row and its size.

    Parameters
    ----------
    shards
        The shards, by whatever ``read`` takes: paths, addresses, numbers.
    read
        From a shard to an iterable of its examples. It is called in ``threads`` threads.
    row
        From an example to its row, a 1-D array; ``row.many(examples)``, if there is such a method, makes
        many at once. Left out: one-hot label ⊗ a sketch of the input, as `features` does.
    xy
        From an example to its input and label, or the names that these have in it, ``("image", "label")``;
        not needed where examples are such pairs. None for the input means labels alone, None for the label
        means that there is none, which is warned of.
    sample
        Look at the first so many examples of a shard only, where reading is dear. Their number is then known
        only if ``sizes`` tells it.
    sizes
        How many examples each shard has, if that is known: a list, or a function of a shard.
    size
        Numbers in a row; 512, or fewer for more than 32,768 shards.
    seed
        Decides the sketch.
    path
        A file for the survey. If it is there, nothing is read again: an interrupted survey goes on, a
        whole one is loaded, and one of other shards or settings is refused.
    threads
        Shards that are read at the same time; 1 reads them in the calling thread.
    failed
        What to do about a shard that cannot be read: "raise" an error that names it, or "skip" it with a
        warning.
    progress
        Whether to show progress on the terminal; by default where it takes long.

    >>> import numpy as np
    >>> def read(shard):   # ten examples of one label
    ...     return [(np.full(4, shard), shard % 2) for _ in range(10)]
    >>> found = survey(range(6), read)
    >>> found.rows.shape, found.sizes
    ((6, 10), array([10, 10, 10, 10, 10, 10]))
    """
    found = listed(shards)
    checked_failed(failed)
    whole_number("threads", threads, least=1)
    if sample is not None:
        whole_number("sample", sample, least=1)
    function("read", read, "from a shard to its examples")
    if row is not None:
        function("row", row, "from an example to its row of numbers")
    by = taking(xy)
    if progress is not None:
        flag("progress", progress)
    if path is not None:
        with named_path("path", path) as file:
            file.parent.mkdir(parents=True, exist_ok=True)
    numbers = min(512, max(32, ROOM // len(found))) if size is None else whole_number("size", size, least=1)
    told = _told_sizes(sizes, found)
    settings = f"rows {'features' if row is None else describe(row)}, sample={sample}, size={numbers}, "
    work = _Work(found, read, row, by, sample, numbers, seed_of(seed), told)
    work.settings = settings + f"seed={seed}"
    if path is not None and Path(path).exists():
        state = _loaded(path)
        _compare(state["marks"], found, os.fspath(path))
        if state["settings"] != work.settings:
            raise ValueError(
                f"{os.fspath(path)!r} was made with {state['settings']}, not with {work.settings}; pass the "
                "same arguments, or delete it"
            )
        if state["complete"]:
            return _from_plain(state, row, by)
        work.load(state)
    say = _Progress(len(found), progress)
    try:
        work.run(threads, failed, path, say)
    except BaseException:
        if path is not None and work.parts:
            work.save(path)
        raise
    result = work.result()
    if path is not None:
        result.save(path)
    return result


class _Work:
    """A survey under way: what each shard left so far."""

    settings = ""

    def __init__(
        self,
        shards: list[Any],
        read: Read,
        row: Row | None,
        xy: Callable[[Any], tuple[Any, Any]],
        sample: int | None,
        numbers: int,
        seed: int,
        told: npt.NDArray[np.int64] | None,
    ) -> None:
        self.shards, self.read, self.row, self.xy = shards, read, row, xy
        self.sample, self.numbers, self.seed, self.told = sample, numbers, seed, told
        self.sketch: InputSketch | None = None
        self.parts: dict[int, ShardSums] = {}
        self.sizes = np.full(len(shards), -1, np.int64)
        self.failed: dict[int, str] = {}
        self._labels: set[Any] = set()
        self._width = 1 << 30

    def run(self, threads: int, failed: str, path: Any, say: _Progress) -> None:
        """Look at the shards that are left, a few at a time."""
        if self.row is None and self.sketch is None:
            self._begin(failed)
        left = [at for at in range(len(self.shards)) if at not in self.parts]
        saved = time.monotonic()
        for at, look in _side_by_side(self._look, left, threads):
            self._keep(at, self._outcome(look, at, failed))
            say(len(self.parts))
            if path is not None and time.monotonic() - saved > SAVE_EVERY:
                self.save(path)
                saved = time.monotonic()

    def result(self) -> Survey:
        """The survey, when all shards were looked at."""
        if len(self.failed) == len(self.shards):
            raise ValueError(f"no shard could be read: {next(iter(self.failed.values()))}")
        sizes = self.sizes if self.told is None else self.told.copy()
        sizes[list(self.failed)] = 0
        parts = [self.parts[at] for at in range(len(self.shards))]
        blank = Survey(np.zeros((0, 0), "f4"), sizes, np.zeros(0), marks_of(self.shards))
        weights = blank.weights * [bool(len(part.labels)) for part in parts]
        if not weights.any():
            raise ValueError(EMPTY)
        row = self.row
        if row is None:
            if self.sketch is None:
                raise ValueError(EMPTY)
            maker = settle(parts, weights, self.sketch, self.numbers, self.xy)
            row, rows = maker, np.stack([maker.mean_row(part) for part in parts])
            square = maker.mean_square
            if not maker.labels:
                warnings.warn(WITHOUT_LABELS.replace("y=False", "row="), UserWarning, stacklevel=3)
        else:
            dim = max(part.sums.shape[1] for part in parts) - 1
            rows = np.zeros((len(parts), dim), np.float32)
            for at, part in enumerate(parts):
                if len(part.sums):
                    rows[at] = part.sums[0, 1:]
            square = float(weights @ [part.squares[0] for part in parts] / weights.sum())
        mean = weights @ rows.astype(np.float64) / weights.sum()
        names = tuple(self.failed[at] for at in sorted(self.failed))
        spread = max(0.0, square - float(mean @ mean))
        arrays = frozen(rows), frozen(sizes), frozen(mean), frozen(blank.marks)
        return Survey(*arrays, names, row, self.settings, spread)

    def save(self, path: Any) -> None:
        """Write down what is known so far."""
        at = np.array(sorted(self.parts), np.int64)
        parts = [self.parts[i] for i in at.tolist()]
        labels = sorted(self._labels, key=lambda y: (type(y).__name__, y))
        places = {label: i for i, label in enumerate(labels)}
        state: dict[str, Any] = {"kind": KIND, "complete": False, "settings": self.settings}
        state |= {"marks": marks_of(self.shards), "sizes": self.sizes, "at": at, "labels": labels}
        state["counts"] = np.array([len(part.labels) for part in parts], np.int64)
        state["which"] = np.array([places[label] for part in parts for label in part.labels], np.int64)
        wide = [part.sums for part in parts if len(part.sums)]
        state["sums"] = np.concatenate(wide) if wide else np.zeros((0, 1), np.float32)
        state["squares"] = np.stack([part.squares for part in parts])
        state["failed"] = {str(i): why for i, why in self.failed.items()}
        if self.sketch is not None:
            state["sketch"] = {"dim": self.sketch.dim, "offset": self.sketch.offset}
        save_state(path, state)

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `save` wrote."""
        ends = np.cumsum(state["counts"])
        for i, at in enumerate(state["at"].tolist()):
            mine = slice(int(ends[i] - state["counts"][i]), int(ends[i]))
            labels = [state["labels"][place] for place in state["which"][mine].tolist()]
            self.parts[at] = ShardSums(labels, state["sums"][mine], state["squares"][i])
            self._labels.update(labels)
        self.sizes = np.array(state["sizes"])
        self.failed = {int(at): why for at, why in state["failed"].items()}
        if "sketch" in state:
            offset = state["sketch"]["offset"]
            self.sketch = InputSketch(self.seed, int(state["sketch"]["dim"]), len(offset), offset)
            self._width = state["squares"].shape[1]

    def _begin(self, failed: str) -> None:
        """The first example tells how many numbers an input has."""
        for shard in self.shards:
            try:
                for example in reading(shard, self.read):
                    self.sketch = InputSketch.like(pair(self.xy(example))[0], self.seed)
                    return
            except ShardError:
                if failed == "raise":
                    raise

    def _look(self, at: int) -> Look:
        """Read one shard: what it leaves, and its size, -1 if there is more than the sample."""
        counted = _Counted(reading(self.shards[at], self.read), self.sample)
        try:
            if self.row is None and self.sketch is not None:
                part = sums_of(map(self.xy, counted), self.sketch)
            else:
                part = self._rows(counted)
        except ShardError:
            raise
        except ValueError as error:
            raise ValueError(f"in shard {name_of(self.shards[at])!r}: {error}") from error
        return part, counted.size

    def _rows(self, examples: Iterator[Any]) -> ShardSums:
        total: Any = None
        count, squares = 0, 0.0
        while block := list(itertools.islice(examples, AT_ONCE)):
            rows = rows_by(self.row or pair, block)
            total = rows.sum(axis=0, dtype=np.float64) + (0 if total is None else total)
            squares += float(np.square(rows, dtype=np.float64).sum())
            count += len(block)
        if total is None:
            return ShardSums([], np.zeros((0, 1), np.float32), np.zeros(1, np.float32))
        sums = np.concatenate([[1.0], total / count])[None].astype(np.float32)
        return ShardSums([""], sums, np.array([squares / count], np.float32))

    def _outcome(self, look: Callable[[], Look], at: int, failed: str) -> Look:
        try:
            return look()
        except ShardError as error:
            if failed == "raise":
                raise
            warnings.warn(f"skipped {error}", UserWarning, stacklevel=5)
            self.failed[at] = str(error)
            width = 0 if self.sketch is None else min(self._width, self.sketch.width)
            squares = np.zeros(1 if self.row is not None else width, np.float32)
            return ShardSums([], np.zeros((0, 1 + width), np.float32), squares), 0

    def _keep(self, at: int, outcome: Look) -> None:
        """Keep what a shard left, no more numbers of it than all labels met so far leave room for."""
        part, self.sizes[at] = outcome
        self._labels.update(part.labels)
        if self.row is None and self.sketch is not None:
            labelled = self._labels != {""}
            width = sides_for(len(self._labels), self.numbers, self.sketch.width, labelled=labelled)
            if width < self._width and self.parts:
                self.parts = {i: each.narrowed(width) for i, each in self.parts.items()}
            self._width = width
            part = part.narrowed(width)
        elif self.parts:
            known = next((p.sums.shape[1] for p in self.parts.values() if p.labels), part.sums.shape[1])
            if part.labels and part.sums.shape[1] != known:
                raise ValueError(
                    f"row(example) has {part.sums.shape[1] - 1} numbers in shard "
                    f"{name_of(self.shards[at])!r}, and {known - 1} before; pass rows of one length"
                )
        self.parts[at] = part


def _side_by_side(
    look: Callable[[int], Look], items: Sequence[int], threads: int
) -> Iterator[tuple[int, Callable[[], Look]]]:
    """Each item, as it is done, with a call that returns what came of it or raises."""
    if threads == 1:
        yield from ((at, partial(look, at)) for at in items)
        return
    left = iter(items)
    running: dict[Future[Look], int] = {}
    with ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                for at in itertools.islice(left, 2 * threads - len(running)):
                    running[pool.submit(look, at)] = at
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=running.__getitem__):
                    yield running.pop(future), future.result
        finally:
            for future in running:
                future.cancel()


class _Counted:
    """An iterator that counts, and stops after a sample; ``size`` is -1 if there was more."""

    def __init__(self, examples: Iterator[Any], most: int | None) -> None:
        self._examples, self._most, self.size = examples, most, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._most is not None and self.size in (-1, self._most):
            if self.size >= 0 and next(self._examples, self) is not self:
                self.size = -1
            raise StopIteration
        example = next(self._examples)
        self.size += 1
        return example


class _Progress:
    """Says on the terminal how far the survey is, if asked, or after some seconds."""

    def __init__(self, n: int, shown: bool | None) -> None:
        self.n, self.shown, self.began, self.last = n, shown, time.monotonic(), 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        show = now - self.began > 5 if self.shown is None else self.shown
        if show and (now - self.last > 0.5 or done == self.n):
            self.last = now
            end = "\n" if done == self.n else ""
            sys.stderr.write(f"\rsurvey: {done:,} of {self.n:,} shards, {now - self.began:.0f} s{end}")
            sys.stderr.flush()


def _told_sizes(sizes: Any, shards: list[Any]) -> npt.NDArray[np.int64] | None:
    if sizes is None:
        return None
    cure = f"pass one number of examples for each of the {len(shards)} shards"
    told = array_of("sizes", [sizes(shard) for shard in shards] if callable(sizes) else sizes, cure=cure)
    if told.shape != (len(shards),) or told.dtype.kind not in "iu" or told.min() < 0:
        raise ValueError(
            f"sizes of shape {told.shape} and dtype {told.dtype}: pass one number of examples, an int of 0 "
            f"or more, for each of the {len(shards)} shards"
        )
    return told.astype(np.int64)


def _plain(found: Survey) -> dict[str, Any]:
    state: dict[str, Any] = {"settings": found.settings, "failed": list(found.failed)}
    state["spread"] = found.spread
    state |= {"rows": found.rows, "sizes": found.sizes, "mean": found.mean, "marks": found.marks}
    if isinstance(found.row, FeatureRows):
        maker = found.row
        state["features"] = {
            "labels": list(maker.labels), "size": maker.size, "seed": maker.sketch.seed,
            "dim": maker.sketch.dim, "offset": maker.sketch.offset,
            "center": maker.center, "scale": maker.scale,
        }  # fmt: skip
    return state


def _from_plain(state: Mapping[str, Any], row: Row | None, xy: Callable[[Any], tuple[Any, Any]]) -> Survey:
    told = state.get("features")
    if told is not None and row is None:
        sketch = InputSketch(int(told["seed"]), int(told["dim"]), len(told["offset"]), told["offset"])
        labels = tuple(told["labels"])
        row = FeatureRows(sketch, labels, told["center"], told["scale"], int(told["size"]), xy)
    rows, sizes, mean, marks = (frozen(np.array(state[name])) for name in ("rows", "sizes", "mean", "marks"))
    return Survey(
        rows, sizes, mean, marks, tuple(state["failed"]), row, str(state["settings"]), state["spread"]
    )


def _loaded(path: str | os.PathLike[str]) -> dict[str, Any]:
    state = load_state(path)
    if state.get("kind") != KIND:
        raise ValueError(f"{os.fspath(path)!r} is no survey; pass a file that survey(..., path=...) wrote")
    return state


def _compare(marks: npt.NDArray[np.uint64], shards: Sequence[Any], what: str) -> None:
    ours = marks_of(shards)
    if len(ours) == len(marks) and (ours == marks).all():
        return
    new = np.flatnonzero(~np.isin(ours, marks))
    gone = int((~np.isin(marks, ours)).sum())
    if not len(new) and not gone:
        raise ValueError(f"the shards of {what} are listed in another order; pass the list that was surveyed")
    names = ", ".join(repr(name_of(shards[at])) for at in new[:3].tolist()) + ", …" * (len(new) > 3)
    told = [f"{len(new)} of the shards given are not in {what}: {names}"] if len(new) else []
    told += [f"{gone} shards of {what} are not among the {len(ours)} given"] if gone else []
    raise ValueError("; ".join(told) + "; pass the list that was surveyed, or survey again")
