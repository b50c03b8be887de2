"""Texts for terminals that know ASCII alone: what they cannot show is spelled out, so that tables line up."""

from __future__ import annotations

import sys
import unicodedata

SPELLED = {
    "ς": "sigma", "σ": "sigma", "φ": "phi", "γ": "gamma", "η": "eta", "θ": "theta", "δ": "delta", "ρ": "rho",
    "ν": "nu", "β": "beta", "Σ": "sum", "Δ": "Delta", "∇": "grad ", "∞": "inf", "√": "sqrt", "‖": "||",
    "≤": "<=", "≥": ">=", "≲": "<~", "·": "*", "×": "x", "⅔": "(2/3)", "⅓": "(1/3)", "²": "^2", "₀": "0",
    "–": "-", "−": "-", "…": "...", "\u0303": "~", "\u0304": "",
}  # fmt: skip


def shown(text: str) -> str:
    """A text as standard output can show it, so that tables line up there too."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "".join(letter if letter.isascii() else _spelled(letter) for letter in text)
    return text


def _spelled(letter: str) -> str:
    close = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return SPELLED.get(letter, close or "?")
