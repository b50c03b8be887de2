"""Real simulations of set-ups that people run: ``setups.py result.json``; a network with BatchNorm in all."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
)
from flwr.simulation import run_simulation
from torch import nn

from wellorder import PairGraB
from wellorder.flower import OrderedStrategy

CLIENTS, COHORT, ROUNDS = 4, 2, 3


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def client_app(mods):
    app = ClientApp(mods=mods)

    @app.train()
    def train(message, context):
        me, model = context.node_config["partition-id"], net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x = torch.from_numpy(np.random.default_rng(me).standard_normal((20, 3))).float()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), torch.full((20,), me % 2)).backward()
            optimizer.step()
        records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 20})}
        return Message(RecordDict(records), reply_to=message)

    @app.query("wellorder")
    def name(message, context):
        told = ConfigRecord({"partition-id": context.node_config["partition-id"]})
        return Message(RecordDict({"me": told}), reply_to=message)

    return app


def fixed(inner):
    return DifferentialPrivacyClientSideFixedClipping(inner, 0.01, 10.0, COHORT)


def adaptive(inner):
    return DifferentialPrivacyClientSideAdaptiveClipping(
        inner, noise_multiplier=0.01, num_sampled_clients=COHORT, clipped_count_stddev=0.5
    )


SETUPS = {
    "BatchNorm": ([], lambda inner: inner),
    "fixedclipping_mod": ([fixedclipping_mod], fixed),
    "adaptiveclipping_mod": ([adaptiveclipping_mod], adaptive),
    "LocalDpMod": ([LocalDpMod(10.0, 0.001, 10.0, 1e-5)], lambda inner: inner),
}


def simulated(mods, wrap):
    server, told = ServerApp(), {}

    @server.main()
    def main(grid, context):
        inner = wrap(FedAvg(fraction_evaluate=0.0))
        strategy = OrderedStrategy(inner, PairGraB(), COHORT, clients=CLIENTS)
        first = ArrayRecord(net().state_dict())
        result = strategy.start(grid, first, num_rounds=ROUNDS, timeout=60)
        rounds = sorted(result.train_metrics_clientapp.items())
        told["cohorts"] = [list(metrics["order-cohort"]) for _, metrics in rounds]
        told["names"] = list(strategy.names)
        told["moved"] = float(np.abs(result.arrays["0.weight"].numpy() - first["0.weight"].numpy()).max())
        told["counts"] = list(strategy.federation.counts)

    backend = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server, client_app(mods), CLIENTS, backend_config=backend)
    return told


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({name: simulated(*setup) for name, setup in SETUPS.items()}))
