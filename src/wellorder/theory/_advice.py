"""Which order to take: the guarantees of all policies side by side, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Unpack

from wellorder._arguments import flag, one_of, real_number
from wellorder.theory._bounds import Bound, bound, tuned_step_size
from wellorder.theory._constants import Constants, constants
from wellorder.theory._setting import Keywords, Known, Setting, check_epochs
from wellorder.theory._tables import rate

# Cheapest first: equal guarantees go to the policy that costs least.
CANDIDATES = {
    "RR": "RandomReshuffling",
    "SO": "ShuffleOnce",
    "PairGraB": "PairGraB",
    "GraB": "GraB",
    "Herding": "Herding",
    "NP": "NicePermutation",
    "AP": "Arbitrary",
}
CLIENTS = {
    "FL-RR": "RandomReshuffling",
    "FL-SO": "ShuffleOnce",
    "FL-GraB": "PairGraB",
    "FL-Herding": "Herding",
    "FL-NP": "NicePermutation",
    "FL-AP": "Arbitrary",
}
ONE = {"SO", "NP", "FL-SO", "FL-NP"}


@dataclass(frozen=True)
class Choice:
    """A policy with its guarantee."""

    method: str
    policy: str
    step_size: float
    bound: float
    """Upper bound of min_q ‖∇f(x_q)‖²: the method's own, or AP's where that is smaller."""
    probability: float
    proof: str
    """The row of the table whose bound this is."""
    rate: float
    """The rate of Table 1 or 2, which leaves out constants and logarithms."""


@dataclass(frozen=True)
class Advice:
    """A recommendation, the numbers behind it, and what it rests on."""

    best: Choice
    ranking: tuple[Choice, ...]
    margin: float
    """How many times larger the next policy's bound (or rate) is; inf if there is no other."""
    nice_while: float
    """θ up to which a nice permutation (NP) would have the smallest bound; 0 if never."""
    left_out: tuple[str, ...]
    assumes: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def advise(
    n: int,
    dim: int,
    epochs: int,
    *,
    clients: bool | None = None,
    theta: float | None = None,
    by: Literal["bound", "rate"] = "bound",
    **setting: Unpack[Known],
) -> Advice:
    """Say which policy has the smallest guarantee, with which step size, by what margin, and why.

    Every order is an arbitrary order, so a policy counts with AP's bound where its own is larger, or holds
    with probability 0 (δ of 1/Q or more).
    The prototypes, which take n extra gradients an epoch, are left aside.

    Parameters
    ----------
    n, dim, epochs
        N, d, Q.
    clients
        Whether the units are clients (Theorem 2) or examples (Theorem 1). Unless given, they are clients
        if ``cohort``, ``local_steps`` or ``server_step`` is other than 1.
    theta
        θ, how far the parameters will move from x_0. Unless given, one-permutation policies are not
        ranked, and ``nice_while`` says up to which θ a nice permutation would be best.
    by
        "bound": Theorems 1 and 2 with all their constants; "rate": Tables 1 and 2, for large N and Q.
    **setting
        As for `constants`; δ is 0.01/Q unless given.

    >>> print(advise(10_000, 20, 100).text.splitlines()[0])
    RandomReshuffling has the smallest bound: min ‖∇f(x_q)‖² ≤ 0.96 with step size 3.13e-06.
    >>> [choice.method for choice in advise(10**6, 1, 10**9, sigma=10.0).ranking]
    ['Herding', 'GraB', 'PairGraB', 'RR', 'AP']
    """
    check_epochs(epochs)
    one_of("by", by, ("bound", "rate"))
    if clients is not None:
        flag("clients", clients)
    moved = 0.0 if theta is None else real_number("theta", theta, least=0)
    given: Keywords = {"delta": 0.01 / epochs, **setting, "dim": dim, "theta": moved}
    s = Setting(n, **given)
    if clients is None:
        clients = not s.cohort == s.local_steps == s.server_step == 1
    names = CLIENTS if clients else CANDIDATES
    arbitrary = _tuned("FL-AP" if clients else "AP", epochs, n, given)
    choices, left_out = [], []
    for method, policy in names.items():
        if method in ONE and theta is None:
            left_out.append(f"{policy}: no θ was given, and its guarantee rests on one")
            continue
        try:
            own = _tuned(method, epochs, n, given)
            choices.append(_choice(own, policy, epochs, n, given, arbitrary))
            if own.probability == 0:
                left_out.append(_void(policy, constants(method, n, **given), epochs))
        except ValueError as reason:
            left_out.append(f"{policy}: {reason}")
    ranking = tuple(sorted(choices, key=lambda c: c.bound if by == "bound" else c.rate))
    best = ranking[0]
    margin = _size(ranking[1], by) / _size(best, by) if len(ranking) > 1 else math.inf
    nice = _nice_while("FL-NP" if clients else "NP", epochs, n, given, best.bound)
    assumes = _assumptions(s, clients)
    text = _words(ranking, by, margin, nice, theta, left_out, assumes)
    return Advice(best, ranking, margin, nice, tuple(left_out), assumes, text)


