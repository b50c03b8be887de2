"""Files that appear whole or not at all: written beside, flushed to disk, renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

TEMPORARY = ".unfinished-"
"""What the name of a file begins with while it is written; a killed process may leave one behind."""


def write_whole(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file beside ``path``, flush it to disk, rename it.

    A crash at any moment leaves the old file or the new one; an error leaves nothing else behind.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_whole(folder / "a.txt", lambda beside: beside.write_text("all of it"))
    >>> [file.name for file in folder.iterdir()]
    ['a.txt']
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=TEMPORARY, suffix=path.suffix, dir=path.parent)
    os.close(handle)
    beside = Path(name)
    try:
        write(beside)
        beside.chmod(0o644)
        _flush(beside)
        beside.replace(path)
        _flush(path.parent)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file; whole or not at all."""
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a binary file; whole or not at all."""
    write_whole(path, lambda beside: beside.write_bytes(data))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
