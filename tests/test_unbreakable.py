"""Every public function and class over a list of hostile values: an answer, or a ValueError that says the cure.

`CALLS` holds one call that works for each public name, arguments by keyword. Each argument in turn is replaced
by every hostile value. A new public name must be put into `CALLS`, or into `RECORDS` if it is something that
the library makes and hands out.
"""
# ruff: noqa: E501  (a table of calls reads better wide)

import copy
import importlib
import inspect
import pickle
import re
import resource
import signal
import urllib.error
import urllib.request
import warnings
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import wellorder
from wellorder import (
    Deterministic,
    GraB,
    GraBProto,
    Greedy,
    Herding,
    NicePermutation,
    PairGraB,
    RandomReshuffling,
    Steering,
    Walk,
)  # fmt: skip
from wellorder.problems import logistic, quadratics

PARTS = (
    "",
    ".policies",
    ".problems",
    ".shards",
    ".theory",
    ".federated",
    ".torch",
    ".flower",
    ".experiments",
    ".report",
)
NEEDS = {
    "federated": "torch",
    "torch": "torch",
    "flower": "flwr",
    "experiments": "pyarrow",
    "report": "pyarrow",
    "shards": "pyarrow",
}
SECONDS, MEMORY = 60.0, 2 * 2**30
"""What a call may take. Refusals must come before anything is computed."""


class Anything:
    """An object that nobody expects."""

    def __repr__(self):
        return "Anything()"


def hostile():
    """Values that somebody, somewhere, passes by mistake; made anew for each argument."""
    yield from (None, True, 0, -1, 1.5, np.nan, np.inf, -np.inf, 2**70, -(2**70), 10**400, 1e308, 1j)
    yield from ("", "x", "\0", "a" * 5000, b"x", [], {}, (), [[]], [None], ["a"], [np.nan], [0, 0, 0, 0])
    yield from ({"a": 1}, {1, 2}, Anything(), Anything, RandomReshuffling, datetime(2026, 1, 1))
    yield from (np.zeros(0), np.zeros((0, 3)), np.zeros((4, 0)), np.zeros((2, 2, 2)), np.full((4, 3), np.nan))
    yield from (np.full((4, 3), 1e305), np.array(["a", "b"]), np.array([None, 1], object), np.array(3.0))
    yield from (np.ones((4, 3), complex), np.array([2**63], np.uint64), np.array([-1, 9]), np.bool_(True))
    yield from (np.float32("nan"), np.datetime64("2026-01-01"), np.ma.masked_all(4), Decimal("NaN"))
    yield from (lambda: None, lambda *_, **__: None, iter([1, 2]), range(3), Path("/dev/null/x"))
    yield from (GraB(), Walk(1.0), quadratics(3), GraB().init(3), Herding().init(3), PairGraB().init(9))
    torch = importlib.import_module("torch") if has("torch") else None
    if torch is not None:
        yield from (torch.zeros(4, 3).to_sparse(), torch.zeros(4, 3, device="meta"), torch.tensor(1.0))
        yield from (torch.zeros(4, 3, dtype=torch.complex64), torch.full((4, 3), torch.nan), torch.zeros(0))
        yield from (torch.nn.Linear(3, 2), torch.nn.Identity())


def has(name):
    return importlib.util.find_spec(name) is not None


def observed(policy, **known):
    """A state of four units in mid-epoch."""
    state = policy.init(4, **known)
    return policy.observe(state, state.order[:2], np.eye(4, 3)[:2])


def verbs(policy):
    """Valid calls of a policy's verbs."""
    state = policy.init(4)
    given = {"rows": np.eye(4, 3)} if hasattr(policy, "open") else {}
    return {
        "init": lambda: {"self": policy, "n": 4, "seed": 1, **given},
        "observe": lambda: {
            "self": policy, "state": policy.init(4), "units": state.order[:3], "signals": np.eye(4, 3)[:3],
        },
        "advance": lambda: {"self": policy, "state": policy.init(4)},
        **({"open": lambda: {"self": policy, "state": policy.init(4), "epoch": 3}} if given else {}),
    }  # fmt: skip


ROWS = np.random.default_rng(0).normal(size=(4, 3))
PROBLEM = logistic(ROWS, [0, 1, 1, 0], l2=0.1)
SETTING = {
    "dim": 2, "smoothness": 1.0, "smoothness_2inf": 1.0, "smoothness_inf": 1.0, "sigma": 1.0, "gap": 1.0, "delta": 1e-4,
    "theta": 0.1, "first_error": 1.0, "passes": 2, "c": 5.0, "age": 1, "moved": 0.1, "cohort": 2, "local_steps": 1,
    "server_step": 1.0,
}  # fmt: skip
KNOWN = {name: SETTING[name] for name in SETTING if name not in ("dim", "theta")}
POLICIES = [
    wellorder.Arbitrary([[0, 1, 2, 3]] * 3), wellorder.FlipFlop(), GraB(), GraBProto(), Greedy(), Herding(),
    wellorder.IncrementalGradient(), NicePermutation(2), PairGraB(), wellorder.PairGraBProto(), RandomReshuffling(),
    wellorder.ShuffleOnce(), Steering(), wellorder.WithReplacement(), wellorder.CDGraB(2),
    wellorder.RandomCohorts(2), wellorder.BalancedCohorts(2),
]  # fmt: skip

