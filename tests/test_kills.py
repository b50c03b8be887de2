"""Runs that are killed again and again end as if nothing had happened."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = ("compare", "engine", "torch batch", "torch sketch", "torch exact")
COMMANDS = ("compare --jobs 2", "reproduce fig1", "reproduce fig2")
KILLS = int(os.environ.get("WELLORDER_KILLS", "2"))
"""How often each command is killed; ``WELLORDER_KILLS=100`` takes a quarter of an hour."""


def told(script, folder, kills, seconds):
    """What a script in this folder says of the runs that it kills."""
    pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).parent / script), str(folder), str(kills)],
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def survived(names, kills):
    return [f"{name}: {kills} kills, the same end, 0 leftovers" for name in names]


@pytest.mark.slow
def test_five_kinds_of_runs_survive_a_hundred_kills_each(tmp_path):
    assert told("killed_runs.py", tmp_path, 100, 600) == survived(RUNS, 100)


@pytest.mark.slow
def test_commands_survive_kills_at_file_system_events_and_random_moments(tmp_path):
    assert told("killed_commands.py", tmp_path, KILLS, 300 + 30 * KILLS) == survived(COMMANDS, KILLS)
