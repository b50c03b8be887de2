"""Draw fig2-….png and fig3-….png in docs/assets from their tables: ``python docs/figures/federated.py``.

The tables are what ``benchmarks/federated_gpu.py reproduce`` and ``resnet`` gave on a GPU: an evaluation each
100 rounds. Prints the mean of the last five.
"""

import csv
from pathlib import Path

from wellorder.experiments import _figures_2_3 as fig2
from wellorder.report._pictures import save_picture
from wellorder.report._table import table_of

ASSETS = Path(__file__).resolve().parent.parent / "assets"


FIGURES = {
    "fig2-cifar10": "CNN on CIFAR-10, 1000 clients",
    "fig2-cifar100": "CNN on CIFAR-100, 1000 clients",
    "fig3-cifar10": "ResNet-10 on CIFAR-10, 1000 clients",
    "fig3-cifar100": "ResNet-10 on CIFAR-100, 1000 clients",
}


def main() -> None:
    """Read, draw, save."""
    for name, title in FIGURES.items():
        with (ASSETS / f"{name}.csv").open(newline="") as file:
            rows = [
                {
                    "policy": row["policy"],
                    "seed": int(row["seed"]),
                    "epoch": int(row["epoch"]),
                    **{key: float(row[key]) for key in ("round", "train_loss", "test_loss", "test_accuracy")},
                }
                for row in csv.DictReader(file)
            ]
        table = table_of(rows)
        save_picture(fig2.plot(table, title), ASSETS / f"{name}.png")
        for policy, values in fig2.finals(table).items():
            print(name, policy, {key: round(value, 4) for key, value in values.items()})


if __name__ == "__main__":
    main()
