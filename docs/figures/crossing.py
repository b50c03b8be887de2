"""Print the table of docs/theory.md: from which number of epochs on a balancing method has the smaller bound.

``python docs/figures/crossing.py``: tuned bounds of Theorem 1 in one dimension, L = F₀ = 1, each holding with
probability 99 % over all epochs (δ = 0.01/Q). Epochs are searched on a grid of ten a decade, then halved.
"""

from __future__ import annotations

import numpy as np

from wellorder.theory import bound, constants, max_step_size, tuned_step_size

UNITS, SIGMAS, FAIL = (10**3, 10**4, 10**5, 10**6), (1.0, 10.0, 100.0), 0.01
EPOCHS = np.unique(np.geomspace(1, 10**9, 91).astype(np.int64))


def total(method: str, n: int, sigma: float, epochs: int) -> float:
    """The tuned bound of the smallest squared gradient norm."""
    known = constants(method, n=n, dim=1, sigma=sigma, delta=FAIL / epochs)
    return bound(known, tuned_step_size(known, epochs=epochs), epochs=epochs).total


def first(n: int, sigma: float) -> int | None:
    """The first number of epochs with a smaller bound than reshuffling's, there and ever after."""

    def smaller(epochs: int) -> bool:
        balanced = min(total(method, n, sigma, epochs) for method in ("GraB", "PairGraB"))
        return balanced < total("RR", n, sigma, epochs)

    behind = [q for q in EPOCHS.tolist() if not smaller(q)]
    low, high = behind[-1], next((q for q in EPOCHS.tolist() if q > behind[-1]), None)
    while high is not None and high - low > 0.01 * low:
        middle = (low + high) // 2
        low, high = (low, middle) if smaller(middle) else (middle, high)
    return high


def main() -> None:
    """Print both tables."""
    print("| | " + " | ".join(f"N = {n:.0e}" for n in UNITS) + " |")
    for sigma in SIGMAS:
        found = [first(n, sigma) for n in UNITS]
        print(f"| ς = {sigma:.0f} | " + " | ".join("not by 1e9" if q is None else f"{q:.1e}" for q in found))
    for n in UNITS:
        steps = [max_step_size("RR", n) / max_step_size(m, n) for m in ("GraB", "PairGraB")]
        print(f"N = {n:.0e}: step sizes {steps[0]:.1f} (GraB) and {steps[1]:.1f} (PairGraB) times smaller")


if __name__ == "__main__":
    main()
