"""Verdicts: right in planted cases."""

import re
import time

import numpy as np
import pytest

from wellorder import PairGraB, RandomReshuffling
from wellorder.experiments import Config, compare, problem_task
from wellorder.problems import quadratics
from wellorder.report._table import Metric, table_of
from wellorder.report._verdict import Conclusion, Kind, final_values, headline, verdicts

LOSS = Metric("loss", "loss")
ACCURACY = Metric("accuracy", "accuracy", lower_is_better=False, log=False, percent=True)


def planted(policies, seeds=5, epochs=40, noise=0.1, column="loss", pace=1.0):
    """Losses that fall to ``floor`` at ``rate``, with noise of each seed's own; ``seconds`` an epoch."""
    rows = []
    for label, (floor, rate, seconds, stream) in policies.items():
        for seed in range(seeds):
            draw = np.random.default_rng([seed, stream])
            for epoch in range(epochs + 1):
                value = (floor + np.exp(-rate * epoch)) * np.exp(noise * draw.standard_normal())
                if column == "accuracy":
                    value = 1 - value
                rows.append({
                    "policy": label, "seed": seed, "epoch": epoch, column: value,
                    "gradients": 100 * epoch, "seconds": seconds * epoch * pace,
                })  # fmt: skip
    return table_of(rows)


def test_a_clear_win_is_called_better_with_its_epochs_and_time():
    table = planted({"RR": (0, 0.1, 1.0, 0), "PairGraB": (0, 0.2, 1.2, 1)}, noise=0.01)
    (found,) = verdicts(table, LOSS, "RR")
    assert found.kind is Kind.BETTER
    assert found.epochs == pytest.approx(0.5, abs=0.05)
    assert found.gradients == pytest.approx(found.epochs)
    assert found.seconds == pytest.approx(1.2 * found.epochs)
    assert found.text == (
        "PairGraB reached RR's final loss in 5 of 5 seeds; difference of its final loss outside the seeds' "
        "spread: yes, in its favour."
    )
    assert (found.fewer_epochs, found.less_time, found.test) == (Kind.BETTER, Kind.BETTER, None)
    assert found.conclusion is Conclusion.WORTH
    assert headline([found], "RR") == (
        "PairGraB: about half of RR's epochs (20 against 39), 38 % less time (24 s against 39 s), "
        "lower final loss (0.000454 against 0.0212): worth it."
    )


def test_values_that_differ_are_told_with_the_digits_that_differ():
    table = planted({"RR": (1.4123, 0.5, 1.0, 0), "B": (1.4121, 0.5, 1.0, 0)}, noise=0.0)
    (found,) = verdicts(table, LOSS, "RR")
    assert found.answers.endswith("lower final loss (1.4121 against 1.4123)")


