"""``module:name`` and ``file.py:name``: an object of the user's, by where it is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from wellorder.experiments._names import meant


def named_object(text: str, example: str) -> Any:
    """Import what ``text`` names: ``package.module:name``, or ``folder/file.py:name``; names may have dots.

    >>> named_object("math:pi", "train.py:loader")
    3.141592653589793
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f"{text!r}: write FILE.py:NAME or MODULE:NAME, as {example}")
    found: Any = _module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            known = [word for word in dir(found) if not word.startswith("_")]
            raise ValueError(f"{text!r}: {place} has no {part!r}; {meant(part, known)}")
        found = getattr(found, part)
    return found


def made_object(found: Any, text: str, what: str, is_one: Callable[[Any], bool]) -> Any:
    """The object itself, or what a function of no arguments makes."""
    if callable(found) and not is_one(found):
        try:
            found = found()
        except Exception as error:
            raise ValueError(
                f"{text}() failed with {type(error).__name__}: {error}; name {what}, or a function of no "
                "arguments that makes one"
            ) from error
    if not is_one(found):
        raise ValueError(
            f"{text} is {type(found).__name__}, not {what}; name {what}, or a function that makes one"
        )
    return found


def _module(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix != ".py":
        return _imported(place)
    if not path.is_file():
        raise ValueError(f"{place}: there is no such file here ({Path.cwd()}); pass the path of your script")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{place} cannot be imported as Python; pass a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # workers look there for what was pickled
    sys.path.insert(0, str(path.parent.resolve()))  # as `python file.py` has it
    _running(place, lambda: spec.loader.exec_module(module))
    return module


def _imported(place: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        known = importlib.util.find_spec(place) is not None
    except (ModuleNotFoundError, ValueError):
        known = False
    if not known:
        cure = (
            f"did you mean {place}.py?" if Path(f"{place}.py").is_file() else "a file is named with its .py"
        )
        raise ValueError(f"{place}: there is no such module; {cure}")
    found: ModuleType = _running(place, lambda: importlib.import_module(place))
    return found


def _running(place: str, work: Any) -> Any:
    """Run the user's module; what goes wrong there is told as theirs."""
    try:
        return work()
    except Exception as error:
        raise ValueError(
            f"{place} failed with {type(error).__name__}: {error}; run it with python to see where. What "
            'only a script should do belongs under if __name__ == "__main__":'
        ) from error
