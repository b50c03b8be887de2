"""The order-error assumption: what it holds with, method by method, and for methods of your own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Unpack, cast

from wellorder._arguments import flag, norm_order, numbers, real_number, shown
from wellorder._kernels.sign_rules import Walk
from wellorder._order import permutes
from wellorder.policies._registry import Entry, entry_of
from wellorder.theory._setting import Keywords, Setting, check_count, check_epochs

INF = math.inf
Factors = tuple[float, ...]
Formula = Callable[[Setting], float]


@dataclass(frozen=True)
class Method:
    """A row: what Assumption 1 holds with, and how small the step size must be."""

    name: str
    label: str
    """The LaTeX label of the example that proves it; a heading of ``docs/theory.md`` where we do."""
    relation: str
    """How an epoch's order relates to the others (Table 1)."""
    p: float
    D: Callable[[Setting, float], float]
    """D, from the setting and the longest deviation that the walk is good for."""
    recursion: Callable[[Setting], tuple[Factors, Factors]] = lambda _: ((), ())
    """A_1, A_2, … and B_0/N², B_1/N², …"""
    c1: float = 3
    c2: float = 6
    steps: Formula = lambda _: 32
    """The step size is at most 1/(steps·L_{2,p}·(N + beside)) and 1/(steps·L_p·N)."""
    beside: Formula = lambda _: 0.0
    amplified: bool = False
    """Whether 1 + η stands beside L_∞, since the relation between epochs spans the amplified step."""
    once: Formula = lambda _: 0
    """How often a run relies on chance however long it is, with probability δ of failing each time."""
    each: Formula = lambda _: 0
    """How often an epoch does."""
    federated: bool = False
    """Whether this is a row of Theorem 2 (clients) rather than of Theorem 1 (examples)."""
    pairs: bool = False
    coordinated: bool = False
    """Whether a pair is of one worker's consecutive rounds, rather than of neighbours in a round."""
    walks: bool = False
    """Whether the proof is about the `Walk`."""
    stale: bool = False
    """Whether signals come from along the way: of clients, sums over their K local steps."""
    expected: bool = False
    """Whether it holds for the mean over runs, not for each of them."""

    @property
    def one(self) -> bool:
        """Whether one permutation serves all epochs."""
        return self.relation == "identical"

    def length(self, s: Setting) -> float:
        """The longest deviation ‖∇f_u − ∇f‖₂ that a walk with this c is proved for; ς without one.

        A walk with c = C is proved for vectors of length 1, so one with c for those of length √(c/C); the
        vectors are differences of two for pairs, and sums of K for clients.
        """
        if s.c is None or not self.walks:
            return s.sigma
        times = (2 if self.pairs else 1) * (s.local_steps if self.stale else 1)
        return math.sqrt(s.c / s.walk(pairs=self.pairs)) / times

    def least_c(self, s: Setting, deviation: float) -> float:
        """The smallest c that is proved for deviations as long as this."""
        times = (2 if self.pairs else 1) * (s.local_steps if self.stale else 1)
        return s.walk(pairs=self.pairs) * (times * deviation) ** 2


def _fixed(A: Factors, B: Factors) -> Callable[[Setting], tuple[Factors, Factors]]:  # noqa: N803
    return lambda _: (A, B)


def _always(value: float) -> Formula:
    return lambda _: value


def _arbitrary(s: Setting, _: float) -> float:
    return (s.n * s.sigma) ** 2


def _shuffled(s: Setting, _: float) -> float:
    return 4 * s.n * (s.sigma * math.log(8 / s.delta)) ** 2


def _expected(s: Setting, _: float) -> float:
    """E φ̄² of a random order, by Doob's inequality (docs/theory.md, "In expectation")."""
    return 8 * s.n**2 / max(s.n - 1, 1) * s.sigma**2