def _size(choice: Choice, by: str) -> float:
    return choice.bound if by == "bound" else choice.rate


def _tuned(method: str, epochs: int, n: int, setting: Keywords) -> Bound:
    known = constants(method, n, **setting)
    return bound(known, tuned_step_size(known, epochs), epochs)


def _choice(own: Bound, policy: str, epochs: int, n: int, setting: Keywords, arbitrary: Bound) -> Choice:
    best = own if own.probability > 0 and own.total < arbitrary.total else arbitrary
    speed = rate(own.method, epochs, n, **setting).total
    return Choice(own.method, policy, best.step_size, best.total, best.probability, best.method, speed)


def _void(policy: str, known: Constants, epochs: int) -> str:
    """Why a bound that holds with probability 0 does not count."""
    once, each = known.chances
    uses = f"{once} passes" if once else f"{epochs} epochs" + (f" of {each} uses each" if each > 1 else "")
    count = once + each * epochs
    return (
        f"{policy}'s own bound, which δ={known.setting.delta:g} leaves no probability over {uses}; "
        f"pass a delta below 1/{count} = {1 / count:.3g}"
    )


def _nice_while(method: str, epochs: int, n: int, setting: Keywords, target: float) -> float:
    """The largest θ for which NP's bound stays below ``target``, by bisection; the bound grows with θ."""

    def better(theta: float) -> bool:
        nice = _tuned(method, epochs, n, {**setting, "theta": theta})
        return nice.probability > 0 and nice.total < target

    if not better(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while better(high) and high < 1e12:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if better(middle) else (low, middle)
    return low


def _assumptions(s: Setting, clients: bool) -> tuple[str, ...]:
    guessed = s.smoothness_2inf is None or s.smoothness_inf is None
    facts = [
        f"smoothness L={s.smoothness:g}, L_2∞={s.two_to(math.inf):g}, L_∞={s.to_itself(math.inf):g}"
        + (" (where not given, √d·L, which always suffices)" if guessed and s.dim > 1 else ""),
        f"gradients of single units within ς={s.sigma:g} of their mean, and F₀={s.gap:g}",
        f"each epoch may fail with probability δ={s.delta:.3g}",
        "balancing policies sign by the walk, rule=Walk(…); their default rule has no proof",
    ]
    if clients:
        facts.append(
            f"every client takes part once an epoch, S={s.cohort} a round, and S divides N={s.n}; "
            "FL-GraB needs S even"
        )
    return tuple(facts)


def _words(
    ranking: tuple[Choice, ...],
    by: str,
    margin: float,
    nice: float,
    theta: float | None,
    left_out: list[str],
    assumes: tuple[str, ...],
) -> str:
    best = ranking[0]
    least = f"rate, {best.rate:.3g}" if by == "rate" else by
    lines = [
        f"{best.policy} has the smallest {least}: min ‖∇f(x_q)‖² ≤ {best.bound:.3g} "
        f"with step size {best.step_size:.3g}."
    ]
    if len(ranking) > 1:
        second = ranking[1].policy + (
            "" if ranking[1].proof == ranking[1].method else ", as an arbitrary order"
        )
        close = "less than 1 % behind: the theory hardly tells them apart"
        far = close if margin < 1.01 else f"{margin:.3g} times larger"
        lines.append(f"Next is {second}, {far}.")
    other = min(ranking, key=lambda c: c.rate if by == "bound" else c.bound)
    if other.policy != best.policy:
        name = "table's rates, without constants," if by == "bound" else "bounds with all constants"
        lines.append(f"The {name} would favour {other.policy}.")
    if theta is None and nice > 0:
        lines.append(f"NicePermutation would be better while the parameters stay within θ={nice:.3g} of x₀.")
    lines += [
        f"It holds with probability {best.probability:.3g}.",
        "Bounds are worst cases: measure with `wellorder compare`.",
        "It assumes: " + "; ".join(assumes) + ".",
        *(f"Left out: {reason}." for reason in left_out),
    ]
    return "\n".join(lines)
