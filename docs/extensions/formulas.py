"""Formulas without JavaScript: LaTeX between dollars becomes MathML, which browsers typeset themselves.

A hook of mkdocs (see mkdocs.yml). Pages write ``$…$`` and ``$$…$$``, docstrings
``:math:`…``` and ``.. math::``.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, fromstring

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.plugins import event_priority

FORMULA = r"(?<![\\$\w])(\$\$?)(?!\s)((?:\\.|[^$\\])+?)(?<!\s)\1(?![\d$])"
INLINE = re.compile(r":math:`([^`]+)`")
DISPLAY = re.compile(r"^( *)\.\. math:: *(.*(?:\n\1 +\S.*)*)", re.MULTILINE)
DOCTEST = re.compile(r"^(```+)python\n(?=>>> )", re.MULTILINE)

CODE = re.compile(r"(`+[^`]*`+|<[^>]*>|\$[^$]+\$)")
NAMES = re.compile(r"[*\w]+(?:, [*\w]+)*(?: :.*)?")
BRACED = re.compile(r"_\{([^{}]*)\}")
SINGLE = re.compile(
    r"(?:(?<![A-Za-z][A-Za-z])(?<=[^\s_])|(?<=\bmax)|(?<=\bmin))_([A-Za-z0-9α-ω]{1,2})(?![A-Za-z_])"
)


def mathml(tex: str, *, display: bool = False) -> str:
    r"""One formula as a ``<math>`` element; a command that is not understood is refused by name."""
    tex = re.sub(r"\\phi(?![A-Za-z])", r"\\varphi", " ".join(tex.split()))  # φ as in the text, not ϕ
    shown = convert(tex, display="block" if display else "inline")
    if missed := re.search(r"\\[A-Za-z]+", shown):
        raise ValueError(
            f"{missed[0]} in the formula {tex!r}: latex2mathml does not know it; write it otherwise"
        )
    return shown


def typeset(text: str) -> str:
    """Put a docstring's ``:math:`` roles and ``.. math::`` blocks between dollars, as pages have them."""
    text = DISPLAY.sub(lambda m: f"{m[1]}$${' '.join(m[2].split())}$$", text)
    return INLINE.sub(lambda m: f"${m[1].strip()}$", text)


def plain(text: str) -> str:
    """Keep Markdown's hands off formulas in plain symbols, such as ‖x_q − x*‖ and Σ_{i<n}.

    Code and formulas are left alone, and so are names such as ``step_size`` and lines that head a parameter.
    """
    return "\n".join(line if NAMES.fullmatch(line) else _escaped(line) for line in text.split("\n"))


def _escaped(line: str) -> str:
    parts = CODE.split(line)
    for i in range(0, len(parts), 2):
        part = BRACED.sub(r"<sub>\1</sub>", parts[i].replace("<", "&lt;"))
        parts[i] = re.sub(r"(?<!\*)\bx\*", r"x\*", SINGLE.sub(r"<sub>\1</sub>", part))
    return "".join(parts)


class _Formula(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Element, int, int]:  # type: ignore[override]  # noqa: ARG002, N802
        shown = mathml(m[2], display=m[1] == "$$").replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")
        return fromstring(shown), m.start(0), m.end(0)  # noqa: S314  # our own text


class Formulas(Extension):
    """Markdown with formulas."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Before emphasis (60) and escapes (180), after code (190)."""
        md.inlinePatterns.register(_Formula(FORMULA, md), "formula", 185)


@event_priority(100)  # before mkdocstrings looks at the list
def on_config(config: Any) -> Any:
    """Tell Markdown of formulas."""
    config.markdown_extensions.append(Formulas())
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Doctests are consoles: their prompts are not shown, and what they print is not copied (extra.css)."""
    return DOCTEST.sub(r"\1pycon\n", markdown)
