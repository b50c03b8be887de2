"""OrderedStrategy on a grid inside the process: orders, weights, failures, names, resuming."""

import logging
import math
import re
import sys

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'wellorder[flower]'")

from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    Strategy,
)

import wellorder
from wellorder import (
    FlipFlop,
    GraB,
    Greedy,
    Herding,
    IncrementalGradient,
    PairGraB,
    RandomReshuffling,
    ShuffleOnce,
    WithReplacement,
)
from wellorder.federated import fedavg
from wellorder.flower import OrderedStrategy, Tolerance

NOW = Tolerance(patience=0.0, poll=0.01)


def strategy_of(policy, cohort, *, inner=None, **settings):
    settings = {"tolerance": NOW, **settings}
    return OrderedStrategy(inner or FedAvg(fraction_evaluate=0.0), policy, cohort, **settings)


def orders(result, names):
    """Clients by epoch, in visiting order."""
    seen = {}
    for _, metrics in sorted(result.train_metrics_clientapp.items()):
        seen.setdefault(metrics["order-epoch"], []).extend(int(names[c]) for c in metrics["order-cohort"])
    return seen


def weights(result):
    return result.arrays.to_numpy_ndarrays()[0]


@pytest.mark.parametrize("server_step", [1.0, 1.5])
@pytest.mark.parametrize(("n", "cohort"), [(20, 4), (15, 4), (9, 3)])
@pytest.mark.parametrize(
    "policy",
    [RandomReshuffling(), ShuffleOnce(), PairGraB(), GraB(), FlipFlop(), Greedy(), Herding()],
    ids=repr,
)
def test_orders_and_weights_are_those_of_algorithm_2(federation, first_model, policy, n, cohort, server_step):
    grid, epochs = federation(n), 4
    strategy = strategy_of(policy, cohort, server_step=server_step, clients=n)
    result = strategy.start(grid, first_model(), num_rounds=epochs * math.ceil(n / cohort))
    settings = {"step_size": 0.02, "local_steps": 3, "epochs": epochs, "cohort": cohort}
    run = fedavg(grid.problem, policy, server_step=server_step, **settings)
    assert orders(result, strategy.names) == {q: run.orders[q].tolist() for q in range(epochs)}
    np.testing.assert_allclose(weights(result), run.x[-1], rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(fraction_evaluate=0.0),
        lambda: FedAdam(fraction_evaluate=0.0),
        lambda: FedProx(fraction_evaluate=0.0, proximal_mu=0.1),
        lambda: FedAvgM(fraction_evaluate=0.0, server_momentum=0.9),
        lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.0, 0.5, 6),
    ],
    ids=["FedAvg", "FedAdam", "FedProx", "FedAvgM", "DP"],
)
def test_the_inner_strategy_computes_what_it_computes_alone(federation, first_model, make):
    alone = make().start(federation(6), first_model(), num_rounds=3)
    ordered = strategy_of(PairGraB(), 6, inner=make()).start(federation(6), first_model(), num_rounds=3)
    np.testing.assert_allclose(weights(ordered), weights(alone), rtol=1e-12)


def test_the_inner_strategy_still_configures(federation, first_model):
    grid, configs = federation(4), []
    push = grid.push_messages

    def spy(messages):
        configs.extend(dict(m.content["config"]) for m in messages if "config" in m.content)
        return push(messages)

    grid.push_messages = spy
    inner = FedProx(fraction_evaluate=0.0, proximal_mu=0.25)
    strategy = strategy_of(PairGraB(), 2, inner=inner)
    strategy.start(grid, first_model(), num_rounds=2, train_config=ConfigRecord({"lr": 1.0}))
    assert [sorted(config) for config in configs] == [["lr", "proximal-mu", "server-round"]] * 4
    assert {config["proximal-mu"] for config in configs} == {0.25}


