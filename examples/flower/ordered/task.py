"""Softmax regression on Fashion-MNIST where WELLORDER_DATA has it, else on made-up images of that shape."""

import os
from functools import cache

import numpy as np

CLASSES, PIXELS = 10, 28 * 28


@cache
def images(part):
    """Images (n, 784) in [0, 1] and labels of "train" or "test"."""
    if os.environ.get("WELLORDER_DATA"):
        from wellorder.federated import fashion_mnist

        found = fashion_mnist()
        x, y = getattr(found, f"{part}_images"), getattr(found, f"{part}_labels")
        return x.reshape(len(x), PIXELS).astype(np.float32) / 255, y.astype(int)
    draw = np.random.default_rng(["train", "test"].index(part))
    shapes = np.random.default_rng(2).random((CLASSES, 7, 7)).repeat(4, axis=1).repeat(4, axis=2)
    y = draw.integers(0, CLASSES, 6000 if part == "train" else 1000)
    x = 0.5 * shapes[y].reshape(len(y), PIXELS) + 0.5 * draw.random((len(y), PIXELS))
    return x.astype(np.float32), y


def shard(partition, partitions):
    """The images of one client: sorted by label and cut into equal parts, so about one label each."""
    x, y = images("train")
    mine = np.array_split(np.argsort(y, kind="stable"), partitions)[partition]
    return x[mine], y[mine]


def first_model():
    return {"weight": np.zeros((CLASSES, PIXELS), np.float32), "bias": np.zeros(CLASSES, np.float32)}


def probabilities(model, x):
    logits = x @ model["weight"].T + model["bias"]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def train(model, x, y, steps, step_size, batch, seed):
    """Local SGD on random mini-batches."""
    weight, bias = model["weight"], model["bias"]
    draw = np.random.default_rng(seed)
    for _ in range(steps):
        part = draw.choice(len(x), min(batch, len(x)), replace=False)
        e = probabilities({"weight": weight, "bias": bias}, x[part])
        e[np.arange(len(e)), y[part]] -= 1
        weight = weight - step_size / len(e) * e.T @ x[part]
        bias = bias - step_size / len(e) * e.sum(axis=0)
    return {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}


def evaluate(model, x, y):
    """Mean loss and accuracy."""
    p = probabilities(model, x)
    return {
        "loss": float(-np.log(p[np.arange(len(y)), y] + 1e-12).mean()),
        "accuracy": float((p.argmax(axis=1) == y).mean()),
    }
