"""Policies that know labels and inputs before training: the orders that `balanced` makes of the same rows."""

import numpy as np
import pytest

import wellorder as wo
from wellorder.experiments import Config, compare, problem_task, task_of
from wellorder.experiments._config import resolve
from wellorder.experiments._known_rows import Features, Stratified, informed
from wellorder.experiments._names import policy_of
from wellorder.problems import logistic, quadratics

X = np.random.default_rng(0).normal(size=(60, 5))
Y = np.arange(60) % 3


@pytest.mark.parametrize(
    ("policy", "rows"), [(Stratified(), wo.features(None, Y)), (Features(), wo.features(X, Y))]
)
def test_orders_are_those_of_balanced(policy, rows):
    known = informed(policy, lambda: (X, Y))
    state = known.init(60, seed=3)
    for _, order in zip(range(3), wo.balanced(rows, seed=3), strict=False):
        np.testing.assert_array_equal(state.order, order)
        state = known.advance(state)


def test_without_data_they_are_plain_shuffles():
    state, plain = Stratified().init(9, seed=1), wo.RandomReshuffling().init(9, seed=1)
    np.testing.assert_array_equal(state.order, plain.order)
    assert informed(wo.GraB(), lambda: (X, Y)) == wo.GraB()


def test_they_are_known_by_name_with_their_parameters():
    assert policy_of("stratified") == Stratified()
    assert policy_of("Features(size=64)") == Features(size=64)
    with pytest.raises(ValueError, match="size=0"):
        policy_of("features(size=0)")
    with pytest.raises(ValueError, match="did you mean stratified"):
        policy_of("stratifid")


def test_the_policies_compared_are_those_that_people_would_switch_on():
    assert list(resolve("digits", Config()).policies) == [
        "RandomReshuffling", "ShuffleOnce", "PairGraB", "Steering", "stratified", "features",
    ]  # fmt: skip
    assert task_of("quadratics").knows == ()
    assert problem_task(logistic(X, Y > 0, l2=0.1), step_size=0.1).knows == ("labels", "inputs")
    with pytest.raises(ValueError, match="policy stratified: problem does not tell the labels"):
        compare(problem_task(quadratics(9), step_size=0.1), Config(policies=("RR", "stratified")))
