"""The policies, by the paper's categories: arbitrary, independent, one permutation, dependent."""

from wellorder.policies.arbitrary import Arbitrary
from wellorder.policies.flipflop import FlipFlop
from wellorder.policies.grab import GraB
from wellorder.policies.greedy import Greedy
from wellorder.policies.herding import Herding
from wellorder.policies.independent import RandomReshuffling, WithReplacement
from wellorder.policies.one import IncrementalGradient, NicePermutation, ShuffleOnce
from wellorder.policies.pairgrab import PairGraB, PairGraBProto
from wellorder.policies.proto import GraBProto

__all__ = [
    "Arbitrary",
    "FlipFlop",
    "GraB",
    "GraBProto",
    "Greedy",
    "Herding",
    "IncrementalGradient",
    "NicePermutation",
    "PairGraB",
    "PairGraBProto",
    "RandomReshuffling",
    "ShuffleOnce",
    "WithReplacement",
]