def _nice(s: Setting, length: float) -> float:
    """φ̄_0² after balancing a worst order: a pass halves it and adds C·ς/2 (Lemma 3); √d leads to p = 2."""
    return s.dim * (s.walk(pairs=False) * length + math.ldexp(s.n, -s.passes) * s.sigma) ** 2


def _one(start: Callable[[Setting, float], float]) -> Callable[[Setting, float], float]:
    def formula(s: Setting, length: float) -> float:
        first = start(s, length) if s.first_error is None else s.first_error**2
        return 2 * first + 8 * (s.smoothness * s.n * s.theta) ** 2

    return formula


def _balanced(times: float, *, pairs: bool) -> Callable[[Setting, float], float]:
    return lambda s, length: times * (s.walk(pairs=pairs) * length) ** 2


def _balanced_rounds(part: float) -> Callable[[Setting, float], float]:
    return lambda s, length: (s.cohort * s.sigma) ** 2 * part + 6 * (s.walk(pairs=True) * length) ** 2


def _reach(*, pairs: bool) -> Formula:
    return lambda s: s.walk(pairs=pairs)


# Herding: docs/theory.md, "Herding", derives what follows. A fresh shuffle strays at most `_start` times the
# longest row, P passes leave 2^{-P} of that and add the walk's reach C, and rows that are ρ behind add to it.


def _start(s: Setting) -> float:
    return min(s.n / 2, 2 * math.sqrt(s.n) * math.log(8 / s.delta))


def _herded(s: Setting, start: float, length: float) -> float:
    """The herding error that P passes leave of rows that were ``start`` long and walk for ``length``."""
    left = math.ldexp(1.0, -s.passes)
    return left * _start(s) * start + (1 - left) * s.walk(pairs=False) * length


SPREAD = (5 / 62) ** 2
"""Beside the limits of the step size, an epoch's rows are at most 5/62 of φ̄ + N·‖∇f‖ (+ S·ς) behind."""


def _herding(*, federated: bool) -> Callable[[Setting, float], float]:
    def formula(s: Setting, length: float) -> float:
        if s.moved is None:
            local = 6 * SPREAD * (s.cohort * s.sigma) ** 2 if federated else 0.0
            return 2 * _herded(s, s.sigma, length) ** 2 + local
        longest = s.sigma + 2 * s.two_to(INF) * s.moved
        walked = longest if s.c is None else max(longest, length)
        return (_herded(s, longest, walked) + s.n / 2 * s.to_itself(INF) * s.moved) ** 2

    return formula


def _herding_recursion(times: float) -> Callable[[Setting], tuple[Factors, Factors]]:
    def recursion(s: Setting) -> tuple[Factors, Factors]:
        if s.moved is not None:
            return (0.0,), (0.0, 0.0)
        each = times * SPREAD / s.age
        return (each,) * s.age, (0.0, *(each,) * s.age)

    return recursion


def _herding_steps(s: Setting) -> float:
    return 32.0 if s.moved is not None else 32 * s.age * (1 + s.server_step)


def _herding_beside(s: Setting) -> float:
    return 0.0 if s.moved is not None else _herded(s, 1.0, 1.0)


def _herding_chances(s: Setting) -> int:
    return s.passes + (_start(s) < s.n / 2)


def _plain(federated: bool) -> list[Method]:
    labels = {
        "AP": ("ex:arbitrary permutation", "ex:FL-AP"),
        "RR": ("ex:random reshuffling", "ex:FL-RR"),
        "OP": ("ex:one permutation", "ex:FL-OP"),
    }

    def row(name: str, example: str, relation: str, D: Any, **more: Any) -> Method:  # noqa: N803
        prefix = "FL-" if federated else ""
        return Method(prefix + name, labels[example][federated], relation, 2, D, federated=federated, **more)

    def first(s: Setting) -> int:
        return int(s.first_error is None)

    return [
        row("AP", "AP", "arbitrary", _arbitrary),
        row("RR", "RR", "independent", _shuffled, each=_always(1)),
        row("RR-expected", "RR", "independent", _expected, expected=True),
        row("OP", "OP", "identical", _one(_arbitrary)),
        row("IG", "OP", "identical", _one(_arbitrary)),
        row("SO", "OP", "identical", _one(_shuffled), once=first),
        row("NP", "OP", "identical", _one(_nice), once=lambda s: s.passes * first(s), walks=True),
    ]


