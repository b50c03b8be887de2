"""Theorems 1 and 2: how small the gradient must become, and with which step size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Unpack

from wellorder.theory._assumptions import Constants, resolve
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

    @property
    def total(self) -> float:
        """The sum of the terms: the bound."""
        return self.descent + self.first_epochs + self.local + self.order


def bound(
    method: Any, step_size: float, epochs: int, n: int | None = None, **setting: Unpack[Keywords]
) -> Bound:
    r"""Bound min_q ‖∇f(x_q)‖² after ``epochs`` (Theorem ``thm:SGD``; for clients ``thm:FL``).

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
    if not (math.isfinite(step_size) and step_size > 0):
        raise ValueError(f"step_size={step_size!r}: pass a positive number")
    most = largest(known)
    if step_size > most * (1 + 1e-12):
        raise ValueError(
            f"step_size={step_size:g}: nothing is proved for {known.method} above {most:.6g}; "
            "pass max_step_size(…) or less"
        )
    left, first, local, order = parts(known, epochs)
    square = step_size**2
    return Bound(
        known.method, step_size, epochs, left / step_size, first * square, local * square, order * square,
        known.probability(epochs),
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
