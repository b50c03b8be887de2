"""A round of `simulate` on a CPU against the plain PyTorch loop over clients: CPU seconds, one thread.

The paper's CNN on made-up images of CIFAR-10's size, S=10, K=5, batch 16 (50 examples a client: 16, 16, 16,
2, 16). The plain loop copies the server's model into one local model, takes its steps by ``torch.optim.SGD``
with ``clip_grad_norm_``, and averages; its images are cropped and flipped as the engine's are.
`federated_peers` puts pfl and Flower's simulation beside them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from benchmarks.timing import cpu_seconds
from wellorder import PairGraB, RandomReshuffling
from wellorder.federated import ClientData, label_shards, paper_config
from wellorder.federated._simulate import Runs

COHORT = 10


def made_up(clients: int = COHORT) -> ClientData:
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), clients * 5)
    images = draw.integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    return ClientData(images, labels, label_shards(labels, clients), None, None, 10, (0.5,) * 3, (0.25,) * 3)


class Rounds:
    """Trains the next round at each call: with ten clients in all, a round is an epoch."""

    def __init__(self, data: ClientData, policy: object, mode: str) -> None:
        config = paper_config(0.1, rounds=100, clients=data.partition.n, evaluate=0, mode=mode)
        self.loop, self.done = Runs("cnn", data, [(policy, config)]).loop, 0

    def __call__(self) -> None:
        self.loop.epoch(self.done)
        self.done += 1


class PlainLoop:
    """Federated averaging as one would first write it."""

    def __init__(self, data: ClientData, model: nn.Module) -> None:
        self.server, self.local = copy.deepcopy(model), copy.deepcopy(model)
        self.images = torch.from_numpy(np.pad(data.inputs, ((0, 0), (0, 0), (4, 4), (4, 4))))
        self.labels, self.data = torch.from_numpy(data.labels), data
        self.draw = np.random.default_rng(0)

    def __call__(self) -> None:
        total = [torch.zeros_like(p) for p in self.server.parameters()]
        for client in self.draw.choice(self.data.partition.n, COHORT, replace=False):
            self.train(self.data.partition.of(client))
            for sum_, p in zip(total, self.local.parameters(), strict=True):
                sum_.add_(p.detach(), alpha=1 / COHORT)
        with torch.no_grad():
            for p, mean in zip(self.server.parameters(), total, strict=True):
                p.copy_(mean)

    def train(self, own: np.ndarray) -> None:
        self.local.load_state_dict(self.server.state_dict())
        rule = torch.optim.SGD(self.local.parameters(), lr=0.1)
        for images, labels in self.batches(own):
            rule.zero_grad()
            loss = nn.functional.cross_entropy(self.local(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(self.local.parameters(), 10.0)
            rule.step()

    def batches(self, own: np.ndarray) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        passes = [b for _ in range(2) for b in np.split(self.draw.permutation(own), [16, 32, 48])]
        for batch in passes[:5]:
            yield self.augmented(batch), self.labels[batch]

    def augmented(self, batch: np.ndarray) -> torch.Tensor:
        pictures = []
        codes = self.draw.integers(0, 9, (len(batch), 3))
        for example, (down, right, flip) in zip(batch, codes, strict=True):
            picture = self.images[example, :, down : down + 32, right : right + 32]
            pictures.append(picture.flip(2) if flip % 2 else picture)
        return (torch.stack(pictures).float() / 255 - 0.5) / 0.25


def main() -> None:
    torch.set_num_threads(1)
    data = made_up()
    engine = Rounds(data, PairGraB(), "auto")
    calls = {
        "plain PyTorch loop": PlainLoop(data, engine.loop.trainer.model),
        "simulate, FL-GraB": engine,
        "simulate, FL-RR": Rounds(data, RandomReshuffling(), "auto"),
        "simulate, stacked": Rounds(data, PairGraB(), "stacked"),
        "simulate, vmap": Rounds(data, PairGraB(), "vmap"),
    }
    spent = cpu_seconds(calls, repeats=7)
    for name, seconds in spent.items():
        ratio = seconds / spent["plain PyTorch loop"]
        print(f"{name:22} {seconds:7.3f} s CPU a round   {ratio:5.2f} × the plain loop")


if __name__ == "__main__":
    main()
