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

Every file is written beside, flushed and renamed. The folder knows nothing about what was trained: any flat
table (see `wellorder.report.table_of`) can be kept in one.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

from wellorder._saving import TEMPORARY, write_text
from wellorder.report._table import Table, joined, read_table, write_table

PACKAGES = ("wellorder", "numpy", "numba", "scipy", "scikit-learn", "pyarrow", "torch")


@dataclass(frozen=True)
class RunFolder:
    """A run's folder on disk."""

    path: Path

    @classmethod
    def start(cls, path: Path, *, resume: bool = False) -> RunFolder:
        """Make the folder, or take up the one that a broken run has left."""
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
                leftover.unlink(missing_ok=True)
            write_text(path / "about.json", json.dumps(folder._about(), indent=2, ensure_ascii=False))
        except OSError as error:
            raise ValueError(
                f"out={path}: cannot be written ({error.strerror or error}); choose another folder"
            ) from None
        return folder

    def read(self, name: str) -> dict[str, Any] | None:
        """Read one of the folder's JSON files; None if it is not there."""
        file = self.path / name
        if not file.exists():
            return None
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{file}: cannot be read ({error}); put it back, or start anew in another folder"
            ) from None
        if not isinstance(found, dict):
            raise ValueError(f"{file}: holds no options; put it back, or start anew in another folder")
        return found

    def asked(self) -> dict[str, Any]:
        """What the folder's run was asked for (``given``) and what that meant (``resolved``)."""
        found = self._begun()
        if not all(isinstance(found.get(part), dict) for part in ("given", "resolved")):
            raise ValueError(
                f"{self.path / 'config.json'}: holds no options of a run; put it back, or start anew in "
                "another folder"
            )
        return found

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of the folder's JSON files."""
        write_text(self.path / name, json.dumps(content, indent=2, ensure_ascii=False))

    def keep(self, policy: int, seed: int, table: Table) -> None:
        """Keep a finished cell: the table of the ``policy``-th policy and one seed."""
        write_table(table, self._cell(policy, seed))

    def kept(self, policy: int, seed: int) -> Table | None:
        """A finished cell's table, or None."""
        cell = self._cell(policy, seed)
        return read_table(cell) if cell.exists() else None

    def seal(self, cells: Sequence[Table]) -> Table:
        """Write the run's tables from all its cells, in their order; returns the whole, with the clock."""
        whole = joined(cells)
        clock = [name for name in ("policy", "seed", "epoch", "seconds") if name in whole.column_names]
        bare = whole.drop_columns(["seconds"]) if "seconds" in whole.column_names else whole
        for suffix in (".parquet", ".csv"):
            write_table(bare, self.path / f"table{suffix}")
            write_table(whole.select(clock), self.path / f"timings{suffix}")
        return whole

    def table(self) -> Table:
        """The sealed run's whole table, with the clock."""
        bare, clock = (read_table(self.path / f"{name}.parquet") for name in ("table", "timings"))
        return (
            bare.append_column("seconds", clock.column("seconds"))
            if "seconds" in clock.column_names
            else bare
        )

    def mixed(self) -> str:
        """What changed between the starts of the run, in words; empty if nothing did."""
        starts = (self.read("about.json") or {"started": []})["started"]
        facts = [{**start["versions"], "cpu": start["machine"]["cpu"]} for start in starts]
        names = sorted({name for fact in facts for name in fact if fact[name] != facts[0].get(name)})
        changes = [
            f"{name} ({', '.join(dict.fromkeys(str(fact.get(name)) for fact in facts))})" for name in names
        ]
        return f"This run was resumed under other conditions: {'; '.join(changes)}." if changes else ""

    def _cell(self, policy: int, seed: int) -> Path:
        return self.path / "cells" / f"policy{policy}-seed{seed}.parquet"

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
        return all(file.name == "about.json" or file.name.startswith(TEMPORARY) for file in files)

    def _about(self) -> dict[str, Any]:
        before = self.read("about.json") or {}
        now = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "machine": machine(),
        }
        return {"started": [*before.get("started", []), now]}


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
