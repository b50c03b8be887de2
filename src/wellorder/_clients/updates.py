"""A client's update: its pseudo-gradient (global minus local arrays), whole or sketched, and its records."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._compiled import fast
from wellorder._kernels.sketch import FlatSketch

Arrays = Mapping[str, npt.NDArray[Any]]
Report = tuple[Mapping[str, Collection[str]], Mapping[str, Mapping[str, Any]]]
"""The names of a reply's arrays by record, and its metrics by record and name."""


STATISTICS = ("running_mean", "running_var")
"""What PyTorch calls the running statistics of normalisation layers: means of activations, no direction."""


class UnfitError(ValueError):
    """An update that must not enter the balancing sum, and why."""


class NoSignalError(UnfitError):
    """An update that holds nothing to balance: no array of the model's. It may still be a good one."""


@dataclass(frozen=True)
class Signal:
    """Turns a client's arrays into a row for the policy, relative to the global arrays that it was sent.

    Only the arrays named at the beginning count: counters and index tables are state, not direction, even if
    a strategy has averaged them into floats since. An array that a client leaves out has not moved.
    """

    pieces: Mapping[str, npt.NDArray[Any]]
    shapes: Mapping[str, tuple[int, ...]]
    sketch: FlatSketch | None = None
    origin: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    cap: float = np.inf

    @staticmethod
    def relative_to(
        arrays: Arrays,
        names: Iterable[str] | None = None,
        *,
        sketch: FlatSketch | None = None,
        cap: float = np.inf,
    ) -> Signal:
        """Remember the global arrays as they are (no copy); those ``names`` count, or all that are floats."""
        chosen = directions(arrays) if names is None else names
        pieces = {name: flat(arrays[name]) for name in chosen}
        shapes = {name: arrays[name].shape for name in pieces}
        origin = sketch.of(list(pieces.values())) if sketch else None
        return Signal(pieces, shapes, sketch, origin, cap)

    @property
    def dim(self) -> int:
        """How many numbers a client's update has."""
        return sum(piece.size for piece in self.pieces.values())

    def row(self, arrays: Arrays, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Global minus local; raises `UnfitError` for an update that cannot be balanced.

        >>> signal = Signal.relative_to({"w": np.ones((2, 2))}, cap=10.0)
        >>> signal.row({"w": np.zeros((2, 2))})
        array([1., 1., 1., 1.])
        >>> signal.row({"w": np.full((2, 2), np.nan)})
        Traceback (most recent call last):
        wellorder._clients.updates.UnfitError: it holds NaN or infinite numbers
        """
        theirs = {name: array.shape for name, array in arrays.items()}
        held = [name for name in self.pieces if name in arrays]
        if not held or any(theirs[name] != self.shapes[name] for name in held):
            kind = UnfitError if held else NoSignalError
            raise kind(f"its arrays are {_told(theirs) or 'none'}, the model's {_told(self.shapes)}")
        strange = [name for name in held if arrays[name].dtype.kind not in "fiub"]
        if strange:
            raise UnfitError(f"its array {strange[0]} is of dtype {arrays[strange[0]].dtype}")
        local = [flat(arrays[name]) if name in arrays else mine for name, mine in self.pieces.items()]
        if self.sketch is not None and self.origin is not None:
            row: npt.NDArray[Any] = self.origin - self.sketch.of(local)
            square = float(row @ row)
        else:
            row = np.empty(self.dim, self.dtype) if out is None else out
            square, at = 0.0, 0
            for mine, their in zip(self.pieces.values(), local, strict=True):
                square += _subtract(mine, their, row[at : at + mine.size])
                at += mine.size
        if not np.isfinite(square):
            raise UnfitError("it holds NaN or infinite numbers")
        if square > self.cap**2:
            raise UnfitError(f"its norm {square**0.5:.3g} is above norm_cap={self.cap:g}")
        return row

    @property
    def dtype(self) -> np.dtype[Any]:
        """The precision of exact rows."""
        return np.dtype(
            np.float32 if all(p.dtype == np.float32 for p in self.pieces.values()) else np.float64
        )


def directions(arrays: Arrays) -> tuple[str, ...]:
    """The names of the floating-point arrays that are trained.

    >>> directions({"w": np.ones(2), "bn.running_var": np.ones(2), "bn.num_batches_tracked": np.array(7)})
    ('w',)
    """
    return tuple(
        name
        for name, array in arrays.items()
        if array.dtype.kind == "f" and name.rpartition(".")[2] not in STATISTICS
    )


def odd_ones(reports: Mapping[int, Report], weight: str, seen: Iterable[str] = ()) -> dict[int, str]:
    """Find the replies that would keep a strategy from averaging the others, and say why.

    By the rules of FedAvg each must have one record of arrays and one of metrics, both with the names of most
    replies (those of earlier rounds, whose `shape_of` was ``seen``, count too), and a positive ``weight``.

    >>> fine, light, more = {"num-examples": 9}, {"num-examples": 0}, {"num-examples": 9, "loss": 0.1}
    >>> odd_ones({0: ({"a": ["x"]}, {"m": fine}), 1: ({"a": ["x"]}, {"m": light})}, "num-examples")
    {1: 'its num-examples is 0'}
    >>> a = {"a": ["x"]}
    >>> odd_ones({0: (a, {"m": fine}), 1: (a, {"m": more}), 2: (a, {"m": more})}, "num-examples")[0]
    'its records are a [x], m (num-examples); those of others a [x], m (loss, num-examples)'
    """
    odd = {client: fault for client, report in reports.items() if (fault := _fault(report, weight))}
    shapes = {client: shape_of(report) for client, report in reports.items() if client not in odd}
    usual = Counter([*seen, *shapes.values()]).most_common(1)[0][0] if shapes else ""
    strange = {client: shape for client, shape in shapes.items() if shape != usual}
    return odd | {c: f"its records are {shape}; those of others {usual}" for c, shape in strange.items()}


def _fault(report: Report, weight: str) -> str:
    arrays, metrics = report
    if len(arrays) != 1 or len(metrics) != 1:
        return f"it has {len(arrays)} records of arrays and {len(metrics)} of metrics instead of one each"
    (record,) = metrics.values()
    if weight not in record:
        return f"it has no {weight}"
    w = record[weight]
    good = isinstance(w, int | float) and np.isfinite(w) and w > 0
    return "" if good else f"its {weight} is {w!r}"


def shape_of(report: Report) -> str:
    """The names of a reply's records, arrays and metrics, in one line."""
    arrays, metrics = report
    held = [f"{name} [{_listed(sorted(names))}]" for name, names in arrays.items()]
    return ", ".join([*held, *(f"{name} ({', '.join(sorted(m))})" for name, m in metrics.items())])


def _listed(names: list[str]) -> str:
    """A few names themselves; of many, how many and a checksum that tells two lists apart."""
    text = ", ".join(names)
    return text if len(text) <= 60 else f"{len(names)} arrays, {zlib.crc32(text.encode()):08x}"


def flat(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One-dimensional view (or copy) in float32 or float64, little-endian."""
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64)
    return np.ravel(array)


def _told(shapes: Mapping[str, tuple[int, ...]]) -> str:
    text = ", ".join(f"{name}{list(shape)}" for name, shape in shapes.items())
    return text if len(text) <= 120 else f"{text[:117]}..."


@fast
def _subtract(before, after, out):  # type: ignore[no-untyped-def]
    """Fill out = before − after; returns its squared norm, which is not finite if anything in it is not."""
    square = 0.0
    for i in range(len(out)):
        difference = before[i] - after[i]
        out[i] = difference
        square += np.float64(difference) * np.float64(difference)
    return square
