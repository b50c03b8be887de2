"""Whatever a federation does: nobody is lost, nobody is visited twice in an epoch, and the run goes on."""

import logging

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'wellorder[flower]'")

from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from wellorder import GraB, PairGraB, RandomReshuffling, ShuffleOnce
from wellorder.flower import OrderedStrategy, Tolerance

CLIENTS = 6
MOODS = ["well", "error", "silent", "late", "twice", "nan", "shape"]


class Federation(RuleBasedStateMachine):
    """Clients come, go, fail and stammer between rounds; after each round the books must be right."""

    make = None  # the fixture's maker of grids
    model = None

    @initialize(
        present=st.integers(0, CLIENTS),
        cohort=st.integers(1, 3),
        policy=st.sampled_from([PairGraB(), GraB(), RandomReshuffling(), ShuffleOnce()]),
        attempts=st.integers(1, 3),
    )
    def begin(self, present, cohort, policy, attempts):
        self.grid = type(self).make(CLIENTS, dim=2, seed=present)
        self.away = dict(sorted(self.grid.nodes.items())[present:])
        for node in self.away:
            del self.grid.nodes[node]
        tolerance = Tolerance(patience=0.0, attempts=attempts, fruitless=10**9)
        self.strategy = OrderedStrategy(FedAvg(), policy, cohort, tolerance=tolerance)
        self.arrays, self.round, self.counted = type(self).model(2), 0, {}
        self.fresh = 5000

    @rule(at=st.integers(0, CLIENTS - 1))
    def leave(self, at):
        if node := self.node(at):
            self.away[node] = self.grid.nodes.pop(node)

    @rule(at=st.integers(0, CLIENTS - 1), another_node=st.booleans())
    def come(self, at, another_node):
        for node, client in list(self.away.items()):
            if client.unit == at:
                del self.away[node]
                self.fresh += 1
                self.grid.nodes[self.fresh if another_node else node] = client

    @rule(at=st.integers(0, CLIENTS - 1), mood=st.sampled_from(MOODS))
    def change(self, at, mood):
        if node := self.node(at):
            self.grid.nodes[node].mood = mood

    @rule()
    def train(self):
        self.one_round()

    def one_round(self):
        self.round += 1
        messages = self.strategy.configure_train(self.round, self.arrays, ConfigRecord(), self.grid)
        asked = [self.grid.nodes[m.metadata.dst_node_id] for m in messages]
        fine = {client.name for client in asked if client.mood in ("well", "twice")}
        replies = self.grid.send_and_receive(messages)
        moved, metrics = self.strategy.aggregate_train(self.round, replies)
        self.arrays = moved or self.arrays
        came = [self.strategy.names[c] for c in metrics["order-cohort"]]
        assert fine <= set(came)
        assert bool(fine) == (moved is not None)
        assert asked or not self.grid.nodes
        visits = self.counted.setdefault(metrics["order-epoch"], [])
        visits.extend(came)
        assert len(set(visits)) == len(visits) == metrics["order-position"]

    @invariant()
    def nobody_is_lost_or_doubled(self):
        queue, names = self.strategy.federation.queue, self.strategy.names
        in_epoch = [*queue.waiting, *queue.visited, *queue.missed]
        assert len(set(in_epoch)) == len(in_epoch)
        assert queue.epoch < 0 or set(in_epoch) == set(queue.units)
        assert len(set(names)) == len(names)

    def teardown(self):
        """Once all are there and well, two epochs later everybody has been visited once more."""
        if not hasattr(self, "grid"):
            return
        self.grid.nodes |= self.away
        for client in self.grid.nodes.values():
            client.mood = "well"
        start = len(self.strategy.names) and self.strategy.federation.queue.epoch
        for _ in range(4 * CLIENTS):
            self.one_round()
            if self.strategy.federation.queue.epoch > start + 2:
                break
        assert sorted(self.counted[start + 2], key=int) == [str(unit) for unit in range(CLIENTS)]

    def node(self, at):
        return next((node for node, client in self.grid.nodes.items() if client.unit == at), None)


@pytest.mark.parametrize("sequences", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_sequences_of_joins_leaves_and_failures(federation, first_model, sequences):
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    Federation.make, Federation.model = staticmethod(federation), staticmethod(first_model)
    run_state_machine_as_test(
        Federation,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=20,
            derandomize=sequences < 1000,
            suppress_health_check=list(HealthCheck),
        ),
    )
