"""Triton, where it is installed: kernels for CUDA are written in it, and left alone without it."""
# mypy: ignore-errors

try:
    import triton
    import triton.language as tl

    jit = triton.jit
except ModuleNotFoundError:
    triton = tl = None

    def jit(function):
        """Leave a kernel alone where there is nothing to compile it."""
        return function


__all__ = ["jit", "tl", "triton"]
