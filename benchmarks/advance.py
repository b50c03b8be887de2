"""`advance` of policies for n = 10⁶ and 10⁸ units: CPU seconds, growth, and bytes a unit."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import wellorder

POLICIES = ("RandomReshuffling", "FlipFlop", "GraB", "PairGraB")
SIZES = (10**6, 10**8)
BYTES_A_UNIT = 16


def peak_bytes() -> int:
    """The largest memory this process has had; not `getrusage`, which remembers the parent's."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def measure(name: str, n: int) -> None:
    """In a process of its own: random signs, then `advance`; prints its seconds and the peak bytes a unit."""
    policy = getattr(wellorder, name)()
    policy.advance(policy.init(1000))  # compile
    before = peak_bytes()
    state = policy.init(n)
    if hasattr(state, "signs"):  # as an epoch of n observations would leave them
        for at in range(0, n, 10**6):
            stop = min(at + 10**6, n)
            state.signs[at:stop] = 2 * np.random.default_rng(at).integers(0, 2, stop - at, dtype=np.int8) - 1
    start = time.process_time()
    state = policy.advance(state)
    seconds = time.process_time() - start
    print(seconds, (peak_bytes() - before) / n)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--one", nargs=2)
    given, _ = parser.parse_known_args()
    if given.one:
        measure(given.one[0], int(given.one[1]))
        return
    print(f"{'policy':>18} {'n':>11} {'seconds':>9} {'ns a unit':>10} {'peak bytes a unit':>18}")
    for name in POLICIES:
        for n in SIZES:
            command = [sys.executable, "-m", "benchmarks.advance", "--one", name, str(n)]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, peak = map(float, answer.stdout.split())
            note = "" if peak <= BYTES_A_UNIT or n < 10**8 else f"   more than {BYTES_A_UNIT}: MISSED"
            print(f"{name:>18} {n:11,} {seconds:9.3f} {seconds / n * 1e9:10.1f} {peak:18.1f}{note}")


if __name__ == "__main__":
    main()
