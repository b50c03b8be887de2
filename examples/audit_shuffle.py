"""How good is a shuffle buffer? Digits stored by class, read through buffers of several sizes, and audited.

python examples/audit_shuffle.py [--buffers 0 100 500] [--out shuffle.png]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

import wellorder as wo

SHARD, BATCH = 60, 20


class Buffered:
    """Shards in random order, read one after the other through a shuffle buffer, as streaming loaders do."""

    def __init__(self, x: np.ndarray, y: np.ndarray, buffer: int) -> None:
        self.x, self.y, self.buffer = x, y, buffer

    def stream(self) -> Iterator[int]:
        starts = list(range(0, len(self.x), SHARD))
        random.shuffle(starts)
        held: list[int] = []
        for start in starts:
            for unit in range(start, min(start + SHARD, len(self.x))):
                held.append(unit)
                if len(held) > self.buffer:
                    yield held.pop(random.randrange(len(held)))
        random.shuffle(held)
        yield from held

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = np.array(list(self.stream()))
        for at in range(0, len(order), BATCH):
            units = order[at : at + BATCH]
            yield self.x[units], self.y[units]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--buffers", type=int, nargs="+", default=[0, 100, 500, 2000])
    parser.add_argument("--out", help="draw the first of them into this file (.png, .pdf or .svg)")
    options = parser.parse_args()
    random.seed(0)
    x, y = load_digits(return_X_y=True)
    order = np.argsort(y, kind="stable")
    for i, buffer in enumerate(options.buffers):
        found = wo.audit(Buffered(x[order], y[order], buffer), epochs=3)
        print(f"buffer of {buffer}: {found}\n")
        if options.out and not i:
            found.plot().figure.savefig(options.out)
            print(f"Picture: {options.out}\n")


if __name__ == "__main__":
    main()
