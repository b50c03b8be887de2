"""Theorems 1 and 2: how small the gradient must become, with which step size, and which is best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Unpack

from wellorder._arguments import real_number
from wellorder.theory._constants import Constants, resolve
from wellorder.theory._setting import Keywords, check_epochs


@dataclass(frozen=True)
class Bound:
    """An upper bound of min_q ‖∇f(x_q)‖², term by term."""

    method: str
    step_size: float
    epochs: int
    descent: float
    """c₁·F_0/(γNQ): what is left of the start."""
    first_epochs: float
    """c₂·γ²L²·(1/Q)·Σ_{i<ν} φ̄_i²: the orders of the first ν epochs, before the method has had an effect."""
    local: float
    """2c₁·γ²L²K²ς²: the clients' local steps; 0 in SGD."""
    order: float
    """c₂·γ²L²·D: what the method's orders cost for ever."""
    probability: float
    """With what probability the bound holds."""
    expected: bool = False
    """Whether it bounds min_q E‖∇f(x_q)‖², the mean over runs, rather than each run."""

    @property
    def total(self) -> float:
        """The sum of the terms: the bound."""
        return self.descent + self.first_epochs + self.local + self.order


def bound(
    method: Any, step_size: float, epochs: int, n: int | None = None, **setting: Unpack[Keywords]
) -> Bound:
    r"""Bound min_q ‖∇f(x_q)‖² after ``epochs`` (Theorem 1; for clients Theorem 2).

    .. math:: c_1 \frac{F_0}{\gamma\eta\frac{KN}{S}Q}
        + c_2\gamma^2 L_{2,p}^2\frac{K^2}{S^2}\frac1Q\sum_{i<\nu}\bar\phi_i^2
        + 2c_1\gamma^2 L_{2,p}^2 K^2\varsigma^2 + c_2\gamma^2 L_{2,p}^2\frac{K^2}{S^2} D

    with K = S = η = 1 and without the third term for SGD; :math:`\bar\phi_i \le N\varsigma` for i < ν.

    Parameters
    ----------
    method, n, **setting
        As for `constants`; or a `Constants` alone.
    step_size, epochs
        γ, at most `max_step_size`, and Q.

    >>> result = bound("RR", 1e-5, 100, n=1000, sigma=2.0)
    >>> f"{result.descent:.4f} + {result.order:.4f} = {result.total:.4f}", round(result.probability, 2)
    ('3.0000 + 0.0012 = 3.0012', 0.99)
    """
    known = resolve(method, n, setting)
    check_epochs(epochs)
    step_size = real_number("step_size", step_size, above=0)
    most = largest(known)
    if step_size > most * (1 + 1e-12):
        raise ValueError(
            f"step_size={step_size:g}: nothing is proved for {known.method} above {most:.6g} with these n, "
            "dim, smoothness, cohort, local_steps and server_step; pass max_step_size(…) or less"
        )
    left, first, local, order = parts(known, epochs)
    square = step_size**2
    return Bound(
        known.method, step_size, epochs, left / step_size, first * square, local * square, order * square,
        known.probability(epochs), known.expected,
    )  # fmt: skip


def max_step_size(method: Any, n: int | None = None, **setting: Unpack[Keywords]) -> float:
    """The largest step size for which the method's bound is proved.

    >>> max_step_size("AP", 1000) == 1 / (32 * 1000)
    True
    """
    return largest(resolve(method, n, setting))


def largest(known: Constants) -> float:
    """The smallest of the limits of the step size."""
    return min(value for _, value in known.limits)


def parts(known: Constants, epochs: int) -> tuple[float, float, float, float]:
    """The bound is a/γ + (b + c + d)·γ²; these are a, b, c, d."""
    s = known.setting
    visits = s.local_steps / s.cohort
    curved = (s.two_to(known.p) * visits) ** 2
    return (
        known.c1 * s.gap / (s.server_step * visits * s.n * epochs),
        known.c2 * curved * known.nu * (s.n * s.sigma) ** 2 / epochs,
        2 * known.c1 * (s.two_to(known.p) * s.local_steps * s.sigma) ** 2 if known.federated else 0.0,
        known.c2 * curved * known.D,
    )


@dataclass(frozen=True)
class Tuned:
    """A step size γ, Ψ(γ) = r_0/(γT) + cγ², and the lemma's upper bound of Ψ."""

    step_size: float
    value: float
    right_side: float


def step_size_lemma(r0: float, T: float, c: float, d: float) -> Tuned:  # noqa: N803
    r"""Tune a step size γ ≤ 1/d (the step-size lemma, corrected).

    .. math:: \gamma = \min\Big\{\frac1d, \Big(\frac{r_0}{cT}\Big)^{1/3}\Big\} \;\Rightarrow\;
        \frac{r_0}{\gamma T} + c\gamma^2 \le \frac{d r_0}{T} + 2\frac{c^{1/3} r_0^{2/3}}{T^{2/3}}

    The paper's statement prints :math:`(c r_0/T)^{1/3}`; its proof, and the algebra, need the form above.

    >>> tuned = step_size_lemma(r0=1.0, T=1000.0, c=8.0, d=1.0)
    >>> round(tuned.step_size, 6), round(tuned.value, 6), round(tuned.right_side, 6)
    (0.05, 0.04, 0.041)
    """
    for name, value in {"r0": r0, "T": T, "c": c, "d": d}.items():
        real_number(name, value, above=0)
    if not 0 < c * T < math.inf:
        raise ValueError(f"T={T!r}, c={c!r}: their product is beyond float64; measure them in other units")
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
