"""Tables 1 and 2: the rates after tuning the step size, numerical constants and logarithms left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from wellorder._arguments import flag
from wellorder.theory._constants import METHODS, ROWS, Constants, Method, resolve
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
class TableRow:
    """A row of Table 1 or 2: the formula, and the powers of N and Q in its last, order-dependent term."""

    method: str
    table: str
    """The label of Table 1 or 2 in the paper's source: examples or clients."""
    relation: str
    rate: str
    power_of_n: float
    power_of_q: float
    note: str = ""
    source: str = ""
    """Whose bound it is; empty for the paper's own, "ours" for rows that it does not have."""


def rate(method: Any, epochs: int, n: int | None = None, **setting: Unpack[Keywords]) -> Rate:
    """The method's rate (Tables 1 and 2), evaluated term by term.

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


def rate_table(*, related: bool = False) -> tuple[TableRow, ...]:
    """Tables 1 and 2, row by row; with the bounds of related work where asked for.

    >>> for row in rate_table()[:4]:
    ...     print(row.method, row.rate)
    AP LF₀/Q + (LF₀N·ς/(NQ))^⅔
    RR LF₀/Q + (LF₀√N·ς/(NQ))^⅔
    RR-expected LF₀/Q + (LF₀√N·ς/(NQ))^⅔
    OP LF₀/Q + (LF₀φ̄₀/(NQ))^⅔
    >>> [row.source for row in rate_table(related=True) if row.method == "FL-AP"]
    ['', 'Wang et al., 2022, Theorem 3.1']
    """
    return (*(_row(m) for m in ROWS), *(RELATED if flag("related", related) else ()))


_WHAT = {"AP": "N·ς", "RR": "√N·ς", "OP": "φ̄₀", "IG": "N·ς", "SO": "√N·ς", "NP": "ς"}
_POWER = {"N·ς": 0.0, "√N·ς": -1 / 3, "φ̄₀": -2 / 3, "ς": -2 / 3}
_LOCAL = " + (LF₀S·ς/(NQ))^⅔"
_BALANCED = "(L̃F₀ + (L_2∞F₀ς)^⅔)/Q{} + (L_2∞F₀ς/(NQ))^⅔"

RELATED = (
    TableRow(
        "AP", "tab:SGD", "arbitrary", "LF₀/Q + (LF₀N·ς/(NQ))^⅔", 0.0, -2 / 3, "as here",
        "Lu et al., 2021",
    ),
    TableRow(
        "RR", "tab:SGD", "independent", "LF₀/Q + (LF₀√N·ς/(NQ))^⅔", -1 / 3, -2 / 3, "in expectation",
        "Mishchenko et al., 2020",
    ),
    TableRow(
        "SO", "tab:SGD", "identical", "LF₀/Q + (LF₀√(Nd)·ς/(NQ))^⅔", -1 / 3, -2 / 3,
        "needs no θ; the text leaves out the power ⅔", "Lu et al., 2021",
    ),
    TableRow(
        "IG, SO", "tab:SGD", "identical", "LF₀/(NQ) + (LF₀N·ς/(NQ))^⅔", 0.0, -2 / 3,
        "a better first term; the last as in Mishchenko et al., 2020", "Koloskova et al., 2024",
    ),
    TableRow(
        "GraB", "tab:SGD", "dependent", _BALANCED.format(""), -2 / 3, -2 / 3, "as here", "Lu et al., 2022",
    ),
    TableRow(
        "FL-AP", "tab:FL", "arbitrary", f"LF₀/Q{_LOCAL} + (LF₀N·ς/(NQ))^⅔", 0.0, -2 / 3,
        "their σ = 0, ν̃ = β̃ = ς, P = N/S, η = 1, tuned", "Wang et al., 2022, Theorem 3.1",
    ),
)  # fmt: skip
"""Table 2's first row, and what the section on related work and Table 1's caption say of others' bounds."""


def _kind(method: str) -> str:
    return method.removeprefix("FL-").removesuffix("-expected")


def _note(m: Method) -> str:
    if m.expected:
        return "in expectation"
    if m.one:
        return "needs θ ≲ φ̄₀/(LN): the parameters stay near x₀"
    return "L̃ = L + L_2∞ + L_∞" if m.p == math.inf else ""


def _row(m: Method) -> TableRow:
    table, ours = ("tab:FL" if m.federated else "tab:SGD"), "ours" if m.label.startswith("docs/") else ""
    if m.p == math.inf:
        text = _BALANCED.format(_LOCAL.replace("L", "L_2∞", 1) if m.federated else "")
        return TableRow(m.name, table, m.relation, text, -2 / 3, -2 / 3, _note(m), ours)
    what = _WHAT[_kind(m.name)]
    text = f"LF₀/Q{_LOCAL if m.federated else ''} + (LF₀{what}/(NQ))^⅔"
    return TableRow(m.name, table, m.relation, text, _POWER[what], -2 / 3, _note(m), ours)


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
    """Herding's rows of age a make the first two terms a and a^⅓ times as large; ρ adds to ς in the last."""
    s, eta = known.setting, known.setting.server_step
    curved, own = s.two_to(math.inf), s.to_itself(math.inf)
    together = (eta * s.smoothness + curved + (1 + eta) / 2 * own) / eta
    herding = _kind(known.method) == "Herding"
    age = s.age if herding and s.moved is None else 1
    behind = s.n * own * (s.moved or 0.0) if herding else 0.0
    terms = {
        "L̃F₀/Q": age * together * s.gap / epochs,
        "(L_2∞F₀ς)^⅔/Q": age ** (1 / 3) * (curved * s.gap * s.sigma / eta) ** (2 / 3) / epochs,
    }
    if known.federated:
        terms["(L_2∞F₀S·ς/(NQ))^⅔"] = _power(s, epochs, curved * s.cohort * s.sigma)
    terms["(L_2∞F₀ς/(NQ))^⅔"] = _power(s, epochs, curved * (s.sigma + behind))
    return terms


def _power(s: Setting, epochs: int, size: float) -> float:
    return float((s.gap * size / (s.server_step * s.n * epochs)) ** (2 / 3))
