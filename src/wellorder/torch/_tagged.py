"""Identity travels with the data: a data set whose items know their number, and a collate that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Tagged:
    """A data set that gives a batch's numbers with its items; all else about it is the data set's own.

    >>> Tagged("abc").__getitems__([2, 0]), Tagged("abc").upper()
    (([2, 0], ['c', 'a']), 'ABC')
    """

    __slots__ = ("wrapped",)

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "wrapped", dataset)

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getitem__(self, index: int) -> Any:
        return self.wrapped[index]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Sequence[int], list[Any]]:
        """A batch's numbers and its items; torch hands both to the collate as they are."""
        fetch = getattr(self.wrapped, "__getitems__", None)
        return indices, fetch(indices) if fetch is not None else [self.wrapped[i] for i in indices]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.wrapped, name, value)

    def __reduce__(self) -> tuple[type[Tagged], tuple[Any]]:
        return Tagged, (self.wrapped,)


class TaggedCollate:
    """The loader's own collate, with the batch's item numbers beside the result."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, batch: tuple[Sequence[int], list[Any]]) -> tuple[np.ndarray[Any, Any], Any]:
        indices, items = batch
        return np.array(indices, np.int64), self.collate(items)