def _herding_row(federated: bool) -> Method:
    return Method(
        "FL-Herding" if federated else "Herding", "docs/theory.md#herding", "dependent", INF,
        _herding(federated=federated),
        _herding_recursion(6 if federated else 4), c2=7, steps=_herding_steps, beside=_herding_beside,
        each=_herding_chances, federated=federated, walks=True, stale=True,
    )  # fmt: skip


_BALANCED: dict[str, Any] = {"each": _always(1), "walks": True}
_ROUNDS: dict[str, Any] = {**_BALANCED, "pairs": True, "federated": True, "amplified": True}
ROWS = [
    *_plain(federated=False),
    Method(
        "GraB-proto", "ex:GraB-proto", "dependent", INF, _balanced(1, pairs=False),
        _fixed((3 / 4,), (0, 1 / 50)), c2=24, **_BALANCED,
    ),
    Method(
        "PairGraB-proto", "ex:PairGraB-proto", "dependent", INF, _balanced(4, pairs=True),
        _fixed((3 / 4,), (0, 1 / 50)), c2=24, pairs=True, **_BALANCED,
    ),
    Method(
        "GraB", "ex:GraB", "dependent", INF, _balanced(2, pairs=False),
        _fixed((3 / 5, 1 / 50), (0, 1 / 50, 1 / 50)), c2=16, steps=_always(128), beside=_reach(pairs=False),
        stale=True, **_BALANCED,
    ),
    Method(
        "PairGraB", "ex:PairGraB", "dependent", INF, _balanced(4, pairs=True),
        _fixed((4 / 5,), (0, 3 / 50)), c2=30, steps=_always(64), beside=_reach(pairs=True), pairs=True,
        stale=True, **_BALANCED,
    ),
    _herding_row(federated=False),
    *_plain(federated=True),
    Method(
        "FL-GraB-proto", "ex:FL-GraB-proto", "dependent", INF, _balanced_rounds(1 / 40),
        _fixed((3 / 4,), (0, 1 / 40)), c2=24, **_ROUNDS,
    ),
    Method(
        "FL-GraB", "ex:FL-GraB", "dependent", INF, _balanced_rounds(1 / 96),
        _fixed((3 / 5,), (0, 1 / 96)), c2=15, steps=_always(128), beside=_reach(pairs=True), stale=True,
        **_ROUNDS,
    ),
    Method(
        "CD-GraB", "docs/theory.md#cd-grab", "dependent", INF, _balanced_rounds(1 / 96),
        _fixed((3 / 5,), (0, 1 / 96)), c2=15, steps=_always(128), beside=_reach(pairs=True), stale=True,
        coordinated=True, **_ROUNDS,
    ),
    _herding_row(federated=True),
]  # fmt: skip

METHODS = {row.name: row for row in ROWS}
"""Every row, by its name."""


