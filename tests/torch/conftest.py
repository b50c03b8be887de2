"""Small models of the kinds people train, and the loop they train them with."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class LeNet(nn.Module):
    def __init__(self, channels=1):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 3, 5), nn.Conv2d(3, 4, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(4 * 2 * 2, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x), inplace=True), 2)
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


class Residual(nn.Module):
    """A residual block with GroupNorm, stride and a 1×1 shortcut."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm1, self.conv1 = nn.GroupNorm(2, 4), nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.norm2, self.conv2 = nn.GroupNorm(2, 6), nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.short, self.head = nn.Conv2d(4, 6, 1, stride=2, bias=False), nn.Linear(6, 3)

    def forward(self, x):
        x = functional.relu(self.norm1(self.stem(x)))
        y = functional.relu(self.norm2(self.conv1(x)))
        return self.head((self.conv2(y) + self.short(x)).mean((2, 3)))


class Transformer(nn.Module):
    """Two pre-norm attention blocks, learned positions, tied output; classifies the next token's group."""

    def __init__(self, vocabulary=11, width=8, length=5):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "mix": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "norm2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 2 * width),
                    "down": nn.Linear(2 * width, width),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]).expand_as(ids))
        for block in self.blocks:
            q, k, v = block["mix"](block["norm1"](x)).chunk(3, -1)
            x = x + block["out"](functional.scaled_dot_product_attention(q, k, v, is_causal=True))
            x = x + block["down"](functional.gelu(block["up"](block["norm2"](x))))
        return self.head(x)[:, -1, :3]


def _mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 3))


MODELS = {"mlp": _mlp, "lenet": LeNet, "resnet": Residual, "transformer": Transformer}


@pytest.fixture(params=MODELS)
def kind(request):
    return request.param


@pytest.fixture
def make_model():
    def make(kind="mlp", seed=0, dtype=torch.float64):
        torch.manual_seed(seed)
        return MODELS[kind]().to(dtype)

    return make


@pytest.fixture
def make_data():
    def make(kind="mlp", n=30, seed=0, dtype=torch.float64):
        gen = torch.Generator().manual_seed(seed)
        y = torch.randint(0, 3, (n,), generator=gen)
        if kind == "transformer":
            return TensorDataset(torch.randint(0, 11, (n, 5), generator=gen), y)
        x = torch.randn(n, 1, 12, 12, generator=gen) + y.view(-1, 1, 1, 1) / 3
        return TensorDataset(x.to(dtype), y)

    return make


@pytest.fixture
def make_loader(make_data):
    def make(kind="mlp", n=30, batch=8, dtype=torch.float64, **options):
        return DataLoader(make_data(kind, n, dtype=dtype), batch_size=batch, shuffle=True, **options)

    return make


@pytest.fixture
def train():
    """Plain SGD over a loader; returns the orders of the epochs."""

    def run(loader, model, epochs=1, lr=0.1):
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        orders = []
        for _ in range(epochs):
            orders.append(loader.order.copy())
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        return orders

    return run
