"""Runs that are killed without warning resume to the identical table."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wellorder.experiments import Config, compare, problem_task
from wellorder.problems import quadratics

CONFIG = Config(policies=("RR", "GraB", "PairGraB"), epochs=6, seeds=range(5))
OPTIONS = ["--task", "quadratics", "--policy", "RR", "--policy", "PairGraB", "--epochs", "6", "--seeds", "4"]


@pytest.fixture(autouse=True)
def interruptible():
    """Whoever started us may ignore Ctrl-C, as a shell's background jobs do; what we start inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def tables(folder):
    return {name: (folder / name).read_bytes() for name in ("table.parquet", "table.csv")}


def killed_child(work, after):
    """Run ``work`` in a forked child and kill it after so many seconds; whether it was still at work."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_run_killed_at_18_random_moments_resumes_to_the_identical_table(tmp_path):
    task, draw = problem_task(quadratics(200), step_size=1e-3), random.Random(5)
    compare(task, CONFIG, out=tmp_path / "first")  # loads what is compiled: the children inherit it
    start = time.perf_counter()
    compare(task, CONFIG, out=tmp_path / "whole")
    whole, lasts, broken = tables(tmp_path / "whole"), time.perf_counter() - start, 0
    for case in range(18):
        folder = tmp_path / str(case)
        broken += killed_child(
            lambda folder=folder: compare(task, CONFIG, out=folder), draw.uniform(0, lasts)
        )
        compare(task, CONFIG, out=folder, resume=(folder / "config.json").exists())
        assert tables(folder) == whole, f"killed run {case}"
        assert not list(folder.rglob(".unfinished-*"))
    assert broken >= 3  # on a busy machine some runs are through before their moment comes


@pytest.mark.slow
def test_the_command_with_worker_processes_killed_at_2_random_moments_resumes_and_leaves_no_orphans(tmp_path):
    command = [sys.executable, "-m", "wellorder", "compare", *OPTIONS, "--jobs", "2", "--json"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = time.perf_counter()
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, **quiet)
    whole, lasts = tables(tmp_path / "whole"), time.perf_counter() - start
    draw = random.Random(2)
    for case in range(2):
        folder = tmp_path / str(case)
        process = subprocess.Popen([*command, "--out", str(folder)], start_new_session=True, **quiet)
        time.sleep(draw.uniform(0.3, 1.0) * lasts)
        process.kill()
        process.wait()
        assert gone(process.pid), "workers outlive their run"
        resumed = ["--out", str(folder), *(["--resume"] if (folder / "config.json").exists() else [])]
        subprocess.run([*command, *resumed], check=True, **quiet)
        assert tables(folder) == whole, f"killed run {case}"


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_resume_needs_no_options(tmp_path):
    command = [sys.executable, "-m", "wellorder", "compare"]
    options = [
        "--task",
        "quadratics",
        "--policy",
        "RR",
        "--policy",
        "GraB",
        "--epochs",
        "200",
        "--seeds",
        "5",
    ]
    process = subprocess.Popen(
        [*command, *options, "--jobs", "2", "--out", str(tmp_path / "run")],
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    cells = tmp_path / "run" / "cells"
    deadline = time.monotonic() + 60
    while not list(cells.glob("policy*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    error = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "--resume finishes the rest" in error
    assert gone(process.pid)
    kept = len(list(cells.glob("policy*")))
    assert 1 <= kept < 10
    subprocess.run(
        [*command, "--resume", "--out", str(tmp_path / "run"), "--json"], check=True, capture_output=True
    )
    assert len(list(cells.glob("policy*"))) == 10


def test_workers_are_born_deaf_to_ctrl_c():
    from wellorder.experiments._pool import _hire

    if not Path("/proc/self/status").exists():
        pytest.skip("signal masks are read from /proc")
    for _ in range(2):
        line, process = _hire()
        facts = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        status = dict(row.split(":\t") for row in facts if row.startswith("Sig") and row[3] != "Q")
        line.close()
        process.terminate()
        process.join()
        deaf = int(status["SigBlk"], 16) | int(status["SigIgn"], 16)
        assert deaf >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.0, 0.4])
@pytest.mark.parametrize("words", [["compare", *OPTIONS], ["reproduce", "fig1", "--all", "--seeds", "10"]])
def test_ctrl_c_soon_after_the_start_says_one_line(tmp_path, words, wait):
    options = [*words, "--epochs", "300", "--jobs", "2", "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "wellorder", *options],
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(wait)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1
    assert ("--resume" in error) == (words[0] == "compare")


def gone(session, seconds=15):
    """Whether every process of a session ends soon."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
