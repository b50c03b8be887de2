"""wellorder: better orders than ``shuffle=True``.

The public API on one screen. Nothing here imports torch or flwr; ``wellorder.torch``, ``wellorder.flower``
and the other parts are loaded when they are first asked for.
"""

import importlib
from types import ModuleType

from wellorder._audit import Audit, audit
from wellorder._balanced import balanced, balanced_stream
from wellorder._checks import ContractError, check_policy
from wellorder._kernels.balance import Balanced, balance
from wellorder._kernels.features import features
from wellorder._kernels.reorder import basic_br, pair_br, reorder
from wellorder._kernels.sign_rules import Deterministic, SignRule, Walk
from wellorder._kernels.signals import dense
from wellorder._measure import Expansion, drift, expansion, order_error
from wellorder._order import (
    Keeps,
    Needs,
    Order,
    Policy,
    Signals,
    SignalShortcuts,
    State,
    frozen,
    load_state_dict,
    rng,
    shuffled,
    state_dict,
    units_of,
    visit,
)
from wellorder._training import Run, sgd
from wellorder.policies import (
    Arbitrary,
    BalancedCohorts,
    CDGraB,
    FlipFlop,
    GraB,
    GraBProto,
    Greedy,
    Herding,
    IncrementalGradient,
    NicePermutation,
    PairGraB,
    PairGraBProto,
    RandomCohorts,
    RandomReshuffling,
    ShuffleOnce,
    Steering,
    WithReplacement,
)

__version__ = "0.2.0"

__all__ = [
    "Arbitrary",
    "Audit",
    "Balanced",
    "BalancedCohorts",
    "CDGraB",
    "ContractError",
    "Deterministic",
    "Expansion",
    "FlipFlop",
    "GraB",
    "GraBProto",
    "Greedy",
    "Herding",
    "IncrementalGradient",
    "Keeps",
    "Needs",
    "NicePermutation",
    "Order",
    "PairGraB",
    "PairGraBProto",
    "Policy",
    "RandomCohorts",
    "RandomReshuffling",
    "Run",
    "ShuffleOnce",
    "SignRule",
    "SignalShortcuts",
    "Signals",
    "State",
    "Steering",
    "Walk",
    "WithReplacement",
    "audit",
    "balance",
    "balanced",
    "balanced_stream",
    "basic_br",
    "check_policy",
    "dense",
    "drift",
    "expansion",
    "features",
    "frozen",
    "load_state_dict",
    "order_error",
    "pair_br",
    "reorder",
    "rng",
    "sgd",
    "shuffled",
    "state_dict",
    "units_of",
    "visit",
]

_PARTS = (
    "experiments",
    "federated",
    "flower",
    "lightning",
    "policies",
    "problems",
    "report",
    "shards",
    "theory",
    "torch",
    "transformers",
)


def __getattr__(name: str) -> ModuleType:
    """Load a part of the library at its first use: ``wellorder.torch`` after ``import wellorder``."""
    if name in _PARTS:
        return importlib.import_module(f"wellorder.{name}")
    raise AttributeError(f"module 'wellorder' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_PARTS]
