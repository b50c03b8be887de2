"""Random numbers by counter: draw i of a stream costs the same whatever was drawn before (splitmix64)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wellorder._order import rng

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_of(seed: int, epoch: int, stream: str) -> int:
    """The 64-bit key of one stream in one epoch of one seed."""
    return int(rng(seed, epoch, stream).integers(2**64, dtype=np.uint64))


def keys_of(seeds: Sequence[int], epoch: int, streams: Sequence[str]) -> npt.NDArray[np.uint64]:
    """The keys of several streams (a row each) in one epoch of several seeds."""
    keys = [rng(seed, epoch, stream).integers(2**64, dtype=np.uint64) for stream in streams for seed in seeds]
    return np.array(keys, np.uint64).reshape(len(streams), len(seeds))


def bits(key: int, index: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """64 random bits for each index.

    >>> bool((bits(7, [5, 6])[1:] == bits(7, [6])).all())
    True
    """
    with np.errstate(over="ignore"):
        z = np.uint64(key) + (np.asarray(index).astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return np.asarray(z ^ (z >> np.uint64(31)))


def uniforms_at(key: int, index: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A uniform number in [0, 1) for each index."""
    return (bits(key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53
