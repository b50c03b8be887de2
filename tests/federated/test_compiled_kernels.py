"""Triton's kernels compile, on machines without a GPU too: its interpreter takes what compilers refuse."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip(
    "triton", reason="Triton is not installed here; its kernels are used on CUDA alone"
)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from wellorder.federated import _batched_models_cuda as models  # noqa: E402
from wellorder.federated import _device_balancing_cuda as balancing  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.bfloat16: "*bf16", torch.int8: "*i8",
    torch.int64: "*i64",
    int: "i32", float: "fp32",
}  # fmt: skip


class Compiled:
    """Stands in for a kernel: what is launched is compiled, and not run."""

    def __init__(self, kernel):
        self.kernel, self.done = kernel, 0

    def __getitem__(self, grid):
        assert min(grid) > 0

        def launch(*given, num_warps=4, num_stages=3, **constants):
            types = [TYPES[a.dtype if isinstance(a, torch.Tensor) else type(a)] for a in given]
            names = self.kernel.arg_names
            signature = dict(zip(names, types, strict=False)) | dict.fromkeys(constants, "constexpr")
            assert [*signature] == names
            source = ASTSource(self.kernel, signature, constants)
            options = {"num_warps": num_warps, "num_stages": num_stages}
            assert triton.compile(source, HOPPER, options).asm["cubin"]
            self.done += 1

        return launch


@pytest.fixture
def kernels(monkeypatch):
    """All kernels, each in the place of its own."""
    found = {}
    for module in (models, balancing):
        for name, value in vars(module).items():
            if isinstance(value, triton.runtime.JITFunction):
                found[name] = Compiled(value)
    for name, compiled in found.items():
        monkeypatch.setattr(models if hasattr(models, name) else balancing, name, compiled)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_compile(kernels, dtype):
    x, dy = torch.zeros(2, 2, 8, 8, 64, dtype=dtype), torch.zeros(2, 2, 8, 8, 128, dtype=dtype)
    weight = torch.zeros(2, 128, 3, 3, 64, dtype=dtype)
    few = torch.zeros(2, 2, 8, 8, 3, dtype=dtype)
    models.convolve(x, weight, 1, 1)
    models.convolve(dy, weight, 1, 1, back=True)
    models.convolve(few, torch.zeros(2, 64, 3, 3, 3, dtype=dtype), 1, 1)
    models.weigh(x, dy, 3, 1, 1, torch.zeros(2, 128, 3, 3, 64))
    models.weigh(few, x, 3, 1, 1)
    models.copy_patches(few, 3, 1, 1, 32)
    models.gather(torch.zeros(2, 2, 4, 4, 3, 3, 64, dtype=dtype), x.shape, 2, 1)
    y = models.PoolReLU.apply(x.requires_grad_(), torch.zeros(2, 64))
    torch.autograd.grad(y.sum(), x)
    signals = torch.zeros(2, 10, 3000)
    total, steps = torch.zeros(2, 3000, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    limits, values = torch.zeros(2, 4, 2, 5, dtype=torch.float64)
    balancing.balance_pairs(signals, total, steps, limits, values, torch.zeros(1, dtype=torch.int64), 1e-12)
    assert [name for name, kernel in kernels.items() if not kernel.done] == []
