"""What users pass: numbers are taken as they are meant, or refused by argument, value and cure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def whole_number(name: str, value: Any, *, least: int, most: int | None = None, cure: str = "") -> int:
    """Take a whole number between ``least`` and ``most``; refuses anything else, True and 2.0 included.

    >>> whole_number("epochs", 0, least=1)
    Traceback (most recent call last):
    ValueError: epochs=0: pass an int >= 1
    """
    good = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
    if not good or (most is not None and value > most):
        span = f"an int >= {least}" if most is None else f"an int from {least} to {most}"
        raise ValueError(f"{name}={value!r}: {cure}, {span}" if cure else f"{name}={value!r}: pass {span}")
    return int(value)


def real_number(name: str, value: Any, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """Take a finite number that is above ``above`` and at least ``least``.

    >>> real_number("step_size", "0.1", above=0)
    Traceback (most recent call last):
    ValueError: step_size='0.1': pass a positive number
    """
    good = isinstance(value, int | float | np.number) and not isinstance(value, bool | complex)
    if not good or not (math.isfinite(value) and value > above and value >= least):
        span = "a positive number" if above == 0 else f"a number above {above:g}" if above > least else ""
        span = span or ("a finite number" if least == -math.inf else f"a number of {least:g} or more")
        raise ValueError(f"{name}={value!r}: pass {span}")
    return float(value)


def seed_of(seed: Any) -> int:
    """Take a seed: a non-negative int.

    >>> seed_of(None)
    Traceback (most recent call last):
    ValueError: seed=None: seeds are non-negative ints, so that a run can be repeated; pass e.g. seed=0
    """
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise ValueError(
            f"seed={seed!r}: seeds are non-negative ints, so that a run can be repeated; pass e.g. seed=0"
        )
    return int(seed)
