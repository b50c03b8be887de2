"""Compiled kernels: numba, without the interpreter's lock, and cached where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

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


def prefetch(array: Any, row: int, column: int) -> None:
    """Ask the processor to fetch ``array[row, column]`` and what lies beside it; changes nothing.

    Where kernels are not compiled it does not do that either.
    """


@overload(prefetch)
def _prefetch_where_compiled(array, row, column):  # type: ignore[no-untyped-def] # noqa: ARG001
    return lambda array, row, column: _prefetch(array, row, column)


@intrinsic
def _prefetch(_, array, row, column):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind = signature.args[0]
        place = cgutils.get_item_pointer(
            context, builder, kind, context.make_array(kind)(context, builder, arguments[0]), arguments[1:]
        )
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        call = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer, number, number, number]),
            "llvm.prefetch.p0i8",
        )
        to_read, keep_near, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(call, [builder.bitcast(place, pointer), to_read, keep_near, data])
        return context.get_dummy_value()

    return types.void(array, row, column), generate
