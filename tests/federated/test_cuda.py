"""On CUDA: captured, eager and host rounds agree, and the same seed gives the same bits."""

import numpy as np
import pytest
import torch

from wellorder import GraB, PairGraB, RandomReshuffling
from wellorder.federated import ClientData, Config, label_shards, simulate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible here")


def data():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 10, 300)
    images = draw.integers(0, 256, (300, 3, 32, 32), dtype=np.uint8)
    return ClientData(images, labels, label_shards(labels, 12), images, labels, 10, (0.5,) * 3, (0.25,) * 3)


def settings(**changes):
    own = {"step_size": 0.05, "epochs": 2, "cohort": 4, "clip": 10.0, "augment": True, "device": "cuda"}
    return Config(**{**own, **changes})


@pytest.mark.parametrize("policy", [PairGraB(), GraB(), RandomReshuffling()], ids=str)
@pytest.mark.parametrize("cohort", [3, 4, 5])
def test_cuda_equals_the_host_in_float64(policy, cohort):
    host = simulate(
        "lenet", data(), policy, settings(device="cpu", precision="float64", cohort=cohort, mode="loop")
    )
    for changes in ({"graph": True}, {"graph": False}, {"mode": "vmap", "graph": False}):
        run = simulate("lenet", data(), policy, settings(precision="float64", cohort=cohort, **changes))
        assert (run.orders == host.orders).all()
        for name, array in host.weights.items():
            np.testing.assert_allclose(run.weights[name], array, rtol=0, atol=1e-11)


def test_graph_and_eager_are_the_same_bits_and_so_is_a_second_run():
    runs = [simulate("cnn", data(), PairGraB(), settings(graph=graph)) for graph in (True, False, True)]
    for other in runs[1:]:
        assert (runs[0].orders == other.orders).all()
        for name, array in runs[0].weights.items():
            np.testing.assert_array_equal(other.weights[name], array)


@pytest.mark.parametrize(("precision", "room"), [("float32", 1e-3), ("tf32", 0.05), ("bf16", 0.5)])
@pytest.mark.parametrize("model", ["cnn", "resnet10"])
def test_faster_arithmetic_rounds_and_does_nothing_else(model, precision, room):
    few = {"epochs": 1, "step_size": 0.01}
    exact, found = (
        simulate(model, data(), RandomReshuffling(), settings(precision=p, **few))
        for p in ("float64", precision)
    )
    start = simulate(
        model, data(), RandomReshuffling(), settings(precision="float64", epochs=1, step_size=1e-30)
    )

    def far(one, other):
        return np.sqrt(sum(float(((one.weights[k] - other.weights[k]) ** 2).sum()) for k in one.weights))

    assert far(exact, start) > 0
    assert far(found, exact) <= room * far(exact, start)