@pytest.mark.parametrize(
    ("inner", "settings", "words"),
    [
        (FedAvg(fraction_train=0.1), {}, "fraction_train=0.1.*pass fraction_train=1.0"),
        (FedAvg(min_train_nodes=5), {}, "min_train_nodes=5.*for ever.*min_train_nodes=4"),
        (FedAvg(min_available_nodes=9), {}, "min_available_nodes=9.*clients=9"),
        (
            DifferentialPrivacyServerSideFixedClipping(FedAvg(min_train_nodes=5), 1.0, 1.0, 4),
            {},
            "min_train_nodes=5",
        ),
        (
            DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 3),
            {},
            "num_sampled_clients=3.*pass 4",
        ),
        (FedAvg(), {"cohort": 0}, "cohort=0"),
        (FedAvg(), {"cohort": True}, "cohort=True"),
        (FedAvg(), {"clients": 0}, "clients=0"),
        (FedAvg(), {"seed": -1}, "seed=-1"),
        (FedAvg(), {"server_step": math.nan}, "server_step=nan"),
        (FedAvg(), {"names": "ip"}, "names='ip'.*'query' or 'key'"),
        (FedAvg(), {"signals": "all"}, "signals='all'"),
        (FedAvg(), {"policy": wellorder.GraBProto()}, "PairGraB"),
        (FedAvg(), {"policy": wellorder.NicePermutation()}, "PairGraB"),
        (FedAvg(), {"policy": WithReplacement()}, "RandomReshuffling"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_construction_with_the_cure(inner, settings, words):
    arguments = {"policy": PairGraB(), "cohort": 4, **settings}
    with pytest.raises(ValueError, match=words):
        OrderedStrategy(inner, **arguments)


@pytest.mark.parametrize(
    "bad", [{"patience": -1}, {"attempts": 0}, {"fruitless": 0}, {"norm_cap": 0}, {"bad_updates": "fix"}]
)
def test_tolerances_that_cannot_work_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Tolerance(**bad)


def test_a_short_last_cohort_does_not_hang_a_strategy_that_wants_two(federation, first_model):
    grid = federation(5)
    strategy = strategy_of(PairGraB(), 2, inner=FedAvg(min_evaluate_nodes=50), clients=5)
    result = strategy.start(grid, first_model(), num_rounds=6)
    assert [len(cohort) for cohort in grid.asked] == [2, 2, 1, 2, 2, 1]
    assert {q: sorted(o) for q, o in orders(result, strategy.names).items()} == {
        0: list(range(5)),
        1: list(range(5)),
    }
    assert result.evaluate_metrics_clientapp[6]["loss"] == pytest.approx(0.5)


class Waiting(FedAvg):
    """Wants more nodes than anybody has, and does not say so."""

    def configure_train(self, server_round, arrays, config, grid):
        while len(list(grid.get_node_ids())) < 1000:
            pass


def test_an_inner_strategy_that_waits_for_ever_is_stopped(federation, first_model):
    with pytest.raises(RuntimeError, match="waits for more nodes"):
        strategy_of(PairGraB(), 2, inner=Waiting()).start(federation(4), first_model())


def test_a_client_that_fails_once_is_asked_again_and_nobody_is_lost(federation, first_model, caplog):
    grid = federation(4)
    grid.nodes[1000].mood = "error"
    original = grid.send_and_receive

    def heal(messages, *, timeout=None):
        replies = original(messages, timeout=timeout)
        if grid.asked and "0" in grid.asked[-1]:
            grid.nodes[1000].mood = "well"
        return replies

    grid.send_and_receive = heal
    strategy = strategy_of(IncrementalGradient(), 2, clients=4)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, first_model(), num_rounds=3)
    assert grid.asked == [["0", "1"], ["2", "3"], ["0", "1"]], "not alone, but first in the next epoch"
    assert orders(result, strategy.names) == {0: [1, 2, 3], 1: [0, 1]}
    assert result.train_metrics_clientapp[1]["order-failures"] == 1
    assert "client 0 failed: ZeroDivisionError: 1/0" in caplog.text


@pytest.mark.parametrize("mood", ["error", "silent", "late"])
def test_a_client_that_never_succeeds_is_missed_and_comes_first_next_time(federation, first_model, mood):
    grid = federation(4)
    grid.nodes[1014].mood = mood
    strategy = strategy_of(IncrementalGradient(), 2, clients=4)
    result = strategy.start(grid, first_model(), num_rounds=5)
    assert grid.asked == [["0", "1"], ["2", "3"], ["2", "3"], ["0", "1"], ["2", "3"]]
    assert orders(result, strategy.names) == {0: [0, 1, 3], 1: [3, 0, 1], 2: [3]}
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4, 5]


