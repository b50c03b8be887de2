"""Runs that are killed a hundred times each: at a file-system event, or at a random moment.

``python killed_runs.py FOLDER KILLS``. The parent imports and compiles everything and forks; a child takes up
what the one before it left, and kills itself at its k-th fsync, rename or opening of a file, or is ended by
an alarm that nobody handles. Prints, for each kind of run, the kills and whether its end was that of an
undisturbed run.
"""

import os
import random
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from wellorder import GraB, Herding, PairGraB
from wellorder._saving import load_state, save_state
from wellorder.experiments import Config as Plan
from wellorder.experiments import compare, problem_task
from wellorder.federated import ClientData, Config, label_shards, simulate
from wellorder.problems import quadratics
from wellorder.torch import ordered

sys.path.insert(0, str(Path(__file__).parent))
from killed_commands import fall_at

EVENTS = ("fsync", "replace", "rename", "open", "unlink")
TASK = problem_task(quadratics(20), step_size=1e-3)
WANTED = Plan(policies=("RR", "GraB"), epochs=3, seeds=(0, 1, 2))


def comparison(folder):
    out = folder / "run"
    begun = (out / "config.json").exists()
    compare(TASK, WANTED, out=out, resume=begun)
    return (out / "table.csv").read_bytes()


def engine(folder):
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((24, 3)).astype(np.float32), draw.integers(0, 2, 24)
    torch.manual_seed(0)
    config = Config(0.1, 12, cohort=2, local_steps=1, batch=2, checkpoint=folder / "run.npz")
    run = simulate(torch.nn.Linear(3, 2), ClientData(x, y, label_shards(y, 8)), PairGraB(), config)
    end = [run.orders.tolist(), run.order_error.tolist(), *(w.tolist() for w in run.weights.values())]
    return repr(end).encode()


def loader(policy, signals):
    def train(folder, epochs=6):
        torch.manual_seed(0)
        x = torch.randn(16, 4)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(x, (x[:, 0] > 0).long())
        batches = ordered(
            DataLoader(data, batch_size=4, shuffle=True), model, policy, signals=signals, seed=1
        )
        path, orders = folder / "state.npz", []
        with suppress(FileNotFoundError):  # asked for in any case: loading sweeps what a first save has left
            saved = load_state(path)
            model.load_state_dict({name: torch.from_numpy(value) for name, value in saved["model"].items()})
            batches.load_state_dict(tensors(saved["loader"]))
            orders = saved["orders"]
        while batches.epoch < epochs:
            if len(orders) == batches.epoch:
                orders.append(batches.order.tolist())
            for xb, yb in batches:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(xb), yb).backward()
                optimizer.step()
                model_state = {name: value.numpy() for name, value in model.state_dict().items()}
                loader_state = arrays(batches.state_dict())
                save_state(path, {"model": model_state, "loader": loader_state, "orders": orders})
        return repr([orders, model.weight.tolist()]).encode()

    return train


def arrays(tree):
    if isinstance(tree, dict):
        return {name: arrays(value) for name, value in tree.items()}
    return tree.numpy() if isinstance(tree, torch.Tensor) else tree


def tensors(tree):
    if isinstance(tree, dict):
        return {name: tensors(value) for name, value in tree.items()}
    return torch.from_numpy(tree) if isinstance(tree, np.ndarray) else tree


RUNS = {
    "compare": comparison,
    "engine": engine,
    "torch batch": loader(PairGraB(), "batch"),
    "torch sketch": loader(Herding(2), "sketch"),
    "torch exact": loader(GraB(), "exact"),
}


def killed(run, folder, draw):
    """Let a child go on with a run, and fall; whether it fell before the run's end."""
    child = os.fork()
    if not child:
        status = 1
        try:
            if draw.random() < 0.7:
                fall_at(draw.randrange(1, 14), EVENTS)
            else:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.001, 0.06))
            (folder / "end").write_bytes(run(folder))
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a run that was taken up again failed")
    return os.WIFSIGNALED(status)


def main(where, wanted):
    torch.set_num_threads(1)
    for name, run in RUNS.items():
        whole, draw, kills, same = where / f"{name} whole", random.Random(name), 0, True
        whole.mkdir()
        end = run(whole)
        folder = where / name
        while kills < wanted:
            folder.mkdir(exist_ok=True)
            draw.random()
            if killed(run, folder, draw):
                kills += 1
            else:  # it came through: its end is compared, and another begins
                same &= (folder / "end").read_bytes() == end
                shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        same &= run(folder) == end
        left = [path.name for path in folder.rglob(".unfinished-*")]
        end_of_it = "the same end" if same else "ANOTHER END"
        print(f"{name}: {kills} kills, {end_of_it}, {len(left)} leftovers", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
