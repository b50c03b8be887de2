"""Set-ups that people really run: each is wrapped as it is, or refused with the cure before training."""

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'wellorder[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedXgbBagging,
    FedXgbCyclic,
)
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod

from wellorder import IncrementalGradient, PairGraB, RandomReshuffling
from wellorder._saving import load_state
from wellorder.flower import OrderedStrategy, Tolerance

NOW = Tolerance(patience=0.0, poll=0.01, fruitless=3)


class AppGrid:
    """A grid whose nodes run a real ClientApp, mods and all."""

    def __init__(self, app, nodes=4):
        self.app, self.sent, self.asked = app, 0, []
        self.nodes = {100 + i: i for i in range(nodes)}
        self.waiting = {}

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, public_key=b"") for node in self.nodes]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = f"m{self.sent}"
            ids.append(f"m{self.sent}")
            self.waiting[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids):
        return [self.answer(self.waiting.pop(at)) for at in message_ids if at in self.waiting]

    def answer(self, message):
        me = self.nodes[message.metadata.dst_node_id]
        context = Context(1, message.metadata.dst_node_id, {"partition-id": me}, RecordDict(), {})
        try:
            return self.app(message, context)
        except ValueError as error:  # as a SuperNode reports it
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.push_messages(messages)
        if messages:
            self.asked.append([self.nodes[m.metadata.dst_node_id] for m in messages])
        return [self.answer(self.waiting.pop(m.metadata.message_id)) for m in messages]


def client_app(reply=None, mods=None, names=True):
    """Clients whose arrays move toward their own number; ``reply`` may change the records."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message, context):
        me = context.node_config["partition-id"]
        (record,) = message.content.array_records.values()
        moved = {}
        for name, array in record.items():
            x = array.numpy()
            new = x + 1 if name == "num_batches_tracked" else x + 0.1 * (me - x)
            moved[name] = Array(np.asarray(new, x.dtype))
        records = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 5})}
        return Message(RecordDict(reply(records, me) if reply else records), reply_to=message)

    if names:

        @app.query("wellorder")
        def name(message, context):
            told = ConfigRecord({"partition-id": context.node_config["partition-id"]})
            return Message(RecordDict({"me": told}), reply_to=message)

    return app


def model(**arrays):
    arrays = arrays or {"w": np.zeros(3, np.float32)}
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def ordered(inner=None, policy=None, cohort=2, **settings):
    settings = {"clients": 4, "tolerance": NOW, **settings}
    return OrderedStrategy(inner or FedAvg(fraction_evaluate=0.0), policy or PairGraB(), cohort, **settings)


@pytest.fixture(autouse=True)
def identity():
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def cohorts_by_epoch(grid, cohort=2, clients=4):
    each = clients // cohort
    flat = [[c for row in grid.asked[at : at + each] for c in row] for at in range(0, len(grid.asked), each)]
    return [sorted(epoch) for epoch in flat]


@pytest.mark.parametrize("signals", ["exact", "sketch"])
def test_a_models_counters_are_no_signal_though_fedavg_averages_them_into_floats(signals):
    first = model(w=np.zeros(3, np.float32), num_batches_tracked=np.array(0))
    grid = AppGrid(client_app())
    strategy = ordered(signals=signals)
    result = strategy.start(grid, first, num_rounds=6)
    assert strategy.federation.counts == ("w",)
    assert cohorts_by_epoch(grid) == [[0, 1, 2, 3]] * 3
    assert result.arrays["num_batches_tracked"].numpy() == 6
    plain = AppGrid(client_app())
    alone = ordered(signals=signals).start(plain, model(), num_rounds=6)
    assert grid.asked == plain.asked, "the counter changes no order"
    np.testing.assert_array_equal(result.arrays["w"].numpy(), alone.arrays["w"].numpy())


MODS = {
    "fixed": (
        [fixedclipping_mod],
        lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 0.1, 1.0, 2),
    ),
    "adaptive": (
        [adaptiveclipping_mod],
        lambda inner: DifferentialPrivacyClientSideAdaptiveClipping(
            inner, noise_multiplier=0.1, num_sampled_clients=2, clipped_count_stddev=0.5
        ),
    ),
    "local": ([LocalDpMod(1.0, 0.01, 10.0, 1e-5)], lambda inner: inner),
}


@pytest.mark.parametrize("kind", MODS)
def test_clients_with_privacy_mods_are_named_by_their_node_and_trained(kind, caplog):
    mods, wrap = MODS[kind]
    grid = AppGrid(client_app(mods=mods))
    strategy = ordered(wrap(FedAvg(fraction_evaluate=0.0)))
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, model(), num_rounds=4)
    assert strategy.names == ("node-100", "node-101", "node-102", "node-103")
    assert "does not tell its name" in caplog.text
    assert cohorts_by_epoch(grid) == [[0, 1, 2, 3]] * 2
    assert np.abs(result.arrays["w"].numpy()).max() > 0


def test_a_node_that_is_not_reached_is_asked_again(monkeypatch, caplog):
    import wellorder.flower._nodes as nodes

    monkeypatch.setattr(nodes, "AGAIN", 0.0)
    grid = AppGrid(client_app())
    answer, tries = grid.answer, []

    def late(message):
        if (
            message.metadata.message_type == "query.wellorder"
            and grid.nodes[message.metadata.dst_node_id] == 3
        ):
            tries.append(message)
            if len(tries) < 3:
                return Message(Error(5, "Node Unavailable"), reply_to=message)
        return answer(message)

    grid.answer = late
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy = ordered(tolerance=Tolerance(patience=30.0, poll=0.01))
        strategy.start(grid, model(), num_rounds=2)
    assert strategy.names == ("0", "1", "2", "3")
    assert "node 103 was not reached (Node Unavailable)" in caplog.text


class Tutorial(FedAvg):
    """Flower's tutorial on custom strategies overrides start."""

    def start(self, *args, **kwargs):
        return super().start(*args, **kwargs)


