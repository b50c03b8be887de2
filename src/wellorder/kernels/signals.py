"""What a block of signals may be: a 2-D NumPy array, a torch tensor, or products of unseen vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder.order import Rows, Signals, Vector


@dataclass(frozen=True)
class TensorRows:
    """The Signals of a 2-D torch tensor that lives on an accelerator (no torch import needed)."""

    rows: Any

    def __len__(self) -> int:
        return len(self.rows)

    def gram(self) -> Any:
        return self.rows @ self.rows.T

    def dot(self, vector: Vector) -> Any:
        return self.rows @ at_home(vector, self.rows).to(self.rows.dtype)

    def combine(self, weights: npt.NDArray[np.float64]) -> Vector:
        return (self.rows.new_tensor(weights) @ self.rows).double()


def block_of(signals: Any, count: int) -> Rows | Signals:
    """Take the caller's signals as NumPy rows where that needs no copy, else as `Signals`; checks them."""
    if isinstance(signals, np.ndarray):  # first: asking whether something is a protocol takes 0.1 ms
        block: Rows | Signals = _float_rows(signals)
    elif isinstance(signals, Signals):
        block = signals
    elif hasattr(signals, "detach"):
        tensor = signals.detach()
        _check_rows("signals", tuple(tensor.shape))
        floats = tensor if tensor.is_floating_point() and tensor.element_size() > 2 else tensor.float()
        block = _float_rows(np.asarray(floats)) if tensor.device.type == "cpu" else TensorRows(floats)
    else:
        block = _float_rows(np.asarray(signals))
    if len(block) != count:
        raise ValueError(f"{len(block)} signals for {count} units; pass one signal (row) per unit")
    return block


def dense(signals: Any, count: int) -> Rows:
    """Take the caller's signals as NumPy rows; refuses products of unseen vectors."""
    block = block_of(signals, count)
    if isinstance(block, TensorRows):
        block = np.asarray(block.rows.cpu())
    if not isinstance(block, np.ndarray):
        raise ValueError(
            f"signals={type(signals).__name__}: this policy keeps whole rows; pass a 2-D array (b, d), "
            "or use GraB or PairGraB, which need only products"
        )
    if not np.isfinite(block).all():
        raise ValueError(not_finite(int(np.argmin(np.isfinite(block).all(axis=1)))))
    return block


def at_home(vector: Vector, like: Any) -> Vector:
    """Bring a vector to where ``like`` lives: a NumPy copy from a checkpoint becomes a tensor again."""
    if isinstance(vector, np.ndarray) and hasattr(like, "new_tensor"):
        return like.new_empty(0).double().new_tensor(vector)
    return vector


def inner(a: Vector, b: Vector) -> float:
    """Inner product of two vectors, wherever each of them lives."""
    return float(at_home(a, b) @ at_home(b, a))


def to_numpy(array: Any) -> npt.NDArray[np.float64]:
    """Copy products to the host as float64."""
    if hasattr(array, "detach"):
        array = array.detach().cpu().numpy()
    return np.asarray(array, np.float64)


def not_finite(row: int) -> str:
    """Say which row cannot be balanced, and what to do about it."""
    return (
        f"signals[{row}] is NaN or infinite; leave that unit out of the call (it stays unobserved), "
        "or clip the gradient"
    )


def _float_rows(array: npt.NDArray[Any]) -> Rows:
    _check_rows("signals", array.shape)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"signals of dtype {array.dtype}: pass real numbers (float32 or float64)")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    return np.ascontiguousarray(array)


def _check_rows(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[1] == 0:
        raise ValueError(f"{name} of shape {shape}: pass a 2-D array (b, d), one row per unit")