def method_of(
    policy: Any, *, federated: bool = False, n: int | None = None, cohort: int | None = None
) -> str:
    """Name the row that covers a policy: its own where there is one, else AP, which covers every order.

    Pairs that do not come out even (an odd number of units, of clients a round, or of a worker's rounds) have
    no row of their own either, nor have workers who are not one to a place of a round: S = workers, of SGD 1.
    Of a subclass nothing is known that it has changed itself, so it is refused.

    >>> from wellorder import CDGraB, FlipFlop, PairGraB
    >>> method_of(PairGraB()), method_of(PairGraB(), federated=True), method_of(FlipFlop())
    ('PairGraB', 'FL-GraB', 'AP')
    >>> method_of(PairGraB(), n=11), method_of(PairGraB(), federated=True, n=12, cohort=3)
    ('AP', 'FL-AP')
    >>> method_of(CDGraB(3), federated=True, n=12, cohort=3), method_of(CDGraB(3)), method_of(CDGraB(1))
    ('CD-GraB', 'AP', 'PairGraB')
    """
    if isinstance(policy, type) or not hasattr(policy, "advance"):
        raise ValueError(f"policy={shown(policy)}: pass a policy, such as GraB(), or the name of a method")
    flag("federated", federated)
    for name, count in (("n", n), ("cohort", cohort)):
        if count is not None:
            check_count(name, count)
    if not permutes(policy):
        raise ValueError(
            f"policy={policy!r}: its orders are no permutations, which nothing here covers; "
            "use RandomReshuffling"
        )
    entry = entry_of(policy) or _inherited(policy)
    arbitrary = "FL-AP" if federated else "AP"
    name = (entry.clients if federated else entry.paper) if entry else ""
    if not name or getattr(policy, "reorders", 1) != 1:
        return arbitrary
    row, places = METHODS[name], cohort if federated else 1
    if places is not None and getattr(policy, "workers", places) != places:
        return arbitrary
    return name if _paired_up(row, n, places) else arbitrary


def _paired_up(row: Method, n: int | None, cohort: int | None) -> bool:
    """Whether a row's pairs come out even, as far as N and S are known."""
    if not row.pairs or (row.federated and cohort is None):
        return True
    if row.federated and not row.coordinated:
        return cast(int, cohort) % 2 == 0
    return n is None or n // cast(int, cohort) % 2 == 0


def _inherited(policy: Any) -> Entry | None:
    """The entry of the class that a policy inherits from, if it does what that one does; None for others'."""
    kind = type(policy)
    entry = next((found for base in kind.__mro__[1:] if (found := entry_of(base))), None)
    if entry is None:
        return None
    numbers = {field.name for field in fields(entry.policy)}
    ours = [name for name in dir(entry.policy) if not name.startswith("__") and name not in numbers]
    changed = [name for name in ours if getattr(kind, name) is not getattr(entry.policy, name)]
    if changed:
        raise ValueError(
            f"policy={policy!r}: {kind.__name__} has its own {' and '.join(changed)}, so {entry.name}'s "
            "proof is not about it; pass 'AP' ('FL-AP' for clients), which covers every order, or A, B and D"
        )
    return entry


@dataclass(frozen=True)
class Constants:
    r"""What Assumption 1, on the order error, holds with; for clients at rounds' ends.

    .. math:: \bar\phi_q^2 \le \sum_{i=1}^{\nu} A_i \bar\phi_{q-i}^2
        + \sum_{i=0}^{\nu} B_i \|\nabla f(x_{q-i})\|^2 + D
    """

    method: str
    label: str
    """Where it is proved: the LaTeX label of an example, or a heading of ``docs/theory.md``."""
    p: float
    """The norm of the order error."""
    A: tuple[float, ...]
    """A_1, …, A_ν."""
    B: tuple[float, ...]
    """B_0, …, B_ν."""
    D: float
    nu: int
    c1: float
    c2: float
    chances: tuple[int, int]
    """How often a run relies on chance once and for all, and an epoch; each time fails with probability δ."""
    limits: tuple[tuple[str, float], ...]
    """Every upper limit of the step size, with its formula."""
    setting: Setting = field(repr=False)
    federated: bool = False
    expected: bool = False
    """Whether it holds for the mean over runs, not for each of them."""
    caveats: tuple[str, ...] = ()
    """Why this is no promise for the policy that was asked for; empty if it is one."""

    @property
    def condition(self) -> float:
        """ΣB/(N²(1 − ΣA)), which must stay below 255."""
        return condition(self.A, self.B, self.setting.n)

    @property
    def epoch_probability(self) -> float:
        """With what probability the assumption holds in one epoch."""
        return max(0.0, 1 - sum(self.chances) * self.setting.delta)

    def probability(self, epochs: int) -> float:
        """With what probability it holds in all ``epochs``: 1 − Qδ by the union bound."""
        check_epochs(epochs)
        once, each = self.chances
        return max(0.0, 1 - (once + each * epochs) * self.setting.delta)

    def tight(self) -> Constants:
        """The same with the least c₁ and c₂ that the theorem admits; the paper rounds them up."""
        c1, c2 = least(self.A, self.B, self.setting.n)
        return replace(self, c1=c1, c2=c2)


