"""Availability: which clients can be reached when; always, by day and night, at random, or by a trace."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, is_real, path_of, shown, whole_number
from wellorder._kernels.random_bits import key_of, uniforms_at
from wellorder._order import Order, describe

Mask = npt.NDArray[np.bool_]


def availability_of(rule: Any) -> Any:
    """Take an availability: an object that says who is reachable; refuses anything else."""
    if isinstance(rule, type) or not callable(getattr(rule, "reachable", None)):
        raise ValueError(
            f"availability={shown(rule)}: pass Always(), Diurnal(), DropOut(p), Trace(file) or your own"
        )
    return rule


def _units(units: Any) -> npt.NDArray[Any]:
    cure = "pass a 1-D array of clients' numbers, 0 or more"
    array = array_of("units", units, cure=cure, kinds="iu")
    if array.ndim != 1 or (array.size and array.min() < 0):
        raise ValueError(f"units={shown(units)}: {cure}")
    return array


class Availability(Protocol):
    """A frozen rule: who can be reached in a round, counted from the run's first.

    Rules that are equal must answer alike: runs that are trained together share one.
    """

    def reachable(self, units: Order, turn: int, seed: int) -> Mask:
        """Whether each of ``units`` can be reached in round ``turn``."""
        ...


@dataclass(frozen=True)
class Always:
    """Every client, always: regularised participation, what the theory covers."""

    def reachable(self, units: Order, turn: int, seed: int) -> Mask:  # noqa: ARG002
        return np.ones(len(_units(units)), bool)


@dataclass(frozen=True)
class Diurnal:
    """Clients live in ``groups`` time zones; each is awake for a part of a day of ``period`` rounds.

    >>> from wellorder.federated import Diurnal
    >>> Diurnal(groups=2, period=10, awake=0.5).reachable(np.arange(4), turn=3, seed=0)
    array([ True, False,  True, False])
    """

    groups: int = 2
    period: int = 100
    awake: float = 0.5

    def __post_init__(self) -> None:
        whole_number("groups", self.groups, least=1)
        whole_number("period", self.period, least=1)
        if not is_real(self.awake) or not 0 < self.awake <= 1:
            raise ValueError(
                f"awake={shown(self.awake)}: pass the waking part of a day, above 0 and at most 1"
            )

    def reachable(self, units: Order, turn: int, seed: int) -> Mask:  # noqa: ARG002
        now = whole_number("turn", turn, least=0)
        clock = now / self.period - (_units(units) % self.groups) / self.groups
        return np.asarray(clock % 1.0 < self.awake)


@dataclass(frozen=True)
class DropOut:
    """Each client fails to answer with this probability, independently in each round."""

    probability: float

    def __post_init__(self) -> None:
        if not is_real(self.probability) or not 0 <= self.probability < 1:
            raise ValueError(f"probability={shown(self.probability)}: pass at least 0 and less than 1")

    def reachable(self, units: Order, turn: int, seed: int) -> Mask:
        key = key_of(seed, whole_number("turn", turn, least=0), "availability")
        return np.asarray(uniforms_at(key, _units(units)) >= self.probability)


@dataclass(frozen=True)
class Trace:
    """Waking times from a CSV file ``client,first,last``: rounds first..last, the whole repeated for ever.

    A client that the file does not name can never be reached. The period is the largest ``last`` plus one.
    The file is read at once; two traces are equal if they hold the same times, wherever they were read from.
    """

    path: str | os.PathLike[str] = field(compare=False)
    spans: tuple[tuple[int, int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows, path = [], path_of("path", self.path, what="the path of a CSV file")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ValueError(
                f"path={shown(self.path)} cannot be read ({error}); pass a CSV file of client,first,last"
            ) from None
        with io.StringIO(text, newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if number == 1 and [cell.strip() for cell in row] == ["client", "first", "last"]:
                    continue
                try:
                    client, first, last = (int(cell) for cell in row)
                except ValueError:
                    raise ValueError(f"{self.path}, line {number}: {row} is not client,first,last") from None
                if client < 0 or not 0 <= first <= last:
                    raise ValueError(
                        f"{self.path}, line {number}: {row}: pass client >= 0 and 0 <= first <= last"
                    )
                rows.append((client, first, last))
        if not rows:
            raise ValueError(f"{self.path} names no client; give lines client,first,last")
        object.__setattr__(self, "spans", tuple(sorted(rows)))

    @cached_property
    def _table(self) -> npt.NDArray[np.int64]:
        return np.array(self.spans, np.int64)

    def reachable(self, units: Order, turn: int, seed: int) -> Mask:  # noqa: ARG002
        clock = whole_number("turn", turn, least=0) % (int(self._table[:, 2].max()) + 1)
        awake = self._table[(self._table[:, 1] <= clock) & (clock <= self._table[:, 2]), 0]
        return np.isin(_units(units), awake)

    def content(self) -> str:
        """The times themselves in one line, for those who compare runs by what was in their files."""
        return f"Trace of {describe(self.spans)}"
