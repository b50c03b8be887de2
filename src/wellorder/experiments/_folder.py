r"""A run is a folder of data: what was asked, on what machine, and one table.

``config.json``
    The options as given and as resolved.
``about.json``
    Versions, machine, and when the run was started and resumed.
``cells/``
    One Parquet file for each finished policy and seed: what a killed run keeps.
``table.parquet``, ``table.csv``
    All cells, without the clock: the same seeds on the same machine give the same bytes.
``timings.parquet``, ``timings.csv``
    The clock: cumulative training seconds by policy, seed and epoch.

Every file is written beside, flushed and renamed, by one process at a time. The folder knows nothing about
what was trained: any flat table (see `wellorder.report.table_of`) can be kept in one.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # no POSIX system: folders are not locked there
    fcntl = None  # type: ignore[assignment]

from wellorder._arguments import flag, instance_of, path_of, shown, whole_number
from wellorder._saving import TEMPORARY, write_text
from wellorder.report._table import KEYS, Table, checked_table, joined, read_table, write_table

LOCK = ".lock"
ANEW = "put it back, or start anew in another folder"
LESS = "delete it: what it held is made again, and the rest is kept"
CURES = {"config.json": ANEW}
"""What to do about a damaged file, by name; others can be spared."""
PACKAGES = ("wellorder", "numpy", "numba", "scipy", "scikit-learn", "pyarrow", "torch")


@dataclass(frozen=True)
class RunFolder:
    """A run's folder on disk."""

    path: Path

    @classmethod
    @contextmanager
    def claimed(cls, path: Path, *, resume: bool = False) -> Iterator[RunFolder]:
        """`start` for the length of a ``with`` block, in which no other process can have the folder."""
        path, resume = path_of("path", path), flag("resume", resume)
        if resume:
            cls(path)._begun()
        try:
            path.mkdir(parents=True, exist_ok=True)
            handle = _locked(path / LOCK)
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            raise _unwritable(path, error) from None
        if handle is None:
            raise ValueError(
                f"out={path}: a run is at work in this folder ({_owner(path / LOCK)}); wait for it to end, "
                "or choose another folder"
            )
        try:
            yield cls.start(path, resume=resume)
        finally:
            _unlock(path / LOCK, handle)

    @classmethod
    def start(cls, path: Path, *, resume: bool = False) -> RunFolder:
        """Make the folder, or take up the one that a broken run has left."""
        path, resume = path_of("path", path), flag("resume", resume)
        folder = cls(path)
        if resume:
            folder._begun()
        try:
            if not resume and path.is_dir() and not folder._is_bare():
                raise ValueError(
                    f"out={path}: this folder is not empty; add --resume to finish its run, or choose another"
                )
            (path / "cells").mkdir(parents=True, exist_ok=True)
            for leftover in [*path.glob(TEMPORARY + "*"), *(path / "cells").glob(TEMPORARY + "*")]:
                if leftover.is_dir():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink(missing_ok=True)
            folder.write("about.json", folder._about())
        except OSError as error:
            raise _unwritable(path, error) from None
        return folder

    def read(self, name: str) -> dict[str, Any] | None:
        """Read one of the folder's JSON files; None if it is not there."""
        file = self.path / path_of("name", name, what="the name of a file").name
        if not file.exists():
            return None
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # RecursionError: brackets nested too deep
            raise self.damaged(name, f"cannot be read ({error})") from None
        if not isinstance(found, dict):
            raise self.damaged(name, "holds no table of names")
        return found

    def damaged(self, name: str, what: str) -> ValueError:
        """An error about one of the folder's files, with the cure."""
        return ValueError(f"{self.path / name}: {what}; {CURES.get(name, LESS)}")

    def asked(self) -> dict[str, Any]:
        """What the folder's run was asked for (``given``) and what that meant (``resolved``)."""
        found = self._begun()
        if not all(isinstance(found.get(part), dict) for part in ("given", "resolved")):
            raise self.damaged("config.json", "holds no options of a run")
        return found

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of the folder's JSON files."""
        file = self.path / path_of("name", name, what="the name of a file").name
        instance_of("content", content, Mapping, "pass a mapping of plain data")
        write_text(file, json.dumps(content, indent=2, ensure_ascii=False))

    def keep(self, policy: int, seed: int, table: Table) -> None:
        """Keep a finished cell: the table of the ``policy``-th policy and one seed."""
        write_table(table, self._cell(policy, seed))

    def kept(self, policy: int, label: str, seed: int, *, rows: int, columns: Sequence[str]) -> Table | None:
        """A finished cell's table, or None; refuses one that is not of ``label``, or not so large."""
        cell = self._cell(policy, seed)
        whole_number("rows", rows, least=1)
        instance_of("label", label, str, "pass the policy's label, as a string")
        if isinstance(columns, str) or not all(isinstance(name, str) for name in _listed(columns)):
            raise ValueError(f"columns={shown(columns)}: pass a list of columns' names")
        if not cell.exists():
            return None
        name = f"cells/{cell.name}"
        try:
            found = read_table(cell, rows=rows)
        except ValueError as error:
            raise self.damaged(name, str(error)) from None
        missing = [column for column in (*KEYS, *columns) if column not in found.column_names]
        if missing:
            raise self.damaged(name, f"lacks the columns {', '.join(missing)}")
        for column, values in zip(KEYS, ([label] * rows, [seed] * rows, list(range(rows))), strict=True):
            if found.column(column).to_pylist() != values:
                raise self.damaged(
                    name,
                    f"is not of this run (label={shown(label)}), for its column {column!r} differs",
                )
        return found

    def seal(self, cells: Sequence[Table]) -> Table:
        """Write the run's tables from all its cells, in their order; returns the whole, with the clock."""
        instance_of("cells", cells, list, "pass a list of tables")
        for cell in cells:
            checked_table(cell, "cells")
        if not cells:
            raise ValueError("cells=[]: pass at least one table")
        whole = joined(cells)
        clock = [name for name in ("policy", "seed", "epoch", "seconds") if name in whole.column_names]
        bare = whole.drop_columns(["seconds"]) if "seconds" in whole.column_names else whole
        for suffix in (".parquet", ".csv"):
            write_table(bare, self.path / f"table{suffix}")
            write_table(whole.select(clock), self.path / f"timings{suffix}")
        return whole

    def table(self) -> Table:
        """The sealed run's whole table, with the clock."""
        try:
            bare, clock = (read_table(self.path / f"{name}.parquet") for name in ("table", "timings"))
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}; finish the run with resume=True") from None
        return (
            bare.append_column("seconds", clock.column("seconds"))
            if "seconds" in clock.column_names
            else bare
        )

    def mixed(self) -> str:
        """What changed between the starts of the run, in words; empty if nothing did."""
        facts = [{**start["versions"], "cpu": start["machine"].get("cpu")} for start in self._starts()]
        names = sorted({name for fact in facts for name in fact if fact[name] != facts[0].get(name)})
        changes = [
            f"{name} ({', '.join(dict.fromkeys(str(fact.get(name)) for fact in facts))})" for name in names
        ]
        return f"This run was resumed under other conditions: {'; '.join(changes)}." if changes else ""

    def _cell(self, policy: int, seed: int) -> Path:
        number = whole_number("policy", policy, least=0)
        return self.path / "cells" / f"policy{number}-seed{whole_number('seed', seed, least=0)}.parquet"

    def _begun(self) -> dict[str, Any]:
        found = self.read("config.json")
        if found is None:
            raise ValueError(
                f"out={self.path}: there is no run to resume (no config.json); leave out --resume to start "
                "one, in a new or an empty folder"
            )
        return found

    def _is_bare(self) -> bool:
        """Whether nothing is there, or no more than a run leaves that was killed before it began."""
        cells = self.path / "cells"
        files = [file for file in self.path.iterdir() if file != cells]
        files += cells.iterdir() if cells.is_dir() else []
        return all(file.name in ("about.json", LOCK) or file.name.startswith(TEMPORARY) for file in files)

    def _starts(self) -> list[dict[str, Any]]:
        found = (self.read("about.json") or {"started": []}).get("started")
        parts = ("versions", "machine")
        if not isinstance(found, list) or not all(
            isinstance(start, dict) and all(isinstance(start.get(part), dict) for part in parts)
            for start in found
        ):
            raise self.damaged("about.json", "does not tell when and under what the run was started")
        return found

    def _about(self) -> dict[str, Any]:
        now = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "machine": machine(),
        }
        return {"started": [*self._starts(), now]}


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Fill the folder that is given: its files appear in ``out`` in one step at the end, or not at all.

    The step exchanges two folders. Where that is impossible (``out`` holds other things too, or is a mount
    point, or the system has no such call), the files are renamed one after the other.
    What killed processes have left beside ``out`` is swept away.
    """
    out = Path(out).absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        home = out.parent if os.access(out.parent, os.W_OK) else out
        prefix = f"{TEMPORARY}{out.name}-"
        inside = list(out.iterdir()) if out.exists() else []
        for entry in [entry for entry in home.iterdir() if entry.name.startswith(prefix)] + inside:
            if entry.name.startswith(TEMPORARY):
                _sweep(entry)
        beside, handle = _scratch(prefix, home)
    except (OSError, ValueError) as error:
        raise _unwritable(out, error) from None
    try:
        yield beside
        (beside / LOCK).unlink(missing_ok=True)
        _put(beside, out)
        _flush(out.parent)
    finally:
        os.close(handle)
        shutil.rmtree(beside, ignore_errors=True)


def _scratch(prefix: str, home: Path) -> tuple[Path, int]:
    """A new folder, and the lock that tells others that its owner lives."""
    while True:
        beside = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        with suppress(FileNotFoundError):  # somebody has swept it away before it was locked
            handle = _locked(beside / LOCK)
            if handle is not None:
                return beside, handle


def _sweep(leftover: Path) -> None:
    """Delete what a killed process has left; not what a living one is filling."""
    if not leftover.is_dir():
        leftover.unlink(missing_ok=True)
        return
    handle = _locked(leftover / LOCK)
    if handle is not None:
        shutil.rmtree(leftover, ignore_errors=True)
        os.close(handle)


def _put(beside: Path, out: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    beside.chmod(0o777 & ~mask)
    names = sorted(file.name for file in beside.iterdir())
    with suppress(OSError):
        beside.rename(out)  # there was no such folder, or an empty one
        return
    if {file.name for file in out.iterdir()} <= set(names) and _exchange(beside, out):
        return
    for name in names:
        (beside / name).replace(out / name)


def _flush(folder: Path) -> None:
    """Make the renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step, where the system can: Linux, by renameat2."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    here, exchange = -100, 2
    return bool(call(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _locked(file: Path) -> int | None:
    """Lock a file and write into it who did; None if another process has it (one that is killed lets go)."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file.exists() and os.path.samestat(os.fstat(handle), file.stat()):
                now = datetime.now(UTC).isoformat(timespec="seconds")
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {platform.node()}, since {now}".encode())
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its owner has ended and taken the file away since it was opened


def _unlock(file: Path, handle: int) -> None:
    file.unlink(missing_ok=True)
    os.close(handle)


def _owner(file: Path) -> str:
    """Who has locked a file: it says so a moment after it has the lock."""
    for _ in range(20):
        with suppress(OSError, ValueError):
            if words := file.read_text(encoding="utf-8"):
                return words
        time.sleep(0.01)
    return "another process"


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [None]


def _unwritable(path: Path, error: OSError | ValueError) -> ValueError:
    reason = getattr(error, "strerror", None) or error
    return ValueError(f"out={path}: cannot be written ({reason}); choose another folder")


def versions() -> dict[str, str]:
    """The versions that a result depends on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What the run was computed on."""
    info = Path("/proc/cpuinfo")
    names = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in names if line.startswith("model name")), "")
    return {
        "system": platform.system(),
        "cpu": model or platform.machine(),
        "cores": cores(),
        "byteorder": sys.byteorder,
    }


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fresh_path(parent: Path, name: str) -> Path:
    """Make the first of ``name-1``, ``name-2`` … that is not there; runs that start at once get one each."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            with suppress(FileExistsError):
                (parent / f"{name}-{number}").mkdir()
                break
    except OSError as error:
        raise ValueError(
            f"{parent / name}: cannot be written ({error.strerror or error}); choose a folder with --out"
        ) from None
    return parent / f"{name}-{number}"
