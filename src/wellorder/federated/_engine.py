"""Many clients at once: federated runs of a PyTorch model, on a CPU or an accelerator."""

from __future__ import annotations

import copy
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wellorder._order import Order, Policy, describe, frozen, load_state_dict, state_dict
from wellorder.federated import _checkpoint as checkpoint
from wellorder.federated._admission import check_jobs, check_policy, device_of, model_of
from wellorder.federated._batches import shape_of, signed, whole_batches
from wellorder.federated._config import Config
from wellorder.federated._counter import key_of
from wellorder.federated._evaluation import Evaluator
from wellorder.federated._inner import Inner
from wellorder.federated._layout import layout_of
from wellorder.federated._plan import Rounds, plan_run, side_by_side
from wellorder.federated._rounder import Rounder
from wellorder.federated._store import ClientData, Store
from wellorder.federated._training import Batches, Loss, Trainer, cross_entropy, pick_mode

DTYPES = {"float64": torch.float64, "float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32}
Progress = Callable[[int, list[dict[str, float]]], None]
"""Called with the number of epochs done, after each, and with each run's newest row of the table."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a federated run did."""

    policy: Any
    config: Config
    table: dict[str, npt.NDArray[np.float64]] = field(repr=False)
    """By evaluation: epoch, round, train_loss, train_accuracy, test_loss, test_accuracy, missed."""
    orders: Order = field(repr=False)
    """(epochs, N): the order that each epoch really followed, those who were missed at its end."""
    weights: dict[str, npt.NDArray[Any]] = field(repr=False)
    """The server's last parameters, by name; the frozen ones too."""
    state: Any = field(repr=False)
    """The policy's last state."""
    seconds: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), repr=False)
    """Training seconds until each evaluation, evaluations left out; of runs together, this run's share."""


def simulate(
    model: str | nn.Module,
    data: ClientData,
    policy: Policy[Any],
    config: Config,
    *,
    loss: Loss = cross_entropy,
    progress: Progress | None = None,
) -> Simulation:
    """Train a model by regularised-participation FL (Algorithm ``alg:FL``), its clients in a policy's order.

    Parameters
    ----------
    model
        A name of `wellorder.federated._models.MODELS`, whose first weights come from the seed, or a module
        of your own, whose parameters are the first point; it is not changed. Parameters with
        ``requires_grad=False`` are constants.
    data, policy, config
        Who holds what, the order of clients, and the settings.
    loss
        From outputs (b, …) and labels to one loss for each example.
    progress
        Called after each epoch with the number of epochs done, and a list of the newest row of the table.

    >>> import numpy as np
    >>> from wellorder import PairGraB
    >>> from wellorder.federated import Config, simulate
    >>> from wellorder.federated._partition import shards
    >>> from wellorder.federated._store import ClientData
    >>> x = np.random.default_rng(0).standard_normal((60, 4)); y = (x[:, 0] > 0).astype(int)
    >>> data = ClientData(x, y, shards(y, 12))
    >>> run = simulate(torch.nn.Linear(4, 2), data, PairGraB(), Config(0.1, epochs=3, cohort=4))
    >>> run.orders.shape, bool(run.table["train_loss"][-1] < run.table["train_loss"][0])
    ((3, 12), True)
    """
    return simulate_many(model, data, [(policy, config)], loss=loss, progress=progress)[0]


def simulate_many(
    model: str | nn.Module,
    data: ClientData,
    jobs: Sequence[tuple[Policy[Any], Config]],
    *,
    loss: Loss = cross_entropy,
    progress: Progress | None = None,
) -> list[Simulation]:
    """`simulate` for several runs that share device and data; only seeds, step sizes and policies differ."""
    engine = Engine(model, data, jobs, loss)
    with _precision(jobs[0][1].precision):
        return engine.run(progress)


@dataclass
class _Run:
    """What changes in one run, beside its parameters."""

    policy: Policy[Any]
    config: Config
    state: Any
    late: Order
    clock: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    inner: Inner | None = None


