"""Softmax regression with many clients in Flower's simulation: ``simulated.py data.npz result.json``."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

import wellorder
from wellorder.flower import OrderedStrategy

with np.load(sys.argv[1]) as file:
    DATA = dict(file)
CLIENTS, COHORT, EPOCHS, LOCAL, STEP = len(DATA["x"]), 10, 5, 5, 0.5
client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    me, arrays = context.node_config["partition-id"], message.content["arrays"]
    x, y = DATA["x"][me], np.eye(3)[DATA["y"][me]]
    weight, bias = arrays["weight"].numpy(), arrays["bias"].numpy()
    for _ in range(LOCAL):
        p = np.exp(x @ weight.T + bias)
        e = (p / p.sum(axis=1, keepdims=True) - y) / len(x)
        weight, bias = weight - STEP * e.T @ x, bias - STEP * e.sum(axis=0)
    records = {
        "arrays": ArrayRecord({"weight": Array(weight), "bias": Array(bias)}),
        "metrics": MetricRecord({"num-examples": len(x)}),
    }
    return Message(RecordDict(records), reply_to=message)


@client.query("wellorder")
def name(message, context):
    told = ConfigRecord({"partition-id": context.node_config["partition-id"]})
    return Message(RecordDict({"me": told}), reply_to=message)


def ordered(grid, policy):
    strategy = OrderedStrategy(FedAvg(fraction_evaluate=0.0), policy, COHORT, clients=CLIENTS, seed=3)
    first = ArrayRecord({key: Array(DATA[key]) for key in ("weight", "bias")})
    result = strategy.start(grid, first, num_rounds=EPOCHS * CLIENTS // COHORT)
    rounds = sorted(result.train_metrics_clientapp.items())
    return {
        "cohorts": [[int(strategy.names[c]) for c in metrics["order-cohort"]] for _, metrics in rounds],
        "epochs": [metrics["order-epoch"] for _, metrics in rounds],
        **{key: result.arrays[key].numpy().tolist() for key in ("weight", "bias")},
    }


@server.main()
def main(grid, context):
    policies = wellorder.RandomReshuffling(), wellorder.ShuffleOnce(), wellorder.PairGraB()
    with (
        ThreadPoolExecutor() as pool
    ):  # a round mostly waits for Flower's polling, so the three share the wait
        told = list(pool.map(lambda policy: ordered(grid, policy), policies))
    Path(sys.argv[2]).write_text(
        json.dumps({type(p).__name__: t for p, t in zip(policies, told, strict=True)})
    )


if __name__ == "__main__":
    backend = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server, client, CLIENTS, backend_config=backend)
