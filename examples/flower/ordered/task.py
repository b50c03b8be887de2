"""A small network on Fashion-MNIST where WELLORDER_DATA has it, else on made-up images of that shape."""

import os
from functools import cache

import numpy as np
import torch
from torch import nn

from wellorder.federated import fashion_mnist, label_shards

CLASSES, SIDE = 10, 28


class Net(nn.Module):
    """One hidden layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, CLASSES)
        )

    def forward(self, x):
        return self.layers(x)


def source():
    """Where the images come from, in words."""
    folder = os.environ.get("WELLORDER_DATA")
    if folder:
        return f"Fashion-MNIST from {folder}"
    return (
        "made-up images: WELLORDER_DATA is not set in this process. A SuperLink hands on the environment "
        "that it was started with; set the variable, end the running SuperLink, and start again"
    )


@cache
def images(part):
    """Images (n, 1, 28, 28) about 0 and labels of "train" or "test"."""
    if os.environ.get("WELLORDER_DATA"):
        found = fashion_mnist()
        x, y = getattr(found, f"{part}_images"), getattr(found, f"{part}_labels")
        return torch.from_numpy(np.array(x)).float() / 127.5 - 1, torch.from_numpy(np.array(y))
    draw = np.random.default_rng(["train", "test"].index(part))
    shapes = np.random.default_rng(2).random((CLASSES, 7, 7)).repeat(4, axis=1).repeat(4, axis=2)
    y = draw.integers(0, CLASSES, 6000 if part == "train" else 1000)
    x = shapes[y] + draw.random((len(y), SIDE, SIDE)) - 1
    return torch.from_numpy(x[:, None]).float(), torch.from_numpy(y)


def load_data(partition, partitions):
    """The images of one client: of about two labels."""
    x, y = images("train")
    mine = label_shards(y.numpy(), partitions, each=2).of(partition)
    return x[mine], y[mine]


def train(model, x, y, steps, step_size, batch, seed):
    """Local SGD on random mini-batches; returns the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=step_size)
    draw, losses = np.random.default_rng(seed), []
    for _ in range(steps):
        part = draw.choice(len(x), min(batch, len(x)), replace=False)
        loss = nn.functional.cross_entropy(model(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return float(np.mean(losses))


@torch.no_grad()
def test(model, x, y):
    """Mean loss and accuracy."""
    outputs = model(x)
    return {
        "loss": float(nn.functional.cross_entropy(outputs, y)),
        "accuracy": float((outputs.argmax(dim=1) == y).float().mean()),
    }