def condition(A: Sequence[float], B: Sequence[float], n: int) -> float:  # noqa: N803
    """ΣB/(N²(1 − ΣA)) of Theorem 1; infinite if ΣA ≥ 1."""
    return sum(B) / (n**2 * (1 - sum(A))) if sum(A) < 1 else INF


def least(A: Sequence[float], B: Sequence[float], n: int) -> tuple[float, float]:  # noqa: N803
    r"""The least admissible c₁ and c₂ of Theorems 1 and 2; refuses what they do not cover.

    .. math:: c_1 = 1 \Big/ \Big(\frac{255}{512} - \frac{\sum B_i}{512 N^2 (1 - \sum A_i)}\Big), \quad
        c_2 = \frac{2 c_1}{1 - \sum A_i}

    >>> least((), (), 100)[0].__round__(3), least((3 / 5, 1 / 50), (0, 200.0, 200.0), 100)[1].__round__(2)
    (2.008, 10.57)
    """
    A, B = _factors("A", A), _factors("B", B)  # noqa: N806
    check_count("n", n)
    if not all(math.isfinite(value) and value >= 0 for value in (*A, *B)):
        raise ValueError(f"A={shown(A)}, B={shown(B)}: pass finite numbers of 0 or more")
    if sum(A) >= 1:
        raise ValueError(f"A={shown(A)}: the sum is {sum(A):g}, but the theorems need less than 1; pass less")
    if condition(A, B, n) >= 255:
        raise ValueError(
            f"B={shown(B)}: ΣB/(N²(1 − ΣA)) = {condition(A, B, n):g}, but the theorems need less than 255; "
            f"with n={n} and this A, keep ΣB below {255 * n**2 * (1 - sum(A)):g}"
        )
    c1 = 1 / ((255 - condition(A, B, n)) / 512)
    return c1, 2 * c1 / (1 - sum(A))


