"""Data stored class by class, read file by file: a shuffle buffer, a full shuffle, and ordered shards.

python examples/shards.py [--files 100] [--examples 100] [--window 500] [--seeds 3]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

import wellorder as wo

KINDS, DIM, BATCH, STEP = 10, 20, 10, 0.1


def write(folder: Path, files: int, each: int, centers: np.ndarray) -> list[Path]:
    """Clouds that overlap, one file holding one of them."""
    draw = np.random.default_rng(0)
    for file in range(files):
        kind = file * KINDS // files
        np.savez(
            folder / f"{file:04}.npz", x=draw.normal(size=(each, DIM)) + centers[kind], y=np.full(each, kind)
        )
    return sorted(folder.glob("*.npz"))


def read(path: Path) -> Iterator[tuple[np.ndarray, int]]:
    with np.load(path) as held:
        yield from zip(held["x"], held["y"].tolist(), strict=True)


def buffered(examples: Iterable, size: int, seed: int) -> Iterator:
    """The usual shuffle buffer: fill it, and give out a random one whenever another comes in."""
    draw, held = np.random.default_rng(seed), []
    for example in examples:
        if len(held) < size:
            held.append(example)
            continue
        at = draw.integers(size)
        yield held[at]
        held[at] = example
    draw.shuffle(held)
    yield from held


def train(examples: Iterable) -> np.ndarray:
    """One pass of softmax regression."""
    w, batch = np.zeros((DIM, KINDS)), []
    for example in examples:
        batch.append(example)
        if len(batch) == BATCH:
            x, y = np.stack([x for x, _ in batch]), np.array([y for _, y in batch])
            scores = np.exp(x @ w - (x @ w).max(axis=1, keepdims=True))
            w -= STEP * x.T @ (scores / scores.sum(axis=1, keepdims=True) - np.eye(KINDS)[y]) / BATCH
            batch = []
    return w


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--examples", type=int, default=100, help="in each file")
    parser.add_argument("--window", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()

    draw = np.random.default_rng(1)
    centers = 0.5 * draw.normal(size=(KINDS, DIM))
    y = draw.integers(KINDS, size=5000)
    x = draw.normal(size=(5000, DIM)) + centers[y]
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder), options.files, options.examples, centers)
        survey = wo.shards.survey(files, read)

        def usual(seed: int) -> Iterator:
            order = np.random.default_rng(seed).permutation(len(files))
            return buffered((e for at in order for e in read(files[at])), options.window, seed)

        def shuffled(seed: int) -> list:
            every = [example for file in files for example in read(file)]
            np.random.default_rng(seed).shuffle(every)
            return every

        def ours(seed: int) -> Iterator:
            order = wo.shards.ordered_shards(survey, seed=seed, epoch=0)
            stream = (e for at in order for e in read(files[at]))
            return wo.balanced_stream(stream, survey.row, window=options.window, seed=seed, mean=survey.mean)

        print(
            f"Accuracy after one pass over {options.files} files of one class each, {options.seeds} seeds\n"
        )
        ways = {
            "random files, shuffle buffer": usual,
            "full shuffle": shuffled,
            "ordered files, steered": ours,
        }
        for name, way in ways.items():
            right = [np.mean((x @ train(way(seed))).argmax(axis=1) == y) for seed in range(options.seeds)]
            print(f"{name:30}{100 * np.mean(right):6.1f} %")


if __name__ == "__main__":
    main()
