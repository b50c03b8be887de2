"""Gradients written out, a few examples at a time: rows, or differences of pairs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

IN_CACHE = 1 << 20
"""Numbers worked on at a time: few enough for a processor's cache."""
LAUNCH = 1 << 26
"""The same on an accelerator: many, for few launches."""
CHUNK = 1 << 22
"""Numbers written out at a time where rows are not kept; on an accelerator `LAUNCH`."""


class Pieces(Protocol):
    """b gradients, each of G blocks of o·i numbers: Σ_t e_t ⊗ a_t."""

    @property
    def left(self) -> Tensor:
        """All examples' e."""
        ...

    @property
    def kind(self) -> torch.dtype | None:
        """The gradients' precision, if it is not that of e."""
        ...

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """(b, G, T, o, i)."""
        ...

    def piece(self, some: slice, space: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Some examples' e, (n, G, o, T), and a, (n, G, T, i), which may be written to ``space``."""
        ...


class Columns(Protocol):
    """Gradients that can be written out column by column of the parameter."""

    def __len__(self) -> int: ...
    @property
    def columns(self) -> int:
        """How many columns there are."""
        ...

    @property
    def length(self) -> int:
        """Numbers in one gradient."""
        ...

    def part(self, some: slice) -> Columns:
        """The gradients' entries in some columns."""
        ...

    def rows(self, *, pairs: bool = False) -> Tensor:
        """Write them out, or the differences of consecutive ones."""
        ...


def rows_of(of: Pieces, *, pairs: bool = False) -> Tensor:
    """The gradients (b, p), or differences of ``pairs`` (b/2, p)."""
    out = _room(of, pairs=pairs)
    for first, rows in _pieces(of):
        _place(out, first, rows, pairs=pairs)
    return out.flatten(1)


def _pieces(of: Pieces) -> Iterator[tuple[int, Tensor]]:
    """Gradients of a few examples at a time, (n, G, o, i), with the first one's place, which is even.

    All come in the same memory: it stays in the cache.
    """
    b, groups, positions, left, right = of.shape
    each, patches = groups * left * right, groups * positions * right
    room = IN_CACHE if of.left.device.type == "cpu" else LAUNCH
    step = min(max(2, room // (each + patches) // 2 * 2), b)
    space = _space(of, step * (each + patches))
    for first in range(0, b, step):
        e, a = (x.flatten(0, 1) for x in of.piece(slice(first, first + step), space[step * each :]))
        rows = space[: len(e) * left * right].view(len(e), left, right)
        torch.bmm(e, a, out=rows)
        yield first, rows.view(-1, groups, left, right)


def _space(of: Pieces, count: int) -> Tensor:
    """Memory to work in: on a processor the thread's own, since the system charges for giving it out anew."""
    kind = of.kind or of.left.dtype
    if of.left.device.type != "cpu" or count > 4 * IN_CACHE:
        return of.left.new_empty(count, dtype=kind)
    held = _memory.held
    if kind not in held or len(held[kind]) < count:
        held[kind] = torch.empty(count, dtype=kind)
    return held[kind]


class _ThreadMemory(threading.local):
    """A thread's own memory to work in."""

    def __init__(self) -> None:
        self.held: dict[torch.dtype, Tensor] = {}


_memory = _ThreadMemory()


def _room(of: Pieces, *, pairs: bool) -> Tensor:
    b, groups, _, left, right = of.shape
    return of.left.new_empty(b // 2 if pairs else b, groups, left, right, dtype=of.kind or of.left.dtype)


def _place(out: Tensor, first: int, rows: Tensor, *, pairs: bool) -> None:
    if pairs:
        torch.sub(rows[0::2], rows[1::2], out=out[first // 2 : (first + len(rows)) // 2])
    else:
        out[first : first + len(rows)] = rows


def gram_by_columns(of: Columns, *, pairs: bool = False) -> Tensor:
    """All inner products of the gradients, or of the differences of pairs, without all rows at once."""
    count = len(of) // 2 if pairs else len(of)
    total: Tensor | None = None
    at, room = 0, CHUNK
    while at < of.columns:
        step = max(1, room * of.columns // (count * of.length))
        rows = of.part(slice(at, at + step)).rows(pairs=pairs)
        total = rows @ rows.T if total is None else total.addmm_(rows, rows.T)
        at, room = at + step, room_on(rows)
    if total is None:
        raise ValueError("of: gradients without entries")
    return total


def room_on(like: Tensor) -> int:
    """Numbers written out at a time where ``like`` lives."""
    return CHUNK if like.device.type == "cpu" else LAUNCH