@pytest.mark.parametrize("epochs", [30, 100])
@pytest.mark.parametrize("rate", [0.2, 0.5, 1.0, 3.0])
def test_a_planted_win_is_reported_at_the_epoch_where_the_target_is_met(epochs, rate):
    table = planted({"RR": (0, 0.1, 1.0, 0), "B": (0, rate, 1.0, 0)}, noise=0.0, epochs=epochs)
    (found,) = verdicts(table, LOSS, "RR")
    target = np.median(np.exp(-0.1 * np.arange(epochs + 1 - epochs // 10, epochs + 1)))
    mine, theirs = (next(e for e in range(epochs) if np.exp(-r * e) <= target) for r in (rate, 0.1))
    assert found.epochs == pytest.approx(mine / theirs)
    if (epochs, rate) == (100, 1.0):
        assert found.epochs == pytest.approx(10 / 96)


def test_a_target_that_both_meet_within_the_first_window_is_met():
    rows = [
        {"policy": policy, "seed": seed, "epoch": epoch, "loss": 1.0 if epoch < at else 0.1}
        for policy, at in (("RR", 4), ("B", 2)) for seed in range(3) for epoch in range(101)
    ]  # fmt: skip
    (found,) = verdicts(table_of(rows), LOSS, "RR")
    assert found.epochs == 0.5


def test_a_clear_loss_is_called_worse():
    table = planted({"RR": (0.01, 0.2, 1.0, 0), "SO": (0.1, 0.2, 1.0, 1)})
    (found,) = verdicts(table, LOSS, "RR")
    assert found.kind is Kind.WORSE
    assert found.reached == 0
    assert np.isnan(found.epochs)
    assert "did not reach RR's final loss" in found.text
    assert "yes, against it" in found.text
    assert found.conclusion is Conclusion.WORSE
    assert (
        headline([found], "RR") == "No policy is worth it here; SO: gets as far as RR in 0 of 5 seeds, "
        "higher final loss (0.1 against 0.0101)."
    )


def test_identical_policies_under_two_names_show_no_difference():
    table = planted({"RR": (0.01, 0.2, 1.0, 0), "the same": (0.01, 0.2, 1.0, 0)})
    (found,) = verdicts(table, LOSS, "RR")
    assert found.kind is Kind.SAME
    assert found.final == 1.0
    assert found.epochs == 1.0
    assert "no difference" in found.text


def test_equal_policies_with_noise_of_their_own_are_rarely_told_apart():
    called = 0
    for case in range(200):
        table = planted({"RR": (0.01, 0.2, 1.0, 2 * case), "B": (0.01, 0.2, 1.0, 2 * case + 1)}, epochs=5)
        called += verdicts(table, LOSS, "RR")[0].kind is not Kind.SAME
    assert called <= 20


def test_a_small_but_steady_difference_counts_because_seeds_are_paired():
    rows = []
    for seed in range(5):
        level = 10.0**seed
        for label, factor in (("RR", 1.0), ("B", 0.9)):
            rows += [
                {"policy": label, "seed": seed, "epoch": e, "loss": factor * level / (e + 1)}
                for e in range(9)
            ]
    (found,) = verdicts(table_of(rows), LOSS, "RR")
    assert found.kind is Kind.BETTER
    assert found.final == pytest.approx(0.9)


def test_higher_may_be_better():
    table = planted({"RR": (0.1, 0.2, 1.0, 0), "B": (0.02, 0.4, 1.0, 1)}, column="accuracy")
    (found,) = verdicts(table, ACCURACY, "RR")
    assert found.kind is Kind.BETTER
    assert re.search(r"higher final accuracy \(9\d\.\d\d % against \d\d\.\d\d %\)$", found.answers)
    (found,) = verdicts(table, ACCURACY, "B")
    assert found.kind is Kind.WORSE


def ending(policies, epochs=4):
    """Losses of 1 at the start, and of each seed's final value ever after."""
    return table_of(
        {"policy": policy, "seed": seed, "epoch": e, "loss": value if e else 1.0, "seconds": float(e)}
        for policy, values in policies.items() for seed, value in enumerate(values) for e in range(epochs)
    )  # fmt: skip


def test_a_diverged_baseline_seed_does_not_turn_a_loss_into_a_win():
    table = ending({"RR": [0.1, 0.1, 0.11, 0.12, np.inf], "B": [0.2, 0.2, 0.22, 0.24, 0.2]})
    (found,) = verdicts(table, LOSS, "RR")
    assert found.kind is Kind.WORSE
    assert (found.lost, found.baseline_lost, found.pairs) == (0, 1, 4)
    assert found.text.startswith("RR diverged in 1 of 5 seeds; where neither did, B did not reach")
    assert headline([found], "RR").endswith("Diverged: RR in 1 of 5 seeds.")


def test_a_policy_that_diverges_more_often_is_not_called_better():
    (found,) = verdicts(ending({"RR": [0.1] * 5, "B": [0.01] * 4 + [np.inf]}), LOSS, "RR")
    assert found.kind is Kind.UNJUDGED
    assert found.text.startswith("B diverged in 1 of 5 seeds")
    assert "not judged, for it diverged more often" in found.text
    assert headline([found], "RR").startswith("Runs diverged")


@pytest.mark.parametrize(("seeds", "lost"), [(5, ["RR", "B"]), (5, ["B"]), (5, ["RR"]), (1, ["RR"])])
def test_with_no_seed_left_nothing_is_judged_and_the_step_size_is_named(seeds, lost):
    table = ending({name: [np.inf if name in lost else 0.5] * seeds for name in ("RR", "B")})
    (found,) = verdicts(table, LOSS, "RR")
    assert found.kind is Kind.UNJUDGED
    for name in lost:
        assert f"{name} diverged in {seeds} of {seeds} seeds" in found.text
    assert "nan" not in found.text
    assert "spread" not in found.text
    assert "smaller --lr" in headline([found], "RR")
    if len(lost) == 2:
        assert headline([found], "RR").startswith("All policies diverged in every seed")


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e300, 0.0])
def test_values_on_the_way_to_infinity_are_judged_without_complaint(value):
    metric = Metric("loss", "loss", log=False)
    table = ending({"RR": [0.1, value, 0.1, 0.2], "B": [0.2, 0.1, value, value]})
    (found,) = verdicts(table, metric, "RR", metric)
    assert found.kind is not Kind.BETTER
    assert "nan" not in found.text + found.answers + headline([found], "RR")


def test_a_clock_that_shows_nothing_is_not_quoted():
    table = planted({"RR": (0, 0.1, 0.0, 0), "B": (0, 0.2, 0.0, 1)}, noise=0.01)
    (found,) = verdicts(table, LOSS, "RR")
    assert found.less_time is Kind.UNJUDGED
    assert "time" not in found.answers
    assert "nan" not in found.answers


def test_seeds_that_reach_the_target_are_counted_whether_half_or_fewer():
    (half,) = verdicts(ending({"RR": [0.1] * 4, "B": [0.01, 0.01, 0.2, 0.11]}), LOSS, "RR")
    assert half.epochs == 1.0
    assert half.text.startswith("B reached RR's final loss only in 2 of 4 seeds")
    (fewer,) = verdicts(ending({"RR": [0.1] * 5, "B": [0.01, 0.01, 0.2, 0.11, 0.3]}), LOSS, "RR")
    assert "B reached RR's final loss only in 2 of 5 seeds" in fewer.text


def test_a_baseline_that_rises_from_its_start_leaves_nothing_to_reach():
    rows = [
        {"policy": policy, "seed": seed, "epoch": e, "loss": (1 + 0.01 * seed) * (1 + slope * e)}
        for policy, slope in (("RR", 0.1), ("B", -0.05)) for seed in range(4) for e in range(11)
    ]  # fmt: skip
    (found,) = verdicts(table_of(rows), LOSS, "RR")
    assert found.text.startswith("RR made no progress, so there is nothing for B to reach")
    assert headline([found], "RR") == (
        "B: nothing to reach, for RR made no progress, lower final loss (0.508 against 2.03): worth it."
    )
    assert "did not reach" not in found.text


def test_verdicts_are_sorted_by_final_values_and_all_are_ratios_or_none():
    table = ending({"RR": [1e-3] * 3, "good": [5e-4, 5.1e-4, 4.9e-4], "bad": [2e-3, 0.0, 2e-3]})
    found = verdicts(table, LOSS, "RR")
    assert [v.policy for v in found] == ["good", "bad"]
    assert {v.ratio for v in found} == {False}


def test_one_lucky_epoch_is_not_taken_for_reaching_the_target():
    rows = []
    for seed in range(4):
        for epoch in range(41):
            lucky = 1e-6 if epoch == 9 + seed else 1.0
            rows += [
                {"policy": "RR", "seed": seed, "epoch": epoch, "loss": 10.0 ** (-epoch / 10)},
                {"policy": "B", "seed": seed, "epoch": epoch, "loss": lucky},
            ]
    (found,) = verdicts(table_of(rows), LOSS, "RR")
    assert found.reached == 0
    assert found.kind is Kind.WORSE


def test_one_seed_is_not_judged():
    table = planted({"RR": (0, 0.1, 1.0, 0), "B": (0, 0.3, 1.0, 1)}, seeds=1)
    (found,) = verdicts(table, LOSS, "RR")
    assert found.kind is Kind.UNJUDGED
    assert "One seed" in headline([found], "RR")


def test_the_best_comes_first_and_the_baseline_is_not_judged():
    table = planted({"A": (0.1, 0.2, 1, 0), "RR": (0.05, 0.2, 1, 1), "C": (0.01, 0.2, 1, 2)})
    assert [found.policy for found in verdicts(table, LOSS, "RR")] == ["C", "A"]


def test_an_unknown_baseline_is_refused():
    with pytest.raises(ValueError, match="choose one of A, B"):
        verdicts(planted({"A": (0, 1, 1, 0), "B": (0, 1, 1, 0)}), LOSS, "RR")


def test_final_values_are_medians_of_the_last_tenth():
    values = np.arange(101.0)[None]
    assert final_values(values) == [95.5]


TEST = Metric("test_accuracy", "test accuracy", lower_is_better=False, log=False, percent=True, held_out=True)


def with_test(policies, tests, seeds=5):
    """A planted table (floor, rate, seconds, stream) with a test accuracy for each policy and seed."""
    table = planted(policies, seeds=seeds, noise=0.01)
    rows = table.to_pylist()
    for row in rows:
        row["test_accuracy"] = tests[row["policy"]] + 0.001 * (row["seed"] % 3)
    return table_of(rows)


FAST, SLOW = (0, 0.2, 1.2, 1), (0, 0.2, 5.0, 1)


@pytest.mark.parametrize(
    ("mine", "accuracy", "conclusion"),
    [
        (FAST, 0.9, Conclusion.WORTH),
        (FAST, 0.95, Conclusion.WORTH),
        (FAST, 0.85, Conclusion.WORSE),
        (SLOW, 0.9, Conclusion.COSTLY),
        (SLOW, 0.95, Conclusion.TRADE),
        (SLOW, 0.85, Conclusion.WORSE),
    ],
)
def test_the_headline_weighs_epochs_time_and_test_data(mine, accuracy, conclusion):
    table = with_test({"RR": (0, 0.1, 1.0, 0), "B": mine}, {"RR": 0.9, "B": accuracy})
    (found,) = verdicts(table, LOSS, "RR", TEST)
    assert found.kind is found.fewer_epochs is Kind.BETTER
    assert found.less_time is (Kind.BETTER if mine is FAST else Kind.WORSE)
    assert found.test is (Kind.SAME if accuracy == 0.9 else Kind.BETTER if accuracy > 0.9 else Kind.WORSE)
    assert found.conclusion is conclusion
    line = headline([found], "RR")
    assert "better" not in line
    assert ("2.6 times the time (" in line) is (mine is SLOW)
    assert ("% less time (" in line) is (mine is FAST)
    word = {0.9: "same test accuracy (90.10 %)"}.get(
        accuracy, "test accuracy (9" if accuracy > 0.9 else "(85.10"
    )
    assert word in line
    if conclusion is Conclusion.WORSE:
        assert line.startswith("No policy is worth it here; B: about half of RR's epochs (")
        assert line.endswith("lower test accuracy (85.10 % against 90.10 %).")
    else:
        assert line.startswith("B: about half of RR's epochs (")
        assert line.endswith(f": {conclusion.value}.")


def test_test_accuracies_are_shown_as_both_values():
    table = with_test({"RR": (0, 0.1, 1.0, 0), "B": FAST}, {"RR": 0.9, "B": 0.95})
    (found,) = verdicts(table, LOSS, "RR", TEST)
    assert "higher test accuracy (95.10 % against 90.10 %)" in found.answers


def test_lost_time_without_a_gain_is_told_in_the_headline():
    table = planted({"RR": (0, 0.1, 1.0, 0), "B": (0, 0.1, 3.0, 0), "C": (0, 0.1, 1.3, 0)}, noise=0.01)
    found = verdicts(table, LOSS, "RR")
    assert {v.conclusion for v in found} == {Conclusion.WORSE}
    assert headline(found, "RR") == (
        "No policy is worth it here; the nearest is C: no clear difference in epochs (39 against 39), "
        "30 % more time (51 s against 39 s), same final loss (0.0212)."
    )


class Slow:
    """The same orders, for more processor time than they can save."""

    def advance(self, state):
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return super().advance(state)


class SlowPairGraB(Slow, PairGraB):
    pass


class SlowShuffle(Slow, RandomReshuffling):
    pass


def test_a_real_comparison_in_which_ordering_loses_time_says_so_in_the_headline():
    task = problem_task(quadratics(400), step_size=2e-3)
    rules = {"RR": RandomReshuffling(), "slow": SlowPairGraB(), "slow shuffle": SlowShuffle()}
    done = compare(task, Config(policies=rules, epochs=20, seeds=(0, 1, 2)))
    ordered, shuffled = (next(v for v in done.verdicts if v.policy == name) for name in list(rules)[1:])
    assert (ordered.kind, ordered.less_time) == (Kind.BETTER, Kind.WORSE)
    line = headline([ordered], "RR")
    told = (
        r"slow: .* epochs .*, [\d.]+ times the time \(.* ms against .* ms\), lower .*: not worth its time\."
    )
    assert re.fullmatch(told, line)
    assert (shuffled.fewer_epochs, shuffled.less_time) == (Kind.SAME, Kind.WORSE)
    line = headline([shuffled], "RR")
    assert re.fullmatch(
        r"No policy is worth it here; slow shuffle: no clear .* times the time \(.*\)\.", line
    )
    assert "better" not in headline(done.verdicts, "RR")


def test_a_lower_test_loss_is_called_lower():
    loss = Metric("test_accuracy", "test loss", held_out=True)
    table = with_test({"RR": (0, 0.1, 1.0, 0), "B": FAST}, {"RR": 0.9, "B": 0.8})
    (found,) = verdicts(table, LOSS, "RR", loss)
    assert found.test is Kind.BETTER
    assert "lower test loss (0.801 against 0.901)" in found.answers


def test_no_verdict_shows_a_signed_difference():
    for rate in (0.05, 0.1, 0.2):
        table = planted({"RR": (0.1, 0.1, 1.0, 0), "B": (0.1, rate, 1.0, 1)}, column="accuracy")
        for metric in (ACCURACY, Metric("accuracy", "accuracy", log=False)):
            (found,) = verdicts(table, metric, "RR")
            assert not re.search(r"[-+−]\d", found.text + found.answers + headline([found], "RR"))


def test_a_gain_in_some_seeds_alone_is_no_gain():
    rows = [
        {"policy": policy, "seed": seed, "epoch": e, "loss": np.exp(-rate * e), "seconds": float(e)}
        for policy, rates in (("RR", [0.1] * 4), ("B", [0.2, 0.2, 0.2, 0.09]))
        for seed, rate in enumerate(rates) for e in range(41)
    ]  # fmt: skip
    (found,) = verdicts(table_of(rows), LOSS, "RR")
    assert found.fewer_epochs is Kind.SAME
    assert found.conclusion is Conclusion.EVEN
    assert headline([found], "RR").startswith("No policy is worth it here")


def test_the_cheapest_of_those_worth_it_stands_in_the_headline_and_the_others_are_named():
    table = planted({"RR": (0, 0.1, 1.0, 0), "A": (0, 0.2, 1.5, 1), "B": (0, 0.2, 1.0, 2)}, noise=0.01)
    line = headline(verdicts(table, LOSS, "RR"), "RR")
    assert line.startswith("B: about half of RR's epochs")
    assert line.endswith("worth it (so is A).")


def test_a_lower_end_without_a_clear_difference_in_time_costs_the_time_of_all_epochs():
    rows = [
        {"policy": policy, "seed": seed, "epoch": e, "loss": np.exp(-rate * e), "seconds": e * cost}
        for policy, rate, costs in (("RR", 0.1, [1.0] * 4), ("B", 0.2, [1.5, 2.5, 1.6, 2.6]))
        for seed, cost in enumerate(costs) for e in range(41)
    ]  # fmt: skip
    (found,) = verdicts(table_of(rows), LOSS, "RR")
    assert found.less_time is Kind.SAME
    assert headline([found], "RR") == (
        "B: about half of RR's epochs (20 against 39), no clear difference in time (32 s against 39 s), "
        "lower final loss (0.000455 against 0.0213), all epochs 60 % more time "
        "(64 s against 40 s): a gain that costs time."
    )


@pytest.mark.parametrize(("pace", "conclusion"), [(1.0, Conclusion.WORTH), (2.0, Conclusion.TRADE)])
def test_a_better_end_counts_if_all_epochs_took_no_more_time(pace, conclusion):
    rows = [
        {"policy": policy, "seed": seed, "epoch": e, "loss": np.exp(-0.1 * e),
         "test_accuracy": score + 0.001 * seed, "seconds": e + 20.0 * (cost - 1) * (e == 41)}
        for policy, score, cost in (("RR", 0.9, 1.0), ("B", 0.95, pace))
        for seed in range(4) for e in range(42)
    ]  # fmt: skip
    (found,) = verdicts(table_of(rows), LOSS, "RR", TEST)
    assert found.less_time is Kind.SAME
    assert found.whole_time is (Kind.SAME if pace == 1.0 else Kind.WORSE)
    assert found.conclusion is conclusion


@pytest.mark.parametrize(("noisy", "kind"), [(1, Kind.BETTER), (2, Kind.BETTER), (3, Kind.SAME)])
def test_about_time_four_seeds_of_five_must_agree(noisy, kind):
    rows = [
        {"policy": policy, "seed": seed, "epoch": e, "loss": np.exp(-rate * e), "seconds": e * cost}
        for policy, rate, costs in (("RR", 0.1, [1.0] * 10), ("B", 0.2, [1.0] * (10 - noisy) + [2.2] * noisy))
        for seed, cost in enumerate(costs) for e in range(41)
    ]  # fmt: skip
    (found,) = verdicts(table_of(rows), LOSS, "RR")
    assert found.less_time is kind


def test_seeds_must_agree_in_sign():
    ends = {"RR": [1.0] * 12, "B": [0.5] * 11 + [1.01]}
    (found,) = verdicts(ending(ends), LOSS, "RR")
    assert found.kind is Kind.SAME
