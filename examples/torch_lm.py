"""A small transformer language model with gradient accumulation, ordered by exact per-sequence gradients.

python examples/torch_lm.py [--sequences 512] [--epochs 3]

Note the positions: one row per sequence (expand_as), so that every example's own gradient can be told apart.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from wellorder import PairGraB
from wellorder.torch import ordered


class Block(nn.Module):
    """Causal attention, then a perceptron, both with a norm before and a sum after."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.mix, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.norm2, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norm1(x)).chunk(3, -1)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class LM(nn.Module):
    """Two blocks between an embedding and the same table as output layer."""

    def __init__(self, vocabulary: int, width: int = 64, length: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1]).expand_as(ids)
        return self.head(self.blocks(self.tokens(ids) + self.places(places)))


def sequences(n: int, vocabulary: int, length: int = 32) -> TensorDataset:
    """Numbers that count up by a step of their own, modulo the vocabulary."""
    gen = torch.Generator().manual_seed(0)
    start, step = (torch.randint(1, vocabulary, (n, 1), generator=gen) for _ in range(2))
    ids = (start + step * torch.arange(length + 1)) % vocabulary
    return TensorDataset(ids[:, :-1], ids[:, 1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = LM(vocabulary=31)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(sequences(options.sequences, 31), batch_size=8, shuffle=True)
    loader = ordered(loader, model, PairGraB(), signals="exact")
    for _ in range(options.epochs):
        total = 0.0
        for step, (x, y) in enumerate(loader, 1):
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            (loss / 4).backward()
            if step % 4 == 0:  # signals are taken from every backward pass; the step comes when it comes
                optimizer.step()
                optimizer.zero_grad()
            total += loss.item() / len(loader)
        print(f"epoch {loader.epoch}: loss {total:.4f}, order error {loader.report().order_error[-1]:.3g}")
    print(loader.report())


if __name__ == "__main__":
    main()
