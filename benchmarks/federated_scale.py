"""A million clients: 10,000 rounds of 100, a tiny model; memory and seconds against a thousand clients.

Run as ``python -m benchmarks federated_scale``; each size is measured in a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np


def measure(clients: int, rounds: int, cohort: int, outputs: int, policy: str) -> dict[str, float]:
    """Train ``rounds`` rounds; peak memory beyond the data, and seconds."""
    import torch

    import wellorder
    from wellorder.federated import ClientData, Config, Partition, simulate

    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((clients, 16)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    data = ClientData(x, y, Partition(np.arange(clients), np.arange(clients + 1)))
    epochs = max(1, rounds * cohort // clients)
    config = Config(0.05, epochs, cohort=cohort, local_steps=5, batch=1, evaluate=0)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    run = simulate(torch.nn.Linear(16, outputs), data, getattr(wellorder, policy)(), config)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    state = sum(np.asarray(v).nbytes for v in wellorder.state_dict(run.policy, run.state).values())
    return {
        "clients": clients, "parameters": 17 * outputs, "rounds": epochs * -(-clients // cohort),
        "seconds": seconds,
        "ms_per_round": 1000 * seconds / (epochs * -(-clients // cohort)),
        "added_mib": (peak - before) / 1024, "policy_state_bytes": state,
        "visited": len(np.unique(run.orders[-1])),
    }  # fmt: skip


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--measure":
        print(json.dumps(measure(*map(int, sys.argv[2:6]), sys.argv[6])))
        return
    few, many = (1_000, 1_000, 100), (1_000_000, 10_000, 100)
    sizes = ((*few, 2), (*few, 128), (*many, 2), (*many, 128))
    for clients, rounds, cohort, outputs in sizes:
        for policy in ("RandomReshuffling", "PairGraB"):
            words = [sys.executable, "-m", "benchmarks.federated_scale", "--measure"]
            words += [str(clients), str(rounds), str(cohort), str(outputs), policy]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            print(f"{policy:18} {done.stdout.strip()}", flush=True)


if __name__ == "__main__":
    main()