CALLS = {
    "wellorder.Arbitrary": lambda: {"orders": [[0, 1], [1, 0]]},
    "wellorder.GraB": lambda: {"rule": Deterministic(), "reorders": 1},
    "wellorder.PairGraB": lambda: {"rule": Walk(3.0), "reorders": 1},
    "wellorder.GraBProto": lambda: {"rule": Walk(3.0)},
    "wellorder.PairGraBProto": lambda: {"rule": Walk(3.0)},
    "wellorder.Greedy": lambda: {"max_units": 7},
    "wellorder.Herding": lambda: {"passes": 2, "rule": Deterministic()},
    "wellorder.NicePermutation": lambda: {"passes": 2, "rule": Deterministic()},
    "wellorder.CDGraB": lambda: {"workers": 2, "rule": Deterministic()},
    "wellorder.RandomCohorts": lambda: {"cohort": 2},
    "wellorder.BalancedCohorts": lambda: {"cohort": 2, "newest": 0.5},
    "wellorder.Steering": lambda: {"window": 3, "candidates": 2},
    **{f"wellorder.{type(p).__name__}.{verb}": call for p in POLICIES for verb, call in verbs(p).items()},
    "wellorder.FlipFlop": dict,
    "wellorder.IncrementalGradient": dict,
    "wellorder.RandomReshuffling": dict,
    "wellorder.ShuffleOnce": dict,
    "wellorder.WithReplacement": dict,
    "wellorder.Deterministic": dict,
    "wellorder.Walk": lambda: {"c": 2.0},
    "wellorder.Deterministic.thresholds": lambda: {"self": Deterministic(), "seed": 0, "epoch": 0, "start": 0, "count": 3},
    "wellorder.Walk.thresholds": lambda: {"self": Walk(2.0), "seed": 0, "epoch": 0, "start": 0, "count": 3},
    "wellorder.Needs.at_start": lambda: {"self": wellorder.Needs.FRESH_ONCE, "epoch": 0},
    "wellorder.audit": lambda: {
        "order": [0, 2, 1, 3], "rows": ROWS, "labels": [0, 1, 1, 0], "shards": [0, 0, 1, 1], "epochs": 1, "every": 2,
        "xy": None, "key": None, "before_epoch": None, "most": 10, "shuffles": 2, "seed": 0,
    },
    "wellorder.audit ": lambda: {
        "order": [(ROWS, [0, 1, 1, 0])], "rows": lambda batch: batch[0], "shards": lambda batch: [0, 0, 1, 1], "epochs": 2,
        "every": 2, "xy": lambda batch: batch, "key": lambda batch: [0, 1, 2, 3], "before_epoch": lambda epoch: None, "most": 10,
        "shuffles": 2, "seed": 0,
    },
    "wellorder.Audit.plot": lambda: {"self": wellorder.audit([0, 2, 1, 3], labels=[0, 1, 1, 0]), "axes": None},
    "wellorder.balance": lambda: {"signals": ROWS, "rule": Walk(2.0), "total": np.zeros(3), "seed": 0, "start": 0},
    "wellorder.balanced": lambda: {"rows": ROWS, "policy": Herding(), "seed": 0, "start": 0},
    "wellorder.balanced_stream": lambda: {
        "examples": [0, 1, 2], "row": lambda _: np.zeros(3), "window": 2, "candidates": 2, "seed": 0, "epoch": 0,
        "mean": np.zeros(3), "at_once": 2,
    },
    "wellorder.basic_br": lambda: {"order": [1, 0, 2, 3], "vectors": ROWS, "mean": np.zeros(3), "rule": Walk(2.0), "seed": 0},
    "wellorder.pair_br": lambda: {"order": [1, 0, 2, 3], "vectors": ROWS, "mean": np.zeros(3), "rule": Walk(2.0), "seed": 0},
    "wellorder.check_policy": lambda: {"policy": wellorder.FlipFlop(), "permutation": True, "convert": None, "units": 8},
    "wellorder.dense": lambda: {"signals": ROWS, "count": 4, "name": "signals"},
    "wellorder.drift": lambda: {"points": ROWS, "p": 2},
    "wellorder.expansion": lambda: {
        "problem": PROBLEM, "x": np.zeros(3), "order": [0, 2, 1, 3], "step_size": 0.1, "smoothness": 1.0, "cohort": 2,
        "local_steps": 2,
    },
    "wellorder.features": lambda: {"x": ROWS, "y": [0, 1, 1, 0], "size": 8, "seed": 0, "progress": False},
    "wellorder.frozen": lambda: {"array": np.arange(3)},
    "wellorder.state_dict": lambda: {"policy": GraB(), "state": observed(GraB())},
    "wellorder.load_state_dict": lambda: {"policy": GraB(), "mapping": wellorder.state_dict(GraB(), observed(GraB()))},
    "wellorder.order_error": lambda: {"vectors": ROWS, "order": [0, 2, 1, 3], "p": 2, "every": 1},
    "wellorder.reorder": lambda: {"order": [1, 0, 2], "signs": [1, -1, 0]},
    "wellorder.rng": lambda: {"seed": 0, "epoch": 0, "stream": "order"},
    "wellorder.sgd": lambda: {
        "problem": PROBLEM, "policy": PairGraB(), "step_size": 0.1, "epochs": 2, "seed": 0, "start": np.zeros(3), "p": 2,
        "proximal": 0.1,
    },
    "wellorder.shuffled": lambda: {"n": 4, "seed": 0, "epoch": 0},
    "wellorder.units_of": lambda: {"n": 4, "seed": 0},
    "wellorder.visit": lambda: {"order": np.arange(4), "seen": 1, "units": [1, 2]},
    "wellorder.policies.entry_named": lambda: {"word": "rr"},
    "wellorder.policies.entry_of": lambda: {"policy": GraB()},
    "wellorder.problems.gradient": lambda: {"problem": PROBLEM, "x": np.zeros(3)},
    "wellorder.problems.logistic": lambda: {"X": ROWS, "y": [0, 1, 1, 0], "l2": 0.1},
    "wellorder.problems.quadratics": lambda: {"n": 4, "dim": 2, "seed": 0, "spread": 1.0},
    "wellorder.problems.start_of": lambda: {"problem": PROBLEM, "start": np.zeros(3)},
    "wellorder.problems.steps": lambda: {"problem": PROBLEM, "units": np.arange(2), "x": np.zeros(3), "step_size": 0.1},
    "wellorder.problems.loop_steps": lambda: {"problem": PROBLEM, "units": np.arange(2), "x": np.zeros(3), "step_size": 0.1},
}  # fmt: skip


