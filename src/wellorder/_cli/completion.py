"""What the Tab key offers: tasks, the names in a file of yours, and policies."""

from __future__ import annotations

import ast
from pathlib import Path

from wellorder.experiments._known_rows import KNOWN
from wellorder.experiments._tasks import TASKS
from wellorder.policies import REGISTRY


def tasks(incomplete: str) -> list[tuple[str, str]]:
    """Tasks that begin so, with what they are; Python files here, and the names in them, which nobody runs.

    >>> tasks("quad")
    [('quadratics', '1,000 one-dimensional quadratics, those of Figure 1')]
    """
    found = [(name, about) for name, (_, about) in TASKS.items() if name.startswith(incomplete)]
    file, colon, begun = incomplete.partition(":")
    if colon:
        return [(f"{file}:{name}", "") for name in _names(Path(file)) if name.startswith(begun)]
    folder = Path(incomplete).parent if "/" in incomplete else Path()
    files = sorted(str(path) for path in folder.glob("*.py")) if folder.is_dir() else []
    return found + [(f"{path}:", "a task of your own in it") for path in files if path.startswith(incomplete)]


def policies(incomplete: str) -> list[tuple[str, str]]:
    """Policies that begin so, in whatever case, with what they need.

    >>> policies("strat"), ("PairGraB", "needs signals at each visit") in policies("pairgrab")
    ([('stratified', 'needs labels')], True)
    """
    known = {entry.name: f"needs {entry.needs.value}" for entry in REGISTRY}
    known |= {
        entry.short: entry.name for entry in REGISTRY if entry.short.isalpha() and entry.short != entry.name
    }
    known |= {name: f"needs {' and '.join(kind.asks)}" for name, kind in KNOWN.items()}
    return [(name, about) for name, about in known.items() if name.lower().startswith(incomplete.lower())]


def _names(file: Path) -> list[str]:
    """Top-level functions and values of a Python file, read but not run."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return []
    found = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    found += [
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    return [name for name in found if not name.startswith("_")]
