"""Triton's kernels equal their twins in plain torch; in Triton's interpreter where there is no GPU."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("triton", reason="Triton is not installed here; its kernels are used on CUDA alone")

CODE = """
import os
import torch
import torch.nn.functional as F
from wellorder import PairGraB
from wellorder.federated import _balancer as balancer
from wellorder.federated import _fused as fused
from wellorder.federated import _signing as signing
from wellorder.federated import _stacked as stacked
from wellorder.federated._layout import layout_of
from wellorder.federated._models import build

cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
fused.serves = lambda x, out: out >= 16 and out & (out - 1) == 0
torch.manual_seed(0)
for name, size in (("cnn", 20), ("resnet10", 6)):
    model = build(name, channels=3, size=size, classes=10).to(device)
    layout = layout_of(model)
    row = layout.flat({k: v.cpu() for k, v in model.named_parameters()}).float()
    flat = torch.stack([row, 1.1 * row]).to(device).requires_grad_()
    x, t = torch.randn(2, 2, size, size, 3, device=device), torch.randn(2, 2, 10, device=device)
    x[:, 0, :4] = 0.5  # ties in the pools
    found = []
    for stacked.FUSED in (False, True):
        y = stacked.stack(model)(layout.views(flat), x)
        found.append((y.detach(), torch.autograd.grad((y * t).sum(), flat)[0]))
    for plain, triton in zip(*found, strict=True):
        assert (plain - triton).norm() <= 1e-4 * plain.norm(), name
for runs, cohort, width, chosen in ((3, 10, 2048, [0, 2]), (2, 4, 200, [1]), (2, 20, 300, [0, 1])):
    steps = torch.rand(runs, dtype=torch.float64, device=device) + 0.1
    index = torch.tensor(chosen, device=device)
    one = balancer.Balancer(PairGraB(), steps[index], cohort, width)
    other = balancer.Balancer(PairGraB(), steps[index], cohort, width)
    thresholds = 0.1 * torch.randn(len(chosen), cohort // 2, dtype=torch.float64, device=device)
    for turn in range(4):
        moves = torch.randn(runs, cohort, width, device=device)
        moves[:, 1] = moves[:, 0] if turn == 2 else moves[:, 1]
        rows = torch.zeros(len(chosen), cohort // 2 + 1, 2, dtype=torch.int64, device=device)
        one.step(moves[index], rows, thresholds, True)
        other.pair_up(moves, index, thresholds)
        assert torch.allclose(one.values, other.values, rtol=1e-9, atol=1e-9)
        assert ((one.values < thresholds) == (other.values < thresholds)).all()
        assert torch.allclose(one.vectors[:, -1], other.vectors[:, -1], rtol=1e-12, atol=1e-12)
print("equal")
"""


@pytest.mark.slow
def test_kernels_equal_their_twins():
    import torch

    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", textwrap.dedent(CODE)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **interpret})
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