def constants(
    method: Any,
    n: int,
    *,
    A: Sequence[float] | None = None,  # noqa: N803
    B: Sequence[float] = (),  # noqa: N803
    D: float = 0.0,  # noqa: N803
    p: float = 2,
    **setting: Unpack[Keywords],
) -> Constants:
    """Constants of the order-error assumption for a method of the paper, for Herding, or for one of your own.

    Parameters
    ----------
    method
        A name (``AP RR RR-expected OP IG SO NP GraB-proto PairGraB-proto GraB PairGraB Herding``, or for
        clients ``FL-AP FL-RR FL-RR-expected FL-OP FL-IG FL-SO FL-NP FL-GraB-proto FL-GraB FL-Herding``, and
        ``CD-GraB``), or a policy, whose own numbers (passes, the walk's c) then count; any name for your own.
    n
        N, the number of units.
    A, B, D, p
        Your own method's A_1…A_ν, B_0…B_ν, D and norm p ≥ 2: checked, and c₁ and c₂ derived.
    **setting
        The fields of `Setting`.

    >>> known = constants("GraB", 1000, dim=20)
    >>> known.p, known.A, known.nu, (known.c1, known.c2), known.probability(epochs=50).__round__(3)
    (inf, (0.6, 0.02), 2, (3, 16), 0.995)
    >>> own = constants("mine", 1000, A=(0.5,), B=(0, 1000**2), D=40.0)
    >>> own.nu, round(own.c1, 3), round(own.c2, 3)
    (1, 2.024, 8.095)
    >>> from wellorder import GraB
    >>> constants(GraB(), 1000).caveats
    ('rule=Deterministic() has no proof: these are the constants of the walk',)
    """
    known = [field.name for field in fields(Setting) if field.name != "n"]
    for key in setting:
        if key not in known:
            raise ValueError(f"{key}=…: no such number; pass some of {', '.join(known)}")
    own_a, own_b = (() if given is None else _factors(key, given) for key, given in (("A", A), ("B", B)))
    own_d = real_number("D", D, least=0)
    if A is not None or own_b or own_d:
        name = method if isinstance(method, str) and len(method) <= 80 else shown(method)
        return _own(name, Setting(n, **setting), own_a, own_b, own_d, norm_order(p, least=2))
    caveats: tuple[str, ...] = ()
    if not isinstance(method, str):
        method, setting, caveats = _of_policy(method, n, setting)
    if method not in METHODS:
        raise ValueError(
            f"method={shown(method)} is not known; pass one of {', '.join(METHODS)}, or A, B and D of "
            "your own"
        )
    row, s = METHODS[method], Setting(n, **setting)
    _check_shape(row, s)
    factors, parts = row.recursion(s)
    return Constants(
        row.name, row.label, row.p, factors, tuple(b * n**2 for b in parts), row.D(s, _walked(row, s)),
        len(factors), row.c1, row.c2, (int(row.once(s)), int(row.each(s))), _limits(row, s), s, row.federated,
        row.expected, caveats + _short_walk(row, s),
    )  # fmt: skip


def _factors(name: str, given: Any) -> Factors:
    """Take A or B: a list of numbers."""
    cure = "pass a list of numbers, one an epoch back"
    array = numbers(name, given, cure=cure)
    if array.ndim != 1:
        raise ValueError(f"{name}={shown(given)}: {cure}")
    return tuple(array.tolist())


def _of_policy(policy: Any, n: int, setting: Keywords) -> tuple[str, Keywords, tuple[str, ...]]:
    """A policy's row, the setting with its own numbers, and why the row is no promise for it."""
    alone = setting.get("cohort", 1) == setting.get("local_steps", 1) == setting.get("server_step", 1) == 1
    name = method_of(policy, federated=not alone, n=n, cohort=setting.get("cohort", 1))
    row, rule = METHODS[name], getattr(policy, "rule", None)
    numbers = {"passes": getattr(policy, "passes", None), "c": rule.c if type(rule) is Walk else None}
    given = cast(dict[str, Any], dict(setting))
    for key, value in numbers.items():
        if value is None or not row.walks:
            continue
        if given.get(key) not in (None, value):
            raise ValueError(f"{key}={given[key]!r}: {policy!r} has {key}={value!r}; leave it out")
        given[key] = value
    unproved = (
        row.walks and type(rule) is not Walk and not (row.one and setting.get("first_error") is not None)
    )
    said = (f"rule={rule!r} has no proof: these are the constants of the walk",) if unproved else ()
    return name, cast(Keywords, given), said


def _walked(row: Method, s: Setting) -> float:
    return max(s.sigma, row.length(s))


def _short_walk(row: Method, s: Setting) -> tuple[str, ...]:
    if row.length(s) >= s.sigma * (1 - 1e-9) or (row.one and s.first_error is not None):
        return ()
    return (
        f"c={s.c:g} is proved for deviations up to {row.length(s):.3g} alone, and sigma={s.sigma:g}; "
        f"pass Walk(c) with c of {row.least_c(s, s.sigma):.4g} or more",
    )