def theory():
    from wellorder.federated import fedavg
    from wellorder.theory import constants

    problem = quadratics(4, spread=0.0)
    run = wellorder.sgd(problem, RandomReshuffling(), step_size=1e-3, epochs=3)
    known = constants("RR", 4)
    clients = fedavg(problem, RandomReshuffling(), step_size=1e-3, epochs=3, cohort=2, local_steps=2)
    return {
        "Setting": lambda: {"n": 4, **SETTING},
        "Setting.to_itself": lambda: {"self": known.setting, "p": 3},
        "Setting.two_to": lambda: {"self": known.setting, "p": 3},
        "Setting.walk": lambda: {"self": known.setting, "pairs": True},
        "Constants.probability": lambda: {"self": known, "epochs": 3},
        "advise": lambda: {"n": 4, "dim": 2, "epochs": 9, "clients": True, "theta": 0.1, "by": "bound", **KNOWN},
        "bound": lambda: {"method": "FL-RR", "step_size": 1e-4, "epochs": 9, "n": 4, **SETTING},
        "check_assumption": lambda: {"run": run, "method": known, "delta": 1e-4},
        "check_bound": lambda: {"run": run, "method": "RR", "delta": 1e-4},
        "check_drift": lambda: {"run": clients},
        "check_lemmas": lambda: {
            "vectors": ROWS, "order": [0, 2, 1, 3], "cohort": 2, "rule": Walk(9.0), "delta": 1e-4, "seed": 0,
        },
        "check_order_errors": lambda: {"errors": [3.0, 2.0], "known": known, "gradient_norms": [1.0, 1.0]},
        "constants": lambda: {
            "method": "FL-mine", "n": 4, "A": (0.5,), "B": (0.0, 1.0), "D": 3.0, "p": 2, **SETTING,
        },
        "estimate": lambda: {"problem": problem, "points": np.zeros((2, 1)), "seed": 0},
        "least": lambda: {"A": (0.5,), "B": (0.0, 1.0), "n": 4},
        "max_step_size": lambda: {"method": "FL-RR", "n": 4, **SETTING},
        "method_of": lambda: {"policy": GraB(), "federated": False, "n": 4, "cohort": 2},
        "rate": lambda: {"method": "FL-RR", "epochs": 9, "n": 4, **SETTING},
        "rate_table": lambda: {"related": True},
        "step_size_lemma": lambda: {"r0": 1.0, "T": 9.0, "c": 1.0, "d": 1.0},
        "tuned_step_size": lambda: {"method": "FL-RR", "epochs": 9, "n": 4, **SETTING},
    }  # fmt: skip


