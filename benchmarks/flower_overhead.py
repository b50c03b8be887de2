"""A round of Flower with 10 million parameters and cohort 10: server CPU time with ordering, over without."""

import itertools
import logging
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.timing import cpu_seconds

CLIENTS, COHORT = 20, 10
SHAPES = {"a": (2500, 2000), "b": (2500, 1600), "c": (1000, 999), "d": (1000,)}
TARGET = 1.3


class Grid:
    """A SuperLink whose clients' answers have arrived already: only the server's work is left.

    With ``packed``, that includes what a ServerApp does to each message with flwr's own functions: hash and
    serialise the model it sends, and put the answers together from their chunks (but no network).
    """

    def __init__(self, nodes, answers, *, packed):
        self.nodes, self.answers, self.ids = nodes, answers, itertools.count(1)
        self.contents = {node: dict(pieces_of(answer)) for node, answer in answers.items()} if packed else {}

    def get_node_ids(self):
        return self.nodes

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, public_key=b"%d" % node) for node in self.nodes]

    def replies(self, messages):
        from flwr.app import Message
        from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute

        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.ids)}"
        if self.contents:
            with no_object_id_recompute():
                dict(itertools.chain.from_iterable(pieces_of(message.content) for message in messages[:1]))
        return [Message(self.answer(m.metadata.dst_node_id), reply_to=m) for m in messages]

    def answer(self, node):
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        if not self.contents:
            return self.answers[node]
        contents = dict(self.contents[node])
        return inflate_object_from_contents(list(contents)[-1], contents)


def pieces_of(record):
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    for name, piece in get_all_nested_objects(record).items():
        yield name, piece.deflate()


def answers(nodes):
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    draw = np.random.default_rng(0)
    for node in nodes:
        arrays = {name: Array(draw.standard_normal(s, dtype=np.float32)) for name, s in SHAPES.items()}
        yield node, RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 10})})


def rounds(strategy, grid, first):
    """A call that trains one round after the other."""
    from flwr.app import ConfigRecord

    arrays, count = [first], itertools.count(1)

    def call():
        at = next(count)
        messages = list(strategy.configure_train(at, arrays[0], ConfigRecord(), grid))
        assert len(messages) == COHORT
        moved, _ = strategy.aggregate_train(at, grid.replies(messages))
        arrays[0] = moved

    return call


@threadpool_limits.wrap(limits=1)
def main() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from flwr.app import Array, ArrayRecord
        from flwr.supercore.task_identity import TaskIdentity
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    logging.getLogger("flwr").setLevel(logging.ERROR)
    nodes = list(range(1, CLIENTS + 1))
    replies = dict(answers(nodes))
    first = ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()})
    for packed in (False, True):
        measure(first, nodes, replies, packed)


def measure(first, nodes, replies, packed):
    from flwr.serverapp.strategy import FedAvg

    from wellorder import PairGraB, RandomReshuffling
    from wellorder.flower import OrderedStrategy

    grid, few = Grid(nodes, replies, packed=packed), Grid(nodes[:COHORT], replies, packed=packed)
    state = Path(tempfile.mkdtemp()) / "state.safetensors"

    def ordered(policy, **settings):
        strategy = OrderedStrategy(FedAvg(), policy, COHORT, clients=CLIENTS, names="key", **settings)
        return rounds(strategy, grid, first)

    calls = {
        "FedAvg": rounds(FedAvg(), few, first),
        "ordered, RandomReshuffling": ordered(RandomReshuffling()),
        "ordered, PairGraB": ordered(PairGraB()),
        "ordered, PairGraB, state saved each round": ordered(PairGraB(), state=state),
        "ordered, PairGraB, exact signals": ordered(PairGraB(), signals="exact"),
    }
    times = cpu_seconds(calls, repeats=7)
    dim = sum(int(np.prod(shape)) for shape in SHAPES.values())
    what = "strategy and messages" if packed else "strategy alone"
    print(f"{dim:,} parameters, cohort {COHORT}, {what}: CPU seconds a round")
    for name, spent in times.items():
        print(f"  {name:44} {spent:7.3f}  {spent / times['FedAvg']:5.2f}x")
    if packed:
        met = times["ordered, PairGraB"] <= TARGET * times["FedAvg"]
        print(f"target {TARGET}x: {'met' if met else 'MISSED'}")
    state.unlink()


if __name__ == "__main__":
    main()