def given_a_start(strategy):
    strategy.start = lambda grid, arrays: None
    return strategy


class Legacy:
    def configure_fit(self):
        """As strategies of flwr.server have it."""


class SecAggPlusWorkflow:
    pass


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (Tutorial(), r"Tutorial has a start\(\) of its own.*aggregate_train"),
        (given_a_start(FedAvg()), r"FedAvg has a start\(\) of its own"),
        (FedAvg, r"inner=FedAvg: this is a class; pass an instance, FedAvg\(\)"),
        (FedXgbCyclic(), r"FedXgbCyclic takes one client after the other by itself.*FedXgbBagging\(\)"),
        (Legacy(), "a strategy of flwr.server, of another interface"),
        (SecAggPlusWorkflow(), "sums of updates only"),
        (OrderedStrategy(FedAvg(), PairGraB(), 2), "orders clients itself; wrap the strategy that is inside"),
        ("FedAvg", "pass a strategy of flwr.serverapp.strategy"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_at_construction_with_the_cure(inner, words):
    with pytest.raises(ValueError, match=words):
        OrderedStrategy(inner, PairGraB(), 2)


class TwoRecords(FedAvg):
    """SCAFFOLD-like: averages the model, keeps the control variates, and wants optional metrics."""

    def aggregate_train(self, server_round, replies):
        replies = [reply for reply in replies if not reply.has_error()]
        self.controls = [reply.content["controls"] for reply in replies]
        plain = []
        for reply in replies:
            content = RecordDict({"arrays": reply.content["arrays"], "m": MetricRecord({"num-examples": 1})})
            plain.append(Message(content, reply_to=reply))
        return super().aggregate_train(server_round, plain)


def test_replies_of_a_strategy_that_aggregates_by_itself_may_hold_more(caplog):
    def reply(records, me):
        extra = {"controls": ArrayRecord({"c": Array(np.full(3, me))}), "more": MetricRecord({"t": 1.0})}
        optional = {"optional": MetricRecord({"x": 1})} if me == 2 else {}
        return {**extra, **records, **optional}

    grid = AppGrid(client_app(reply))
    with caplog.at_level(logging.WARNING, "flwr"):
        result = ordered(TwoRecords(fraction_evaluate=0.0)).start(grid, model(), num_rounds=4)
    assert "bad update" not in caplog.text
    plain = AppGrid(client_app())
    alone = ordered().start(plain, model(), num_rounds=4)
    assert grid.asked == plain.asked, "the signal comes from the strategy's own record"
    np.testing.assert_array_equal(result.arrays["w"].numpy(), alone.arrays["w"].numpy())


class OwnRecords(FedAvg):
    """Averages arrays by name, whoever sent which, from records of its own names."""

    def aggregate_train(self, server_round, replies):
        held = [dict(reply.content.array_records["weights"]) for reply in replies if not reply.has_error()]
        names = {name for arrays in held for name in arrays}
        for name in names:
            sent = [arrays[name].numpy() for arrays in held if name in arrays]
            self.model = {**getattr(self, "model", {}), name: np.mean(sent, axis=0)}
        whole = {name: Array(self.model.get(name, np.zeros(2, np.float32))) for name in ("a", "b")}
        return ArrayRecord(whole), MetricRecord()


def halves(records, me):
    name = "a" if me < 2 else "b"
    return {"weights": ArrayRecord({name: records["arrays"][name]}), "metrics": records["metrics"]}


def with_controls(records, me):
    controls = ArrayRecord({"c": Array(np.full(3, me))})
    return {"weights": records["arrays"], "controls": controls, "metrics": records["metrics"]}


def with_ambiguous_controls(records, me):
    return {"weights": records["arrays"], "controls": records["arrays"], "metrics": records["metrics"]}


@pytest.mark.parametrize(
    ("reply", "silent"), [(halves, {"2", "3"}), (with_controls, set()), (with_ambiguous_controls, {*"0123"})]
)
def test_an_update_that_gives_no_signal_still_reaches_a_strategy_that_aggregates_by_itself(
    reply, silent, caplog
):
    first = model(a=np.zeros(2, np.float32), b=np.zeros(2, np.float32))
    strategy = ordered(OwnRecords(fraction_evaluate=0.0), IncrementalGradient())
    with caplog.at_level(logging.INFO, "flwr"):
        result = strategy.start(AppGrid(client_app(reply)), first, num_rounds=4)
    assert "bad update" not in caplog.text
    assert all(np.abs(result.arrays[name].numpy()).max() > 0 for name in "ab")
    assert set(re.findall(r"client (\d) gives no signal", caplog.text)) == silent
    assert [m["order-bad-updates"] for m in result.train_metrics_clientapp.values()] == [0] * 4


def trees(count):
    """A model of trees as XGBoost writes it, as far as bagging looks into it."""
    booster = {
        "gbtree_model_param": {"num_trees": str(count), "num_parallel_tree": "1"},
        "trees": [{"id": i} for i in range(count)], "tree_info": [0] * count,
        "iteration_indptr": list(range(count + 1)),
    }  # fmt: skip
    return json.dumps({"learner": {"gradient_booster": {"model": booster}}}).encode()


def test_trees_have_no_direction_but_can_be_reshuffled(tmp_path):
    def reply(records, me):
        one = Array(np.frombuffer(trees(1), np.uint8))
        return {**records, "arrays": ArrayRecord({"0": one})}

    empty = model(**{"0": np.frombuffer(b"", np.uint8)})
    grid = AppGrid(client_app(reply))
    with pytest.raises(ValueError, match=r"no floating-point arrays.*use RandomReshuffling\(\)"):
        ordered(FedXgbBagging(fraction_evaluate=0.0)).start(grid, empty)
    assert grid.asked == []
    for rounds in (3, 4):  # the model has grown when it is gone on with
        settings = {"policy": RandomReshuffling(), "state": tmp_path / "run"}
        strategy = ordered(FedXgbBagging(fraction_evaluate=0.0), **settings)
        result = strategy.start(grid, empty, num_rounds=rounds)
    assert cohorts_by_epoch(grid) == [[0, 1, 2, 3]] * 2
    grown = json.loads(result.arrays["0"].numpy().tobytes())
    assert grown["learner"]["gradient_booster"]["model"]["gbtree_model_param"]["num_trees"] == "8"


def test_running_statistics_are_neither_a_signal_nor_amplified():
    var = np.full(3, 4.0, np.float32)
    first = model(w=np.zeros(3, np.float32), **{"bn.running_var": var})

    def reply(records, me):
        shrunk = {**dict(records["arrays"]), "bn.running_var": Array(np.full(3, 0.1 + me, np.float32))}
        return {**records, "arrays": ArrayRecord(shrunk)}

    grid, plain = AppGrid(client_app(reply)), AppGrid(client_app())
    strategy = ordered(server_step=1.5)
    result = strategy.start(grid, first, num_rounds=4)
    alone = ordered(server_step=1.5).start(plain, model(), num_rounds=4)
    assert strategy.federation.counts == ("w",)
    assert grid.asked == plain.asked
    np.testing.assert_array_equal(result.arrays["w"].numpy(), alone.arrays["w"].numpy())
    last = np.mean([0.1 + me for me in grid.asked[-1]])
    np.testing.assert_allclose(result.arrays["bn.running_var"].numpy(), last, rtol=1e-6)


class Saving(FedAvg):
    """The usual subclass: does something of its own, then averages as FedAvg does."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("shape", [(1,), (5,)])
def test_an_array_of_another_shape_is_dropped_whoever_aggregates(shape, caplog):
    def reply(records, me):
        wrong = ArrayRecord({"w": Array(np.full(shape, 1e6, np.float32))})
        return {**records, "arrays": wrong} if me == 1 else records

    with caplog.at_level(logging.WARNING, "flwr"):
        strategy = ordered(Saving(fraction_evaluate=0.0), cohort=4)
        result = strategy.start(AppGrid(client_app(reply)), model(), num_rounds=2)
    assert [m["order-bad-updates"] for m in result.train_metrics_clientapp.values()] == [1, 1]
    assert np.abs(result.arrays["w"].numpy()).max() < 3


class Deltas(FedAvg):
    """Clients send differences under a name of their own."""

    def configure_train(self, server_round, arrays, config, grid):
        self.before = arrays["w"].numpy()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        deltas = [reply.content["arrays"]["delta"].numpy() for reply in replies if not reply.has_error()]
        return ArrayRecord({"w": Array(self.before + np.mean(deltas, axis=0))}), MetricRecord()


def test_a_run_whose_updates_never_give_a_signal_goes_on_reshuffled(caplog):
    def reply(records, me):
        return {**records, "arrays": ArrayRecord({"delta": records["arrays"]["w"]})}

    with caplog.at_level(logging.INFO, "flwr"):
        grid = AppGrid(client_app(reply))
        result = ordered(Deltas(fraction_evaluate=0.0)).start(grid, model(), num_rounds=4)
    assert caplog.text.count("gives no signal: its arrays are delta[3], the model's w[3]") == 8
    assert np.abs(result.arrays["w"].numpy()).max() > 0
    assert cohorts_by_epoch(grid) == [[0, 1, 2, 3]] * 2


def test_one_odd_reply_does_not_spoil_the_rounds_of_such_a_strategy(caplog):
    def reply(records, me):
        return {**records, "second": MetricRecord({"x": 1})} if me == 1 else records

    grid = AppGrid(client_app(reply))
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy = ordered(Saving(fraction_evaluate=0.0), cohort=4)
        result = strategy.start(grid, model(), num_rounds=2)
    assert "client 1 sent a bad update (drop): it has 1 records of arrays and 2 of metrics" in caplog.text
    assert [m["order-bad-updates"] for m in result.train_metrics_clientapp.values()] == [1, 1]
    expected = (0 + 2 + 3) / 3 * (1 - 0.9**2)
    np.testing.assert_allclose(result.arrays["w"].numpy(), expected, rtol=1e-5)


def test_clients_may_send_a_part_of_the_arrays():
    """LoRA: the base is sent once, adapters come back; FedAvg then goes on with the adapters alone."""

    def reply(records, me):
        return {**records, "arrays": ArrayRecord({"adapter": records["arrays"]["adapter"]})}

    first = model(base=np.ones((50, 50), np.float32), adapter=np.zeros(3, np.float32))
    grid, plain = AppGrid(client_app(reply)), AppGrid(client_app())
    strategy = ordered()
    result = strategy.start(grid, first, num_rounds=6)
    alone = ordered().start(plain, model(adapter=np.zeros(3, np.float32)), num_rounds=6)
    assert strategy.federation.counts == ("adapter",)
    assert grid.asked == plain.asked
    np.testing.assert_array_equal(result.arrays["adapter"].numpy(), alone.arrays["adapter"].numpy())


class Accountant:
    """Counts releases, as the protocol of Flower's accountants wants it."""

    def __init__(self, population):
        relation, sampling = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
        self.config = PrivacyConfig(1e-5, population, relation, sampling)
        self.sizes = []

    def compose(self, event, count=1):
        self.sizes += [event.sample_size] * count

    def get_privacy_spent(self, delta=None):
        return SimpleNamespace(epsilon=float(len(self.sizes)), delta=1e-5, num_releases=len(self.sizes))


def accounted(sampled, population):
    inner = FedAvg(fraction_evaluate=0.0)
    return DifferentialPrivacyServerSideFixedClipping(
        inner, 0.5, 1.0, sampled, accountant=Accountant(population)
    )


def test_an_accountant_whose_last_cohort_would_be_short_is_refused_with_the_cure():
    words = r"cohort=4, 13 clients: .* have 1, and the privacy accountant .*pass cohort=\d+"
    with pytest.raises(ValueError, match=words):
        ordered(accounted(4, 13), cohort=4, clients=13)
    grid = AppGrid(client_app(), nodes=13)
    with pytest.raises(ValueError, match=words):  # how many there are is known only now
        ordered(accounted(4, 13), cohort=4, clients=4).start(grid, model())
    assert grid.asked == []


def test_with_an_accountant_a_short_or_failing_cohort_is_a_failed_round_not_the_end():
    grid, gone = AppGrid(client_app(), nodes=6), {}
    answer, failing = grid.answer, []

    def flaky(message):
        train = message.metadata.message_type == "train"
        if train and len(grid.asked) == 2 and not failing:
            failing.append(message)
            return Message(Error(0, "ValueError: out of memory"), reply_to=message)
        return answer(message)

    def after(server_round, arrays):
        if server_round == 1:
            gone.update({105: grid.nodes.pop(105)})
        if server_round == 5:
            grid.nodes.update(gone)

    grid.answer = flaky
    inner = accounted(2, 6)
    tolerance = Tolerance(patience=0.0, poll=0.01, fruitless=4)
    strategy = ordered(inner, cohort=2, clients=6, tolerance=tolerance)
    result = strategy.start(grid, model(), num_rounds=8, evaluate_fn=after)
    assert {len(cohort) for cohort in grid.asked} == {2}
    assert inner.accountant.sizes == [2] * 8
    assert sorted(result.train_metrics_clientapp) == list(range(1, 9))
    assert 5 in {client for cohort in grid.asked[-3:] for client in cohort}


def test_nodes_that_all_tell_the_same_name_are_refused():
    app = client_app(names=False)

    @app.query("wellorder")
    def name(message, context):
        return Message(RecordDict({"me": ConfigRecord({"name": "laptop"})}), reply_to=message)

    with pytest.raises(ValueError, match=r"8 connected nodes tell the name 'laptop'.*partition-id"):
        ordered().start(AppGrid(app, nodes=8), model())


def test_nodes_that_join_later_under_one_name_are_warned_of(caplog):
    app = client_app(names=False)

    @app.query("wellorder")
    def name(message, context):
        me = context.node_config["partition-id"]
        return Message(
            RecordDict({"me": ConfigRecord({"name": str(me) if me < 4 else "laptop"})}), reply_to=message
        )

    grid = AppGrid(app)

    def after(server_round, arrays):
        if server_round == 1:
            grid.nodes.update({200 + i: 4 + i for i in range(6)})

    with caplog.at_level(logging.WARNING, "flwr"):
        ordered().start(grid, model(), num_rounds=6, evaluate_fn=after)
    assert caplog.text.count("6 connected nodes tell the name 'laptop', which makes them one client") == 1


def test_waiting_is_logged_and_a_beginning_with_fewer_said(caplog):
    strategy = ordered(clients=20, tolerance=Tolerance(patience=0.3, poll=0.05))
    with caplog.at_level(logging.INFO, "flwr"):
        strategy.start(AppGrid(client_app()), model(), num_rounds=2)
    assert "Waiting for nodes to connect: 4 connected (minimum required: 20)" in caplog.text
    assert "the first epoch begins with 4 of 20 clients" in caplog.text


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_state_costs_one_round_not_the_history(tmp_path, caplog, damage):
    state = tmp_path / "run"
    whole = ordered().start(AppGrid(client_app()), model(), num_rounds=6)
    ordered(state=state).start(AppGrid(client_app()), model(), num_rounds=4)
    raw = bytearray(state.read_bytes())
    if damage == "truncated":
        del raw[len(raw) // 2 :]
    else:
        raw[raw.find(load_state(state)["model"]["w"].tobytes())] ^= 1
    state.write_bytes(bytes(raw))
    grid = AppGrid(client_app())
    with caplog.at_level(logging.WARNING, "flwr"):
        rest = ordered(state=state).start(grid, model(), num_rounds=6)
    assert "going on from the round before" in caplog.text
    assert len(grid.asked) == 3
    np.testing.assert_array_equal(rest.arrays["w"].numpy(), whole.arrays["w"].numpy())
    assert sorted(rest.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]


def test_a_second_accident_after_a_damaged_state_leaves_the_round_before(tmp_path, monkeypatch):
    state = tmp_path / "run"
    ordered(state=state).start(AppGrid(client_app()), model(), num_rounds=4)
    state.write_bytes(state.read_bytes()[:99])

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("wellorder.flower._memory.save_state", full)
        with pytest.raises(OSError, match="No space"):
            ordered(state=state).start(AppGrid(client_app()), model(), num_rounds=6)
    strategy = ordered(state=state)
    strategy.start(AppGrid(client_app()), model(), num_rounds=4)
    assert strategy.federation.rounds == 4
    assert load_state(state)["rounds"] == 4
    assert load_state(tmp_path / "run.previous")["rounds"] == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cohort": 4}, "cohort=4.*cohort=2"),
        ({"server_step": 1.5}, "server_step=1.5"),
        ({"signals": "sketch"}, "signals='sketch'.*saved with signals='auto'"),
    ],
)
def test_a_state_of_another_cohort_or_step_or_other_signals_is_refused(tmp_path, settings, words):
    state = tmp_path / "run"
    ordered(state=state).start(AppGrid(client_app()), model(), num_rounds=2)
    with pytest.raises(ValueError, match=words):
        ordered(state=state, **settings).start(AppGrid(client_app()), model(), num_rounds=4)


