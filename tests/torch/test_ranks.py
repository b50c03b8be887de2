"""Real torchrun on gloo: DDP, FSDP2 and plain loops of 2 and 4 ranks; ranks_training.py is what they do."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "ranks_training.py"
TOGETHER = (
    "an_uninitialised_group_is_named",
    "a_loader_made_before_the_group_takes_its_share",
    "ddp_is_one_process_with_a_larger_batch",
    "workers_of_a_fork_server",
    "gradients_are_plain_ddps",
    "padded_examples_count_once",
    "accumulation_under_no_sync",
    "fsdp2",
    "a_plain_loop_and_other_policies",
    "own_data_are_coordinated",
    "rows_are_not_communicated",
    "bytes",
    "resume",
    "every_difference_is_named",
    "leaving_an_epoch_alone_is_named",
)
FOUR = (
    "resume_on_more_ranks",
    "ddp_is_one_process_with_a_larger_batch",
    "padded_examples_count_once",
    "own_data_are_coordinated",
)


HANGING = "nobody_hangs_beyond_the_timeout"


def torchrun(ranks, folder, names, wait=120):
    """Run the checks on so many ranks, whose group waits so many seconds; who is late says where it is."""
    told = {"OMP_NUM_THREADS": "1", "SECONDS_TO_WAIT": str(wait)}
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words += [str(SCRIPT), str(folder), *names]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **told}) as run:
        try:
            out, said = run.communicate(timeout=max(60, 0.8 * wait))
        except subprocess.TimeoutExpired:
            ask_where(folder)
            try:
                out, said = run.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                run.kill()
                raise
    return subprocess.CompletedProcess(words, run.returncode, out, said)


def ask_where(folder):
    """Let every rank, and every worker of its loaders, say on stderr where it is."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            caught = re.search(r"SigCgt:\s*(\w+)", (process / "status").read_text())
            listens = caught and int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1  # else it would end
            if str(folder).encode() in words and listens:
                os.kill(int(process.name), signal.SIGUSR1)


def passed(done, ranks, names):
    """Every rank went through every check; one that hangs says where, before the others give up."""
    words = ("[rank", "Timeout", "Thread", "Current thread", "  File")
    told = [line for line in done.stderr.splitlines() if line.startswith(words)]
    assert done.returncode == 0, "\n".join([*done.stdout.splitlines()[-ranks:], *told[-200:]])
    for name in names:
        assert done.stdout.count(f"ok {name}") == ranks, (name, done.stdout[-2000:])


@pytest.mark.slow
def test_two_ranks_and_then_four(tmp_path):
    passed(torchrun(2, tmp_path, TOGETHER), 2, TOGETHER)
    passed(torchrun(4, tmp_path, FOUR), 4, FOUR)


@pytest.mark.slow
def test_a_rank_is_killed_and_the_restarted_job_goes_on_exactly(tmp_path):
    killed = torchrun(2, tmp_path, ["a_job_whose_rank_is_killed"])
    assert killed.returncode != 0
    assert f"exitcode  : -{int(signal.SIGKILL)}" in killed.stderr, killed.stderr[-2000:]
    assert "ok" not in killed.stdout
    passed(torchrun(2, tmp_path, ["the_job_goes_on_exactly"]), 2, ["the_job_goes_on_exactly"])


@pytest.mark.slow
def test_nobody_hangs_beyond_the_timeout(tmp_path):
    passed(torchrun(2, tmp_path, [HANGING], wait=10), 2, [HANGING])
