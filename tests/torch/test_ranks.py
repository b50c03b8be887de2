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

# Python before 3.11.10 (gh-112275): a lock of the interpreter that another thread holds at a fork, here one
# of gloo's that asks for the GIL, is waited for in the child, for ever. docs/devices.md has the cures.
FORKS_MAY_HANG = sys.version_info < (3, 11, 10)
NEVER_LEFT_ITS_FORK = re.compile(r'Current thread .*\n  File ".*popen_fork\.py", line \d+ in _launch\n')


def torchrun(ranks, folder, names, wait=120, *, again=FORKS_MAY_HANG):
    """Run the checks on so many ranks, whose group waits so many seconds; who is late says where it is.

    If that is inside of a fork, which such a Python may never leave, they are run ``again``, once.
    """
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
    if again and run.returncode and NEVER_LEFT_ITS_FORK.search(said):
        return torchrun(ranks, folder, names, wait, again=False)
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


def test_a_worker_is_excused_only_inside_of_its_fork():
    stack = 'Current thread 0x01 (most recent call first):\n  File "/lib/popen_fork.py", line {} in {}\n'
    assert NEVER_LEFT_ITS_FORK.search("Thread 0x02:\n  <no Python frame>\n\n" + stack.format(66, "_launch"))
    at_work = stack.format(71, "_launch").replace(
        "first):\n", 'first):\n  File "worker.py", line 334 in _worker_loop\n'
    )
    assert not NEVER_LEFT_ITS_FORK.search(at_work)
    assert not NEVER_LEFT_ITS_FORK.search(stack.format(40, "wait"))


@pytest.mark.slow
@pytest.mark.parametrize(("excused", "runs"), [(True, 2), (False, 1)])
def test_ranks_whose_worker_never_left_its_fork_run_once_more(tmp_path, monkeypatch, excused, runs):
    script = tmp_path / "ranks.py"
    stack = 'Current thread 0x01:\\n  File \\"popen_fork.py\\", line 66 in _launch\\n'
    script.write_text(
        f'import sys; open("{tmp_path}/runs", "a").write("1"); print("{stack}", file=sys.stderr); sys.exit(1)'
    )
    monkeypatch.setattr(sys.modules[__name__], "SCRIPT", script)
    assert torchrun(1, tmp_path, [], again=excused).returncode != 0
    assert (tmp_path / "runs").read_text() == "1" * runs


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
