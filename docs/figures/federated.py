"""Draw docs/assets/fig2-cifar10.png from the table that the GPU wrote: ``python docs/figures/federated.py``.

The table (docs/assets/fig2-cifar10.csv) is what ``benchmarks/federated_gpu.py reproduce`` gave: the CNN,
CIFAR-10, 20,000 rounds, three seeds, an evaluation each 100 rounds.
"""

import csv
from pathlib import Path

from wellorder.experiments import _figures_2_3 as fig2
from wellorder.report._pictures import save_picture
from wellorder.report._table import table_of

ASSETS = Path(__file__).resolve().parent.parent / "assets"


def main() -> None:
    """Read, draw, save."""
    with (ASSETS / "fig2-cifar10.csv").open(newline="") as file:
        rows = [
            {
                "policy": row["policy"],
                "seed": int(row["seed"]),
                "epoch": int(row["epoch"]),
                **{name: float(row[name]) for name in ("round", "train_loss", "test_loss", "test_accuracy")},
            }
            for row in csv.DictReader(file)
        ]
    table = table_of(rows)
    save_picture(fig2.plot(table, "CNN on CIFAR-10, 1000 clients"), ASSETS / "fig2-cifar10.png")
    for policy, values in fig2.finals(table).items():
        print(policy, {name: round(value, 4) for name, value in values.items()})


if __name__ == "__main__":
    main()
