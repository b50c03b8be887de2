"""Every constant of the paper, row by row, against a transcription by hand."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

import wellorder
from wellorder.problems import quadratics
from wellorder.theory import (
    METHODS,
    Constants,
    check_assumption,
    constants,
    least,
    max_step_size,
    method_of,
)

N, D_, S, K, ETA, L, L2, LI, SIGMA, DELTA, THETA, PHI0 = (
    240,
    7,
    4,
    5,
    1.5,
    1.3,
    2.9,
    1.7,
    0.6,
    0.02,
    0.3,
    11.0,
)
BASIC = 30 * math.log(D_ * N / DELTA)
PAIR = 30 * math.log(D_ * N / (2 * DELTA))
SGD = dict(dim=D_, smoothness=L, smoothness_2inf=L2, smoothness_inf=LI, sigma=SIGMA, delta=DELTA, theta=THETA)
FL = dict(**SGD, cohort=S, local_steps=K, server_step=ETA)
V = K * N / S
INF = math.inf

# label, p, A, B, D, nu, c1, c2, step size at most, failures in Q epochs
AP = N**2 * SIGMA**2
RR = 4 * N * SIGMA**2 * math.log(8 / DELTA) ** 2
FAR = 8 * (L * N * THETA) ** 2
PROTO = min(1 / (L * N), 1 / (32 * L2 * N), 1 / (32 * LI * N))
PLAIN_FL = min(1 / (32 * L * V), 1 / (ETA * L * V), 1 / (32 * L * V))
TABLE = {
    "AP": ("ex:arbitrary permutation", 2, (), (), AP, 0, 3, 6, 1 / (32 * L * N), 0),
    "RR": ("ex:random reshuffling", 2, (), (), RR, 0, 3, 6, 1 / (32 * L * N), "Q"),
    "OP": ("ex:one permutation", 2, (), (), 2 * PHI0**2 + FAR, 0, 3, 6, 1 / (32 * L * N), 0),
    "IG": ("ex:one permutation", 2, (), (), 2 * AP + FAR, 0, 3, 6, 1 / (32 * L * N), 0),
    "SO": ("ex:one permutation", 2, (), (), 2 * RR + FAR, 0, 3, 6, 1 / (32 * L * N), 1),
    "GraB-proto": ("ex:GraB-proto", INF, (3 / 4,), (0, N**2 / 50), BASIC**2 * SIGMA**2, 1, 3, 24, PROTO, "Q"),
    "PairGraB-proto": (
        "ex:PairGraB-proto", INF, (3 / 4,), (0, N**2 / 50), 4 * PAIR**2 * SIGMA**2, 1, 3, 24, PROTO, "Q",
    ),
    "GraB": (
        "ex:GraB", INF, (3 / 5, 1 / 50), (0, N**2 / 50, N**2 / 50), 2 * BASIC**2 * SIGMA**2, 2, 3, 16,
        min(1 / (L * N), 1 / (128 * L2 * (N + BASIC)), 1 / (128 * LI * N)), "Q",
    ),
    "PairGraB": (
        "ex:PairGraB", INF, (4 / 5,), (0, 3 * N**2 / 50), 4 * PAIR**2 * SIGMA**2, 1, 3, 30,
        min(1 / (L * N), 1 / (64 * L2 * (N + PAIR)), 1 / (64 * LI * N)), "Q",
    ),
    "FL-AP": ("ex:FL-AP", 2, (), (), AP, 0, 3, 6, PLAIN_FL, 0),
    "FL-RR": ("ex:FL-RR", 2, (), (), RR, 0, 3, 6, PLAIN_FL, "Q"),
    "FL-OP": ("ex:FL-OP", 2, (), (), 2 * PHI0**2 + FAR, 0, 3, 6, PLAIN_FL, 0),
    "FL-GraB-proto": (
        "ex:FL-GraB-proto", INF, (3 / 4,), (0, N**2 / 40),
        S**2 * SIGMA**2 / 40 + 6 * PAIR**2 * SIGMA**2, 1, 3, 24,
        min(1 / (ETA * L * V), 1 / (32 * L2 * V), 1 / (32 * (1 + ETA) * LI * V)), "Q",
    ),
    "FL-GraB": (
        "ex:FL-GraB", INF, (3 / 5,), (0, N**2 / 96), S**2 * SIGMA**2 / 96 + 6 * PAIR**2 * SIGMA**2, 1, 3, 15,
        min(1 / (ETA * L * V), 1 / (128 * L2 * K * (N + PAIR) / S), 1 / (128 * (1 + ETA) * LI * V)), "Q",
    ),
}  # fmt: skip


def of(method, **more):
    setting = {**(FL if method.startswith("FL-") else SGD), **more}
    if method.endswith("OP"):
        setting["first_error"] = PHI0
    return constants(method, N, **setting)


@pytest.mark.parametrize("method", TABLE)
def test_the_papers_constants_are_reproduced(method):
    label, p, A, B, D, nu, c1, c2, step, failures = TABLE[method]
    found = of(method)
    assert (found.label, found.p, found.A, found.nu, found.c1, found.c2) == (label, p, A, nu, c1, c2)
    assert pytest.approx(B) == found.B
    assert found.D == pytest.approx(D)  # noqa: SIM300
    assert max_step_size(found) == pytest.approx(step)
    assert found.probability(20) == pytest.approx(1 - (20 if failures == "Q" else failures) * DELTA)


@pytest.mark.parametrize("method", METHODS)
def test_derived_c1_and_c2_are_admissible_and_no_larger_than_the_published_ones(method):
    found = of(method)
    tight = found.tight()
    assert found.condition < 255
    assert tight.c1 == pytest.approx(1 / (255 / 512 - sum(found.B) / (512 * N**2 * (1 - sum(found.A)))))
    assert tight.c2 == pytest.approx(2 / (1 - sum(found.A)) * tight.c1)
    assert tight.c1 <= found.c1
    assert tight.c2 <= found.c2


def test_a_nice_permutation_starts_from_what_lemma_3_leaves_after_its_passes():
    herding = N * SIGMA
    for _ in range(6):
        herding = herding / 2 + BASIC * SIGMA / 2
    known = of("NP", passes=6, theta=0.0)
    assert 2 * D_ * herding**2 <= known.D <= 2 * D_ * (herding + BASIC * SIGMA) ** 2
    assert known.probability(100) == pytest.approx(1 - 6 * DELTA)


def test_a_measured_first_error_replaces_the_worst_case_and_the_chance():
    known = of("SO", first_error=3.0, theta=0.0)
    assert pytest.approx(2 * 3.0**2) == known.D
    assert known.probability(1000) == 1.0


def test_your_own_method_gets_its_c1_and_c2():
    own = constants("mine", 10, A=(0.2, 0.1), B=(5.0, 0.0, 7.0), D=2.0, p=INF)
    assert isinstance(own, Constants)
    assert (own.nu, own.p, own.D) == (2, INF, 2.0)
    assert (own.c1, own.c2) == least((0.2, 0.1), (5.0, 0.0, 7.0), 10)
    assert own.c1 == pytest.approx(1 / (255 / 512 - 12 / (512 * 100 * 0.7)))


def test_the_255_condition_is_strict():
    constants("mine", 10, A=(0.5,), B=(0, 254.9 * 100 * 0.5))
    with pytest.raises(ValueError, match=r"less than 255.*keep ΣB below 12750"):
        constants("mine", 10, A=(0.5,), B=(0, 255 * 100 * 0.5))
    with pytest.raises(ValueError, match="less than 1"):
        constants("mine", 10, A=(0.5, 0.5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: constants("RR", 0), r"n=0: pass an int >= 1"),
        (lambda: constants("RR", -3), r"n=-3"),
        (lambda: constants("RR", 10, delta=0.0), r"delta=0.0: pass a number strictly between 0 and 1"),
        (lambda: constants("RR", 10, delta=1.0), r"delta=1.0"),
        (lambda: constants("RR", 10, sigma=-1.0), r"sigma=-1.0: pass a number of 0 or more"),
        (lambda: constants("RR", 10, sigma=1e200), r"sigma=1e\+200: too large to be squared; pass at most"),
        (lambda: constants("RR", 10**40), r"n=10+: too large to compute with"),
        (lambda: constants("mine", 100, A=(0.1,), B=(0, math.nan)), r"B=\(0.0, nan\): pass finite numbers"),
        (lambda: constants("mine", 100, A=(math.nan,)), r"A=\(nan,\).* pass finite numbers"),
        (lambda: constants("RR", 10, smoothness=0.0), r"smoothness=0.0: pass a positive number"),
        (lambda: constants("FL-RR", 10, cohort=12), r"cohort=12: more clients .* at most n=10"),
        (
            lambda: constants("FL-RR", 12, cohort=5),
            r"cohort=5: .* does not divide n=12; pass a cohort such as 3, 4, 6",
        ),
        (
            lambda: constants("FL-GraB", 12, cohort=3),
            r"cohort=3: FL-GraB is proved for an even .* such as 2, 4, 6",
        ),
        (lambda: constants("PairGraB", 11), r"n=11: PairGraB is proved for an even number"),
        (lambda: constants("RR", 12, cohort=4), r"these belong to clients, not to 'RR'; use an 'FL-'"),
        (lambda: constants("rr", 12), r"method='rr' is not known; pass one of AP, RR"),
        (lambda: constants(wellorder.WithReplacement(), 12), r"no permutations.*use RandomReshuffling"),
        (lambda: constants("mine", 12, A=(0.1,), p=1.5), r"p=1.5: pass a norm p >= 2"),
        (lambda: constants(wellorder.GraB, 12), r"pass a policy, such as GraB\(\)"),
        (lambda: constants("RR", 12, sigma=None), r"sigma=None: pass a number of 0 or more"),
        (
            lambda: constants(wellorder.NicePermutation(passes=2), 12, passes=3),
            r"passes=3: .*has passes=2; leave it out",
        ),
    ],
)
def test_bad_input_is_refused_with_the_cure(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_policies_name_their_rows():
    assert constants(wellorder.RandomReshuffling(), 10).method == "RR"
    assert constants(wellorder.PairGraB(), 12, cohort=4).method == "FL-GraB"
    assert method_of(wellorder.PairGraBProto(), federated=True) == "FL-GraB-proto"
    assert method_of(wellorder.GraB(), federated=True) == "FL-AP"
    assert method_of(wellorder.GraB(reorders=3)) == "AP"
    assert {method_of(p) for p in (wellorder.FlipFlop(), wellorder.Greedy())} == {"AP"}


def test_smoothness_in_other_norms_falls_back_to_what_always_suffices():
    known = constants("GraB", 10, dim=9, smoothness=2.0).setting
    assert known.two_to(np.inf) == known.to_itself(np.inf) == 6.0
    assert known.two_to(2) == known.to_itself(2) == 2.0


def test_own_methods_take_any_norm_and_the_step_sizes_of_the_theorems():
    facts = dict(smoothness=L, smoothness_2inf=L2, smoothness_inf=LI, dim=D_)
    fl = dict(**facts, cohort=S, local_steps=K, server_step=ETA)
    own = constants("FL-mine", N, A=(0.5,), D=1.0, p=INF, **fl)
    assert max_step_size(own) == pytest.approx(min(1 / (ETA * L * V), 1 / (32 * L2 * V), 1 / (32 * LI * V)))
    for p in (2.5, 4, 50):
        s = constants("mine", N, D=1.0, p=p, **facts).setting
        root = D_ ** (0.5 - 1 / p)
        assert s.two_to(p) == pytest.approx(min(root * L, L2))
        assert s.to_itself(p) == pytest.approx(min(root * L, L2, D_ ** (1 / p) * LI))
        v = np.random.default_rng(0).standard_normal((500, D_))
        h = np.diag([L] + [0.1] * (D_ - 1))  # curvature L along one axis: L_{2,p} = L_p = L for every p
        assert (np.linalg.norm(v @ h, axis=1) <= s.two_to(p) * np.linalg.norm(v, ord=p, axis=1) + 1e-12).all()


def test_a_policys_own_numbers_count():
    one, ten = (constants(wellorder.NicePermutation(k, wellorder.Walk(1e9)), 1000) for k in (1, 10))
    assert (one.setting.passes, ten.setting.passes) == (1, 10)
    assert constants(wellorder.NicePermutation(passes=1), 10**5).D > 50 * constants("NP", 10**5).D
    for policy, times, walk in (
        (wellorder.GraB, 1, 30 * math.log(N / 1e-4)),
        (wellorder.PairGraB, 2, 30 * math.log(N / 2e-4)),
    ):
        exact = policy(wellorder.Walk(walk * times**2))  # as the proofs have it, for ς = 1
        assert pytest.approx(constants(method_of(exact), N).D) == constants(exact, N).D
        assert constants(exact, N).caveats == ()
        wide = policy(wellorder.Walk(walk * (3 * times) ** 2))
        assert (
            pytest.approx(9 * constants(exact, N).D) == constants(wide, N).D
        )  # it reaches three times as far
        narrow = constants(policy(wellorder.Walk(walk / 2)), N)
        assert "pass Walk(c) with c of" in narrow.caveats[0]
    assert "has no proof" in constants(wellorder.GraB(), N).caveats[0]
    assert constants(wellorder.NicePermutation(), N, first_error=3.0).caveats == ()


def test_names_do_not_make_a_method():
    class GraB(wellorder.RandomReshuffling):
        """A stranger's, in spite of its name; it does what RandomReshuffling does."""

    class Renamed(wellorder.GraB):
        """GraB, and nothing else."""

    class Changed(wellorder.GraB):
        def advance(self, state):
            return super().advance(state)

    class Opened(wellorder.Herding):
        def open(self, state, epoch):
            return super().open(state, 0)

    @dataclass(frozen=True)
    class Thorough(wellorder.Herding):
        passes: int = 20

    class Stranger:
        needs, init, observe = (
            wellorder.ShuffleOnce.needs,
            wellorder.ShuffleOnce.init,
            wellorder.ShuffleOnce.observe,
        )

        def advance(self, state):
            return state

    Stranger.__name__ = "GraB"
    assert method_of(GraB()) == "RR"
    assert method_of(Renamed()) == "GraB"
    assert method_of(Stranger()) == "AP"
    with pytest.raises(
        ValueError, match=r"Changed has its own advance, so GraB's proof is not about it; pass 'AP'"
    ):
        method_of(Changed())
    with pytest.raises(ValueError, match=r"Opened has its own open, so Herding's proof is not about it"):
        method_of(Opened())
    assert method_of(Thorough()) == "Herding"
    run = wellorder.sgd(quadratics(8), Changed(), step_size=1e-5, epochs=2)
    assert check_assumption(run, "AP").promised


def test_odd_pairs_fall_back_to_any_order():
    assert constants(wellorder.PairGraB(), 11).method == "AP"
    assert constants(wellorder.PairGraBProto(), 12, cohort=3).method == "FL-AP"
    assert constants(wellorder.GraB(), 11).method == "GraB"


def test_rows_of_more_epochs_than_can_be_listed_are_refused():
    assert len(constants("Herding", 10, age=10**6).A) == 10**6
    with pytest.raises(ValueError, match=r"age=100000000000: .*pass at most 1000000"):
        constants("Herding", 10, age=10**11)
