"""A ServerApp as any other, with one line more: the strategy is wrapped."""

import json
import logging
from pathlib import Path

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import wellorder
from ordered import task
from wellorder.flower import OrderedStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    logging.getLogger("flwr").info("[APP] %s", task.source())
    torch.manual_seed(config["seed"])
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = OrderedStrategy(
        strategy,
        getattr(wellorder, config["policy"])(),
        cohort=config["cohort"],
        clients=config["clients"],
        names=config["names"],
        seed=config["seed"],
        server_step=config["server-step"],
        state=config["state"] or None,
    )
    rounds = config["epochs"] * -(-config["clients"] // config["cohort"])
    x, y = task.images("test")

    def evaluate(_, arrays):
        model = task.Net()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord(task.test(model, x, y))

    first = ArrayRecord(task.Net().state_dict())
    result = strategy.start(grid, first, rounds, config["timeout"], evaluate_fn=evaluate)
    if config["result"]:
        told = {"names": strategy.names, "test": dict(result.evaluate_metrics_serverapp.get(rounds, {}))}
        told["rounds"] = {at: dict(metrics) for at, metrics in result.train_metrics_clientapp.items()}
        Path(config["result"]).write_text(json.dumps(told))