def test_a_state_that_cannot_be_written_is_refused_at_construction(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "state", tmp_path):
        with pytest.raises(ValueError, match="cannot be written"):
            ordered(state=path)
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_a_strategy_is_started_once_and_says_when_nothing_is_left(tmp_path, caplog):
    strategy = ordered(state=tmp_path / "run")
    result = strategy.start(AppGrid(client_app()), model(), num_rounds=3)
    with pytest.raises(RuntimeError, match="was started before; make a new one"):
        strategy.start(AppGrid(client_app()), model(), num_rounds=3)
    grid = AppGrid(client_app())
    with caplog.at_level(logging.WARNING, "flwr"):
        again = ordered(state=tmp_path / "run").start(grid, model(), num_rounds=3)
    assert "nothing is left to do: 3 of 3 rounds are done" in caplog.text
    assert grid.asked == []
    np.testing.assert_array_equal(again.arrays["w"].numpy(), result.arrays["w"].numpy())
    assert again.train_metrics_clientapp == result.train_metrics_clientapp


def test_a_cut_off_line_of_the_history_is_passed_over(tmp_path):
    ordered(state=tmp_path / "run").start(AppGrid(client_app()), model(), num_rounds=3)
    history = tmp_path / "run.history"
    history.write_text(history.read_text()[:-20])
    result = ordered(state=tmp_path / "run").start(AppGrid(client_app()), model(), num_rounds=4)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 4]
    result = ordered(state=tmp_path / "run").start(AppGrid(client_app()), model(), num_rounds=5)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 4, 5]