def test_a_reply_that_comes_twice_or_too_late_counts_once_or_not_at_all(federation, first_model, caplog):
    grid, plain = federation(4), federation(4)
    for client in grid.nodes.values():
        client.mood = "twice"
    with caplog.at_level(logging.WARNING, "flwr"):
        ours = strategy_of(PairGraB(), 2, clients=4).start(grid, first_model(), num_rounds=4)
    theirs = strategy_of(PairGraB(), 2, clients=4).start(plain, first_model(), num_rounds=4)
    assert grid.asked == plain.asked
    np.testing.assert_array_equal(weights(ours), weights(theirs))
    assert "ignored a second reply" in caplog.text


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ("nan", "NaN or infinite"),
        ("shape", r"its arrays are x\[4\]"),
        ("huge", "above norm_cap"),
        ("empty", "0 records of arrays"),
        ("light", "its num-examples is 0"),
        ("odd", "its records are"),
    ],
)
@pytest.mark.parametrize("policy", [PairGraB(), RandomReshuffling()], ids=repr)
def test_a_bad_update_is_reported_and_enters_neither_the_sum_nor_the_model(
    federation, first_model, caplog, mood, words, policy
):
    grid = federation(6)
    grid.nodes[1021].mood = mood
    tolerance = Tolerance(patience=0.0, norm_cap=1e6)
    strategy = strategy_of(policy, 2, clients=6, tolerance=tolerance)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, first_model(), num_rounds=9)
    assert np.isfinite(weights(result)).all()
    assert np.abs(weights(result)).max() < 10
    assert [sorted(order) for order in orders(result, strategy.names).values()] == [list(range(6))] * 3
    assert sum(m["order-bad-updates"] for m in result.train_metrics_clientapp.values()) == 3
    assert "client 3 sent a bad update (drop)" in caplog.text
    assert re.search(words, caplog.text)


def test_a_bad_update_can_be_left_to_the_inner_strategy(federation, first_model):
    grid = federation(4)
    grid.nodes[1000].mood = "huge"
    tolerance = Tolerance(patience=0.0, norm_cap=1e6, bad_updates="keep")
    strategy = strategy_of(PairGraB(), 4, clients=4, tolerance=tolerance)
    result = strategy.start(grid, first_model(), num_rounds=1)
    assert weights(result).max() > 1e29
    assert strategy.federation.queue.state.order is not None


def test_replies_that_cannot_be_combined_are_a_failed_round_not_the_end(federation, first_model):
    grid, inner = federation(4), FedAvg(fraction_evaluate=0.0, weighted_by_key="weight")
    tolerance = Tolerance(patience=0.0, bad_updates="keep")
    strategy = strategy_of(PairGraB(), 2, inner=inner, clients=4, tolerance=tolerance)
    with pytest.raises(RuntimeError, match="10 rounds in a row"):  # a run that never trained is no success
        strategy.start(grid, first_model(), num_rounds=2)
    assert len(grid.asked) == 10
    assert strategy.federation.rounds == 0


def test_a_run_in_which_nothing_arrives_stops_with_the_cure(federation, first_model):
    grid = federation(4)
    for client in grid.nodes.values():
        client.mood = "silent"
    tolerance = Tolerance(patience=0.0, fruitless=3)
    with pytest.raises(RuntimeError, match=r"3 rounds in a row.*start again"):
        strategy_of(PairGraB(), 2, clients=4, tolerance=tolerance).start(grid, first_model(), num_rounds=1000)
    assert len(grid.asked) == 3


def test_an_empty_federation_stops_too(federation, first_model):
    grid = federation(4)
    grid.nodes.clear()
    with pytest.raises(RuntimeError, match="10 rounds in a row"):
        strategy_of(PairGraB(), 2).start(grid, first_model(), num_rounds=1000)


def test_an_epoch_whose_rest_is_away_is_closed_and_the_missing_come_first(federation, first_model, caplog):
    grid = federation(6)
    gone = {}
    evaluate = {
        2: lambda: gone.update({n: grid.nodes.pop(n) for n in (1028, 1035)}),
        4: lambda: grid.nodes.update(gone),
    }

    def after(server_round, arrays):
        evaluate.get(server_round, lambda: None)()
        return MetricRecord()

    strategy = strategy_of(IncrementalGradient(), 2, clients=6)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, first_model(), num_rounds=8, evaluate_fn=after)
    assert "epoch 0 is closed without 4, 5" in caplog.text
    assert grid.asked[:5] == [["0", "1"], ["2", "3"], ["0", "1"], ["2", "3"], ["4", "5"]]
    assert orders(result, strategy.names)[1] == [0, 1, 2, 3, 4, 5]
    assert grid.asked[5:] == [["0", "1"], ["2", "3"], ["4", "5"]]


