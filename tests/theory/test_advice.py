"""Advice: the ranking where the tables settle it, and honest words where the assumptions decide."""

import pytest

from wellorder.theory import advise, bound, constants, rate, tuned_step_size


def ranked(advice):
    return [choice.method for choice in advice.ranking]


def test_balancing_beats_reshuffling_beats_arbitrary_where_the_table_says_so():
    advice = advise(10**6, 1, 10**9, sigma=10.0)
    assert ranked(advice) == ["Herding", "GraB", "PairGraB", "RR", "AP"]
    clients = advise(10**6, 1, 10**10, sigma=10.0, cohort=10, local_steps=5)
    assert ranked(clients) == ["FL-Herding", "FL-GraB", "FL-RR", "FL-AP"]
    for by_rate in (advise(10**4, 1, 10**6, by="rate"), advise(10**5, 1, 10**7, by="rate")):
        assert [m for m in ranked(by_rate) if m not in ("PairGraB", "Herding")] == ["GraB", "RR", "AP"]


def test_reshuffling_is_named_where_smoothness_or_few_epochs_make_it_better():
    assert advise(10**6, 1, 100).best.method == "RR"  # the step size binds, and RR's may be larger
    assert advise(10**6, 10**6, 10**9, sigma=10.0).best.method == "RR"  # L_2∞ = √d·L
    flat = advise(10**6, 10**6, 10**9, sigma=10.0, smoothness_2inf=1.0, smoothness_inf=1.0)
    assert flat.best.method == "Herding"
    wide = advise(10**4, 10**4, 10**6, by="rate")
    assert wide.best.method == "RR"


def test_a_nice_permutation_is_named_while_the_parameters_hardly_move():
    setting = dict(sigma=10.0, passes=20)  # ten passes leave N/2¹⁰, too much for a million units
    assert advise(10**6, 1, 10**9, theta=0.0, sigma=10.0).best.method == "Herding"
    unknown = advise(10**6, 1, 10**9, **setting)
    assert unknown.best.method == "Herding"
    assert "NicePermutation" in " ".join(unknown.left_out)
    near = advise(10**6, 1, 10**9, theta=0.0, **setting)
    assert near.best.method == "NP"
    assert unknown.nice_while > 0
    inside = advise(10**6, 1, 10**9, theta=0.99 * unknown.nice_while, **setting)
    outside = advise(10**6, 1, 10**9, theta=1.01 * unknown.nice_while, **setting)
    assert (inside.best.method, outside.best.method) == ("NP", "Herding")
    assert f"θ={unknown.nice_while:.3g}" in unknown.text


def test_every_order_is_at_least_as_good_as_an_arbitrary_one():
    advice = advise(50, 1, 10**6, sigma=10.0)
    arbitrary = next(c for c in advice.ranking if c.method == "AP")
    assert all(c.bound <= arbitrary.bound for c in advice.ranking)
    assert advice.best.method == "RR"
    assert advice.best.proof == "AP"  # so few units that 4·log²(8/δ) exceeds N
    assert advice.margin == 1.0
    assert "PairGraB, as an arbitrary order, less than 1 % behind" in advice.text


def test_the_numbers_are_those_of_bound_and_rate():
    advice = advise(10**6, 1, 10**9, sigma=10.0)
    known = constants("GraB", 10**6, sigma=10.0, delta=0.01 / 10**9)
    step = tuned_step_size(known, 10**9)
    choice = advice.ranking[1]
    assert (choice.method, choice.step_size) == ("GraB", step)
    assert choice.bound == bound(known, step, 10**9).total
    assert choice.probability == pytest.approx(0.99)
    assert choice.rate == rate(known, 10**9).total
    assert advice.margin == advice.ranking[1].bound / advice.best.bound


def test_clients_that_go_one_by_one_with_one_step_are_clients_still():
    asked = advise(1000, 1, 100, clients=True, cohort=1, local_steps=1)
    assert asked.best.method == "FL-RR"
    known = constants("FL-RR", 1000, delta=1e-4, cohort=1, local_steps=1)
    assert asked.best.bound == bound(known, tuned_step_size(known, 100), 100).total
    assert "FL-GraB is proved for an even number" in " ".join(asked.left_out)
    assert advise(1000, 1, 100).best.method == advise(1000, 1, 100, clients=False).best.method == "RR"
    with pytest.raises(ValueError, match="these belong to clients"):
        advise(1000, 1, 100, clients=False, cohort=2)


def test_a_bound_that_holds_with_probability_0_recommends_nothing():
    void = advise(1000, 1, 200, delta=0.01)
    assert void.best.probability == 1.0
    assert {choice.proof for choice in void.ranking} == {"AP"}
    assert "RandomReshuffling's own bound" in " ".join(void.left_out)
    assert "pass a delta below 1/200 = 0.005" in void.text
    fine = advise(1000, 1, 200, delta=0.0049)
    assert fine.best.proof == "RR"
    assert fine.best.probability == pytest.approx(1 - 200 * 0.0049)
    assert "RandomReshuffling's own" not in fine.text
    assert (
        "Herding's own bound, which δ=0.0049 leaves no probability over 200 epochs of 11 uses each"
        in fine.text
    )
    nice = advise(1000, 1, 5, delta=0.1, theta=0.0)
    assert "NicePermutation's own bound, which δ=0.1 leaves no probability over 10 passes" in nice.text
    assert advise(1000, 1, 5, delta=0.1).nice_while == 0.0


def test_the_words_carry_the_assumptions():
    text = str(advise(10**4, 20, 100, cohort=5, local_steps=5))
    assert "FL-GraB is proved for an even number of clients a round" in text
    assert "√d·L" in text
    assert "S=5" in text
    assert "worst cases" in text
    assert "would favour" in str(advise(1000, 1, 10**6, sigma=100.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: advise(0, 1, 10), "n=0: pass an int >= 1"),
        (lambda: advise(10, 0, 10), "dim=0: pass an int >= 1"),
        (lambda: advise(10, 1, 0), "epochs=0: pass an int >= 1"),
        (lambda: advise(10, 1, 10, delta=2.0), r"delta=2\.0: pass a number strictly between 0 and 1"),
        (lambda: advise(10, 1, 10, cohort=11), "cohort=11: .*pass at most n=10"),
        (lambda: advise(10, 1, 10, cohort=4), "cohort=4: .*does not divide n=10; pass a cohort such as"),
        (lambda: advise(10, 1, 10, by="luck"), "by='luck': pass"),
    ],
)
def test_bad_input_is_refused_with_the_cure(call, message):
    with pytest.raises(ValueError, match=message):
        call()
