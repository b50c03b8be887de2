"""Formulas without JavaScript: the LaTeX of our docstrings as HTML with Unicode symbols."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

PART = re.compile(r"\\[A-Za-z]+|\\.|\s+|.")
INLINE = re.compile(r":math:`([^`]+)`")
CODE = re.compile(r"(`+[^`]*`+|<[^>]*>)")
NAMES = re.compile(r"[*\w]+(?:, [*\w]+)*(?: :.*)?")
BRACED = re.compile(r"_\{([^{}]*)\}")
SINGLE = re.compile(
    r"(?:(?<![A-Za-z][A-Za-z])(?<=[^\s_])|(?<=\bmax)|(?<=\bmin))_([A-Za-z0-9α-ω]{1,2})(?![A-Za-z_])"
)
DISPLAY = re.compile(r"^( *)\.\. math:: *(.*(?:\n\1 +\S.*)*)", re.MULTILINE)

GREEK = """
alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho varsigma sigma tau
upsilon phi chi psi omega
"""
SIGNS = """
varepsilon ε varphi φ ell ℓ Delta Δ Sigma Σ Phi Φ Omega Ω nabla ∇ partial ∂ infty ∞ sum Σ prod ∏ max max
min min log log exp exp cdot · times × otimes ⊗ odot ⊙ pm ± top ⊤ langle ⟨ rangle ⟩ lvert | rvert | lVert ‖
rVert ‖ | ‖ { { } } dots … ldots … cdots … lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ mid |
"""
RELATIONS = """
le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ approx ≈ sim ∼ in ∈ propto ∝ leftarrow ← gets ← to → rightarrow →
Rightarrow ⇒ iff ⇔ = = + + - −
"""
SPACES = {";": " ", ",": " ", ":": " ", "!": "", "\\": " ", "quad": "\u2003", "qquad": "\u2003\u2003"}
SIZES = ("left", "right", "big", "Big", "bigl", "bigr", "Bigl", "Bigr")
ACCENTS = {"bar": "\u0304", "hat": "\u0302", "tilde": "\u0303", "vec": "\u20d7"}
FRACTIONS = ("frac", "tfrac", "dfrac")
STYLES = ("mathrm", "mathbf", "mathcal", "mathbb", "text", "operatorname", "boldsymbol")


def _pairs(table: str, around: str = "") -> dict[str, str]:
    words = table.split()
    return {name: f"{around}{sign}{around}" for name, sign in zip(words[::2], words[1::2], strict=True)}


SYMBOLS = {name: chr(ord("α") + i) for i, name in enumerate(GREEK.split())}
SYMBOLS |= _pairs(SIGNS) | _pairs(RELATIONS, " ") | SPACES | dict.fromkeys(SIZES, "")


def typeset(text: str) -> str:
    """Replace ``:math:`` roles and ``.. math::`` blocks of a docstring by HTML."""
    text = DISPLAY.sub(lambda m: f'{m[1]}<div class="formula">{formula(" ".join(m[2].split()))}</div>', text)
    return INLINE.sub(lambda m: f'<span class="formula">{formula(m[1])}</span>', text)


def plain(text: str) -> str:
    """Keep Markdown's hands off formulas in plain symbols, such as ‖x_q − x*‖ and Σ_{i<n}.

    Code is left alone, and so are names such as ``step_size`` and the lines that head a parameter.
    """
    return "\n".join(line if NAMES.fullmatch(line) else _escaped(line) for line in text.split("\n"))


def _escaped(line: str) -> str:
    parts = CODE.split(line)
    for i in range(0, len(parts), 2):
        part = BRACED.sub(r"<sub>\1</sub>", parts[i].replace("<", "&lt;"))
        parts[i] = re.sub(r"(?<!\*)\bx\*", r"x\*", SINGLE.sub(r"<sub>\1</sub>", part))
    return "".join(parts)


def formula(tex: str) -> str:
    r"""One formula: ``\frac1S\sum_n p_n`` becomes a stacked fraction, Σ with a subscript, and so on."""
    return _sequence(iter(PART.findall(tex)), tex).strip()


def _sequence(parts: Iterator[str], tex: str) -> str:
    shown = []
    for part in parts:
        if part == "}":
            break
        shown.append(_item(part, parts, tex))
    return "".join(shown)


def _item(part: str, parts: Iterator[str], tex: str) -> str:
    if part == "{":
        return _sequence(parts, tex)
    if part == "^":
        return f"<sup>{_argument(parts, tex)}</sup>"
    if part == "_":
        return f"<sub>{_argument(parts, tex)}</sub>"
    if not part.startswith("\\"):
        return SYMBOLS[part] if part in "=+-" else html.escape(part.strip())
    name = part[1:]
    if name in FRACTIONS:
        over, under = _argument(parts, tex), _argument(parts, tex)
        return f'<span class="frac"><span>{over}</span><span>{under}</span></span>'
    if name in ACCENTS:
        return _argument(parts, tex) + ACCENTS[name]
    if name in STYLES:
        return _argument(parts, tex)
    if name not in SYMBOLS:
        raise ValueError(f"\\{name} in the formula {tex!r}: add it to docs/extensions/formulas.py")
    return SYMBOLS[name]


def _argument(parts: Iterator[str], tex: str) -> str:
    part = next((part for part in parts if not part.isspace()), "")
    if not part:
        raise ValueError(f"the formula {tex!r} ends too early; give its last command an argument")
    return _item(part, parts, tex)