def test_whoever_was_missed_comes_first_when_back_at_the_epochs_start(federation, first_model):
    grid, gone = federation(4), {}
    steps = {1: lambda: gone.update({1021: grid.nodes.pop(1021)}), 2: lambda: grid.nodes.update(gone)}

    def after(server_round, arrays):
        steps.get(server_round, lambda: None)()

    strategy = strategy_of(IncrementalGradient(), 2, clients=4)
    strategy.start(grid, first_model(), num_rounds=5, evaluate_fn=after)
    assert grid.asked == [["0", "1"], ["2", "0"], ["3", "1"], ["0", "1"], ["2", "3"]]


class Clock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_the_last_of_an_epoch_are_waited_for_but_not_again_in_the_next(federation, first_model, monkeypatch):
    monkeypatch.setattr(sys.modules[OrderedStrategy.__module__], "time", Clock())
    grid, looks = federation(4), []
    listed, back = grid.get_nodes, {1021: grid.nodes[1021]}

    def get_nodes():
        looks.append(len(grid.asked))
        if len(grid.asked) == 1 and looks.count(1) == 4:  # the fourth look of round 2
            grid.nodes.update(back)
        return listed()

    def after(server_round, arrays):
        if server_round in (1, 3):
            grid.nodes.pop(1021, None)

    grid.get_nodes = get_nodes
    tolerance = Tolerance(patience=60.0, poll=1.0)
    strategy = strategy_of(IncrementalGradient(), 2, clients=4, tolerance=tolerance)
    strategy.start(grid, first_model(), num_rounds=9, evaluate_fn=after)
    assert grid.asked[:3] == [["0", "1"], ["2", "3"], ["0", "1"]]
    assert looks.count(1) == 4, "it came back and was visited in its epoch"
    assert looks.count(3) > 60, "the second time it was waited for in vain"
    assert grid.asked[3:] == [["2", "0"], ["1", "2"], ["0", "1"]] * 2, "nobody alone, all equally often"
    assert [looks.count(after) for after in range(4, 9)] == [1] * 5, "nobody waits again for whom it missed"


def test_clients_that_join_in_mid_epoch_are_visited_from_the_next_on(federation, first_model):
    grid = federation(6)
    late = {n: grid.nodes.pop(n) for n in (1028, 1035)}

    def after(server_round, arrays):
        if server_round == 1:
            grid.nodes.update(late)

    strategy = strategy_of(PairGraB(), 2, clients=4)
    result = strategy.start(grid, first_model(), num_rounds=8, evaluate_fn=after)
    visits = orders(result, strategy.names)
    assert sorted(visits[0]) == [0, 1, 2, 3]
    assert sorted(visits[1]) == sorted(visits[2]) == list(range(6))
    assert visits[1][2:4] == [4, 5]


def test_a_client_that_comes_back_on_another_node_keeps_its_name_and_place(federation, first_model, caplog):
    grid = federation(4)

    def after(server_round, arrays):
        if server_round == 1:
            client = grid.nodes[1021]
            grid.nodes[77] = client  # the old node is still listed: its heartbeat has not run out
        if server_round == 2:
            grid.nodes.pop(1021)

    strategy = strategy_of(IncrementalGradient(), 2, clients=4)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, first_model(), num_rounds=4, evaluate_fn=after)
    assert strategy.names == ("0", "1", "2", "3")
    assert orders(result, strategy.names) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    assert "node 77 takes the place of node 1021 as client 3" in caplog.text


def test_names_are_keys_where_that_is_wanted_and_node_numbers_as_a_last_resort(
    federation, first_model, caplog
):
    grid = federation(4)
    for node, client in grid.nodes.items():
        client.key = b"key %d" % node
    strategy = strategy_of(PairGraB(), 2, names="key", clients=4)
    strategy.start(grid, first_model(), num_rounds=2)
    assert len({*strategy.names}) == 4
    assert all(name.startswith("key-") for name in strategy.names)
    silent = federation(4, answers_queries=False)
    strategy = strategy_of(PairGraB(), 2, clients=4)
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy.start(silent, first_model(), num_rounds=2)
    assert strategy.names == ("node-1000", "node-1007", "node-1014", "node-1021")
    assert '@app.query("wellorder")' in caplog.text