def federated():
    import torch

    from wellorder.federated import (
        Always,
        ClientData,
        Config,
        Dataset,
        Diurnal,
        DropOut,
        FullGradient,
        LocalSGD,
        Trace,
        clients,
        label_shards,
    )  # fmt: skip

    labels = np.arange(12) % 2
    part, x = label_shards(labels, 4), np.zeros((12, 3), np.float32)
    data, model = ClientData(x, labels, part, x[:2], labels[:2], classes=2), torch.nn.Linear(3, 2)
    sets = Dataset(
        "own", np.zeros((12, 1, 4, 4), np.uint8), labels, np.zeros((2, 1, 4, 4), np.uint8), labels[:2], 3
    )
    config, held = Config(0.1, 1, cohort=2, local_steps=1, batch=2), clients(quadratics(8), 4)
    saved, trace = Path("part.npz").absolute(), Path("trace.csv").absolute()
    part.save(saved)
    trace.write_text("0,0,3\n1,2,2\n")
    names = {"folder": str(Path.cwd()), "verify": True, "download": False}
    rules = {"DropOut": DropOut(0.3), "Diurnal": Diurnal(), "Always": Always(), "Trace": Trace(trace)}
    return {
        "Always": dict,
        "DropOut": lambda: {"probability": 0.3},
        "Diurnal": lambda: {"groups": 2, "period": 10, "awake": 0.5},
        "Trace": lambda: {"path": trace},
        "Trace.content": lambda: {"self": rules["Trace"]},
        **{
            f"{name}.reachable": lambda rule=rule: {"self": rule, "units": np.arange(4), "turn": 2, "seed": 0}
            for name, rule in rules.items()
        },
        "ClientData": lambda: {
            "inputs": x, "labels": labels, "partition": part, "test_inputs": x[:2], "test_labels": labels[:2],
            "classes": 3, "mean": (), "std": (),
        },
        "Config": lambda: {
            "step_size": 0.1, "epochs": 2, "seed": 0, "cohort": 2, "local_steps": 2, "server_step": 1.0, "batch": 2,
            "clip": 0.0, "augment": False, "weighting": "size", "availability": Always(), "local": PairGraB(),
            "sketch": 0, "evaluate": 1, "looks": 1, "train_sample": 0, "device": "cpu", "precision": "float32", "mode": "auto",
            "graph": True, "checkpoint": None, "checkpoint_every": 1,
        },
        "Partition": lambda: {"examples": part.examples, "starts": part.starts},
        "Partition.of": lambda: {"self": part, "client": 1},
        "Partition.table": lambda: {"self": part, "labels": labels, "classes": 3},
        "Partition.save": lambda: {"self": part, "path": saved},
        "Partition.load": lambda: {"path": saved},
        "FullGradient": dict,
        "LocalSGD": lambda: {"policy": GraB()},
        "LocalSGD.init": lambda: {"self": LocalSGD(GraB()), "problem": held, "seed": 0},
        "by_client": lambda: {"owners": ["a", "b", "a"]},
        "cifar10": lambda: dict(names),
        "cifar100": lambda: dict(names),
        "mnist_writers": lambda: {"folder": str(Path.cwd())},
        "shakespeare": lambda: {"folder": str(Path.cwd()), "width": 4, "stride": 1, "least": 1},
        "cinic10": lambda: {"folder": str(Path.cwd())},
        "fashion_mnist": lambda: dict(names),
        "mnist": lambda: dict(names),
        "clients": lambda: {"problem": quadratics(4), "groups": [[0, 1], [2, 3]]},
        "dirichlet": lambda: {"labels": labels, "clients": 4, "alpha": 0.5, "seed": 0},
        "heterogeneity": lambda: {"first": ROWS, "second": ROWS, "cohort": 2},
        "iid": lambda: {"labels": labels, "clients": 4, "seed": 0},
        "label_shards": lambda: {"labels": labels, "clients": 4, "each": 2, "seed": 0},
        "fedavg": lambda: {
            "problem": held, "policy": PairGraB(), "step_size": 0.01, "epochs": 2, "cohort": 2, "local_steps": 1,
            "server_step": 1.0, "seed": 0, "start": np.ones(1), "p": 2, "local": FullGradient(), "proximal": 0.1,
            "availability": DropOut(0.3),
        },
        "Dataset": lambda: {
            "name": "own", "train_images": sets.train_images, "train_labels": labels, "test_images": sets.test_images,
            "test_labels": labels[:2], "classes": 3, "mean": (0.5,), "std": (0.5,),
        },
        "federate": lambda: {"dataset": sets, "partition": part},
        "network": lambda: {"name": "logistic", "channels": 1, "size": 4, "classes": 3, "seed": 0},
        "paper_config": lambda: {"step_size": 0.1, "rounds": 20, "clients": 10, "cohort": 2},
        "simulate": lambda: {
            "model": model, "data": data, "policy": PairGraB(), "config": config, "progress": lambda *_: None,
            "loss": lambda out, y: torch.nn.functional.cross_entropy(out, y, reduction="none"),
        },
        "simulate_many": lambda: {"model": model, "data": data, "jobs": [(PairGraB(), config)]},
    }  # fmt: skip


