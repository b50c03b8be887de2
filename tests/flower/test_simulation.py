"""Flower's simulation with a hundred clients: each is visited once an epoch, as in our own simulation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="Flower's simulation is not installed: pip install 'wellorder[flower]'")
pytest.importorskip("torch")

import torch

from wellorder import PairGraB, RandomReshuffling, ShuffleOnce
from wellorder.federated import ClientData, Config, label_shards, simulate

SCRIPT = Path(__file__).parent / "app" / "simulated.py"
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.mark.slow
def test_a_hundred_clients_in_cohorts_of_ten_are_visited_as_in_our_own_simulation(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((500, 6))
    y = (x @ draw.standard_normal((6, 3)) + draw.standard_normal((500, 3))).argmax(axis=1)
    data, model = ClientData(x, y, label_shards(y, 100)), torch.nn.Linear(6, 3, dtype=torch.float64)
    units = [data.partition.of(client) for client in range(100)]
    first = {name: value.detach().numpy() for name, value in model.named_parameters()}
    np.savez(tmp_path / "data.npz", x=x[units], y=y[units], **first)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "data.npz"), str(tmp_path / "result.json")],
        env={**os.environ, **OFFLINE, "FLWR_HOME": str(tmp_path / "flwr"), "OMP_NUM_THREADS": "1"},
        timeout=150,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "result.json").read_text())
    for policy in (RandomReshuffling(), ShuffleOnce(), PairGraB()):
        ours = told[type(policy).__name__]
        orders = np.array(ours["cohorts"]).reshape(5, 100)
        assert ours["epochs"] == np.repeat(range(5), 10).tolist()
        assert (np.sort(orders) == np.arange(100)).all()
        config = Config(0.5, epochs=5, seed=3, cohort=10, local_steps=5, batch=None, precision="float64")
        run = simulate(model, data, policy, config)
        np.testing.assert_array_equal(orders, run.orders)
        for name in first:
            np.testing.assert_allclose(ours[name], run.weights[name], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_batchnorm_and_all_three_privacy_mods_train_in_real_simulations(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT.with_name("setups.py")), str(tmp_path / "result.json")],
        env={**os.environ, **OFFLINE, "FLWR_HOME": str(tmp_path / "flwr"), "OMP_NUM_THREADS": "1"},
        timeout=400,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "result.json").read_text())
    assert set(told) == {"BatchNorm", "fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod"}
    for name, found in told.items():
        assert sorted(found["cohorts"][0] + found["cohorts"][1]) == [0, 1, 2, 3], name
        assert len(found["cohorts"]) == 3, name
        assert found["moved"] > 1e-4, name
        assert "1.num_batches_tracked" not in found["counts"]
    assert told["BatchNorm"]["names"] == ["0", "1", "2", "3"]
    assert "does not tell its name" in done.stdout + done.stderr
