"""Triton's kernels equal their twins in plain torch; in Triton's interpreter where there is no GPU."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("triton", reason="Triton is not installed here; its kernels are used on CUDA alone")

CODE = """
import sys
import torch
from torch import nn
from wellorder._datasets.networks import Residual, network
from wellorder.federated._batched_models import BatchedModel, stack
from wellorder.federated import _batched_models_cuda as triton_kernels
from wellorder.federated._local_training import cross_entropy
from wellorder.federated._parameters import layout_of

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.allow_tf32 = False  # the twin's convolutions, which torch makes in TF32 unless told
calls, convolve = [], triton_kernels.convolve
triton_kernels.convolve = lambda *given, **how: calls.append(given) or convolve(*given, **how)
torch.manual_seed(0)
small = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    Residual(nn.Sequential(nn.Conv2d(16, 64, 3, 2, 1)), nn.Sequential(nn.Conv2d(16, 64, 1, 2))),
    nn.Conv2d(64, 16, 2, padding=1), nn.Flatten(), nn.Linear(144, 10),
)
models = {"small": (small, 8)}
if "all" in sys.argv:
    sizes = {"cnn": 16, "resnet10": 5} if device == "cuda" else {"cnn": 16}  # interpreted, it takes minutes
    models |= {name: (network(name, size=size, channels=3, classes=10), size) for name, size in sizes.items()}
for name, (model, size) in models.items():
    model = model.to(device)
    layout = layout_of(model, channels_last=True)
    row = layout.flat({k: v.cpu() for k, v in model.named_parameters()}).float()
    flat = torch.stack([row, 1.1 * row]).to(device).requires_grad_()
    x, t = torch.randn(2, 2, size, size, 3, device=device), torch.randn(2, 2, 10, device=device)
    x[:, 0, :4] = 0.5  # ties in the pools
    assert triton_kernels.serves(x, 64)
    found = []
    for kernels in (False, True):
        calls.clear()
        y = stack(model, kernels=kernels)(layout.views(flat), x)
        found.append((y.detach(), torch.autograd.grad((y * t).sum(), flat)[0]))
        assert bool(calls) == kernels, f"kernels={kernels}, and {len(calls)} calls"
    for plain, triton in zip(*found, strict=True):
        assert (plain - triton).norm() <= 1e-4 * plain.norm(), name
    labels, real = torch.zeros(2, 2, dtype=torch.long, device=device), torch.ones(2, 2, device=device)
    lanes = flat.detach()
    precisions = [(False, 1e-4), (True, 0.05)]  # Triton's interpreter cannot multiply in bfloat16
    for half, close in precisions if device == "cuda" else precisions[:1]:
        stacks = [stack(model, half=half, kernels=kernels) for kernels in (False, True)]
        steps = [BatchedModel(s, layout, cross_entropy, {}, half).gradients_at(lanes) for s in stacks]
        plain, triton = (step(x, labels, real) for step in steps)
        assert (plain - triton).norm() <= close * plain.norm(), f"{name}, half={half}"
x, bias = torch.randn(2, 3, 4, 4, 16, device=device), torch.randn(2, 16, device=device)
other = x.permute(1, 2, 3, 0, 4).contiguous().permute(3, 0, 1, 2, 4)  # the same images, lanes inside pixels
pool = triton_kernels.PoolReLU.apply
assert torch.equal(pool(x, bias), pool(other, bias)), "images that lie in another order"
from wellorder.federated._batched_models import _gathered, patches
for shape, kernel, stride, padding in (
    ((2, 3, 5, 6, 3), 3, 1, 1), ((1, 2, 7, 5, 16), 5, 1, 0),
    ((2, 1, 8, 8, 24), 3, 2, 1), ((3, 2, 5, 5, 40), 1, 2, 0),
):
    x = torch.randn(shape, device=device)
    (plain, sides), (triton, same) = (patches(x, kernel, stride, padding, fused=f) for f in (False, True))
    assert sides == same and torch.equal(plain, triton), f"patches of {shape}"
    parts = plain[..., : kernel * kernel * shape[4]].unflatten(2, (kernel, kernel, shape[4]))
    parts = parts.reshape(*shape[:2], *sides, kernel, kernel, shape[4])
    given = parts.contiguous(), x.shape, stride, padding
    assert torch.allclose(_gathered(*given), triton_kernels.gather(*given)), f"gradients of {shape}"
from wellorder.federated._device_balancing import DeviceBalancing
for runs, count, width in ((1, 1, 50), (2, 5, 4099), (1, 15, 40)):
    signals = torch.randn(3, runs, 2 * count, width + 1, device=device)[..., :width]
    signals[:, :, 1] = signals[:, :, 0]  # a tie
    steps = torch.full((runs,), 0.1, device=device)
    found = []
    for fused in (False, True):
        group = DeviceBalancing("pairs", [*range(runs)], steps, 2 * count, width, 3)
        group.regular, group.fused = True, fused
        group.thresholds.copy_(torch.linspace(-1, 1, group.thresholds.numel()).view_as(group.thresholds))
        for turn in range(3):
            group.step(signals[turn], torch.tensor([turn], device=device))
        found += [(group.values, group.vectors[:, count])]
    for plain, triton in zip(*found, strict=True):
        assert torch.allclose(plain, triton, rtol=1e-9, atol=1e-9 * width), f"balancing {count} pairs"
    assert (found[0][0] == 0).any() and (found[1][0] == 0).any(), "ties"
print("equal")
"""


@pytest.mark.parametrize("models", ["small", pytest.param("all", marks=pytest.mark.slow)])
def test_kernels_equal_their_twins(models):
    import torch

    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", textwrap.dedent(CODE), models]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **interpret})
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
