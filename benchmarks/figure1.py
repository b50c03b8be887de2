"""How long Figure 1 takes, and what the time goes into."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from wellorder import Policy, sgd
from wellorder.experiments import _figure_1 as fig1
from wellorder.federated import fedavg
from wellorder.problems import quadratics
from wellorder.report._pictures import save_picture
from wellorder.report._table import write_table


def main() -> None:
    config = fig1.QuadraticsFigure()
    fig1.run_seed(fig1.QuadraticsFigure(epochs=2), 0)
    clock = time.perf_counter()
    table = fig1.whole(list(fig1.run(config)))
    trained = time.perf_counter() - clock
    clock = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        figure = fig1.plot(table)
        for suffix in (".png", ".pdf"):
            save_picture(figure, Path(folder, f"fig1{suffix}"))
        for suffix in (".parquet", ".csv"):
            write_table(table, Path(folder, f"fig1{suffix}"))
    drawn = time.perf_counter() - clock
    epochs = config.seeds * config.epochs * 7
    print(f"Figure 1, {config.seeds} seeds, {config.epochs} epochs, 7 policies, N={config.n}, one process:")
    print(f"  training and measuring  {trained:6.2f} s  ({1e6 * trained / epochs:.0f} µs an epoch)")
    print(f"  drawing and writing     {drawn:6.2f} s")
    print("  an epoch of one run, of which the arithmetic is what 8 units instead of 1,000 do not cost:")
    for setting, named in fig1.policies(config).items():
        for label, policy in named.items():
            few, many = (epoch_cost(setting, policy, n) for n in (8, config.n))
            print(f"    {label:<9} {1e6 * many:5.0f} µs, {1 - few / many:4.0%} arithmetic")


def epoch_cost(setting: str, policy: Policy[Any], n: int, epochs: int = 100) -> float:
    """Processor seconds of an epoch and its measurements: the best of seven runs."""
    problem, times = quadratics(n), []
    for _ in range(7):
        clock = time.process_time()
        if setting == "SGD":
            sgd(problem, policy, step_size=1e-3, epochs=epochs)
        else:
            fedavg(problem, policy, step_size=1e-3, epochs=epochs, cohort=2, local_steps=5)
        times.append(time.process_time() - clock)
    return min(times) / epochs


if __name__ == "__main__":
    main()
