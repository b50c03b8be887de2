"""Step sizes: the tuning lemma, corrected, and the step size that makes a method's bound smallest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Unpack

from wellorder.theory._assumptions import resolve
from wellorder.theory._setting import Keywords, check_epochs
from wellorder.theory._theorems import largest, parts


@dataclass(frozen=True)
class Tuned:
    """A step size γ, Ψ(γ) = r_0/(γT) + cγ², and the lemma's upper bound of Ψ."""

    step_size: float
    value: float
    right_side: float


def step_size_lemma(r0: float, T: float, c: float, d: float) -> Tuned:  # noqa: N803
    r"""Tune a step size γ ≤ 1/d (Lemma ``lem:step-size``, corrected).

    .. math:: \gamma = \min\Big\{\frac1d, \Big(\frac{r_0}{cT}\Big)^{1/3}\Big\} \;\Rightarrow\;
        \frac{r_0}{\gamma T} + c\gamma^2 \le \frac{d r_0}{T} + 2\frac{c^{1/3} r_0^{2/3}}{T^{2/3}}

    The paper's statement prints :math:`(c r_0/T)^{1/3}`; its proof, and the algebra, need the form above.

    >>> tuned = step_size_lemma(r0=1.0, T=1000.0, c=8.0, d=1.0)
    >>> round(tuned.step_size, 6), round(tuned.value, 6), round(tuned.right_side, 6)
    (0.05, 0.04, 0.041)
    """
    for name, value in {"r0": r0, "T": T, "c": c, "d": d}.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value!r}: pass a positive number")
    step = min(1 / d, (r0 / (c * T)) ** (1 / 3))
    return Tuned(step, r0 / (step * T) + c * step**2, d * r0 / T + 2 * c ** (1 / 3) * (r0 / T) ** (2 / 3))


def tuned_step_size(method: Any, epochs: int, n: int | None = None, **setting: Unpack[Keywords]) -> float:
    """The admissible step size that makes `bound` smallest.

    The bound is r_0/(γT) + cγ², so its minimiser is min{1/d, (r_0/(2cT))^{1/3}}: the corrected
    lemma's choice (`step_size_lemma`) up to the factor 2^{-1/3}, and at most its value.

    >>> tuned_step_size("RR", 100, n=1000) == 1 / (32 * 1000)  # few epochs: as large as is admissible
    True
    >>> round(tuned_step_size("RR", 10**9, n=1000), 9)
    7.89e-07
    """
    known = resolve(method, n, setting)
    check_epochs(epochs)
    left, *squares = parts(known, epochs)
    if not left:
        raise ValueError("gap=0: the start is a minimiser already, so no step size is best; pass gap > 0")
    total = sum(squares)
    return min(largest(known), (left / (2 * total)) ** (1 / 3) if total else math.inf)
