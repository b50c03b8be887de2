"""A run that is killed at any moment goes on from its checkpoint to the same tables and weights."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from wellorder import GraB, Herding, PairGraB, RandomReshuffling
from wellorder.federated import ClientData, Config, DropOut, Trace, label_shards, simulate, simulate_many
from wellorder.federated._simulate import Runs


def data(n=120):
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((n, 6)), draw.integers(0, 3, n)
    return ClientData(x, y, label_shards(y, 20), x[:30], y[:30])


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(6, 3)


def settings(path=None, **changes):
    own = {"step_size": 0.1, "epochs": 6, "cohort": 3, "local_steps": 3, "batch": 3, "checkpoint": path}
    return Config(**{**own, "availability": DropOut(0.3), "local": PairGraB(), **changes})


class Stop(Exception):  # noqa: N818
    pass


def stop_after(epoch):
    def progress(now, rows):
        if now == epoch:
            raise Stop

    return progress


def same(one, other):
    assert list(one.table) == list(other.table)
    for name in one.table:
        np.testing.assert_array_equal(one.table[name], other.table[name])
    for name in one.weights:
        np.testing.assert_array_equal(one.weights[name], other.weights[name])
    np.testing.assert_array_equal(one.orders, other.orders)


@pytest.mark.parametrize("epoch", [1, 3, 6])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, epoch):
    jobs = [(PairGraB(), settings(seed=1)), (RandomReshuffling(), settings(seed=2))]
    whole = simulate_many(model(), data(), jobs)
    kept = [(policy, settings(tmp_path / "run.npz", seed=config.seed)) for policy, config in jobs]
    with pytest.raises(Stop):
        simulate_many(model(), data(), kept, progress=stop_after(epoch))
    seen = []
    again = simulate_many(model(), data(), kept, progress=lambda now, rows: seen.append(now))
    assert seen == list(range(epoch + 1, 7))
    for one, other in zip(whole, again, strict=True):
        same(one, other)


class Killed(Exception):  # noqa: N818
    pass


def kill_after(rounds):
    """Raise after so many rounds of the whole run."""
    seen = []

    def watch(*at):
        seen.append(at)
        if len(seen) == rounds:
            raise Killed

    return watch


@pytest.mark.parametrize(("rounds", "on_device"), [(2, False), (12, True)])
def test_a_run_that_is_stopped_inside_an_epoch_goes_on_to_the_same_bits(tmp_path, rounds, on_device):
    changes = {"local": None, "server_step": 1.5, "looks": 2, "epochs": 2, "checkpoint_seconds": 0.0}
    policies = [PairGraB(), GraB(), Herding()]

    def runs(path, **how):
        jobs = [(p, settings(path, seed=s, **changes)) for s, p in enumerate(policies)]
        return Runs(model(), data(), jobs, on_device=on_device, **how)

    every, left = [], []
    never = runs(None)
    never.loop.watch = lambda *at: every.append(at)
    whole = never.train()
    # Stretches of a few rounds: what the device has decided in one that is over is part of the checkpoint.
    stopped = runs(tmp_path / "run.npz", numbers=400)
    stopped.loop.watch = kill_after(rounds)
    with pytest.raises(Killed):
        stopped.train()
    again = runs(tmp_path / "run.npz")
    again.loop.watch = lambda *at: left.append(at)
    done = again.train()
    assert left == every[rounds - 1 :]  # only the round in flight is trained again
    for one, other in zip(whole, done, strict=True):
        same(one, other)
        np.testing.assert_array_equal(one.order_error, other.order_error)


def test_another_runs_checkpoint_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    simulate(model(), data(), PairGraB(), settings(path, epochs=1))
    for policy, config, own in (
        (RandomReshuffling(), settings(path, epochs=1), data()),
        (PairGraB(), settings(path, epochs=1, step_size=0.2), data()),
        (PairGraB(), settings(path, epochs=1), data(117)),
    ):
        with pytest.raises(ValueError, match="belongs to another run"):
            simulate(model(), own, policy, config)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"cannot be read .*delete it to start anew"):
        simulate(model(), data(), PairGraB(), settings(path, epochs=1))


def test_a_checkpoint_belongs_to_what_was_in_the_trace_and_not_to_its_file(tmp_path):
    path, trace = tmp_path / "run.npz", tmp_path / "trace.csv"
    trace.write_text("\n".join(f"{client},0,3" for client in range(20)))
    simulate(model(), data(), PairGraB(), settings(path, epochs=1, availability=Trace(trace)))
    moved = trace.rename(tmp_path / "moved.csv")
    simulate(model(), data(), PairGraB(), settings(path, epochs=1, availability=Trace(moved)))
    moved.write_text(moved.read_text().replace("7,0,3", "7,1,3"))
    with pytest.raises(ValueError, match="belongs to another run"):
        simulate(model(), data(), PairGraB(), settings(path, epochs=1, availability=Trace(moved)))


def test_a_checkpoint_is_plain_arrays(tmp_path):
    path = tmp_path / "run.npz"
    simulate(model(), data(), PairGraB(), settings(path, epochs=1))
    with np.load(path, allow_pickle=False) as file:
        assert "servers" in file.files
        assert all(file[name].dtype != object for name in file.files)


@pytest.mark.slow
def test_sigkill_at_twenty_random_moments_loses_nothing(tmp_path):
    """Children are forked from a process that has torch loaded already, and killed while they train."""
    script = tmp_path / "train.py"
    here = str(Path(__file__).resolve().parent)
    script.write_text(
        textwrap.dedent(
            f"""
            import os, random, signal, sys, time
            sys.path.insert(0, {here!r})
            import torch
            torch.set_num_threads(1)
            from test_resume import PairGraB, data, model, settings, simulate
            from pathlib import Path
            folder, draw = Path(sys.argv[1]), random.Random(0)
            def train(path):
                run = simulate(model(), data(), PairGraB(), settings(path, epochs=60))
                lines = [f"{{name}} {{column.tolist()}}" for name, column in run.table.items()]
                lines += [f"{{name}} {{array.tolist()}}" for name, array in run.weights.items()]
                return "\\n".join(lines + [str(run.orders.tolist())])
            began = time.perf_counter()
            whole = train(None)
            length, kills = time.perf_counter() - began, 0
            while True:
                child = os.fork()
                if child == 0:
                    (folder / "result.txt").write_text(train(folder / "run.npz"))
                    os._exit(0)
                if kills < 20:
                    time.sleep(draw.uniform(0.0, length / 8))
                    if os.waitpid(child, os.WNOHANG) == (0, 0):
                        os.kill(child, signal.SIGKILL)
                        kills += 1
                    else:
                        (folder / "run.npz").unlink()
                        continue
                status = os.waitpid(child, 0)[1]
                if os.WIFEXITED(status) and kills == 20:
                    break
            print(kills, (folder / "result.txt").read_text() == whole)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.stdout.strip() == "20 True", done.stderr