def test_names_that_come_one_by_one_are_waited_for_and_numbered_alike(federation, first_model, tmp_path):
    tolerance = Tolerance(patience=60.0, poll=0.01)
    settings = {"clients": 8, "state": tmp_path / "state", "tolerance": tolerance}
    for rounds in (3, 6):  # the second run goes on from the first one's state, and asks for the names again
        grid = federation(8, names_at_once=1, seed=rounds)
        strategy = strategy_of(PairGraB(), 4, **settings)
        result = strategy.start(grid, first_model(), num_rounds=rounds)
        assert [len(cohort) for cohort in grid.asked] == [4, 4, 4]
    run = fedavg(grid.problem, PairGraB(), step_size=0.02, local_steps=3, epochs=3, cohort=4)
    assert strategy.names == tuple(map(str, range(8)))
    np.testing.assert_allclose(weights(result), run.x[-1], rtol=1e-12)


def test_a_dead_node_that_is_still_listed_is_no_client(federation, first_model):
    grid = federation(4)
    grid.nodes[1000].mood = "gone"
    strategy = strategy_of(IncrementalGradient(), 3, clients=4)
    result = strategy.start(grid, first_model(), num_rounds=2)
    assert strategy.names == ("1", "2", "3")
    assert orders(result, strategy.names) == {0: [1, 2, 3], 1: [1, 2, 3]}


def test_a_node_that_does_not_tell_its_name_delays_nobody(federation, first_model):
    grid = federation(4)
    grid.nodes[1000].mood = "mute"
    strategy = strategy_of(IncrementalGradient(), 3, clients=4)
    result = strategy.start(grid, first_model(), num_rounds=2)
    assert orders(result, strategy.names) == {0: [1, 2, 3], 1: [1, 2, 3]}


@pytest.mark.parametrize("stop", range(1, 8))
@pytest.mark.parametrize(
    "inner",
    [FedAvg, FedAdam, lambda **settings: FedAvgM(server_momentum=0.9, **settings)],
    ids=["FedAvg", "FedAdam", "FedAvgM"],
)
@pytest.mark.parametrize(
    ("policy", "signals"), [(PairGraB(), "exact"), (GraB(), "sketch"), (RandomReshuffling(), "auto")]
)
def test_a_run_that_was_stopped_goes_on_as_if_nothing_had_happened(
    federation, first_model, tmp_path, stop, inner, policy, signals
):
    def make(**settings):
        settings = {"clients": 5, "server_step": 1.3, "signals": signals, "seed": 4, **settings}
        return strategy_of(policy, 2, inner=inner(fraction_evaluate=0.0), **settings)

    whole = make().start(federation(5), first_model(), num_rounds=9)
    state, rounds = tmp_path / "state.safetensors", []
    make(state=state).start(federation(5, seed=1), first_model(), num_rounds=stop)
    second = make(state=state)
    grid = federation(5, seed=2)
    grid.nodes = {node + 1: client for node, client in grid.nodes.items()}
    rest = second.start(grid, first_model(), num_rounds=9, evaluate_fn=lambda at, _: rounds.append(at))
    assert rounds == list(range(stop, 10))
    assert list(rest.train_metrics_clientapp) == list(range(1, 10)), "the history before the restart is kept"
    np.testing.assert_array_equal(weights(rest), weights(whole))
    told = {at: dict(m) for at, m in whole.train_metrics_clientapp.items()}
    assert {at: dict(m) for at, m in rest.train_metrics_clientapp.items()} == told
    names = {f"state.safetensors{ending}" for ending in ("", ".previous", ".history")}
    assert {path.name for path in tmp_path.iterdir()} == names
    again = make(state=state).start(grid, first_model(), num_rounds=9)
    np.testing.assert_array_equal(weights(again), weights(whole))


def test_an_adaptive_clipping_norm_survives_a_restart(federation, first_model, tmp_path):
    def make():
        inner = DifferentialPrivacyServerSideAdaptiveClipping(
            FedAvgM(fraction_evaluate=0.0, server_momentum=0.9), 1e-9, 2, initial_clipping_norm=0.01
        )
        return strategy_of(PairGraB(), 2, inner=inner, clients=4, state=tmp_path / "state")

    first, second = make(), make()
    first.start(federation(4), first_model(), num_rounds=3)
    second.start(federation(4), first_model(), num_rounds=3)
    assert second.inner.clipping_norm == first.inner.clipping_norm != 0.01
    (moment,) = first.inner.strategy.momentum_vector
    np.testing.assert_array_equal(second.inner.strategy.momentum_vector, [moment])


