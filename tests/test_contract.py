"""One list of policies, one list of promises: every policy keeps every promise."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import wellorder
from wellorder import (
    Arbitrary,
    BalancedCohorts,
    CDGraB,
    FlipFlop,
    GraB,
    GraBProto,
    Greedy,
    Herding,
    IncrementalGradient,
    Needs,
    NicePermutation,
    PairGraB,
    PairGraBProto,
    RandomCohorts,
    RandomReshuffling,
    ShuffleOnce,
    Steering,
    Walk,
    WithReplacement,
    check_policy,
)
from wellorder._checks import PROMISES, ContractError, Trial
from wellorder._order import describe, frozen, permutes, shuffled, visit


def rolled(epoch):
    return np.roll(np.arange(9), 2 * epoch)


POLICIES = [
    RandomReshuffling(),
    ShuffleOnce(),
    IncrementalGradient(),
    NicePermutation(),
    NicePermutation(passes=3, rule=Walk(30.0)),
    FlipFlop(),
    WithReplacement(),
    RandomCohorts(4),
    Arbitrary(rolled),
    Arbitrary([rolled(epoch) for epoch in range(6)]),
    Greedy(),
    GraBProto(),
    GraBProto(Walk(200.0)),
    PairGraBProto(),
    PairGraBProto(Walk(200.0)),
    GraB(),
    GraB(Walk(200.0)),
    GraB(reorders=3),
    PairGraB(),
    PairGraB(Walk(5.0)),
    CDGraB(1),
    CDGraB(3),
    CDGraB(2, Walk(5.0)),
    Herding(),
    Herding(passes=3, rule=Walk(200.0)),
    Steering(),
    BalancedCohorts(4),
    BalancedCohorts(3, newest=1.0),
    Steering(window=4, candidates=2),
]

SHOWN = {
    "rows": lambda rows: rows,
    "float32 rows": lambda rows: rows.astype(np.float32),
}
try:
    import torch
except ModuleNotFoundError:  # the contract holds without torch too, and CI looks
    pass
else:
    SHOWN |= {
        "a torch tensor": torch.from_numpy,
        "a float32 tensor that requires grad": lambda rows: torch.from_numpy(rows).float().requires_grad_(),
    }


def trial(policy, convert=SHOWN["rows"]):
    sizes = (9,) if isinstance(policy, Arbitrary) else Trial.sizes
    return Trial(policy, permutes(policy), convert, sizes)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("policy", POLICIES, ids=describe)
def test_every_policy_keeps_every_promise(policy, promise):
    promise(trial(policy))


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("policy", [p for p in POLICIES if p.needs is not Needs.NOTHING], ids=describe)
def test_numpy_and_torch_and_float32_signals_keep_them_too(policy, shown):
    if "grad" in shown:  # np.array(tensor that requires grad) raises, so look at the orders alone
        expected = trial(policy, SHOWN["float32 rows"]).orders(13, seed=3)
        assert trial(policy, SHOWN[shown]).orders(13, seed=3) == expected
        return
    check_policy(policy, convert=SHOWN[shown])
    if "torch" in shown:
        assert trial(policy, SHOWN[shown]).orders(13, seed=3) == trial(policy).orders(13, seed=3)


def test_the_documentation_lists_the_promises_as_they_are_checked():
    page = Path(__file__).resolve().parent.parent / "docs" / "write-your-own-policy.md"
    told = [" ".join(promise.__doc__.split("\n\n")[0].split()).replace("``", "`") for promise in PROMISES]
    assert "".join(f"{i}. {promise}\n" for i, promise in enumerate(told, 1)) in page.read_text()


def test_every_exported_policy_is_in_the_list():
    exported = {
        name for name in wellorder.__all__ if hasattr(getattr(wellorder, name), "needs") and name != "Policy"
    }
    assert exported == {type(policy).__name__ for policy in POLICIES}


@dataclass(frozen=True)
class SloppyState:
    seed: int
    epoch: int
    order: Any
    seen: int = 0
    first: Any = field(default_factory=lambda: np.zeros((0, 0)))
    marks: Any = field(default_factory=lambda: np.zeros(0, np.int8))


@dataclass(frozen=True)
class Sloppy:
    """A policy with one fault of the caller's choice."""

    fault: str
    needs: ClassVar[Needs] = Needs.SIGNALS

    def init(self, n, *, seed=0):
        if self.fault == "accepts anything":
            n, seed = max(int(n), 1), max(int(seed), 0)
        return SloppyState(seed, 0, shuffled(n, seed, 0), marks=np.zeros(n, np.int8))

    def observe(self, state, units, signals):
        if self.fault == "marks before it looks":
            state.marks[visit(state.order, state.seen, units)] = 1
        try:
            steps, rows = visit(state.order, state.seen, units), self.checked(units, signals)
        except ValueError:
            if self.fault == "mumbles":
                raise ValueError("something somewhere went wrong") from None
            raise
        if self.fault == "writes to signals":
            rows -= 1.0
        first = rows if self.fault == "keeps a view" else rows.copy()
        first = state.first if state.seen else first
        return replace(state, seen=int(steps[-1]) + 1, first=first)

    def checked(self, units, signals):
        rows = np.asarray(signals)
        if self.fault != "swallows NaN" and (rows.ndim != 2 or not np.isfinite(rows).all()):
            raise ValueError(f"signals={rows}: pass finite rows")
        if self.fault != "swallows NaN" and rows.shape != (len(units), 3):
            raise ValueError(f"signals={rows}: one row of three numbers per unit")
        return rows

    def advance(self, state):
        seed, epoch, n = state.seed, state.epoch + 1, len(state.order)
        order = shuffled(n, seed, epoch)
        if self.fault == "seed + epoch":
            order = shuffled(n, seed + epoch, 0)
        if self.fault == "loses a unit" and n > 2:
            order = frozen(np.append(order[:-1], order[0]))
        if self.fault == "keeps a view" and np.isnan(state.first).any():
            order = frozen(order[::-1].copy())
        if self.fault == "global randomness":
            order = frozen(np.random.permutation(n).astype(np.int32))
        if self.fault == "forgets the epoch":
            epoch = 0
        if self.fault == "marks before it looks":
            order = frozen(order[np.argsort(-state.marks, kind="stable")])
        return SloppyState(seed, epoch, order, marks=np.zeros(n, np.int8))


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("accepts anything", "No units, or a negative seed"),
        ("swallows NaN", "NaN, infinity, wrong shapes"),
        ("writes to signals", "writes neither"),
        ("keeps a view", "does with its buffers"),
        ("seed + epoch", "Seed s\\+1 is not seed s"),
        ("loses a unit", "each unit exactly once"),
        ("global randomness", "The same seed gives the same orders"),
        ("forgets the epoch", "A state is frozen, and tells"),
        ("marks before it looks", "NaN, infinity, wrong shapes"),
        ("mumbles", "was refused without naming"),
    ],
)
def test_check_policy_names_the_promise_that_a_policy_broke(fault, promise):
    with pytest.raises(ContractError, match=promise):
        check_policy(Sloppy(fault))


def test_check_policy_accepts_a_policy_of_somebody_else():
    check_policy(Sloppy("none"))


@dataclass(frozen=True)
class Forgetful(Steering):
    """It remembers, and forgets it when an order is made ahead, or what it was given."""

    fault: str = "spends the old state"

    def init(self, n, *, seed=0, **rows):
        if rows and self.fault == "takes no rows":
            raise TypeError("init() got an unexpected keyword argument 'rows'")
        return super().init(n, seed=seed, **rows)

    def advance(self, state):
        after = super().advance(state)
        if self.fault == "spends the old state":
            state.known[:] = 0
        return after


@pytest.mark.parametrize("fault", ["spends the old state", "takes no rows"])
def test_check_policy_names_what_a_policy_that_remembers_forgets(fault):
    with pytest.raises(ContractError, match=r"leaves the old state valid, and ``init`` takes ``rows=``"):
        check_policy(Forgetful(fault=fault))
