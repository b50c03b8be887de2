"""Output on terminals that know ASCII alone: what they cannot show is spelled out, and nothing crashes."""

from __future__ import annotations

import codecs
import sys
import unicodedata

NAME = "wellorder.plain"
SPELLED = {
    "ς": "sigma", "σ": "sigma", "φ": "phi", "γ": "gamma", "η": "eta", "θ": "theta", "δ": "delta", "ρ": "rho",
    "ν": "nu", "β": "beta", "Σ": "sum", "Δ": "Delta", "∇": "grad ", "∞": "inf", "√": "sqrt", "‖": "||",
    "≤": "<=", "≥": ">=", "≲": "<~", "·": "*", "×": "x", "⅔": "(2/3)", "⅓": "(1/3)", "²": "^2", "₀": "0",
    "–": "-", "−": "-", "…": "...", "\u0303": "~", "\u0304": "",
}  # fmt: skip


def spell_out(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding does not have; a handler for `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_spelled, error.object[error.start : error.end])), error.end


def _spelled(letter: str) -> str:
    close = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return SPELLED.get(letter, close or "?")


def plain_output() -> None:
    """Spell out, from now on, what standard output's encoding does not have."""
    codecs.register_error(NAME, spell_out)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=NAME)


def shown(text: str) -> str:
    """A text as standard output can show it, so that tables line up there too."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "".join(letter if letter.isascii() else _spelled(letter) for letter in text)
    return text