class ToldTheModel(FedAvgM):
    """FedAvgM that starts each round from the model that the clients start from."""

    def configure_train(self, server_round, arrays, config, grid):
        self.current_arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)


def test_a_strategy_with_a_model_of_its_own_learns_that_an_epochs_end_moved_it(federation, first_model):
    runs = [
        strategy_of(
            PairGraB(),
            2,
            inner=kind(fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.5),
            clients=4,
            server_step=step,
        ).start(federation(4), first_model(), num_rounds=7)
        for kind, step in ((FedAvgM, 2.0), (ToldTheModel, 2.0), (FedAvgM, 1.0))
    ]
    np.testing.assert_array_equal(weights(runs[0]), weights(runs[1]))
    assert not np.allclose(weights(runs[0]), weights(runs[2]))


class Secretive(FedAvg):
    def aggregate_train(self, server_round, replies):
        self.notes = {server_round}
        return super().aggregate_train(server_round, replies)


def test_a_memory_that_cannot_be_saved_is_refused_with_the_cure(federation, first_model, tmp_path):
    settings = {"inner": Secretive(fraction_evaluate=0.0), "state": tmp_path / "state"}
    with pytest.raises(ValueError, match=r"Secretive\.notes has become a set.*leave out state"):
        strategy_of(PairGraB(), 2, **settings).start(federation(4), first_model(), num_rounds=1)
    counted = FedAvg()
    counted.accountant = object()
    strategy_of(PairGraB(), 2, inner=counted)
    with pytest.raises(ValueError, match=r"accountant.*leave out state"):
        strategy_of(PairGraB(), 2, inner=counted, state=tmp_path / "state")


def test_a_state_of_another_inner_strategy_is_refused(federation, first_model, tmp_path):
    state = tmp_path / "state"
    strategy_of(PairGraB(), 2, state=state).start(federation(4), first_model(), num_rounds=1)
    with pytest.raises(ValueError, match="FedAdam, but the state was saved with FedAvg"):
        strategy_of(PairGraB(), 2, inner=FedAdam(), state=state).start(federation(4), first_model())
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 0.5, 2)
    with pytest.raises(ValueError, match="1 strategies inside, now there are 2"):
        strategy_of(PairGraB(), 2, inner=private, state=state).start(federation(4), first_model())


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"policy": GraB()}, "PairGraB"), ({"seed": 1}, "seed"), ({"server_step": 2.0}, "server_step")],
)
def test_a_state_of_another_run_is_refused(federation, first_model, tmp_path, settings, words):
    state = tmp_path / "state"
    strategy_of(PairGraB(), 2, state=state).start(federation(4), first_model(), num_rounds=1)
    arguments = {"policy": PairGraB(), "cohort": 2, "state": state, **settings}
    with pytest.raises(ValueError, match=words):
        OrderedStrategy(FedAvg(), **arguments).start(federation(4), first_model())


def test_a_state_of_another_model_is_refused(federation, first_model, tmp_path):
    state = tmp_path / "state"
    strategy_of(PairGraB(), 2, state=state).start(federation(4), first_model(), num_rounds=1)
    with pytest.raises(ValueError, match=r"holds a model with arrays .*another file"):
        strategy_of(PairGraB(), 2, state=state).start(federation(4, dim=5), first_model(5))


def test_the_metrics_say_where_the_run_is(federation, first_model):
    strategy = strategy_of(PairGraB(), 2, clients=4)
    result = strategy.start(federation(4), first_model(), num_rounds=4)
    last = result.train_metrics_clientapp[4]
    assert (last["order-epoch"], last["order-position"], last["order-clients"]) == (1, 4, 4)
    assert last["order-error"] > 0
    assert last["loss"] == pytest.approx(0.5)
    assert all(isinstance(m, MetricRecord) for m in result.train_metrics_clientapp.values())


def test_the_wrapper_is_a_flower_strategy():
    assert isinstance(OrderedStrategy(FedAvg(), PairGraB(), 2), Strategy)
