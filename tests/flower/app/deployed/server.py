"""OrderedStrategy(FedAvg), which tells the desk where it is and waits where the desk says so."""

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import wellorder
from wellorder.flower import OrderedStrategy, Tolerance

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    desk = Path(config["desk"])
    with np.load(desk / "problem.npz") as problem:
        first = np.ones(problem["a"].shape[1])

    def after(server_round, arrays):
        told = {"round": server_round, "pid": os.getpid()}
        (desk / "part").write_text(json.dumps(told))
        (desk / "part").replace(desk / "round.json")
        deadline = time.monotonic() + 60
        while (desk / f"hold-{server_round}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    strategy = OrderedStrategy(
        FedAvg(fraction_evaluate=0.0),
        getattr(wellorder, config["policy"])(),
        config["cohort"],
        clients=config["clients"],
        names=config["names"],
        state=desk / "state.safetensors",
        tolerance=Tolerance(patience=30.0, attempts=config["attempts"], poll=0.3),
    )
    result = strategy.start(
        grid, ArrayRecord([first]), config["rounds"], config["timeout"], evaluate_fn=after
    )
    told = {
        "names": strategy.names,
        "rounds": {at: dict(metrics) for at, metrics in result.train_metrics_clientapp.items()},
        "weights": result.arrays.to_numpy_ndarrays()[0].tolist(),
    }
    (desk / "part").write_text(json.dumps(told))
    (desk / "part").replace(desk / "result.json")
