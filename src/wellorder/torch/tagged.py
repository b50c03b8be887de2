"""Identity travels with the data: a data set whose items know their number, and a collate that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Tagged:
    """A data set that answers ``(i, item)``; everything else about it is the data set's own.

    >>> Tagged("abc")[1], Tagged("abc").upper()
    ((1, 'b'), 'ABC')
    """

    __slots__ = ("wrapped",)

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "wrapped", dataset)

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.wrapped[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, Any]]:
        """Fetch a whole batch; torch asks for this where a data set can do it."""
        fetch = getattr(self.wrapped, "__getitems__", None)
        items = fetch(indices) if fetch is not None else [self.wrapped[i] for i in indices]
        return list(zip(indices, items, strict=True))

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

    def __call__(self, pairs: list[tuple[int, Any]]) -> tuple[np.ndarray[Any, Any], Any]:
        return np.array([i for i, _ in pairs], np.int64), self.collate([item for _, item in pairs])
