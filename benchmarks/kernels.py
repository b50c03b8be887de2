"""Balancing 256 rows: the block kernels against the sequential NumPy loop, CPU time, same signs."""

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.timing import cpu_seconds
from wellorder import balance
from wellorder._kernels.balance import NO_VECTOR, balance_centred, balance_pairs

ROWS = 256
TARGETS = {1_000: 5.0, 100_000: 1.5, 1_000_000: 1.0}


class Products:
    """The same rows, as inner products only (the path of signals that nobody materialises)."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def gram(self):
        return self.rows @ self.rows.T

    def dot(self, vector):
        return self.rows @ vector

    def combine(self, weights):
        return weights @ self.rows


def loop(rows):
    """The sequential algorithm, as one would write it in NumPy."""
    s, signs = np.zeros(rows.shape[1]), np.empty(len(rows), np.int8)
    for t, z in enumerate(rows):
        signs[t] = 1 if s @ z < 0 else -1
        s += signs[t] * z
    return signs


def loop_centred(rows, center):
    s, signs = np.zeros(rows.shape[1]), np.empty(len(rows), np.int8)
    for t, z in enumerate(rows):
        c = z - center
        signs[t] = 1 if s @ c < 0 else -1
        s += signs[t] * c
    return signs


def loop_pairs(rows):
    s, signs = np.zeros(rows.shape[1]), np.empty(len(rows) // 2, np.int8)
    for t in range(len(signs)):
        d = rows[2 * t] - rows[2 * t + 1]
        signs[t] = 1 if s @ d < 0 else -1
        s += signs[t] * d
    return signs


def contestants(rows):
    """For each kernel: the loop, and ours."""
    center, zero = rows.mean(axis=0).astype(np.float64), np.zeros(ROWS)
    return {
        "balance": (lambda: loop(rows), lambda: balance(rows).signs),
        "centred": (
            lambda: loop_centred(rows, center),
            lambda: balance_centred(rows, center, NO_VECTOR, zero, np.inf).signs,
        ),
        "pairs": (
            lambda: loop_pairs(rows),
            lambda: balance_pairs(rows, NO_VECTOR, NO_VECTOR, zero, np.inf).signs,
        ),
        "products": (lambda: loop(rows), lambda: balance(Products(rows)).signs),
    }


@threadpool_limits.wrap(limits=1)
def main() -> None:
    print("CPU time of the loop over ours; 'products' is the path for signals that are never materialised")
    print(f"{'d':>9} {'rows':>8} {'balance':>9} {'centred':>9} {'pairs':>9} {'products':>9}")
    for dim, target in TARGETS.items():
        for dtype in (np.float64, np.float32):
            rows = np.random.default_rng(0).standard_normal((ROWS, dim)).astype(dtype)
            ratios = {}
            for name, (slow, fast) in contestants(rows).items():
                if dtype is np.float64 and not np.array_equal(slow(), fast()):
                    raise SystemExit(f"{name} at d={dim}: the signs differ from the loop's")
                times = cpu_seconds({"loop": slow, "ours": fast}, repeats=5 if dim > 10_000 else 21)
                ratios[name] = times["loop"] / times["ours"]
            cells = " ".join(f"{ratio:8.2f}x" for ratio in ratios.values())
            verdict = "met" if ratios["balance"] >= target else "MISSED"
            goal = f"   target of balance {target}x: {verdict}" if dtype is np.float64 else ""
            print(f"{dim:9} {np.dtype(dtype).name:>8} {cells}{goal}")


if __name__ == "__main__":
    main()
