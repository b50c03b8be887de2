"""Small networks that orders are compared on."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class LeNet(nn.Module):
    """Two convolutions and three linear layers; 62,006 parameters on CIFAR images."""

    def __init__(self, channels: int = 3, side: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 6, 5), nn.Conv2d(6, 16, 5)
        flat = 16 * (((side - 4) // 2 - 4) // 2) ** 2
        self.fc1, self.fc2, self.fc3 = nn.Linear(flat, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, (b, classes)."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        scores: Tensor = self.fc3(functional.relu(self.fc2(x)))
        return scores


class CNN(nn.Module):
    """Two 5×5 convolutions of 64 filters, then 1600-384-192-10, without normalisation; 797,962 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 64, 5), nn.Conv2d(64, 64, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(1600, 384), nn.Linear(384, 192), nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, (b, 10)."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        scores: Tensor = self.fc3(functional.relu(self.fc2(x)))
        return scores


def logistic() -> nn.Module:
    """A linear classifier of 28×28 images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def grey_lenet() -> nn.Module:
    """LeNet for 28×28 images in grey."""
    return LeNet(channels=1, side=28)