class Engine:
    """The runs, their servers' points (R, width), and the verbs of an epoch."""

    def __init__(
        self, model: str | nn.Module, data: ClientData, jobs: Sequence[tuple[Policy[Any], Config]], loss: Loss
    ) -> None:
        check_jobs(jobs, data)
        self.config, self.data = jobs[0][1], data
        device, dtype = device_of(self.config.device), DTYPES[self.config.precision]
        models = [model_of(model, data, config.seed) for _, config in jobs]
        self.layout = layout_of(models[0])
        for policy, config in jobs:
            check_policy(policy, config, data.partition.n, self.layout.width)
        self.store = Store(data, device, dtype, augment=self.config.augment)
        net = copy.deepcopy(models[0]).to(device, dtype)
        mode = pick_mode(net, device, self.config.mode)
        self.trainer = Trainer(
            net, self.layout, loss, mode, self.config.clip, self.config.precision == "bf16", self.store.images
        )
        self.servers = torch.stack([self.layout.flat(dict(m.named_parameters())) for m in models]).to(
            device, dtype
        )
        self.step_sizes = torch.tensor([config.step_size for _, config in jobs], dtype=dtype, device=device)
        self.shape = shape_of(data.partition.sizes.tolist(), self.config.local_steps, self.config.batch)
        none = np.empty(0, np.int32)
        self.runs = [_Run(p, c, p.init(data.partition.n, seed=c.seed), none) for p, c in jobs]
        if self.config.local is not None:
            for run in self.runs:
                run.inner = Inner(self.config.local, data.partition.sizes, self.shape, run.config.seed)
        self.evaluator = Evaluator(data, self.store, net, self.layout, loss, self.config.train_sample)
        self.rounder = Rounder(self)
        self.spent = 0.0

    def run(self, progress: Progress | None) -> list[Simulation]:
        """Train all epochs that the checkpoint, if there is one, has not seen."""
        done = self._resume()
        if not done:
            self._evaluate(0)
        while done < self.config.epochs:
            began = time.perf_counter()
            self._epoch(done)
            if self.servers.is_cuda:
                torch.cuda.synchronize()
            self.spent += (time.perf_counter() - began) / len(self.runs)
            done += 1
            rows = self._evaluate(done)
            due = done % self.config.checkpoint_every == 0 or done == self.config.epochs
            if self.config.checkpoint is not None and due:
                checkpoint.save(self.config.checkpoint, self._saved(done))
            if progress is not None:
                progress(done, rows)
        return [self._result(r, run) for r, run in enumerate(self.runs)]

    def _epoch(self, epoch: int) -> None:
        before = self.servers.clone()
        plans = [self._open(r, run) for r, run in enumerate(self.runs)]
        self.rounder.epoch(epoch, side_by_side(plans))
        eta = self.config.server_step
        if eta != 1:
            self.servers.copy_(self.servers + (1 - eta) * (before - self.servers))
        for run, plan in zip(self.runs, plans, strict=True):
            run.orders.append(plan.effective)
            run.late, run.clock = plan.missed, plan.clock
            run.state = run.policy.advance(run.state)

    def _open(self, r: int, run: _Run) -> Rounds:
        """Show fresh signals where the policy wants them, and plan the epoch's rounds."""
        if run.policy.needs.at_start(run.state.epoch):
            run.state = self._fresh(r, run)
        config = run.config
        plan = plan_run(run.state.order, run.late, config.cohort, config.availability, config.seed, run.clock)
        if run.policy.needs.at_visits() and not np.array_equal(plan.effective, run.state.order):
            run.state = replace(run.state, order=frozen(plan.effective))
        return plan

    def _fresh(self, r: int, run: _Run) -> Any:
        """Show the policy every client's whole gradient at the epoch's first point."""
        state, order, shape = run.state, run.state.order, replace(self.shape, steps=1)
        for at in range(0, len(order), self.config.cohort):
            units = order[at : at + self.config.cohort]
            clients = torch.from_numpy(np.array(units, np.int64)).to(self.servers.device)
            places, real = whole_batches(self.store.sizes[clients], shape)
            examples = self.store.examples[self.store.starts[clients][:, None, None] + places]
            work = Batches(self.evaluator.plain(examples), self.store.labels[examples], real)
            lanes = self.servers[r].expand(len(units), -1).contiguous()
            rows = self.rounder.sketched(self.trainer.gradients(lanes, work, 0), r)
            state = run.policy.observe(state, units, rows)
        return state

    def _evaluate(self, epoch: int) -> list[dict[str, float]]:
        """Measure the servers at x_epoch, if it is their time."""
        every = self.config.evaluate
        if not every or (epoch % every and epoch < self.config.epochs):
            return [{} for _ in self.runs]
        for run, server in zip(self.runs, self.servers, strict=True):
            head = {"epoch": float(epoch), "round": float(run.clock)}
            run.rows.append({**head, **self.evaluator.measure(server), "missed": float(len(run.late))})
            run.seconds.append(self.spent)
        return [run.rows[-1] for run in self.runs]

    def _result(self, r: int, run: _Run) -> Simulation:
        frozen = {name: p.cpu().numpy().copy() for name, p in self.trainer.constants.items()}
        weights = {**self.layout.named(self.servers[r]), **frozen}
        return Simulation(
            run.policy, run.config, _columns(run.rows), np.array(run.orders), weights, run.state,
            np.array(run.seconds),
        )  # fmt: skip

    def fingerprint(self) -> str:
        """What a checkpoint belongs to: settings, policies, model and data."""
        crc = zlib.crc32(np.ascontiguousarray(self.data.inputs[:100]).data)
        for array in (self.data.labels, self.data.partition.examples, self.data.partition.starts):
            crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
        jobs = "; ".join(f"{describe(run.policy)} {run.config.text()}" for run in self.runs)
        for p in self.trainer.constants.values():
            crc = zlib.crc32(np.ascontiguousarray(p.cpu().numpy()).data, crc)
        return f"{jobs}; {self.layout.names} {self.layout.shapes}; data {crc:08x}"

    def _saved(self, epochs: int) -> dict[str, Any]:
        runs = {}
        for r, run in enumerate(self.runs):
            runs[f"{r}"] = {
                "state": state_dict(run.policy, run.state),
                "late": run.late,
                "clock": run.clock,
                "orders": np.array(run.orders),
                "table": _columns(run.rows),
                "seconds": np.array(run.seconds),
                "inner": run.inner.state_dict() if run.inner else {},
            }
        head = {"fingerprint": self.fingerprint(), "epochs": epochs, "spent": self.spent}
        return {**head, "servers": self.servers.cpu().numpy(), "runs": runs}

    def _resume(self) -> int:
        path = self.config.checkpoint
        saved = checkpoint.load(path, self.fingerprint()) if path is not None else None
        if saved is None:
            return 0
        self.servers.copy_(torch.from_numpy(saved["servers"]))
        self.spent = float(saved["spent"])
        for r, run in enumerate(self.runs):
            own = saved["runs"][f"{r}"]
            run.state = load_state_dict(run.policy, own["state"])
            run.late, run.clock, run.orders = own["late"], own["clock"], list(own["orders"])
            table = own.get("table", {})
            rounds = len(next(iter(table.values()))) if table else 0
            run.rows = [{name: float(column[i]) for name, column in table.items()} for i in range(rounds)]
            run.seconds = own["seconds"].tolist()
            if run.inner:
                run.inner.load_state_dict(own.get("inner", {}))
        return int(saved["epochs"])

    def keys(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The runs' keys for this epoch's mini-batches and augmentations."""
        both = [
            torch.tensor([signed(key_of(run.config.seed, epoch, stream)) for run in self.runs])
            for stream in ("batches", "augment")
        ]
        return both[0].to(self.servers.device), both[1].to(self.servers.device)


def _columns(rows: list[dict[str, float]]) -> dict[str, npt.NDArray[np.float64]]:
    return {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else {})}


def _precision(name: str) -> AbstractContextManager[None]:
    return _Tf32() if name in ("tf32", "bf16") else nullcontext()


class _Tf32(AbstractContextManager[None]):
    """Let float32 products use tensor cores while inside."""

    def __enter__(self) -> None:
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self.before)