def sharded():
    import pyarrow
    import pyarrow.parquet

    from wellorder.shards import survey

    class Streamed:
        """What `hugging_face` asks of a data set."""

        num_shards = 2

        def shard(self, num_shards, index):
            return self

        def iter(self, batch_size):
            yield {"x": [1, 2]}

    def read(shard):
        return [(np.full(4, 1.0), shard % 2) for _ in range(3)]

    found, path = survey(range(4), read), Path("survey.npz").absolute()
    found.save(path)
    table = Path("table.parquet").absolute()
    pyarrow.parquet.write_table(pyarrow.table({"x": [0.5, 1.5], "y": [0, 1]}), table)
    return {
        "RowGroup": lambda: {"path": str(table), "group": 0, "size": 2},
        "row_groups": lambda: {"paths": [table], "columns": ["x"]},
        "hugging_face": lambda: {"dataset": Streamed()},
        "survey": lambda: {
            "shards": range(4), "read": read, "row": None, "xy": tuple, "sample": 2, "sizes": None,
            "size": 8, "seed": 0, "path": None, "threads": 1, "failed": "raise", "progress": False,
        },
        "ordered_shards": lambda: {"survey": found, "seed": 0, "epoch": 1},
        "expected_error": lambda: {"survey": found, "window": 5},
        "suggested_window": lambda: {"survey": found, "most": 100},
        "Survey.save": lambda: {"self": found, "path": path},
        "Survey.load": lambda: {"path": path, "row": None, "xy": lambda pair: pair},
        "Survey.check": lambda: {"self": found, "shards": range(4)},
    }  # fmt: skip


