"""Orders from what is known before training: by labels alone, or by labels and inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from wellorder._arguments import whole_number
from wellorder._kernels.features import features
from wellorder._order import Keeps, Needs, Policy, Rows
from wellorder.policies import RandomReshuffling, Steering

RULE = Steering()
"""What arranges the rows: the default of `wellorder.balanced` and of ``ordered(loader, rows=…)``."""


class KnownRows:
    """What `compare` calls a policy: `Steering` on rows that the task's own data make.

    A task puts its inputs and labels in (`informed`). Without them every epoch is a plain shuffle.
    """

    needs: ClassVar[Needs] = Needs.NOTHING
    keeps: ClassVar[Keeps] = Keeps.NOTHING
    asks: ClassVar[tuple[str, ...]] = ()
    """What of the data must be known: "labels", "inputs"."""

    def rows(self, x: Any, y: Any) -> Rows:
        """A row for each example, from all inputs and all labels."""
        raise NotImplementedError

    def init(self, n: int, *, seed: int = 0) -> Any:
        return RandomReshuffling().init(n, seed=seed)

    def observe(self, state: Any, units: Any, signals: Any) -> Any:
        return RandomReshuffling().observe(state, units, signals)

    def advance(self, state: Any) -> Any:
        return RandomReshuffling().advance(state)


@dataclass(frozen=True)
class Stratified(KnownRows):
    """Every stretch of an epoch has the labels of the whole: ``ordered(loader, rows=features(None, y))``."""

    asks: ClassVar[tuple[str, ...]] = ("labels",)

    def rows(self, x: Any, y: Any) -> Rows:  # noqa: ARG002
        return features(None, y)


@dataclass(frozen=True)
class Features(KnownRows):
    """Labels and inputs alike all along the epoch: ``ordered(loader, rows=features(x, y))``."""

    asks: ClassVar[tuple[str, ...]] = ("labels", "inputs")
    size: int = 512

    def __post_init__(self) -> None:
        whole_number("size", self.size, least=1)

    def rows(self, x: Any, y: Any) -> Rows:
        return features(x, y, size=self.size, progress=False)


KNOWN: dict[str, type[KnownRows]] = {"stratified": Stratified, "features": Features}
"""By the names under which `compare` knows them."""


def asks_of(policy: Policy[Any]) -> tuple[str, ...]:
    """What of the data a policy must know before training; nothing, for most."""
    asks: tuple[str, ...] = getattr(policy, "asks", ())
    return asks


def informed(policy: Policy[Any], data: Callable[[], tuple[Any, Any]]) -> Policy[Any]:
    """The policy itself, or what it is on these inputs and labels; its rows are made by ``init``."""
    return _Informed(policy, data) if isinstance(policy, KnownRows) else policy


@dataclass(frozen=True, eq=False)
class _Informed:
    known: KnownRows
    data: Callable[[], tuple[Any, Any]]

    needs: ClassVar[Needs] = Needs.NOTHING
    keeps: ClassVar[Keeps] = Keeps.NOTHING

    def init(self, n: int, *, seed: int = 0) -> Any:
        return RULE.init(n, seed=seed, rows=self.known.rows(*self.data()))

    def observe(self, state: Any, units: Any, signals: Any) -> Any:  # noqa: ARG002
        return state

    def advance(self, state: Any) -> Any:
        return RULE.advance(state)
