"""A federation inside one process: clients with quadratics, and a grid that misbehaves on request."""

import itertools
import logging
import random
import warnings
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

with warnings.catch_warnings():  # flwr's own dependencies warn while they are imported
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        import flwr.app
        import flwr.serverapp.strategy
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        flwr = None

STEP, LOCAL = 0.02, 3
collect_ignore = ["app"]


@dataclass
class Client:
    """Behaves ``well``, or else: error, silent, late, twice, nan, shape, huge, empty, odd, light."""

    name: str
    unit: int
    mood: str = "well"
    key: bytes = b""


@dataclass
class FakeGrid:
    """As much of a SuperLink as a strategy can see."""

    problem: object
    nodes: dict[int, Client] = field(default_factory=dict)
    seed: int = 0
    answers_queries: bool = True
    names_at_once: int = 10**9
    """How many nodes tell their names between two looks."""
    asked: list[list[str]] = field(default_factory=list)
    """The clients that were asked to train, round by round, as they were told apart by the grid."""

    def __post_init__(self):
        self.ids, self.chance = itertools.count(1), random.Random(self.seed)
        self.inbox, self.late = {}, []

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, public_key=client.key) for node, client in self.nodes.items()]

    def push_messages(self, messages):
        sent = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.ids)}"
            sent.append(message.metadata.message_id)
            self.inbox[message.metadata.message_id] = message
        return sent

    def pull_messages(self, message_ids):
        replies = []
        for at in self.chance.sample(list(message_ids), min(len(message_ids), self.names_at_once)):
            message = self.inbox.get(at)
            client = message and self.nodes.get(message.metadata.dst_node_id)
            if client is None or client.mood == "mute":
                continue
            del self.inbox[at]
            if client.mood == "gone":
                replies.append(flwr.app.Message(flwr.app.Error(5, "Node Unavailable"), reply_to=message))
            elif self.answers_queries:
                told = flwr.app.ConfigRecord({"partition-id": client.name})
                replies.append(flwr.app.Message(flwr.app.RecordDict({"me": told}), reply_to=message))
            else:
                error = flwr.app.Error(0, "no handler\nValueError: query")
                replies.append(flwr.app.Message(error, reply_to=message))
        return replies

    def send_and_receive(self, messages, *, timeout=None):
        self.push_messages(messages)
        replies, self.late = self.late, []
        if any(message.metadata.message_type == "train" for message in messages):
            self.asked.append([self.nodes[m.metadata.dst_node_id].name for m in messages])
        for message in messages:
            replies += self.reply(message)
        self.chance.shuffle(replies)
        return replies

    def reply(self, message):
        client = self.nodes.get(message.metadata.dst_node_id)
        if client is None or client.mood == "silent":
            return []
        if client.mood == "error":
            return [
                flwr.app.Message(flwr.app.Error(0, "Traceback\nZeroDivisionError: 1/0"), reply_to=message)
            ]
        metrics = {"num-examples": 0 if client.mood == "light" else 1, "loss": 0.5}
        if client.mood == "odd":
            del metrics["loss"]
        if message.metadata.message_type != "train":
            return [self.answer(message, {"metrics": flwr.app.MetricRecord(metrics)})]
        (x,) = message.content["arrays"].to_numpy_ndarrays()
        x = self.broken(client.mood, self.train(client.unit, x))
        arrays = flwr.app.ArrayRecord({"x": flwr.app.Array(x)})
        records = {"arrays": arrays, "metrics": flwr.app.MetricRecord(metrics)}
        if client.mood == "empty":
            del records["arrays"]
        answer = self.answer(message, records)
        if client.mood == "late":
            self.late.append(answer)
            return []
        return [answer, self.answer(message, records)] if client.mood == "twice" else [answer]

    def train(self, unit, x):
        for _ in range(LOCAL):
            x = x - STEP * self.problem.gradients(np.array([unit]), x)[0]
        return x

    @staticmethod
    def broken(mood, x):
        bad = {"nan": np.full_like(x, np.nan), "huge": x + 1e30, "shape": np.zeros(len(x) + 1)}
        return bad.get(mood, x)

    @staticmethod
    def answer(message, records):
        return flwr.app.Message(flwr.app.RecordDict(records), reply_to=message)


@pytest.fixture
def federation():
    """Make a fake grid of ``n`` clients named 0 … n−1, on nodes numbered in no particular order."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'wellorder[flower]'")
    from wellorder.problems import quadratics

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    logging.getLogger("flwr").setLevel(logging.WARNING)

    def make(n, dim=3, seed=0, **settings):
        grid = FakeGrid(quadratics(n, dim), seed=seed, **settings)
        order = random.Random(seed).sample(range(n), n)
        grid.nodes = {1000 + 7 * unit: Client(str(unit), unit) for unit in order}
        return grid

    yield make
    logging.getLogger("flwr").setLevel(logging.INFO)


@pytest.fixture
def first_model():
    """The quadratics' first point, as a record."""
    return lambda dim=3: flwr.app.ArrayRecord({"x": flwr.app.Array(np.ones(dim))})