def torched():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(3, 2)
    loader = DataLoader(TensorDataset(torch.zeros(4, 3), torch.zeros(4)), batch_size=2, shuffle=True)
    whole = {
        "loader": loader, "model": model, "policy": Herding(), "rows": ROWS, "observe": "auto", "signals": "auto",
        "seed": 0, "scaler": None,
    }  # fmt: skip
    made = wellorder.torch.ordered(loader, policy=RandomReshuffling())
    state = made.state_dict()

    def read(shard):
        return [(torch.full((3,), float(shard)), shard % 2) for _ in range(3)]

    def loss(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    found = wellorder.shards.survey(range(4), read)
    sharded = wellorder.torch.ShardedDataset(range(4), read, survey=found)
    place = sharded.state_dict()
    return {
        "ShardedDataset": lambda: {
            "shards": range(4), "read": read, "survey": found, "row": found.row, "steer_by": found, "window": 4,
            "candidates": 2, "seed": 0, "batch_size": 2, "failed": "raise", "remainder": "repeat", "rank": 0, "ranks": 2,
        },
        "ShardedDataset.set_epoch": lambda: {"self": sharded, "epoch": 1},
        "ShardedDataset.state_dict": lambda: {"self": sharded, "batches": 1, "batch_size": 2},
        "ShardedDataset.load_state_dict": lambda: {"self": sharded, "state": dict(place)},
        "ShardedDataset.steered": lambda: {"self": sharded, "examples": read(0)},
        "probe": lambda: {
            "model": model, "loss": loss, "collate": torch.utils.data.default_collate, "spec": None, "seed": 0,
        },
        "ordered": lambda: {**whole, "model": torch.nn.Linear(3, 2)},
        "OrderedLoader.load_state_dict": lambda: {"self": made, "mapping": dict(state)},
        "Exact": lambda: {"mean": True},
        "MicroBatch": lambda: {"coordinates": 64},
        "Sketch": lambda: {
            "size": 64, "height": 4, "filters": 2, "side": 4, "layers": 2, "pool": True, "mean": True,
        },
    }  # fmt: skip


def flower():
    from flwr.serverapp.strategy import FedAvg

    from wellorder.flower import Tolerance

    return {
        "OrderedStrategy": lambda: {
            "inner": FedAvg(), "policy": PairGraB(), "cohort": 2, "seed": 0, "server_step": 1.0, "clients": 4,
            "names": "query", "signals": "auto", "state": None, "tolerance": Tolerance(),
        },
        "Tolerance": lambda: {
            "patience": 1.0, "attempts": 2, "fruitless": 3, "norm_cap": 9.0, "bad_updates": "drop", "poll": 1.0,
        },
    }  # fmt: skip


def experiments():
    import torch

    from wellorder.experiments import (
        Config,
        NetworkTask,
        Settings,
        compare,
        problem_task,
        two_stage,
    )  # fmt: skip

    task = problem_task(quadratics(4), step_size=1e-2, epochs=2)
    config = {
        "policies": {"a": RandomReshuffling(), "b": GraB()}, "epochs": 2, "seeds": (0, 1), "step_size": 0.1,
        "tune": "", "baseline": "a", "cohort": 1, "local_steps": 1, "server_step": 1.0,
    }  # fmt: skip
    done = compare(task, Config(**config), out="done")
    x, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    network, settings = NetworkTask(lambda: torch.nn.Linear(3, 2), (x, y), epochs=1), Settings(0.1, 2)
    with Path("table.csv").open("w") as table:
        table.write("a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 3}\n" for i in range(30)))
    folder, cell = done.folder, done.table.slice(0, 3)
    search = two_stage(lambda grid: [abs(np.log10(value) + 1.4) for value in grid])
    return {
        "Config": lambda: dict(config),
        "Config.from_given": lambda: {"data": {"epochs": 3, "policies": ["RR"]}},
        "Config ": lambda: {**config, "policies": ("RR", "GraB")},
        "compare": lambda: {"task": task, "config": Config(**config), "out": None, "jobs": 1, "resume": False,
                            "watch": None, "executor": None, "progress": True},
        "Settings": lambda: {"step_size": 0.1, "epochs": 2, "cohort": 1, "local_steps": 1, "server_step": 1.0},
        "Settings.check": lambda: {"self": settings, "n": 4},
        "problem_task": lambda: {"problem": quadratics(4), "step_size": 0.1, "epochs": 2, "name": "own"},
        "ProblemTask": lambda: {
            "name": "own", "title": "own", "problem_of": lambda seed: quadratics(4), "metrics": task.metrics,
            "step_size": 0.1, "epochs": 2, "grid": (0.1, 1.0), "test": None,
        },
        "ProblemTask.check": lambda: {"self": task, "settings": settings},
        "ProblemTask.train": lambda: {"self": task, "policy": GraB(), "seed": 0, "settings": settings},
        "ProblemTask.warm_up": lambda: {"self": task, "policy": GraB(), "seed": 0, "settings": settings},
        "NetworkTask": lambda: {
            "model": network.model, "data": (x, y), "loss": network.loss, "optimizer": network.optimizer, "scheduler": None,
            "batch_size": 2, "test": 0.25, "test_metrics": {"zero": lambda output, labels: 0.0}, "epochs": 1, "device": "cpu",
            "name": "own", "title": "own", "step": None, "scheduler_steps": "batch", "workers": 0, "collate": None,
            "command": ("own.py:task",),
        },
        "NetworkTask.check": lambda: {"self": network, "settings": settings},
        "NetworkTask.train": lambda: {"self": network, "policy": GraB(), "seed": 0, "settings": settings},
        "NetworkTask.check_policy": lambda: {"self": network, "policy": GraB()},
        "NetworkTask.warm_up": lambda: {"self": network, "policy": GraB(), "seed": 0, "settings": settings},
        "RunFolder": lambda: {"path": folder.path},
        "RunFolder.claimed": lambda: {"path": folder.path, "resume": True},
        "RunFolder.start": lambda: {"path": folder.path, "resume": True},
        "RunFolder.read": lambda: {"self": folder, "name": "config.json"},
        "RunFolder.write": lambda: {"self": folder, "name": "own.json", "content": {"a": 1}},
        "RunFolder.keep": lambda: {"self": folder, "policy": 0, "seed": 7, "table": cell},
        "RunFolder.kept": lambda: {
            "self": folder, "policy": 0, "label": "a", "seed": 0, "rows": 3, "columns": ("loss",),
        },
        "RunFolder.seal": lambda: {"self": folder, "cells": [cell]},
        "Search.from_data": lambda: {"data": search.as_data()},
        "publish": lambda: {"done": done},
        "summary": lambda: {"done": done},
        "table_task": lambda: {
            "path": "table.csv", "label": "y", "kind": "classification", "model": "mlp", "drop": ("b",), "batch_size": 4,
            "test": 0.2, "epochs": 2,
        },
        "task_of": lambda: {"name": "quadratics", "folder": None, "download": False},
        "two_stage": lambda: {"losses": lambda grid: [1.0 for _ in grid], "coarse": (0.1, 1.0)},
    }  # fmt: skip


