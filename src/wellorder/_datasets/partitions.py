"""Partitions: which examples each client holds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, named_path, real_number, shown, whole_number
from wellorder._order import frozen, rng
from wellorder._saving import load_state, save_state

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """Who holds what: client c holds ``examples[starts[c] : starts[c + 1]]``."""

    examples: Ints = field(repr=False)
    starts: Ints = field(repr=False)

    def __post_init__(self) -> None:
        for name in ("examples", "starts"):
            array = array_of(name, getattr(self, name), cure="pass a 1-D array of ints", kinds="iu")
            if array.ndim != 1 or (array.size and array.min() < 0):
                raise ValueError(f"{name}={shown(array)}: pass a 1-D array of ints, 0 or more")
            object.__setattr__(self, name, array)
        if self.starts.ndim != 1 or len(self.starts) < 2 or self.starts[0] != 0:
            raise ValueError(
                f"starts of shape {self.starts.shape}: pass one more than there are clients, from 0"
            )
        if (np.diff(self.starts) < 1).any() or self.starts[-1] != len(self.examples):
            raise ValueError(
                f"starts={shown(self.starts)}: pass numbers that rise from 0 to {len(self.examples)}, the "
                "number of examples, so that every client has at least one"
            )

    @property
    def n(self) -> int:
        """N, the number of clients."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> Ints:
        """How many examples each client holds."""
        return np.diff(self.starts)

    def of(self, client: int) -> Ints:
        """The examples of one client."""
        whole_number("client", client, least=0, most=self.n - 1)
        return self.examples[self.starts[client] : self.starts[client + 1]]

    @classmethod
    def of_lists(cls, lists: Mapping[Any, npt.ArrayLike] | Sequence[npt.ArrayLike]) -> Partition:
        """The partition in which client c holds the examples of the c-th list (of a dict: by sorted keys).

        For partitions made elsewhere, such as those of flwr-datasets: a list of indices for each client.

        >>> from wellorder.federated import Partition
        >>> Partition.of_lists([[4, 0], [1, 2, 3]]).sizes
        array([2, 3])
        """
        return partition_of_lists("lists", lists)

    def table(self, labels: npt.ArrayLike, classes: int | None = None) -> Ints:
        """The picture of who holds what: examples of each label, one row a client."""
        known = _labels(labels)
        if len(known) <= self.examples.max():
            raise ValueError(
                f"labels of {len(known)} examples: pass one for each of {self.examples.max() + 1}"
            )
        marks = known[self.examples]
        least = int(marks.max()) + 1
        width = least if classes is None else whole_number("classes", classes, least=least, most=2**31)
        owner = np.repeat(np.arange(self.n), self.sizes)
        return np.bincount(owner * width + marks, minlength=self.n * width).reshape(self.n, width)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write both arrays into an npz file, whole or not at all."""
        with named_path("path", path) as file:
            save_state(file, {"examples": self.examples, "starts": self.starts})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Partition:
        """Read what `save` wrote."""
        with named_path("path", path) as file:
            saved = load_state(file)
        if set(saved) != {"examples", "starts"}:
            raise ValueError(f"{os.fspath(path)!r} holds no partition; pass a file that Partition.save wrote")
        return cls(frozen(saved["examples"]), frozen(saved["starts"]))


def label_shards(labels: npt.ArrayLike, clients: int, *, each: int = 1, seed: int = 0) -> Partition:
    """Sort by label, cut into ``clients * each`` equal shards, and deal ``each`` to every client.

    ``each=1`` is the paper's partition (about one label a client); ``each=2``, dealt at random, is McMahan's.

    >>> from wellorder.federated import label_shards
    >>> label_shards([1, 0, 1, 0, 2, 2], 3).table([1, 0, 1, 0, 2, 2])
    array([[2, 0, 0],
           [0, 2, 0],
           [0, 0, 2]])
    """
    marks = _checked(labels, clients, each)
    pieces = np.array_split(np.argsort(marks, kind="stable"), clients * each)
    deal = np.arange(len(pieces)) if each == 1 else rng(seed, 0, "shards").permutation(len(pieces))
    return _partition([np.concatenate([pieces[i] for i in hand]) for hand in deal.reshape(clients, each)])


def iid(labels: npt.ArrayLike, clients: int, *, seed: int = 0) -> Partition:
    """Deal all examples at random, equally many to each client."""
    marks = _checked(labels, clients, 1)
    return _partition(np.array_split(rng(seed, 0, "iid").permutation(len(marks)), clients))


def dirichlet(labels: npt.ArrayLike, clients: int, alpha: float, *, seed: int = 0) -> Partition:
    """Split every label among the clients in proportions drawn from Dirichlet(α): small α, few labels each.

    Sizes differ from client to client; one left with nothing is given an example of the richest.
    """
    marks = _checked(labels, clients, 1)
    alpha = real_number("alpha", alpha, above=0)
    draw = rng(seed, 0, "dirichlet")
    owner = np.empty(len(marks), np.int64)
    for label in np.unique(marks):
        own = draw.permutation(np.flatnonzero(marks == label))
        shares = np.cumsum(draw.dirichlet(np.full(clients, alpha)))[:-1]
        cuts = np.round(shares * len(own)).astype(np.int64)
        owner[own] = np.searchsorted(cuts, np.arange(len(own)), side="right")
    counts = np.bincount(owner, minlength=clients)
    for poor in np.flatnonzero(counts == 0):
        rich = int(counts.argmax())
        owner[np.flatnonzero(owner == rich)[0]] = poor
        counts[rich], counts[poor] = counts[rich] - 1, 1
    order = np.argsort(owner, kind="stable")
    return Partition(frozen(order), frozen(np.concatenate([[0], np.cumsum(counts)])))


def by_client(owners: npt.ArrayLike) -> Partition:
    """Give each example to the client that ``owners`` names: one name or number an example, sorted.

    For data that come with their owner, such as writers or devices. Client c is the c-th of the sorted names.

    >>> from wellorder.federated import by_client
    >>> by_client(["bo", "al", "bo", "al", "cy"]).examples
    array([1, 3, 0, 2, 4])
    """
    cure = "pass a 1-D array of names or numbers, the owner of each example"
    names = array_of("owners", owners, cure=cure, kinds="iufUSb")
    if names.ndim != 1 or not len(names):
        raise ValueError(f"owners of shape {names.shape}: pass a 1-D array, the owner of each example")
    _, owner, counts = np.unique(names, return_inverse=True, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Partition(frozen(np.argsort(owner, kind="stable").astype(np.int64)), frozen(starts))


def partition_of_lists(name: str, lists: Any) -> Partition:
    """`Partition.of_lists` of an argument called ``name``."""
    try:
        groups = [lists[key] for key in sorted(lists)] if isinstance(lists, Mapping) else list(lists)
        arrays = [np.asarray(group) for group in groups]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}={shown(lists)}: pass a Partition, or a list of examples' numbers for each client"
        ) from error
    if not arrays:
        raise ValueError(f"{name}={shown(lists)}: pass the examples of at least one client")
    for client, array in enumerate(arrays):
        if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu" or array.min() < 0:
            raise ValueError(
                f"{name}[{client}] of shape {array.shape}, {array.dtype}: pass its examples' numbers, one or "
                "more, from 0"
            )
    return _partition([array.astype(np.int64) for array in arrays])


def _partition(groups: list[Ints]) -> Partition:
    starts = np.cumsum([0, *map(len, groups)], dtype=np.int64)
    return Partition(frozen(np.concatenate(groups).astype(np.int64)), frozen(starts))


def _labels(labels: Any) -> Ints:
    marks = array_of("labels", labels, cure="pass a 1-D array of ints", kinds="iu")
    if marks.ndim != 1 or not marks.size or marks.min() < 0:
        raise ValueError(f"labels of shape {marks.shape}, {marks.dtype}: pass a 1-D array of ints, 0 or more")
    return marks


def _checked(labels: npt.ArrayLike, clients: int, each: int) -> Ints:
    marks = _labels(labels)
    whole_number("clients", clients, least=1)
    whole_number("each", each, least=1)
    if clients * each > len(marks):
        raise ValueError(
            f"clients={clients!r}, each={each!r}: {len(marks)} labels make at most {len(marks)} parts; "
            "pass fewer"
        )
    return marks
