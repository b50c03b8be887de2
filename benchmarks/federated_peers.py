"""A round of federated averaging by `simulate`, pfl 0.6 and Flower's simulation: CPU seconds, one thread.

All train the CNN of `federated_engine` on its images: S=10, K=5, batch 16, SGD with clipping, the same crops
and flips, size-weighted mean, no evaluation. They take turns round by round, each in a process of its own: in
one process a contender's time depends on the memory that the one before it left. Flower has one client actor;
its CPU time is that of all its processes, Ray's included, read from ``/proc``. Whatever is not installed is
left out: ``pip install pfl==0.6.0`` and ``pip install 'wellorder[flower]'``; one environment can hold both.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import logging
import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.federated_engine import PlainLoop, Rounds, made_up
from wellorder import PairGraB, RandomReshuffling
from wellorder.federated import network

COHORT, STEPS, BATCH = 10, 5, 16
WARM, TURNS = 2, 9
TARGET = 1.05
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or Ray warns of it
    "OMP_NUM_THREADS": "1",
}


@functools.cache
def plain_loop() -> PlainLoop:
    """Made once in each process that trains."""
    torch.set_num_threads(1)
    return PlainLoop(made_up(), network("cnn", channels=3, size=32, classes=10))


class PflModel(nn.Sequential):
    """What pfl asks of a model."""

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self(images), labels)

    def metrics(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, object]:
        from pfl.metrics import Weighted

        with torch.no_grad():
            return {"loss": Weighted(float(self.loss(images, labels)) * len(labels), len(labels))}


class PflRounds:
    """Trains the next round of pfl's `FederatedAveraging`; it evaluates in the first, which is warm-up."""

    def __init__(self) -> None:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.model.pytorch import PyTorchModel

        loop = plain_loop()

        class Images(Dataset):
            def iter(self, batch_size: int | None) -> object:  # noqa: ARG002
                return loop.batches(loop.data.partition.of(int(self.user_id)))

        def images_of(client: str) -> Images:
            return Images((loop.data.labels[loop.data.partition.of(int(client))],), user_id=client)

        clients = [str(client) for client in range(loop.data.partition.n)]
        users = FederatedDataset(images_of, get_user_sampler("minimize_reuse", clients))
        self.backend = SimulatedBackend(users, users, [WeightByDatapoints()])
        net = PflModel(*network("cnn", channels=3, size=32, classes=10))
        self.model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
        self.algorithm, self.rounds = FederatedAveraging(), itertools.count(1)

    def __call__(self) -> None:
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.hyperparam.base import NNTrainHyperParams

        self.algorithm.run(
            NNAlgorithmParams(next(self.rounds), 10**6, COHORT, val_cohort_size=0),
            self.backend,
            self.model,
            NNTrainHyperParams(BATCH, None, 0.1, local_max_grad_norm=10.0, local_num_steps=STEPS),
            send_metrics_to_platform=False,
        )