def report():
    from wellorder import report as r

    rows = [
        {"policy": p, "seed": s, "epoch": e, "loss": 1.0 / (1 + e + s), "gradients": e, "seconds": 0.1 * e}
        for p in ("a", "b") for s in (0, 1) for e in range(3)
    ]  # fmt: skip
    table, metric = r.table_of(rows), r.Metric("loss", "loss")
    judged = r.verdicts(table, metric, "a")
    whole = {
        "title": "t", "subtitle": "s", "table": table, "metrics": (metric,), "baseline": "a", "headline": "h",
        "verdicts": judged, "command": "c", "notes": ("n",), "how": {"a": "b"}, "figures": {"f": b"png"},
    }  # fmt: skip
    figure = r.picture(table, (metric,))
    r.write_table(table, Path("table.parquet"))
    return {
        "Metric": lambda: {
            "column": "loss", "label": "loss", "lower_is_better": True, "log": True, "percent": False, "about": "",
            "held_out": False,
        },
        "Page": lambda: dict(whole),
        "render": lambda: {"page": r.Page(**whole)},
        "costs": lambda: {"table": table, "metric": metric, "title": "t"},
        "picture": lambda: {"table": table, "metrics": (metric,), "title": "t"},
        "headline": lambda: {"found": judged, "baseline": "a"},
        "save_picture": lambda: {"figure": figure, "path": Path("picture.png").absolute()},
        "read_table": lambda: {"path": Path("table.parquet").absolute(), "rows": None},
        "write_table": lambda: {"table": table, "path": Path("table.csv").absolute()},
        "table_of": lambda: {"rows": rows},
        "verdicts": lambda: {"table": table, "metric": metric, "baseline": "a", "test": metric},
    }  # fmt: skip


LATER = {
    "shards": sharded,
    "theory": theory, "federated": federated, "torch": torched, "flower": flower, "experiments": experiments,
    "report": report,
}  # fmt: skip
"""Calls of parts that are not loaded before they are asked for."""

RECORDS = {
    # protocols and types
    "Order", "Policy", "State", "Signals", "SignalShortcuts", "SignRule", "Keeps", "Needs", "Problem", "Availability",
    "Task", "Watch", "Conclusion", "Kind",
    # what the library makes and hands out
    "Balanced", "ContractError", "Expansion", "Run", "Entry", "Advice", "Bound", "Check", "Choice", "Constants",
    "Estimate", "Method", "Rate", "TableRow", "Tuned", "Clients", "Simulation", "Report", "Comparison",
    "ComparisonPlan", "JobError", "OrderedLoader", "Text", "Survey", "ShardError", "Search", "Verdict", "Quadratics", "Logistic",
    # tables
    "REGISTRY", "METHODS", "DATASETS", "NETWORKS",
}  # fmt: skip
"""Public names that nobody is meant to call."""


PYTHONS_OWN = re.compile(r"positional argument|takes no arguments|unexpected keyword|must be Tensor")
"""What Python says when somebody's own function is called with arguments that it does not take."""


NOT_HERE = {"cifar10", "cifar100", "cinic10", "fashion_mnist", "mnist", "mnist_writers", "shakespeare"}
"""Calls that are refused even when all is right, as their data is not here."""


ALSO = {"data": "holds", "name": "task", "path": "out", "shards": "shard", "examples": "example"}
"""By which other words an error may name an argument: of a file's content, it says what the file holds."""

DO = (
    "add|ask|begin|build|call|check|choose|create|cut|delete|download|drop|fill|give|install|keep|leave|list|load|look|make"
    "|measure|move|name|observe|open|pass|put|read|record|remove|rename|replace|return|run|save|say|set|show|split|start|take"
    "|try|unpack|use|wait|wrap|write"
)
CURE = re.compile(rf"(?:[:;,.(] |\b(?:or|and|then|first) |^)(?:{DO})\b")
"""A cure is an imperative at the beginning of a part of a sentence."""


def named(argument, said):
    """Whether an error names the argument as such: one of a single letter with a sign that follows a name."""
    after = r"\b" if len(argument) > 1 else r"(?:=|\[|,| of | is | has | holds |:)"
    return re.search(rf"\b{re.escape(argument)}{after}", said)


class Slow(BaseException):
    pass


@contextmanager
def bounded():
    """A call that takes too long, or too much memory, ends."""

    def stop(*_):
        raise Slow

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def listing():
    """All files with their times, and all folders: a lock that comes and goes touches a folder."""
    return {str(path): path.stat().st_mtime_ns if path.is_file() else 0 for path in Path().rglob("*")}


def resolved(name):
    """What a dotted name stands for."""
    words = name.strip().split(".")
    part = ".".join(words[:2]) if f".{words[1]}" in PARTS else "wellorder"
    found = importlib.import_module(part)
    for word in words[part.count(".") + 1 :]:
        found = getattr(found, word)
    return found


def called(function, arguments):
    """Call, and take what is lazy as far as a user would."""
    given = dict(arguments)
    first = [given.pop("self")] if "self" in given else []
    made = function(*first, **given)
    if inspect.isgenerator(made) or type(made).__name__ == "generator":
        for _, _item in zip(range(3), made, strict=False):
            pass
    elif hasattr(made, "__enter__") and "claimed" in getattr(function, "__name__", ""):
        with made:
            pass
    return made


