"""A user's training script that saves after every step; with a number, it is killed that often and resumed.

``python killed_training.py FOLDER [KILLS]``. Children are forked, so that each begins with all imports done.
The policy and its schedule are the defaults, so most epochs are not observed, and their orders are made in
the background. Prints the epoch of each kill.
"""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from wellorder.torch import ordered


def train(folder, epochs=30):
    torch.manual_seed(0)
    x = torch.randn(96, 6)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = ordered(DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True), model, seed=2)
    path, orders = folder / "state.pt", []
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        torch.set_rng_state(saved["random"])
        orders = saved["orders"]
    while loader.epoch < epochs:
        if len(orders) == loader.epoch:
            orders.append(loader.order.tolist())
        for xb, yb in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(xb), yb).backward()
            optimizer.step()
            parts = {"model": model, "optimizer": optimizer, "loader": loader}
            state = {name: part.state_dict() for name, part in parts.items()}
            with Path(folder, "new.pt").open("wb") as file:
                torch.save({**state, "random": torch.get_rng_state(), "orders": orders}, file)
                file.flush()
                os.fsync(file.fileno())
            Path(folder, "new.pt").replace(path)
    torch.save({"model": model.state_dict(), "orders": orders}, folder / "done.pt")


def killed(folder):
    """Train in a child until it has saved something, then kill it at a random moment; the epoch it was in."""
    state = folder / "state.pt"
    before = state.stat().st_mtime_ns if state.exists() else 0
    child = os.fork()
    if not child:
        train(folder)
        os._exit(0)
    while not os.waitpid(child, os.WNOHANG)[0]:
        if state.exists() and state.stat().st_mtime_ns != before:
            time.sleep(random.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return int(torch.load(state, weights_only=True)["loader"]["policy"]["epoch"])
        time.sleep(0.002)
    return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as spare:
        train(Path(spare), epochs=2)  # imports and kernels are loaded before the first fork
    found = [killed(where) for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 0)]
    train(where)
    print(*(epoch for epoch in found if epoch is not None))
