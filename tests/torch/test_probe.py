"""Rows by a probe: sketches of gradients at the weights of now; the model is untouched."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from wellorder.shards import ordered_shards, survey  # noqa: E402
from wellorder.torch import Sketch, probe  # noqa: E402


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.BatchNorm1d(20), nn.Dropout(0.5), nn.Linear(20, 3))


def examples(n):
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(6, generator=draw), i % 3) for i in range(n)]


def test_products_of_rows_are_those_of_gradients(net):
    data, rows = examples(12), []
    grams = []
    for seed in range(30):
        rows = probe(net, loss, seed=seed, spec=Sketch(size=512)).many(data)
        grams.append(rows @ rows.T)
    plain = net.eval()
    truth = []
    for x, y in data:
        plain.zero_grad()
        loss(plain, (x[None], torch.tensor([y]))).backward()
        layers = (plain[0], plain[4])
        truth.append(torch.cat([p.grad.ravel() for layer in layers for p in (layer.weight, layer.bias)]))
    truth = torch.stack(truth)
    truth = truth @ truth.T
    close = torch.corrcoef(torch.stack([torch.stack(grams).mean(0).ravel(), truth.ravel()]))[0, 1]
    assert close > 0.98


def test_a_row_does_not_depend_on_the_batch_and_the_model_is_untouched(net):
    data, before = examples(5), {name: value.clone() for name, value in net.state_dict().items()}
    rows = probe(net, loss)
    together = rows.many(data)
    for example, row in zip(data, together, strict=True):
        torch.testing.assert_close(rows(example), row, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert net.training
    with torch.no_grad():
        net[0].weight.zero_()
    torch.testing.assert_close(rows.many(data), together)


def test_a_survey_by_a_probe_orders_shards_by_label(net):
    def read(shard):
        draw = torch.Generator().manual_seed(shard)
        return ((torch.randn(6, generator=draw), shard % 3) for _ in range(20))

    found = survey(range(30), read, row=probe(net, loss), sample=16, sizes=[20] * 30, threads=2)
    kinds = ordered_shards(found, seed=0, epoch=0) % 3
    counts = np.cumsum(np.eye(3)[kinds], axis=0)
    assert np.abs(counts - np.arange(1, 31)[:, None] / 3).max() < 2


def test_bad_input_is_named(net):
    with pytest.raises(ValueError, match="model=int"):
        probe(3, loss)
    with pytest.raises(ValueError, match="loss=3"):
        probe(net, 3)
    with pytest.raises(ValueError, match="mean loss"):
        probe(net, lambda model, batch: model(batch[0])).many(examples(2))
