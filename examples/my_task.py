"""Your own PyTorch training, for `wellorder compare` to ask about: copy this file, and put in what you train.

wellorder compare examples/my_task.py:task
wellorder compare examples/my_task.py:adam --policy RR --policy Steering --seeds 3

From Python: python examples/my_task.py [--epochs 10] [--seeds 3]
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

from wellorder.experiments import Config, NetworkTask, compare
from wellorder.report import headline

x, y = load_digits(return_X_y=True)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


# The least that is needed: a function that makes the model, the data, and how it is trained.
task = NetworkTask(
    model=network,
    data=(x / 16, y),  # tensors or arrays; a Dataset or a DataLoader as well
    loss=nn.functional.cross_entropy,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    batch_size=16,
    test=0.2,  # hold out a fifth, or pass test data
)


class Shifted(Dataset):
    """Augmentation, and batches that are dictionaries."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.targets = images, labels  # "targets" let stratified orders know the labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        aside = int(torch.randint(-1, 2, ()))
        image = torch.roll(self.images[at].view(8, 8), aside, 1).flatten()
        return {"image": image, "label": self.targets[at]}


def batch_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["image"]), batch["label"])


def batch_accuracy(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (model(batch["image"]).argmax(1) == batch["label"]).float().mean()


def adam() -> NetworkTask:
    """A function that makes the task is called when it is needed; everything here is optional."""
    data = Shifted(torch.tensor(x / 16).float(), torch.tensor(y))
    return NetworkTask(
        model=network,
        data=data,
        loss=batch_loss,  # batches are no pairs, so it is called with the model and the batch
        optimizer=lambda params: torch.optim.Adam(params, lr=3e-3),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        batch_size=32,
        test=0.2,
        test_metrics={"test accuracy": batch_accuracy},
        device="cuda" if torch.cuda.is_available() else "cpu",
        title="digits, shifted at random, Adam",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    config = Config(policies=("RR", "Steering"), epochs=options.epochs, seeds=range(options.seeds))
    for each in (task, adam()):
        done = compare(each, config)
        print(f"{each.method}\n  {headline(done.verdicts, done.plan.baseline)}")


if __name__ == "__main__":
    main()
