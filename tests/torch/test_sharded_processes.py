"""ShardedDataset in real processes: killed thirty times, and shared out by Accelerate."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
SCRIPT = Path(__file__).with_name("sharded_runs.py")
ALL = list(range(1000))


def batches_in(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("batch-*.json"))]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "kills"), [(0, 22), (2, 8)])
def test_killed_at_any_moment_an_epoch_goes_on_as_if_it_had_not_been(tmp_path, workers, kills):
    pytest.importorskip("torchdata")
    environment = {**os.environ, "WORKERS": str(workers), "OMP_NUM_THREADS": "1"}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    subprocess.run([sys.executable, SCRIPT, "killed", whole], env=environment, check=True, timeout=120)
    draw, killed = np.random.default_rng(workers), 0
    command = [sys.executable, "-c", MANY.format(script=str(SCRIPT.parent)), str(broken), str(kills)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as driver:
        for line in driver.stdout:
            time.sleep(draw.uniform(0, 0.06))
            if killed < kills:
                os.kill(int(line), signal.SIGKILL)
                killed += 1
    assert (broken / "end").exists()
    assert killed >= kills / 2  # some children may have come to the end before their kill
    assert batches_in(broken) == batches_in(whole)
    assert sorted(itertools.chain(*batches_in(broken))) == ALL


# Imports once, and then has a child for every life of the run: a second of imports is not what is tested.
MANY = """
import os, signal, sys
sys.path.insert(0, {script!r})
import pathlib, torchdata.stateful_dataloader, sharded_runs
folder = pathlib.Path(sys.argv[1])
for life in range(int(sys.argv[2]) + 1):
    child = os.fork()
    if not child:
        sys.stdout = open(os.devnull, "w")
        sharded_runs.killed(folder)
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    if (folder / "end").exists() and life < int(sys.argv[2]):
        [path.unlink() for path in folder.iterdir()]  # it came to the end too early: once more
"""


@pytest.mark.slow
def test_accelerate_with_two_ranks_gives_each_example_once(tmp_path):
    pytest.importorskip("accelerate")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*command, SCRIPT, "accelerated", tmp_path],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for way in ("prepared", "own"):
        epochs = [[rank[way][epoch] for rank in ranks] for epoch in range(2)]
        for epoch in epochs:
            assert len(epoch[0]) == len(epoch[1]) == 50
            assert sorted(itertools.chain(*epoch[0], *epoch[1])) == ALL
            counts = [
                np.bincount(np.array(a + b) // 25 % 5, minlength=5) for a, b in zip(*epoch, strict=True)
            ]
            assert np.abs(np.cumsum(counts, axis=0) - 4 * np.arange(1, 51)[:, None]).max() <= 8
        assert epochs[0] != epochs[1]
    assert all("rank=0, ranks=1" in rank["refused"] for rank in ranks)