def test_after_the_second_epoch_the_log_says_what_to_expect(caplog):
    def alike(records, me):
        moved = ArrayRecord({"w": Array(np.array([1.0, 2.0, 3.0]))})
        return {**records, "arrays": moved}

    for reply, words in (
        (None, "expect ordering to save"),
        (alike, "differ by 0.00: expect ordering to save little"),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO, "flwr"):
            ordered().start(AppGrid(client_app(reply)), model(), num_rounds=4)
        assert caplog.text.count("clients differ by") == 1
        assert words in caplog.text


def test_a_second_epoch_that_is_closed_early_says_what_to_expect_too(caplog):
    grid = AppGrid(client_app(), nodes=8)

    def after(server_round, arrays):
        if server_round == 5:  # in the second epoch of eight clients
            grid.nodes.pop(103)

    with caplog.at_level(logging.INFO, "flwr"):
        ordered(clients=8).start(grid, model(), num_rounds=9, evaluate_fn=after)
    assert "epoch 1 is closed without" in caplog.text
    assert caplog.text.count("clients differ by") == 1


def test_after_a_restart_in_the_second_epoch_the_log_says_that_it_cannot_tell(tmp_path, caplog):
    ordered(state=tmp_path / "run").start(AppGrid(client_app()), model(), num_rounds=3)
    with caplog.at_level(logging.INFO, "flwr"):
        ordered(state=tmp_path / "run").start(AppGrid(client_app()), model(), num_rounds=4)
    assert "clients differ by" not in caplog.text
    assert caplog.text.count("how much clients differ is not known") == 1


def test_the_end_of_a_run_is_told_in_a_few_lines(caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        ordered(policy=RandomReshuffling()).start(AppGrid(client_app()), model(), num_rounds=20)
    after = caplog.text.split("[ORDER] finished: rounds 1 to 20")[1]
    assert after.count("\n") < 5
    assert "training after round 20" in after


def test_the_history_is_plain_json(tmp_path):
    ordered(state=tmp_path / "run").start(AppGrid(client_app()), model(), num_rounds=2)
    rows = [json.loads(line) for line in Path(tmp_path / "run.history").read_text().splitlines()]
    assert [(row["kind"], row["round"]) for row in rows] == [("train", 1), ("train", 2)]
