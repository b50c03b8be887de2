"""Compiled kernels: numba, without the interpreter's lock, and cached where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

Function = Callable[..., Any]


def jit(function: Function) -> Function:
    """Compile at the first call, in strict IEEE arithmetic; the machine code is kept for the next process."""
    return _compiled(function, fastmath=False)


def fast(function: Function) -> Function:
    """`jit`, with sums reassociated and products fused, so that loops over d fill vector registers.

    NaN and infinity keep their meaning. One function gives one result for one input, in whatever process.
    """
    return _compiled(function, fastmath={"reassoc", "contract"})


def _compiled(function: Function, **options: Any) -> Function:
    try:
        compiled: Function = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # a read-only installation without a home: nowhere to keep a cache
        compiled = numba.njit(nogil=True, **options)(function)
    return compiled