class Apart:
    """A contender in a process of its own, which answers each word with the CPU seconds of a round."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=target, args=(other, *arguments), name="MainProcess")  # for pfl
        self.process.start()
        other.close()
        self.pipe.recv()

    def __call__(self) -> float:
        self.pipe.send("round")
        return self.pipe.recv()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it has failed already
            self.pipe.send("end")
        self.process.join()


def answer(pipe: Connection, clock: Callable[[], float], call: Callable[[], object]) -> None:
    """Train a round for each word from the pipe, until the word is "end"."""
    pipe.send("ready")
    while pipe.recv() != "end":
        start = clock()
        call()
        pipe.send(clock() - start)


def alone(pipe: Connection, make: Callable[[], Callable[[], object]]) -> None:
    torch.set_num_threads(1)
    answer(pipe, time.process_time, make())


def flower_simulation(pipe: Connection) -> None:
    """Flower's `FedAvg` in a simulation that waits between rounds."""
    home = tempfile.TemporaryDirectory()
    os.environ |= {**QUIET, "FLWR_HOME": home.name}
    warnings.simplefilter("ignore", DeprecationWarning)
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    loop, client, server = plain_loop(), ClientApp(), ServerApp()
    client.train()(flower_client)
    clients = loop.data.partition.n

    @server.main()
    def main(grid: object, context: object) -> None:  # noqa: ARG001
        strategy = FedAvg(fraction_train=COHORT / clients, fraction_evaluate=0.0, min_available_nodes=clients)
        arrays, count = ArrayRecord(loop.server.state_dict()), itertools.count(1)

        def call() -> None:
            nonlocal arrays
            at = next(count)
            messages = strategy.configure_train(at, arrays, ConfigRecord(), grid)
            replies = list(grid.send_and_receive(messages))
            if len(replies) != COHORT or any(reply.has_error() for reply in replies):
                raise RuntimeError("clients of Flower's simulation failed")
            arrays, _ = strategy.aggregate_train(at, replies)

        answer(pipe, tree_seconds, call)

    start = {"num_cpus": 1, "include_dashboard": False, "log_to_driver": False}
    backend = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}, "init_args": start}
    run_simulation(server, client, clients, backend_config=backend)
    home.cleanup()


def flower_client(message: object, context: object) -> object:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    loop = plain_loop()
    own = loop.data.partition.of(context.node_config["partition-id"])
    loop.server.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loop.train(own)
    records = {
        "arrays": ArrayRecord(loop.local.state_dict()),
        "metrics": MetricRecord({"num-examples": len(own)}),
    }
    return Message(RecordDict(records), reply_to=message)


def tree_seconds() -> float:
    """CPU seconds of this process and of all that descend from it, those that have ended included."""
    root, parents, ticks = os.getpid(), {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile; its parent has its time
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))

    def within(pid: int) -> bool:
        while pid in parents and pid != root:
            pid = parents[pid]
        return pid == root

    return sum(ticks[pid] for pid in ticks if within(pid)) / os.sysconf("SC_CLK_TCK")


def missing(*packages: str) -> str:
    """Why a contender cannot run; empty if it can."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


def turns(contenders: dict[str, Apart]) -> dict[str, float]:
    """Median CPU seconds of a round of each; they take turns."""
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-WARM, TURNS):
        for name, contender in contenders.items():
            seconds = contender()
            if turn >= 0:
                spent[name].append(seconds)
    return {name: float(np.median(seconds)) for name, seconds in spent.items()}


def engine(policy: object) -> Rounds:
    return Rounds(made_up(), policy, "auto")


def main() -> None:
    unseen = "" if Path("/proc/self/stat").exists() else "there is no /proc here"
    contenders = {
        "plain PyTorch loop": (alone, plain_loop),
        "simulate, FL-GraB": (alone, functools.partial(engine, PairGraB())),
        "simulate, FL-RR": (alone, functools.partial(engine, RandomReshuffling())),
        "pfl": (alone, PflRounds),
        "Flower's simulation": (flower_simulation,),
    }
    reasons = {"pfl": missing("pfl"), "Flower's simulation": missing("flwr", "ray") or unseen}
    started: dict[str, Apart] = {}
    try:
        for name, how in contenders.items():
            if reasons.get(name):
                print(f"{name}: left out, {reasons[name]}")
            else:
                started[name] = Apart(*how)
        spent = turns(started)
    finally:
        for contender in started.values():
            contender.close()
    for name, seconds in spent.items():
        ratio = seconds / spent["plain PyTorch loop"]
        aim = ""
        if name.startswith("simulate"):
            aim = f"   (at most {TARGET} ×: {'met' if ratio <= TARGET else 'MISSED'})"
        print(f"{name:22} {seconds:7.3f} s CPU a round   {ratio:5.2f} × the plain loop{aim}")


if __name__ == "__main__":
    main()
