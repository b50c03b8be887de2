"""Files that appear whole or not at all: written beside, flushed, renamed; and the one format of saved state.

A state is a tree of dictionaries with NumPy arrays, numbers, strings and lists of them at its ends. Its file
is an npz of plain arrays, so that ``numpy.load`` can look into it; nothing in it is ever unpickled.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

TEMPORARY = ".unfinished-"
"""What the name of a file begins with while it is written; a killed process may leave one behind."""

VALUES, CHECKSUM = "%values", "%checksum"
"""Entries of a state's file beside its arrays; a quoted name never begins like this."""

DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError, KeyError, TypeError,
    ValueError, AttributeError, OSError, EOFError, RuntimeError, MemoryError, OverflowError,
)  # fmt: skip
"""What reading a damaged file may raise. One flipped bit can ask for a password, a compression that Python
does not have, or an array larger than the memory."""


def write_whole(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file beside ``path``, flush it to disk, rename it.

    A crash at any moment leaves the old file or the new one; an error leaves nothing else behind.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_whole(folder / "a.txt", lambda beside: beside.write_text("all of it"))
    >>> [file.name for file in folder.iterdir()]
    ['a.txt']
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=_prefix(path), suffix=path.suffix, dir=path.parent)
    os.close(handle)
    beside = Path(name)
    try:
        write(beside)
        beside.chmod(0o644)
        _flush(beside)
        beside.replace(path)
        _flush(path.parent)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.add_note(f"the disk is full: free some space and go on; {path.name} is as it was before")
        raise


def sweep(path: str | os.PathLike[str]) -> None:
    """Delete what writers of ``path`` that were killed have left beside it; nobody may be writing it now."""
    path = Path(path)
    for entry in path.parent.iterdir() if path.parent.is_dir() else ():
        if entry.name.startswith(_prefix(path)) and entry.is_file():
            entry.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    return f"{TEMPORARY}{path.name[:100]}-"


def write_text(path: Path, text: str) -> None:
    """Write a text file; whole or not at all."""
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a binary file; whole or not at all."""
    write_whole(path, lambda beside: beside.write_bytes(data))


def save_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a tree of arrays and plain values into one file with a checksum; whole or not at all.

    >>> path = Path(tempfile.mkdtemp()) / "state.npz"
    >>> save_state(path, {"model": {"w": np.arange(3.0)}, "names": ["a", "b"], "round": 7})
    >>> load_state(path)
    {'model': {'w': array([0., 1., 2.])}, 'names': ['a', 'b'], 'round': 7}
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    values = json.dumps(_outline(state, "", arrays)).encode()
    arrays[VALUES] = np.frombuffer(values, np.uint8)
    arrays[CHECKSUM] = np.array(_checksum(arrays), np.uint32)

    def fill(beside: Path) -> None:
        with zipfile.ZipFile(beside, "w", allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, fill)


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `save_state` wrote; refuses a file that is damaged or of another kind.

    What killed writers have left beside it is swept away: whoever loads a state is about to go on with it.
    """
    sweep(path)
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {name.removesuffix(".npy"): _entry(archive, name) for name in archive.namelist()}
        told = int(arrays.pop(CHECKSUM))
        if _checksum(arrays) != told:
            raise ValueError("its checksum does not match")
        outline = json.loads(arrays.pop(VALUES).tobytes())
        tree: dict[str, Any] = _tree({"branch": outline["branch"]}, arrays)
    except FileNotFoundError:
        raise
    except DAMAGED as error:
        raise ValueError(f"{os.fspath(path)!r} cannot be read ({error}); delete it to start anew") from error
    return tree


def _outline(value: Any, path: str, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """The tree in JSON: branches, plain values, and the names of arrays, which are collected on the way."""
    if isinstance(value, Mapping):
        below = {}
        for key, part in value.items():
            name = quote(str(key), safe=" .-_()[]:,=")
            below[str(key)] = _outline(part, f"{path}/{name}" if path else name, arrays)
        return {"branch": below}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiub":
            raise ValueError(
                f"array {path!r} of dtype {value.dtype} cannot be saved; use numbers or booleans"
            )
        arrays[path] = value
        return {"array": path}
    plain = value.item() if isinstance(value, np.generic) else value
    try:
        json.dumps(plain)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path!r} cannot be saved ({error}); use arrays, numbers or strings") from error
    return {"value": plain}


def _tree(outline: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    if "branch" in outline:
        return {key: _tree(part, arrays) for key, part in outline["branch"].items()}
    return arrays[outline["array"]] if "array" in outline else outline["value"]


def _entry(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:  # it might become any size
        raise ValueError(f"{name!r} is compressed, which save_state leaves nothing")
    with archive.open(name) as entry:
        array: npt.NDArray[Any] = np.lib.format.read_array(entry, allow_pickle=False)
    return array


def _checksum(arrays: Mapping[str, npt.NDArray[Any]]) -> int:
    total = 0
    for name in sorted(arrays):
        array = arrays[name]
        head = f"{name} {array.dtype.str} {array.shape}".encode()
        total = zlib.crc32(
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, zlib.crc32(head, total)
        )
    return total


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
