"""Policies by name: what is typed is what is meant, and nothing else is run."""

import pytest

import wellorder as wo
from wellorder.experiments._names import meant, named_policies, policy_of


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("RR", wo.RandomReshuffling()),
        ("rr", wo.RandomReshuffling()),
        ("RandomReshuffling", wo.RandomReshuffling()),
        ("SO", wo.ShuffleOnce()),
        ("IG", wo.IncrementalGradient()),
        ("np", wo.NicePermutation()),
        ("NicePermutation(3)", wo.NicePermutation(3)),
        ("GraB(reorders=2)", wo.GraB(reorders=2)),
        ("pairgrab( rule = Walk(30.0) )", wo.PairGraB(wo.Walk(30.0))),
        ("AP([[0, 1], [1, 0]])", wo.Arbitrary([[0, 1], [1, 0]])),
    ],
)
def test_names_short_names_and_parameters_make_the_policy(text, policy):
    assert policy_of(text) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PairGrabb", "did you mean PairGraB"),
        ("suffleonce", "did you mean ShuffleOnce"),
        ("zzz", "choose from .*GraB"),
        ("GraB(reorders=0)", "reorders=0"),
        ("GraB(colour=2)", "colour"),
        ("GraB(", "cannot be read"),
        ("__import__('os')", "unknown"),
        ("(lambda: 1)()", "cannot be read"),
        ("GraB(rule=open('x'))", "unknown"),
        ("Arbitrary", "orders"),
        ("AP", r"write its orders, one for each epoch, as AP\(\[\[0, 1, 2\]"),
        ("Walk(c=1.0)", r"is a sign rule; write a policy that takes it, as GraB\(rule=Walk\(c=1.0\)\)"),
        ("Deterministic", "is a sign rule"),
        ("", "cannot be read"),
    ],
)
def test_anything_else_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=message):
        policy_of(text)


def test_labels_tell_equal_policies_apart():
    found = named_policies(["one=PairGraB", "two=PairGraB", "GraB(reorders=2)"])
    assert list(found) == ["one", "two", "GraB(reorders=2)"]
    assert list(named_policies(["a_b=RR", "FL/x=GraB(reorders=2)"])) == ["a_b", "FL/x"]
    with pytest.raises(ValueError, match="given twice"):
        named_policies(["RR", "RR"])


def test_a_word_that_resembles_nothing_gets_the_whole_list():
    assert meant("zzz", ["digits", "quadratics"]) == "choose from digits, quadratics"
