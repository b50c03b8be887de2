"""The federated engine on one GPU: correctness, speed, and the paper's CIFAR experiments in full.

python benchmarks/federated_gpu.py check                       graph = eager = host, to float32 accuracy
python benchmarks/federated_gpu.py speed --runs 1 9            seconds for 20,000 rounds, alone and together
python benchmarks/federated_gpu.py profile --model resnet10    where a round's time goes
python benchmarks/federated_gpu.py reproduce DATA --minutes 8  FL-RR, FL-OP, FL-GraB, three seeds, all at once
python benchmarks/federated_gpu.py resnet DATA --minutes 3     ResNet-10, as far as it gets

Everything is printed as JSON lines; `--out DIR` keeps tables there. `reproduce` goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from wellorder import PairGraB, RandomReshuffling, ShuffleOnce
from wellorder.federated import (
    ClientData,
    Dataset,
    cifar10,
    cifar100,
    federate,
    label_shards,
    paper_config,
    simulate_many,
)
from wellorder.federated._simulate import Runs, precision_of

POLICIES = {"FL-RR": RandomReshuffling(), "FL-OP": ShuffleOnce(), "FL-GraB": PairGraB()}
DATASETS = {"cifar10": cifar10, "cifar100": cifar100}
FLOPS = 70.5e9
"""Arithmetic of one round of the CNN (S=10, K=5, batch 16)."""
KERNELS: dict[str, bool | None] = {"used": None}
"""Whether Triton's kernels are used, as `RoundLoop` takes it."""


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def made_up(n: int = 50_000, classes: int = 10) -> ClientData:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, n)
    images = draw.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    dataset = Dataset(
        "made up", images, labels, images[:10_000], labels[:10_000], classes, (0.5,) * 3, (0.25,) * 3
    )
    return federate(dataset, label_shards(labels, n // 50))


def runs_of(data: ClientData, jobs: list[tuple[object, int]], model: str = "cnn", **changes: object) -> Runs:
    kernels = changes.pop("kernels", KERNELS["used"])
    configs = [
        (policy, replace(paper_config(0.1, evaluate=0, device="cuda"), seed=seed, **changes))
        for policy, seed in jobs
    ]
    return Runs(model, data, configs, kernels=kernels)


def weights_after(data: ClientData, epochs: int, policy: object, model: str, **changes: object):
    made = runs_of(data, [(policy, 0)], model, **changes)
    with precision_of(made.config.precision):
        for epoch in range(epochs):
            made.loop.epoch(epoch)
    return parameters_of(made), np.array(made.loop.runs[0].orders)


def parameters_of(made: Runs) -> torch.Tensor:
    """The first server's parameters in one order, however rows are laid out."""
    named = made.loop.layout.named(made.loop.servers[0].double())
    return torch.from_numpy(np.concatenate([array.ravel() for array in named.values()]))


def check() -> None:
    """Captured, eager and host rounds agree."""
    few = made_up(500)
    host, order = weights_after(few, 3, PairGraB(), "lenet", device="cpu", precision="float64", cohort=3)
    for name, changes in {
        "eager": {"graph": False},
        "graph": {"graph": True},
        "loop": {"mode": "loop", "graph": False},
        "vmap": {"mode": "vmap", "graph": False},
    }.items():
        other, orders = weights_after(few, 3, PairGraB(), "lenet", precision="float64", cohort=3, **changes)
        say(
            check="lenet float64, 3 epochs, S=3, N=10, CUDA against host", path=name,
            largest_difference=float((other - host).abs().max()), same_orders=bool((orders == order).all()),
        )  # fmt: skip
    one_round = made_up(500)
    exact, _ = weights_after(one_round, 1, PairGraB(), "cnn", precision="float64", graph=False)
    for precision in ("float32", "tf32", "bf16"):
        eager, _ = weights_after(one_round, 1, PairGraB(), "cnn", precision=precision, graph=False)
        graph, _ = weights_after(one_round, 1, PairGraB(), "cnn", precision=precision)
        start = parameters_of(runs_of(one_round, [(PairGraB(), 0)]))
        moved = float((exact - start).norm())
        say(
            check="cnn, one round", precision=precision, moved=moved,
            graph_minus_eager=float((graph - eager).norm()) / moved,
            eager_minus_float64=float((eager - exact).norm()) / moved,
        )  # fmt: skip


def usable() -> None:
    """Use the Triton kernels only if they agree with plain torch on this machine."""
    few, found = made_up(500), {}
    try:
        for kernels in (False, None):
            changes = {"precision": "float32", "kernels": kernels}
            found[kernels] = weights_after(few, 1, PairGraB(), "cnn", **changes)[0]
        start = parameters_of(runs_of(few, [(PairGraB(), 0)]))
        gap = float((found[None] - found[False]).norm() / (found[False] - start).norm())
        KERNELS["used"] = None if gap < 0.01 else False
        say(triton_minus_torch=gap, used=gap < 0.01)
    except Exception as error:
        KERNELS["used"] = False
        say(triton_failed=f"{type(error).__name__}: {error}"[:1500], used=False)


def timed(made: Runs, epochs: int) -> float:
    """Seconds of an epoch (planning and drawing included), after one epoch to warm up."""
    with precision_of(made.config.precision):
        made.loop.epoch(0)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for epoch in range(1, epochs + 1):
            made.loop.epoch(epoch)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / epochs


def evaluation_seconds(made: Runs) -> float:
    with precision_of(made.config.precision):
        made.evaluator.measure(made.loop.servers[0])
        torch.cuda.synchronize()
        began = time.perf_counter()
        made.evaluator.measure(made.loop.servers[0])
        torch.cuda.synchronize()
        return time.perf_counter() - began


def speed(limit: float, model: str, together: list[int]) -> None:
    """Seconds per 20,000 rounds: one run, several together, with and without balancing."""
    began, data = time.perf_counter(), made_up()
    for precision in ("tf32", "bf16"):
        for runs, epochs in ((count, 5 if count == 1 else 2) for count in together):
            for label, policy in (("FL-RR", RandomReshuffling()), ("FL-GraB", PairGraB())):
                if time.perf_counter() - began > limit:
                    return
                torch.cuda.reset_peak_memory_stats()
                made = runs_of(data, [(policy, seed) for seed in range(runs)], model, precision=precision)
                epoch = timed(made, epochs)
                look = evaluation_seconds(made)
                each = epoch / runs
                say(
                    speed=label, precision=precision, runs=runs, ms_per_round_and_run=each * 10,
                    evaluation_ms=look * 1000, seconds_per_20000_rounds=200 * (each + look),
                    fraction_of_495_tflops=FLOPS * 100 / each / 495e12 if model == "cnn" else None,
                    peak_gib=torch.cuda.max_memory_allocated() / 2**30,
                )  # fmt: skip
                del made
                torch.cuda.empty_cache()


def profile(precision: str, runs: int, model: str) -> None:
    """Where a round's time goes: the kernels of a few eager rounds."""
    jobs = [(PairGraB(), seed) for seed in range(runs)]
    made = runs_of(made_up(), jobs, model, precision=precision, graph=False)
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorder

    def few(rounds: int) -> None:
        for _ in range(rounds):
            made.loop.inputs.at.zero_()
            made.loop.body(made.loop.inputs)
        torch.cuda.synchronize()

    with precision_of(precision):
        made.loop.epoch(0)
        few(2)
        with recorder(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as record:
            few(5)
    kernels = [
        (e.self_device_time_total / 5, e.count // 5, e.key[:110])
        for e in record.key_averages()
        if e.device_type == torch.autograd.DeviceType.CUDA and not e.key.startswith("aten::")
    ]
    kernels.sort(reverse=True)
    total = sum(k[0] for k in kernels)
    launches = sum(k[1] for k in kernels)
    say(profile=precision, model=model, runs=runs, kernel_us_per_round=total, kernels=launches)
    for us, count, name in kernels[:26]:
        print(f"  {us:9.1f} us {100 * us / total:5.1f} %  x{count:<4d} {name}", flush=True)


class Time(Exception):  # noqa: N818
    """Enough for this call."""


def reproduce(
    folder: Path,
    out: Path,
    minutes: float,
    model: str,
    seeds: int,
    rounds: int,
    precision: str,
    name: str,
    sample: int,
) -> None:
    """All policies and seeds together, evaluated every epoch; stops in time and goes on when called again."""
    began = time.perf_counter()
    dataset = DATASETS[name](folder)
    data = federate(dataset, label_shards(dataset.train_labels, 1000))
    gamma = 0.1 if model == "cnn" else 10**-0.5
    keep = Path("runs/federated_gpu")
    keep.mkdir(parents=True, exist_ok=True)
    settings = paper_config(
        gamma,
        rounds,
        device="cuda",
        precision=precision,
        train_sample=sample,
        checkpoint=keep / f"{model}-{name}.npz",
        checkpoint_every=5,
        checkpoint_seconds=1e9,  # the table beside it is kept at the same epochs
    )
    jobs = [(policy, replace(settings, seed=s)) for policy in POLICIES.values() for s in range(seeds)]
    names = [(label, s) for label in POLICIES for s in range(seeds)]
    table: list[dict[str, object]] = []
    kept = keep / f"{model}-{name}.json"
    if kept.exists():
        table = json.loads(kept.read_text())

    def progress(epoch: int, rows: list[dict[str, float]]) -> None:
        for (label, seed), row in zip(names, rows, strict=True):
            table.append({"method": label, "seed": seed, **row})
        if epoch % 5 == 0 or epoch < 4:
            now = {label: round(mean_of(label, names, rows), 4) for label in POLICIES}
            say(model=model, epoch=epoch, seconds=round(time.perf_counter() - began, 1), test_accuracy=now)
        if epoch % settings.checkpoint_every == 0:
            kept.write_text(json.dumps(table))
            (out / f"{model}-{name}.json").write_text(json.dumps(table))
            if time.perf_counter() - began > 60 * minutes:
                raise Time

    say(model=model, clients=data.partition.n, ready=round(time.perf_counter() - began, 1))
    try:
        simulate_many(model, data, jobs, progress=progress)
        finished = True
    except Time:
        finished = False
    summary(table, finished, model)


def mean_of(name: str, names: list[tuple[str, int]], rows: list[dict[str, float]]) -> float:
    return float(np.mean([r["test_accuracy"] for (n, _), r in zip(names, rows, strict=True) if n == name]))


def summary(table: list[dict[str, object]], finished: bool, model: str) -> None:
    """Mean over the last five evaluations, then over seeds."""
    for name in POLICIES:
        per_seed = []
        for seed in sorted({row["seed"] for row in table}):
            rows = [row for row in table if row["method"] == name and row["seed"] == seed][-5:]
            per_seed.append([[float(row[k]) for row in rows] for k in ("train_loss", "test_accuracy")])
        means = np.array(per_seed).mean(axis=2)
        say(
            summary=model, method=name, finished=finished, epochs=max(float(row["epoch"]) for row in table),
            train_loss=means[:, 0].mean(), train_loss_std=spread(means[:, 0]),
            test_accuracy=means[:, 1].mean(), test_accuracy_std=spread(means[:, 1]),
        )  # fmt: skip


def spread(values: np.ndarray) -> float | None:
    """The standard deviation; one seed has none."""
    return float(values.std(ddof=1)) if len(values) > 1 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["check", "speed", "profile", "reproduce", "resnet"])
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--dataset", default="cifar10", choices=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--train-sample", type=int, default=0, help="training images measured (0: all)")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 9], help="so many together, one by one")
    parser.add_argument("--model", default="cnn", help="for speed and profile")
    parser.add_argument("--plain", action="store_true", help="no Triton kernels")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    say(torch=torch.__version__, device=torch.cuda.get_device_name() if torch.cuda.is_available() else "none")
    if a.plain:
        KERNELS["used"] = False
    else:
        usable()
    if a.what == "check":
        check()
    elif a.what == "speed":
        speed(60 * a.minutes, a.model, a.runs)
    elif a.what == "profile":
        profile(a.precision, a.runs[0], a.model)
    else:
        model = "cnn" if a.what == "reproduce" else "resnet10"
        reproduce(a.data, a.out, a.minutes, model, a.seeds, a.rounds, a.precision, a.dataset, a.train_sample)


if __name__ == "__main__":
    main()
