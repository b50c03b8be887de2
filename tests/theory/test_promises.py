"""What is promised holds: thousands of random runs, and every (policy, method) pair with its reason."""

import math
from collections import Counter

import numpy as np
import pytest

import wellorder
from wellorder import (
    Arbitrary,
    CDGraB,
    Deterministic,
    FlipFlop,
    GraB,
    GraBProto,
    Greedy,
    Herding,
    IncrementalGradient,
    NicePermutation,
    PairGraB,
    PairGraBProto,
    RandomReshuffling,
    ShuffleOnce,
    Walk,
)
from wellorder.federated import fedavg
from wellorder.policies._registry import REGISTRY
from wellorder.problems import Quadratics, logistic, quadratics
from wellorder.theory import (
    METHODS,
    check_assumption,
    check_bound,
    check_drift,
    constants,
    estimate,
    max_step_size,
    method_of,
)

DELTA = 1e-4


def some_problem(draw):
    n, dim = int(draw.integers(1, 13)) * (2 if draw.random() < 0.7 else 1), int(draw.integers(1, 5))
    if draw.random() < 0.03:  # so many that a sorted order is worse than what RR is promised
        return Quadratics(np.full((4096, 1), 0.5), np.repeat([1.0, -1.0], 2048)[:, None])
    kind = draw.integers(6)
    if kind == 0:  # separable or not, with and without a penalty
        return logistic(
            draw.standard_normal((n, dim)), draw.integers(0, 2, n), l2=float(draw.choice([0, 0.1]))
        )
    if kind == 1:  # all units alike, so that ς = 0 and only rounding is left
        return Quadratics(np.full((n, dim), 0.3), np.full((n, dim), 0.1))
    if kind == 2:  # two camps, and one unit that is far from all
        b = np.repeat([[1.0], [-1.0]], [(n + 1) // 2, n // 2], axis=0) * np.ones(dim)
        b[0] *= 50
        return Quadratics(np.full((n, dim), 0.5), b)
    if kind == 3:  # no minimum
        return Quadratics(np.full((n, dim), -0.5), draw.standard_normal((n, dim)))
    return quadratics(n, dim, seed=int(draw.integers(1000)), spread=float(draw.choice([0.0, 0.3, 1.0])))


def some_policy(draw, problem, cohort):
    longest = np.linalg.norm(problem.gradients(np.arange(problem.n), np.ones(problem.dim)), axis=1).max()
    c = 40 * math.log(problem.dim * max(problem.n, 2) / DELTA) * (4 * longest) ** 2
    rule = Walk(max(1e-3, c) * 10 ** draw.uniform(-1.5, 2)) if draw.random() < 0.8 else Deterministic()
    sorted_order = np.argsort(problem.gradients(np.arange(problem.n), np.ones(problem.dim))[:, 0])
    if problem.n == 4096 and draw.random() < 0.5:
        return IncrementalGradient()
    passes = int(draw.integers(1, 9))
    return draw.choice(
        [
            RandomReshuffling(), ShuffleOnce(), IncrementalGradient(), FlipFlop(), Greedy(),
            Arbitrary(lambda _: sorted_order),
            Arbitrary(lambda epoch: sorted_order[:: 1 if epoch % 2 else -1]),
            NicePermutation(passes, rule), GraBProto(rule), PairGraBProto(rule), GraB(rule), PairGraB(rule),
            GraB(rule, reorders=2), Herding(passes, rule), CDGraB(cohort, rule),
        ]
    )  # fmt: skip


def some_shape(draw, n):
    if draw.random() < 0.5:
        return {}
    cohorts = [s for s in range(1, n + 1) if n % s == 0] if draw.random() < 0.9 else range(1, n + 1)
    return dict(
        cohort=int(draw.choice(cohorts)),
        local_steps=int(draw.integers(1, 5)),
        server_step=float(draw.choice([0.5, 1.0, 2.0])),
    )


def some_run(draw):
    problem = some_problem(draw)
    shape = some_shape(draw, problem.n)
    policy = some_policy(draw, problem, shape.get("cohort", 1))
    start = draw.standard_normal(problem.dim) * 10.0 ** draw.choice([0, 0, 0, 2, 8, -9])
    if problem.minimiser is not None and draw.random() < 0.2:
        start = problem.minimiser
    settings = dict(
        step_size=some_step_size(draw, problem, policy, shape),
        epochs=int(draw.choice([300, *range(1, 7)], p=[0.04] + [0.16] * 6)),
        seed=int(draw.integers(99)), start=start, p=float(draw.choice([2, 2, math.inf, 3])),
    )  # fmt: skip
    if shape:
        return fedavg(problem, policy, **shape, **settings)
    return wellorder.sgd(problem, policy, proximal=float(draw.choice([0, 0, 0, 0.5])), **settings)


def some_step_size(draw, problem, policy, shape):
    """Around what the policy's own row admits, or Theorem 2, so that promises are made and refused."""
    cohort, clients = shape.get("cohort", 1), any(value != 1 for value in shape.values())
    name = method_of(policy, federated=clients, n=problem.n, cohort=cohort)
    if problem.n % cohort or draw.random() < 0.5:
        name = "FL-AP" if clients else "AP"
    rounds = {**shape, "cohort": cohort if problem.n % cohort == 0 else 1} if clients else {}
    most = max_step_size(name, problem.n, delta=DELTA, **estimate(problem).known, **rounds)
    return most * 10 ** draw.uniform(-2, 1)


def some_method(draw, run):
    """The policy's own row, any other, or constants that claim less, or more, than the run shows."""
    kind, clients = draw.integers(4), not run.cohort == run.local_steps == run.server_step == 1
    if kind < 2:
        return None
    near = ["RR", "SO", "GraB-proto"] if run.problem.n == 4096 and not clients else METHODS
    name = str(draw.choice([m for m in near if METHODS[m].federated == clients]))
    if kind == 2:
        return name
    known = {**estimate(run.problem, run.x[:-1]).known, "sigma": float(10 ** draw.uniform(-2, 4))}
    shape = dict(cohort=run.cohort, local_steps=run.local_steps, server_step=run.server_step)
    shape["c"] = getattr(getattr(run.policy, "rule", None), "c", None)
    more = dict(theta=float(10 ** draw.uniform(-2, 4)), passes=getattr(run.policy, "passes", 3), **shape)
    return constants(name, run.problem.n, **known, **more)


def checks_of(draw, run):
    method = None
    for check in (check_assumption, check_bound):
        try:
            method = some_method(draw, run)
            yield check(run, method, delta=DELTA), method
        except ValueError as refused:
            yield str(refused), method
    try:
        yield check_drift(run), None
    except ValueError as refused:
        yield str(refused), None


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def promises(seeds):
    """Check random runs; count what was promised, by statement and row."""
    count = Counter()
    for seed in seeds:
        draw = np.random.default_rng(seed)
        try:
            run = some_run(draw)
        except ValueError as refused:
            if "NaN or infinite" not in str(refused):
                raise
            count["refused", "diverged"] += 1
            continue
        for check, method in checks_of(draw, run):
            if isinstance(check, str):
                count["refused", check.split("=")[0]] += 1
                continue
            count["promised" if check.promised else "not promised", check.what] += 1
            if check.promised:
                assert check.holds.all(), (seed, run.policy, check.what, method, check.left, check.right)
    return count


@pytest.mark.slow
def test_whatever_is_promised_holds():
    count = promises(range(2500))
    promised = {what for (kind, what) in count if kind == "promised"}
    rows = {what.removeprefix("order error of ").split(",")[0] for what in promised}
    covered = {row for entry in REGISTRY for row in (entry.paper, entry.clients) if row}
    assert covered | {"OP", "FL-OP"} <= rows  # none is promised nothing
    assert not any("expected" in row for row in rows)
    assert sum(n for (kind, _), n in count.items() if kind == "promised") > 2000


def test_whatever_is_promised_holds_in_a_few_runs():
    count = promises(range(10_000, 10_150))
    assert sum(n for (kind, _), n in count.items() if kind == "promised") > 100


# p: promised. c: another policy's row, a comparison. m: about the mean over runs. r: the rule has no proof.
EXAMPLES = """
                          AP RR RR-expected OP IG SO NP GraB-proto PairGraB-proto GraB PairGraB Herding
RandomReshuffling()       p  p  m           c  c  c  c  c          c              c    c        c
ShuffleOnce()             p  c  m           p  c  p  c  c          c              c    c        c
IncrementalGradient()     p  c  m           p  p  c  c  c          c              c    c        c
Arbitrary([S]*3)          p  c  m           p  c  c  c  c          c              c    c        c
FlipFlop()                p  c  m           c  c  c  c  c          c              c    c        c
Greedy()                  p  c  m           c  c  c  c  c          c              c    c        c
Steering()                p  c  m           c  c  c  c  c          c              c    c        c
BalancedCohorts()         p  c  m           c  c  c  c  c          c              c    c        c
GraB(W,reorders=2)        p  c  m           c  c  c  c  c          c              c    c        c
NicePermutation()         p  c  m           p  c  c  p  c          c              c    c        c
NicePermutation(rule=W)   p  c  m           p  c  c  p  c          c              c    c        c
GraBProto()               p  c  m           c  c  c  c  r          c              c    c        c
GraBProto(W)              p  c  m           c  c  c  c  p          c              c    c        c
PairGraBProto()           p  c  m           c  c  c  c  c          r              c    c        c
PairGraBProto(W)          p  c  m           c  c  c  c  c          p              c    c        c
GraB()                    p  c  m           c  c  c  c  c          c              r    c        c
GraB(W)                   p  c  m           c  c  c  c  c          c              p    c        c
PairGraB()                p  c  m           c  c  c  c  c          c              c    r        c
PairGraB(W)               p  c  m           c  c  c  c  c          c              c    p        c
CDGraB(1,W)               p  c  m           c  c  c  c  c          c              c    p        c
CDGraB(4,W)               p  c  m           c  c  c  c  c          c              c    c        c
Herding()                 p  c  m           c  c  c  c  c          c              c    c        r
Herding(rule=W)           p  c  m           c  c  c  c  c          c              c    c        p
"""
CLIENTS = """
                      FL-AP FL-RR FL-RR-expected FL-OP FL-IG FL-SO FL-NP FL-GraB-proto FL-GraB FL-Herding CD-GraB
RandomReshuffling()   p     p     m              c     c     c     c     c             c       c          c
ShuffleOnce()         p     c     m              p     c     p     c     c             c       c          c
IncrementalGradient() p     c     m              p     p     c     c     c             c       c          c
Arbitrary([S]*3)      p     c     m              p     c     c     c     c             c       c          c
FlipFlop()            p     c     m              c     c     c     c     c             c       c          c
Greedy()              p     c     m              c     c     c     c     c             c       c          c
Steering()            p     c     m              c     c     c     c     c             c       c          c
BalancedCohorts(4)    p     c     m              c     c     c     c     c             c       c          c
GraB(W,reorders=2)    p     c     m              c     c     c     c     c             c       c          c
NicePermutation()     p     c     m              p     c     c     p     c             c       c          c
GraBProto(W)          p     c     m              c     c     c     c     c             c       c          c
PairGraBProto()       p     c     m              c     c     c     c     r             c       c          c
PairGraBProto(W)      p     c     m              c     c     c     c     p             c       c          c
GraB(W)               p     c     m              c     c     c     c     c             c       c          c
PairGraB()            p     c     m              c     c     c     c     c             r       c          c
PairGraB(W)           p     c     m              c     c     c     c     c             p       c          c
CDGraB(4)             p     c     m              c     c     c     c     c             c       c          r
CDGraB(4,W)           p     c     m              c     c     c     c     c             c       c          p
CDGraB(2,W)           p     c     m              c     c     c     c     c             c       c          c
Herding()             p     c     m              c     c     c     c     c             c       r          c
Herding(rule=W)       p     c     m              c     c     c     c     c             c       p          c
"""  # noqa: E501
WHY = {
    "c": "is not the row of {}, which is {}: a comparison",
    "m": "{} is about the mean over runs",
    "r": "rule=Deterministic() has no proof",
}
N, ROUNDS = 16, dict(cohort=4, local_steps=2, server_step=1.5)


def pairs(table):
    head, *lines = table.strip("\n").splitlines()
    for line in lines:
        policy, *marks = line.split()
        yield from ((policy, method, mark) for method, mark in zip(head.split(), marks, strict=True))


def named(text):
    known = {**vars(wellorder), "W": Walk(1e5), "S": list(range(N))[::-1]}
    return eval(text, known)


@pytest.mark.parametrize(("table", "shape"), [(EXAMPLES, {}), (CLIENTS, ROUNDS)], ids=["examples", "clients"])
def test_every_policy_and_method_says_whether_it_is_promised_and_why_not(table, shape):
    assert {method for _, method, _ in pairs(table)} == {
        m for m in METHODS if METHODS[m].federated == bool(shape)
    }
    problem = quadratics(N, 2, spread=0.0)
    runs = {}
    for text, method, mark in pairs(table):
        if text not in runs:
            train = fedavg if shape else wellorder.sgd
            runs[text] = train(problem, named(text), step_size=1e-6, epochs=3, p=math.inf, **shape)
        run = runs[text]
        for check in (check_assumption(run, method), check_bound(run, method)):
            covering = method_of(run.policy, federated=bool(shape), n=N, cohort=run.cohort)
            assert check.promised == (mark == "p"), (text, method, check.reasons)
            if mark != "p":
                (reason,) = check.reasons
                said = WHY[mark].format(*((repr(run.policy), covering) if mark == "c" else (method,)))
                assert said in reason, (text, method)
            if mark in "pm":
                assert check.holds.all(), (text, method)


if __name__ == "__main__":
    for key, number in sorted(promises(range(2500)).items()):
        print(number, *key)