def attack(name, call, stride=1):
    """Every argument over every ``stride``-th hostile value: the number of calls, and what went wrong."""
    function, wrong, count = resolved(name), [], 0
    if name.rpartition(".")[2] not in NOT_HERE:
        called(function, call())
    for number, argument in enumerate(argument for argument in call() if argument != "self"):
        for at, value in enumerate(hostile()):
            if (at + number + len(name)) % stride:  # another part of the list for each argument
                continue
            arguments, before = {**call(), argument: value}, listing()
            count += 1
            shown = re.sub(r" at 0x\w+", "", repr(value))[:60]
            try:
                with bounded(), warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    called(function, arguments)
                continue
            except wellorder.ContractError:
                continue
            except ValueError as error:
                said = str(error)
                blamed = [*arguments] if name.rpartition(".")[2] in NOT_HERE else [argument]
                if not any(named(word, said) for word in (*blamed, ALSO.get(argument, argument))):
                    wrong.append(f"{name}({argument}={shown}): does not name it: {said[:200]}")
                if not CURE.search(said):
                    wrong.append(f"{name}({argument}={shown}): says no cure: {said[:200]}")
                if len(said) > 3000:
                    wrong.append(f"{name}({argument}={shown}): says {len(said)} characters")
            except Exception as error:
                if isinstance(error, TypeError) and PYTHONS_OWN.search(str(error)):
                    continue
                wrong.append(f"{name}({argument}={shown}): {type(error).__name__}: {str(error)[:150]}")
            except Slow:
                wrong.append(f"{name}({argument}={shown}): hangs")
            left = listing()
            if left != before:
                wrong.append(f"{name}({argument}={shown}): left {set(left.items()) ^ set(before.items())}")
    return count, wrong


def calls_of(part):
    """All calls of a namespace, by dotted name."""
    if not part:
        return {name: call for name, call in CALLS.items() if f".{name.split('.')[1]}" not in PARTS}
    own = {name: call for name, call in CALLS.items() if name.startswith(f"wellorder{part}.")}
    later = LATER.get(part[1:], dict)()
    return {**own, **{f"wellorder{part}.{name}": call for name, call in later.items()}}


@pytest.fixture(params=PARTS, ids=lambda part: part[1:] or "core")
def part(request, tmp_path, monkeypatch):
    """A namespace whose extra is installed, in a folder of its own and without a network."""
    if request.param[1:] in NEEDS:
        pytest.importorskip(NEEDS[request.param[1:]])

    def refuse(*_, **__):
        raise urllib.error.URLError("there is no network here")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.chdir(tmp_path)
    return request.param


def check(part, stride):
    total, wrong = 0, []
    for name, call in calls_of(part).items():
        count, found = attack(name, call, stride)
        total, wrong = total + count, wrong + found
    assert not wrong, f"{len(wrong)} of {total} calls:\n" + "\n".join(wrong)
    return total


def test_hostile_values_get_an_answer_or_the_cure(part):
    check(part, stride=24 if part == ".experiments" else 8)


@pytest.mark.slow
def test_all_hostile_values_get_an_answer_or_the_cure(part):
    """46,000 calls; those of the experiments train, so a third of them will do."""
    check(part, stride=3 if part == ".experiments" else 1)


def test_every_public_name_is_attacked(part):
    public = set(importlib.import_module(f"wellorder{part}").__all__)
    at = part.count(".") + 1
    attacked = {name.strip().split(".")[at] for name in calls_of(part)}
    if part == ".policies":  # the same classes as in `wellorder` itself
        attacked |= {name.split(".")[1] for name in calls_of("")}
    assert public - attacked - RECORDS == set()


@pytest.mark.parametrize("n", [10**11, 10**13, 2**62])
def test_more_than_the_machine_has_is_refused_by_name(n):
    for call in (
        lambda: RandomReshuffling().init(n), lambda: Herding().init(n), lambda: GraB().init(n),
        lambda: quadratics(n), lambda: wellorder.shuffled(n, 0, 0),
        lambda: wellorder.sgd(PROBLEM, GraB(), step_size=0.1, epochs=n),
    ):  # fmt: skip
        with (
            bounded(),
            pytest.raises(ValueError, match=rf"(n|n, dim|epochs)=.*{n}.*does not fit into memory"),
        ):
            call()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_a_copied_state_is_as_read_only_as_its_original(policy):
    state = policy.init(4)
    for twin in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert twin.order.tolist() == state.order.tolist()
        with pytest.raises(ValueError, match="read-only"):
            twin.order[0] = 1
        assert policy.advance(twin).epoch == 1


def test_nothing_observed_in_mid_epoch_changes_nothing():
    for policy in POLICIES:
        state = policy.init(4)
        state = policy.observe(state, state.order[:2], ROWS[:2])
        for signals in ([], np.zeros((0, 3))):
            assert policy.observe(state, [], signals) is state
