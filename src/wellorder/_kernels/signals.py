"""What a block of signals may be: a 2-D NumPy array, a torch tensor, or products of unseen vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, whole_number
from wellorder._compiled import jit
from wellorder._order import Rows, Signals, Vector

SQUARED, SUMMED, KEPT = 1e150, 1e100, float(np.finfo(np.float32).max) / 4
"""The largest numbers that can be squared; whose sums over an epoch can be; that float32 can hold."""


@dataclass(frozen=True)
class TensorRows:
    """The Signals of a 2-D torch tensor that lives on an accelerator (no torch import needed)."""

    rows: Any

    def __len__(self) -> int:
        return len(self.rows)

    def gram(self) -> Any:
        return self.rows @ self.rows.T

    def dot(self, vector: Vector) -> Any:
        if len(vector) != self.rows.shape[1]:
            raise ValueError(other_dimension(self.rows.shape[1], len(vector)))
        return self.rows @ at_home(vector, self.rows).to(self.rows.dtype)

    def combine(self, weights: npt.NDArray[np.float64]) -> Vector:
        return wide(self.rows.new_tensor(weights) @ self.rows)

    def minus(self, center: Vector) -> TensorRows:
        """Every row minus ``center``, before any product could cancel."""
        if len(center) != self.rows.shape[1]:
            raise ValueError(other_dimension(self.rows.shape[1], len(center)))
        return TensorRows(self.rows - at_home(center, self.rows).to(self.rows.dtype))

    def differences(self, pending: Vector) -> TensorRows:
        """Differences of consecutive rows, the first row paired with ``pending`` if that is not empty."""
        rows, first = self.rows, int(bool(len(pending)))
        apart = rows.new_empty(((len(rows) + first) // 2, rows.shape[1]))
        if first and len(apart):
            apart[:1] = -TensorRows(rows[:1]).minus(pending).rows
        apart[first:] = rows[first:-1:2][: len(apart) - first] - rows[first + 1 :: 2]
        return TensorRows(apart)


def block_of(signals: Any, count: int | None, name: str = "signals") -> Rows | Signals:
    """Take the caller's signals as NumPy rows where that needs no copy, else as `Signals`; checks them.

    ``count`` is how many there must be; None for any.
    """
    if type(signals) is np.ndarray:  # first: asking whether something is a protocol takes 0.1 ms
        block: Rows | Signals = _float_rows(signals, name)
    elif isinstance(signals, Signals) and not isinstance(signals, type):
        block = signals
    elif hasattr(signals, "detach"):
        block = _tensor_rows(signals.detach(), name)
    elif count == 0 and hasattr(signals, "__len__") and not len(signals):
        block = np.empty((0, 1))
    else:
        block = _float_rows(array_of(name, signals, cure="pass a 2-D array (b, d), one row per unit"), name)
    if count is not None and len(block) != count:
        raise ValueError(f"{len(block)} {name} for a count of {count} units; pass one signal (row) per unit")
    return block


def _tensor_rows(tensor: Any, name: str) -> Rows | Signals:
    """A tensor's rows: NumPy's on the CPU, where nothing is copied; where they are on an accelerator."""
    _check_rows(name, tuple(tensor.shape))
    if tensor.is_complex():
        raise ValueError(f"{name} of dtype {tensor.dtype}: pass real numbers (float32 or float64)")
    if tensor.device.type == "meta":
        raise ValueError(f"{name} on the device 'meta' hold no numbers; pass tensors that do")
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    if not tensor.is_floating_point():
        tensor = wide(tensor)
    elif tensor.element_size() < 4:
        tensor = tensor.float()
    return _float_rows(np.asarray(tensor), name) if tensor.device.type == "cpu" else TensorRows(tensor)


def dense(signals: Any, count: int | None, name: str = "signals", *, first: int = 0) -> Rows:
    """Take the caller's signals as NumPy rows; refuses products of unseen vectors, and numbers beyond use.

    ``first`` is the number of the first of them, by which errors count.
    """
    if count is not None:
        whole_number("count", count, least=0)
    block = block_of(signals, count, name)
    if isinstance(block, TensorRows):
        block = np.asarray(block.rows.cpu())
    if not isinstance(block, np.ndarray):
        raise ValueError(
            f"{name}={type(signals).__name__}: whole rows are needed here; pass a 2-D array (b, d), "
            "or use GraB or PairGraB, which need only products"
        )
    good = usable(block)
    if not good.all():
        raise ValueError(not_finite(first + int(np.argmin(good)), name))
    return block


def usable(rows: Rows, largest: float = SQUARED) -> npt.NDArray[np.bool_]:
    """Which rows can be balanced: finite, and of no number above ``largest``."""
    most = rows.dtype.type(min(largest, float(np.finfo(rows.dtype).max)))
    good = np.empty(len(rows), np.bool_)
    _mark_usable(rows, most, good)
    return good


@jit
def _mark_usable(rows, most, good):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row, all_good = rows[i], True
        for k in range(rows.shape[1]):
            all_good &= abs(row[k]) <= most  # never of NaN; without a jump, so that many are compared at once
        good[i] = all_good


def wide(tensor: Any) -> Any:
    """The tensor in the widest precision its device has: float64, but float32 on Apple's."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def at_home(vector: Vector, like: Any) -> Vector:
    """Bring a vector to where ``like`` lives: a NumPy copy from a checkpoint becomes a tensor again."""
    if isinstance(vector, np.ndarray) and hasattr(like, "new_tensor"):
        return wide(like.new_empty(0)).new_tensor(vector)
    return vector


def inner(a: Vector, b: Vector) -> float:
    """Inner product of two vectors, wherever each of them lives."""
    return float(at_home(a, b) @ at_home(b, a))


def to_numpy(array: Any) -> npt.NDArray[np.float64]:
    """Copy products to the host as float64."""
    if hasattr(array, "detach"):
        array = array.detach().cpu().numpy()
    return np.asarray(array, np.float64)


def other_dimension(dim: int, others: int) -> str:
    """Say that rows of another length came before."""
    return f"signals of dimension {dim}: this epoch's others had {others}; pass rows of one length"


def not_finite(row: int, name: str = "signals") -> str:
    """Say which row cannot be balanced, and what to do about it."""
    cure = "pass finite numbers"
    if name == "signals":
        cure = "leave that unit out of the call (it stays unobserved), or clip the gradient"
    return f"{name}[{row}] is NaN or infinite (or too large to be squared); {cure}"


def _float_rows(array: npt.NDArray[Any], name: str = "signals") -> Rows:
    _check_rows(name, array.shape)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} of dtype {array.dtype}: pass real numbers (float32 or float64)")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    return np.ascontiguousarray(array)


def _check_rows(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[1] == 0:
        raise ValueError(f"{name} of shape {shape}: pass a 2-D array (b, d), d > 0, one row per unit")
