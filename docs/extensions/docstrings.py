"""Shows our docstrings as they are meant: doctests as code, formulas, and public names as links."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from formulas import plain, typeset

EXAMPLE = re.compile(r"\n\n(?=>>> )")
NAME = re.compile(r"(?<![`\[])`(\w+)`(?!`)")
GROUP = re.compile(r"^(\w+(?:, \w+)+)\n((?:    .*(?:\n|$))+)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Head the doctest with ``Examples``, give each parameter its own entry, link `name` to its entry."""
        if not obj.docstring:
            return
        if obj.is_module:  # pages have an introduction of their own
            obj.docstring = None
            return
        public = loader.modules_collection["wellorder"].exports or ()
        head, *examples = EXAMPLE.split(obj.docstring.value)
        head = GROUP.sub(lambda m: "".join(f"{name}\n{m[2]}" for name in m[1].split(", ")), head)
        head = plain(typeset(head))
        head = NAME.sub(lambda m: f"[{m[0]}][wellorder.{m[1]}]" if m[1] in public else m[0], head)
        parts = [head, "Examples\n--------\n" + "\n\n".join(examples)] if examples else [head]
        obj.docstring.value = "\n\n".join(parts)
