"""The server's memory grows with the model, not with the model times the clients."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from wellorder import GraB, PairGraB, state_dict
from wellorder.federated import ClientData, Config, Partition, simulate


def one_example_each(clients, features=16):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((clients, features)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return ClientData(x, y, Partition(np.arange(clients), np.arange(clients + 1)))


@pytest.mark.parametrize("policy", [PairGraB(), GraB()], ids=str)
def test_a_balancing_policys_vectors_are_as_long_as_the_model_for_any_number_of_clients(policy):
    floats = {}
    for clients in (20, 200):
        config = Config(0.1, 2, cohort=7, local_steps=1, batch=1, evaluate=0)
        run = simulate(torch.nn.Linear(16, 2), one_example_each(clients), policy, config)
        kept = state_dict(policy, run.state)
        floats[clients] = sum(v.size for v in kept.values() if isinstance(v, np.ndarray) and v.dtype == float)
    assert floats[20] == floats[200] <= 3 * 40


CODE = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
from test_memory import *
torch.set_num_threads(1)
clients, outputs = int(sys.argv[2]), int(sys.argv[3])
data = one_example_each(clients)
config = Config(0.1, 1, cohort=100, local_steps=1, batch=1, evaluate=0)
simulate(torch.nn.Linear(16, outputs), one_example_each(200), PairGraB(), config)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
simulate(torch.nn.Linear(16, outputs), data, PairGraB(), config)
print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))
"""


@pytest.mark.slow
def test_a_hundred_times_the_clients_do_not_take_a_hundred_times_the_memory():
    from pathlib import Path

    here, added = str(Path(__file__).resolve().parent), {}
    for clients, outputs in ((1_000, 600), (100_000, 600)):
        words = [sys.executable, "-c", CODE, here, str(clients), str(outputs)]
        added[clients] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    everything = 100_000 * 17 * 600 * 4 / 2**20
    assert added[100_000] < everything / 20
