"""Runs that are killed a hundred times each end as if nothing had happened."""

import subprocess
import sys
from pathlib import Path

import pytest

KINDS = ("compare", "engine", "torch batch", "torch sketch", "torch exact")


@pytest.mark.slow
def test_five_kinds_of_runs_survive_a_hundred_kills_each(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).parent / "killed_runs.py"), str(tmp_path), "100"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{kind}: 100 kills, the same end, 0 leftovers" for kind in KINDS]
