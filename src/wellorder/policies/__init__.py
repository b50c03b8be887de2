"""The policies, one file each, and the registry that every other list is derived from."""

from wellorder.policies._arbitrary import Arbitrary
from wellorder.policies._cdgrab import CDGraB
from wellorder.policies._cohorts import BalancedCohorts
from wellorder.policies._flipflop import FlipFlop
from wellorder.policies._grab import GraB
from wellorder.policies._greedy import Greedy
from wellorder.policies._herding import Herding
from wellorder.policies._independent import RandomCohorts, RandomReshuffling, WithReplacement
from wellorder.policies._one import IncrementalGradient, NicePermutation, ShuffleOnce
from wellorder.policies._pairgrab import PairGraB, PairGraBProto
from wellorder.policies._proto import GraBProto
from wellorder.policies._registry import REGISTRY, Entry, entry_named, entry_of
from wellorder.policies._steering import Steering

__all__ = [
    "REGISTRY",
    "Arbitrary",
    "BalancedCohorts",
    "CDGraB",
    "Entry",
    "FlipFlop",
    "GraB",
    "GraBProto",
    "Greedy",
    "Herding",
    "IncrementalGradient",
    "NicePermutation",
    "PairGraB",
    "PairGraBProto",
    "RandomCohorts",
    "RandomReshuffling",
    "ShuffleOnce",
    "Steering",
    "WithReplacement",
    "entry_named",
    "entry_of",
]