def resolve(method: Any, n: int | None, setting: Keywords) -> Constants:
    """Make constants of whatever names a method: a `Constants`, a policy, or a name with its setting."""
    if isinstance(method, Constants):
        if n is not None or setting:
            raise ValueError(
                f"method={method.method!r} brings its own setting; leave out n and the other keywords"
            )
        return method
    if n is None:
        raise ValueError("n=None: pass the number of units, e.g. n=1000")
    return constants(method, n, **setting)


OWN = "your own"


def _own(name: str, s: Setting, A: Factors, B: Factors, D: float, p: float) -> Constants:  # noqa: N803
    c1, c2 = least(A, B, s.n)
    row = Method(name, OWN, OWN, p, lambda _s, _length: D, federated=name.startswith("FL-"))
    _check_shape(row, s)
    return Constants(
        name, row.label, p, A, B, D, max(len(A), len(B) - 1, 0), c1, c2, (0, 0), _limits(row, s), s,
        row.federated, caveats=("these constants are your own: whether they hold is yours to prove",),
    )  # fmt: skip


def _check_shape(row: Method, s: Setting) -> None:
    n, S = s.n, s.cohort  # noqa: N806
    if not row.federated:
        if not S == s.local_steps == s.server_step == 1:
            raise ValueError(
                f"cohort={S}, local_steps={s.local_steps}, server_step={s.server_step:g}: these belong to "
                f"clients, not to {row.name!r}; use an 'FL-' method such as 'FL-RR'"
            )
        if row.pairs and n % 2:
            raise ValueError(
                f"n={n}: {row.name} is proved for an even number of units; drop or add one, or use 'GraB'"
            )
        return
    check_rounds(s, pairs=row.name if row.pairs and not row.coordinated else "")
    if row.coordinated and s.n // S % 2:
        raise ValueError(
            f"n={n}: {row.name} is proved for an even number of rounds, and n/cohort={n // S}; "
            "drop or add a unit for each worker"
        )


def check_rounds(s: Setting, *, pairs: str = "") -> None:
    """Refuse rounds that Theorem 2 does not cover, or not for the method that balances ``pairs``."""
    if s.n % s.cohort:
        reason = f"Theorem 2 needs rounds of one size, and it does not divide n={s.n}"
    elif pairs and s.cohort % 2:
        reason = f"{pairs} is proved for an even number of clients a round"
    else:
        return
    raise ValueError(f"cohort={s.cohort}: {reason}; {_cohorts(s, even=bool(pairs))}")


def _cohorts(s: Setting, *, even: bool) -> str:
    small = [k for k in range(1, math.isqrt(s.n) + 1) if s.n % k == 0]
    fit = {k for d in small for k in (d, s.n // d) if not (even and k % 2)}
    near = sorted(sorted(fit, key=lambda k: abs(k - s.cohort))[:3])
    return f"pass a cohort such as {', '.join(map(str, near))}" if near else "add or drop a client"


def _limits(row: Method, s: Setting) -> tuple[tuple[str, float], ...]:
    """Every limit of the step size; the smallest binds."""
    eta, local, cohort = (s.server_step, s.local_steps, s.cohort) if row.federated else (1.0, 1, 1)
    visits, shape = local / cohort, "·K/S" if row.federated else ""
    steps, beside = row.steps(s), row.beside(s)
    amplified = 1 + eta if row.amplified else 1.0
    norm = "∞" if row.p == INF else f"{row.p:g}"
    return (
        (f"1/({'η·' if row.federated else ''}L·N{shape})", 1 / (eta * s.smoothness * s.n * visits)),
        (
            f"1/({steps:g}·L_2{norm}·{'(N+C)' if beside else 'N'}{shape})",
            1 / (steps * s.two_to(row.p) * (s.n + beside) * visits),
        ),
        (
            f"1/({steps:g}·{'(1+η)·' if row.amplified else ''}L_{norm}·N{shape})",
            1 / (steps * amplified * s.to_itself(row.p) * s.n * visits),
        ),
    )
