"""Real images are learnt, by clients of one label each."""

import numpy as np
import pytest
import torch

from wellorder import PairGraB
from wellorder.federated import Config, Dataset, cifar10, fashion_mnist, federate, label_shards, simulate


def first(dataset, train, test):
    return Dataset(
        dataset.name, dataset.train_images[:train], dataset.train_labels[:train], dataset.test_images[:test],
        dataset.test_labels[:test], dataset.classes, dataset.mean, dataset.std,
    )  # fmt: skip


@pytest.mark.slow
def test_lenet_learns_fashion_mnist_from_clients_of_one_label(real_data):
    torch.set_num_threads(1)
    dataset = first(fashion_mnist(real_data), 4000, 1000)
    data = federate(dataset, label_shards(dataset.train_labels, 100))
    config = Config(0.05, 12, cohort=10, clip=10.0, train_sample=1000, evaluate=12)
    run = simulate("lenet", data, PairGraB(), config)
    assert run.table["test_accuracy"][0] < 0.25
    assert run.table["test_accuracy"][-1] > 0.5


@pytest.mark.slow
def test_the_cnn_runs_on_real_cifar10(real_cifar10):
    torch.set_num_threads(1)
    dataset = first(cifar10(real_cifar10), 500, 200)
    data = federate(dataset, label_shards(dataset.train_labels, 20))
    config = Config(0.05, 2, cohort=5, local_steps=2, clip=10.0, augment=True, train_sample=200)
    run = simulate("cnn", data, PairGraB(), config)
    assert np.isfinite(run.table["train_loss"]).all()
    assert run.table["train_loss"][-1] < run.table["train_loss"][0] + 0.1
