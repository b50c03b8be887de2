"""Tables 1 and 2: the rates after tuning the step size, numerical constants and logarithms left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from wellorder.theory._assumptions import Constants, resolve
from wellorder.theory._methods import METHODS, ROWS
from wellorder.theory._setting import Keywords, Setting, check_epochs


@dataclass(frozen=True)
class Rate:
    """The terms of a rate, by formula."""

    method: str
    terms: Mapping[str, float]

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())


@dataclass(frozen=True)
class Row:
    """A row of Table 1 or 2: the formula, and the powers of N and Q in its last, order-dependent term."""

    method: str
    table: str
    relation: str
    rate: str
    power_of_n: float
    power_of_q: float
    note: str = ""


def rate(method: Any, epochs: int, n: int | None = None, **setting: Unpack[Keywords]) -> Rate:
    """The method's rate (Tables ``tab:SGD`` and ``tab:FL``), evaluated term by term.

    Constants and logarithms are left out, so rates rank methods for large N and Q; `bound` keeps everything.
    For η ≠ 1 the terms are those of the FL examples, scaled so that η = 1 gives the table.

    >>> rate("RR", 100, n=10_000).terms
    {'LF₀/Q': 0.01, '(LF₀√N·ς/(NQ))^⅔': 0.00215...}
    """
    known = resolve(method, n, setting)
    check_epochs(epochs)
    if known.method not in METHODS:
        raise ValueError(
            f"method={known.method!r}: the tables hold the paper's methods; use bound(…) for your own"
        )
    return Rate(known.method, _dependent(known, epochs) if known.p == math.inf else _plain(known, epochs))


def rate_table() -> tuple[Row, ...]:
    """Tables ``tab:SGD`` and ``tab:FL``, row by row.

    >>> for row in rate_table()[:3]:
    ...     print(row.method, row.rate)
    AP LF₀/Q + (LF₀N·ς/(NQ))^⅔
    RR LF₀/Q + (LF₀√N·ς/(NQ))^⅔
    OP LF₀/Q + (LF₀φ̄₀/(NQ))^⅔
    """
    return tuple(_row(m.name) for m in ROWS)


_WHAT = {"AP": "N·ς", "RR": "√N·ς", "OP": "φ̄₀", "IG": "N·ς", "SO": "√N·ς", "NP": "ς"}
_POWER = {"N·ς": 0.0, "√N·ς": -1 / 3, "φ̄₀": -2 / 3, "ς": -2 / 3}
_NOTES = {
    "identical": "needs θ ≲ φ̄₀/(LN): the parameters stay near x₀",
    "dependent": "L̃ = L + L_2∞ + L_∞",
}


def _kind(method: str) -> str:
    return method.removeprefix("FL-")


def _row(name: str) -> Row:
    method = METHODS[name]
    local = f" + ({'L_2∞' if method.p == math.inf else 'L'}F₀S·ς/(NQ))^⅔" if method.federated else ""
    table = "tab:FL" if method.federated else "tab:SGD"
    note = _NOTES.get(method.relation, "")
    if method.p == math.inf:
        text = f"(L̃F₀ + (L_2∞F₀ς)^⅔)/Q{local} + (L_2∞F₀ς/(NQ))^⅔"
        return Row(name, table, method.relation, text, -2 / 3, -2 / 3, note)
    what = _WHAT[_kind(name)]
    return Row(name, table, method.relation, f"LF₀/Q{local} + (LF₀{what}/(NQ))^⅔", _POWER[what], -2 / 3, note)


def _plain(known: Constants, epochs: int) -> dict[str, float]:
    s, kind, eta = known.setting, _kind(known.method), known.setting.server_step
    terms = {"LF₀/Q": (1 + eta) / (2 * eta) * s.smoothness * s.gap / epochs}
    if known.federated:
        terms["(LF₀S·ς/(NQ))^⅔"] = _power(s, epochs, s.smoothness * s.cohort * s.sigma)
    what = _WHAT[kind]
    size = {"N·ς": s.n * s.sigma, "√N·ς": math.sqrt(s.n) * s.sigma, "ς": s.sigma, "φ̄₀": s.n * s.sigma}[what]
    if METHODS[known.method].one:
        size = size if s.first_error is None else s.first_error
        size += s.smoothness * s.n * s.theta
    terms[f"(LF₀{what}/(NQ))^⅔"] = _power(s, epochs, s.smoothness * size)
    return terms


def _dependent(known: Constants, epochs: int) -> dict[str, float]:
    s, eta = known.setting, known.setting.server_step
    curved, own = s.two_to(math.inf), s.to_itself(math.inf)
    together = (eta * s.smoothness + curved + (1 + eta) / 2 * own) / eta
    terms = {
        "L̃F₀/Q": together * s.gap / epochs,
        "(L_2∞F₀ς)^⅔/Q": (curved * s.gap * s.sigma / eta) ** (2 / 3) / epochs,
    }
    if known.federated:
        terms["(L_2∞F₀S·ς/(NQ))^⅔"] = _power(s, epochs, curved * s.cohort * s.sigma)
    terms["(L_2∞F₀ς/(NQ))^⅔"] = _power(s, epochs, curved * s.sigma)
    return terms


def _power(s: Setting, epochs: int, size: float) -> float:
    return float((s.gap * size / (s.server_step * s.n * epochs)) ** (2 / 3))
