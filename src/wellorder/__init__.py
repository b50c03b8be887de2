"""wellorder: better orders than ``shuffle=True``.

The public API on one screen. Nothing here imports torch or flwr; ``wellorder.torch``, ``wellorder.flower``
and the other parts are loaded when they are first asked for.
"""

import importlib
from types import ModuleType

from wellorder._balanced import balanced, balanced_stream
from wellorder._checks import check_policy
from wellorder._kernels.balance import balance
from wellorder._kernels.features import features
from wellorder._kernels.reorder import basic_br, pair_br, reorder
from wellorder._kernels.sign_rules import Deterministic, Walk
from wellorder._measure import drift, expansion, order_error
from wellorder._order import Needs, Policy, Signals, State, load_state_dict, rng, state_dict
from wellorder._training import Run, sgd
from wellorder.policies import (
    Arbitrary,
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
    Steering,
    WithReplacement,
)

__version__ = "0.1.0"

__all__ = [
    "Arbitrary",
    "Deterministic",
    "FlipFlop",
    "GraB",
    "GraBProto",
    "Greedy",
    "Herding",
    "IncrementalGradient",
    "Needs",
    "NicePermutation",
    "PairGraB",
    "PairGraBProto",
    "Policy",
    "RandomReshuffling",
    "Run",
    "ShuffleOnce",
    "Signals",
    "State",
    "Steering",
    "Walk",
    "WithReplacement",
    "balance",
    "balanced",
    "balanced_stream",
    "basic_br",
    "check_policy",
    "drift",
    "expansion",
    "features",
    "load_state_dict",
    "order_error",
    "pair_br",
    "reorder",
    "rng",
    "sgd",
    "state_dict",
]

_PARTS = ("federated", "flower", "problems", "theory", "torch")


def __getattr__(name: str) -> ModuleType:
    """Load a part of the library at its first use: ``wellorder.torch`` after ``import wellorder``."""
    if name in _PARTS:
        return importlib.import_module(f"wellorder.{name}")
    raise AttributeError(f"module 'wellorder' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_PARTS]
