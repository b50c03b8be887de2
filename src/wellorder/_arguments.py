"""What users pass: values are taken as they are meant, or refused by argument, value and cure."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LARGEST = 2**63 - 1
"""The largest whole number that an array can hold."""


def shown(value: Any) -> str:
    """A value as an error shows it: on one line, and not too long.

    >>> shown("a" * 1000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…"
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an int of thousands of digits, or somebody's own __repr__
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 120 else f"{text[:80]}…"


def whole_number(name: str, value: Any, *, least: int, most: int | None = None, cure: str = "") -> int:
    """Take a whole number between ``least`` and ``most``; refuses anything else, True and 2.0 included.

    >>> whole_number("epochs", 0, least=1)
    Traceback (most recent call last):
    ValueError: epochs=0: pass an int >= 1
    """
    good = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
    if not good or value > (LARGEST if most is None else most):
        span = f"an int >= {least}" if most is None else f"an int from {least} to {most}"
        if good and most is None:
            span = f"an int from {least} to 2**63 - 1"
        raise ValueError(
            f"{name}={shown(value)}: {cure}, {span}" if cure else f"{name}={shown(value)}: pass {span}"
        )
    return int(value)


def real_number(name: str, value: Any, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """Take a finite number that is above ``above`` and at least ``least``.

    >>> real_number("step_size", "0.1", above=0)
    Traceback (most recent call last):
    ValueError: step_size='0.1': pass a positive number
    """
    if not is_real(value) or not (value > above and value >= least):
        span = "a positive number" if above == 0 else f"a number above {above:g}" if above > least else ""
        span = span or ("a finite number" if least == -math.inf else f"a number of {least:g} or more")
        raise ValueError(f"{name}={shown(value)}: pass {span}")
    return float(value)


def is_real(value: Any) -> bool:
    """Whether a value is a finite real number; True is none, nor is an int beyond float64."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(-sys.float_info.max <= value <= sys.float_info.max)


def norm_order(value: Any, *, least: float = 1, name: str = "p") -> float:
    """Take the p of a norm: any number from ``least`` on, or infinity.

    >>> norm_order(0.5)
    Traceback (most recent call last):
    ValueError: p=0.5: pass a norm p >= 1, or numpy.inf
    """
    if isinstance(value, float | np.floating) and value == math.inf:
        return math.inf
    if not is_real(value) or value < least:
        raise ValueError(f"{name}={shown(value)}: pass a norm p >= {least:g}, or numpy.inf")
    return float(value)


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Take one of a few words.

    >>> one_of("by", "size", ("bound", "rate"))
    Traceback (most recent call last):
    ValueError: by='size': pass 'bound' or 'rate'
    """
    if not isinstance(value, str) or value not in choices:
        words = [repr(choice) for choice in choices]
        raise ValueError(f"{name}={shown(value)}: pass {', '.join(words[:-1])} or {words[-1]}")
    return str(value)


def flag(name: str, value: Any) -> bool:
    """Take True or False, and nothing that Python would only count as such.

    >>> flag("download", "no")
    Traceback (most recent call last):
    ValueError: download='no': pass True or False
    """
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={shown(value)}: pass True or False")
    return bool(value)


def path_of(name: str, value: Any, *, what: str = "a path") -> Path:
    """Take the path of a file or folder: a string that a file system can hold, or a `pathlib.Path`.

    >>> path_of("out", 7)
    Traceback (most recent call last):
    ValueError: out=7: pass a path, as a string or a pathlib.Path
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise ValueError(f"{name}={shown(value)}: pass {what}, as a string or a pathlib.Path")
    text = os.fspath(value)
    if not text or "\0" in text or any(len(part) > 255 for part in Path(text).parts):
        raise ValueError(f"{name}={shown(value)}: no file can have this name; pass {what}")
    return Path(text)


@contextmanager
def named_path(name: str, value: Any) -> Iterator[Path]:
    """`path_of`, and what the file system says against it as an error that names the argument."""
    path = path_of(name, value)
    try:
        yield path
    except FileNotFoundError as error:
        raise ValueError(f"{name}={shown(value)}: there is no such file or folder; pass another") from error
    except OSError as error:
        raise ValueError(f"{name}={shown(value)}: {error.strerror or error}; pass another path") from error
    except ValueError as error:
        raise ValueError(f"{name}={shown(value)}: {error}") from error


def instance_of(name: str, value: Any, kind: Any, cure: str) -> Any:
    """Take an object of a class.

    >>> instance_of("title", 3, str, "pass a line of text")
    Traceback (most recent call last):
    ValueError: title=3: pass a line of text
    """
    if not isinstance(value, kind):
        raise ValueError(f"{name}={shown(value)}: {cure}")
    return value


def function(name: str, value: Any, what: str) -> Any:
    """Take something that can be called.

    >>> function("row", 3, "from an example to its row")
    Traceback (most recent call last):
    ValueError: row=3: pass a function from an example to its row
    """
    if not callable(value):
        raise ValueError(f"{name}={shown(value)}: pass a function {what}")
    return value


def array_of(name: str, value: Any, *, cure: str, kinds: str = "fiub") -> npt.NDArray[Any]:
    """Take an array, a tensor or nested lists, on the host, of these kinds of numbers; refuses all else.

    >>> array_of("mean", ["a"], cure="pass numbers")
    Traceback (most recent call last):
    ValueError: mean=['a']: pass numbers
    """
    try:
        array = np.asarray(_on_host(value))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # ragged lists; meta tensors
        raise ValueError(f"{name}={shown(value)}: {cure}") from error
    if array.dtype.kind not in kinds and not (array.size == 0 and array.ndim):
        what = f"={shown(value)}" if array.size < 20 else f" of shape {array.shape} and dtype {array.dtype}"
        raise ValueError(f"{name}{what}: {cure}")
    return array


def numbers(name: str, value: Any, *, cure: str) -> npt.NDArray[np.float64]:
    """`array_of` real numbers, as float64."""
    return array_of(name, value, cure=cure).astype(np.float64)


def _on_host(value: Any) -> Any:
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    tensor = tensor.cpu()
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor


@contextmanager
def room_for(name: str, value: Any, cure: str = "pass fewer") -> Iterator[None]:
    """Say which argument asked for more than the machine has, where arrays are made."""
    try:
        yield
    except (MemoryError, OverflowError, ValueError) as error:  # NumPy has a word of its own beyond 2**63
        raise ValueError(f"{name}={shown(value)}: does not fit into memory ({error}); {cure}") from error


def seed_of(seed: Any) -> int:
    """Take a seed: a non-negative int.

    >>> seed_of(None)
    Traceback (most recent call last):
    ValueError: seed=None: seeds are non-negative ints, so that a run can be repeated; pass e.g. seed=0
    """
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**256:
        raise ValueError(
            f"seed={shown(seed)}: seeds are non-negative ints, so that a run can be repeated; "
            "pass e.g. seed=0"
        )
    return int(seed)
