"""Federated runs of a PyTorch model: many clients at once, runs alone or side by side."""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wellorder._arguments import function, instance_of, one_of, shown
from wellorder._clients.availability import Always
from wellorder._clients.queue import check_draws
from wellorder._datasets.networks import network
from wellorder._notebook import axes_for, html_table, plot_series, some_of
from wellorder._order import Keeps, Order, Policy, describe, keeps_of, permutes, policy_of
from wellorder._saving import load_state, save_state, sweep
from wellorder.federated._batched_models import Loss
from wellorder.federated._client_data import ClientData
from wellorder.federated._config import Config
from wellorder.federated._device_balancing import kind_of
from wellorder.federated._evaluate import Evaluator
from wellorder.federated._local_training import cross_entropy
from wellorder.federated._parameters import layout_of
from wellorder.federated._round_loop import RoundLoop, Run
from wellorder.policies._registry import line_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEMORY = 4 * 2**30
"""Bytes that a policy may keep on the host for all clients together."""
Progress = Callable[[int, list[dict[str, float]]], None]
"""Called with the number of epochs done, after each, and with each run's newest row of the table."""
Watch = Callable[[int, int, int], None]
"""Called after each round: epochs done, rounds of this one done, and how many rounds it has."""
Row = dict[str, float]


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a federated run did."""

    policy: Any
    config: Config
    table: dict[str, npt.NDArray[np.float64]]
    """By evaluation: epoch, round, train_loss, train_accuracy, test_loss, test_accuracy, order_error (of the
    epoch just over; NaN before the first), missed."""
    orders: Order
    """(epochs, N): the order that each epoch really followed, those who were missed at its end."""
    weights: dict[str, npt.NDArray[Any]]
    """The server's last parameters, by name; the frozen ones too."""
    state: Any
    """The policy's last state, whose unit u is client ``units[u]``."""
    units: Order
    """(N,): 0..N-1 unless clients were missed and the policy balances; then who came when decides."""
    order_error: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """(epochs,): each epoch's order error as the server's way shows it, in units of a gradient: that of the
    pseudo-gradients along the way, through up to 1,024 parameters. For `wellorder.theory`."""
    seconds: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Training seconds until each evaluation, evaluations left out; of runs together, this run's share."""

    def plot(
        self, quantity: str = "", *, x: str = "round", axes: Axes | None = None, label: str = ""
    ) -> Axes:
        """Draw a column of the table, on axes of yours or on new ones.

        Parameters
        ----------
        quantity
            A column; the test accuracy if there are test data, else the training loss.
        x
            ``"round"`` or ``"epoch"``.
        axes, label
            Matplotlib axes to draw on, so that runs can be compared, and what the legend says.
        """
        name = self._natural() if isinstance(quantity, str) and not quantity else quantity
        values = self.table[one_of("quantity", name, tuple(self.table))]
        along = self.table[one_of("x", x, ("round", "epoch"))]
        words = instance_of("label", label, str, "pass a line of text") or type(self.policy).__name__
        drawn, log = axes_for(axes, "Simulation.plot"), not name.endswith("accuracy")
        plot_series(drawn, along, values, label=words, log=log, **line_of(self.policy))
        drawn.set(xlabel=x, ylabel=name.replace("_", " "))
        return drawn

    def __repr__(self) -> str:
        name = self._natural()
        first, last = self.table[name][[0, -1]]
        epochs, clients = self.orders.shape
        return (
            f"Simulation: {describe(self.policy)}, {epochs} epochs of {clients} clients; "
            f"{name.replace('_', ' ')} from {first:.3g} to {last:.3g}"
        )

    def _repr_html_(self) -> str:
        known = [name for name, values in self.table.items() if np.isfinite(values).any()]
        rows = [[float(self.table[name][at]) for name in known] for at in some_of(len(self.table["epoch"]))]
        return html_table([name.replace("_", " ") for name in known], rows, title=repr(self))

    def _natural(self) -> str:
        return "test_accuracy" if np.isfinite(self.table["test_accuracy"]).any() else "train_loss"


def simulate(
    model: str | nn.Module,
    data: ClientData,
    policy: Policy[Any],
    config: Config,
    *,
    loss: Loss = cross_entropy,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Simulation:
    """Train a model by regularised-participation FL (Algorithm 2), its clients in a policy's order.

    Parameters
    ----------
    model
        A name of `wellorder.federated.NETWORKS`, whose first weights come from the seed, or a module of your
        own, whose parameters are the first point; it is not changed. Parameters with ``requires_grad=False``
        are constants.
    data, policy, config
        Who holds what, the order of clients, and the settings.
    loss
        From outputs (b, …) and labels to one loss for each example.
    progress
        Called after each epoch with the number of epochs done, and a list of the newest row of the table.
    watch
        Called after each round with the number of epochs done, of this one's rounds done, and of its rounds.

    >>> import numpy as np
    >>> from wellorder import PairGraB
    >>> from wellorder.federated import ClientData, Config, label_shards, simulate
    >>> x = np.random.default_rng(0).standard_normal((60, 4)); y = (x[:, 0] > 0).astype(int)
    >>> data = ClientData(x, y, label_shards(y, 12))
    >>> run = simulate(torch.nn.Linear(4, 2), data, PairGraB(), Config(0.1, epochs=3, cohort=4))
    >>> run.orders.shape, bool(run.table["train_loss"][-1] < run.table["train_loss"][0])
    ((3, 12), True)
    """
    if not isinstance(config, Config):
        raise ValueError(f"config={shown(config)}: pass a wellorder.federated.Config")
    return simulate_many(model, data, [(policy, config)], loss=loss, progress=progress, watch=watch)[0]


def simulate_many(
    model: str | nn.Module,
    data: ClientData,
    jobs: Sequence[tuple[Policy[Any], Config]],
    *,
    loss: Loss = cross_entropy,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> list[Simulation]:
    """`simulate` for several runs side by side; policy, seed, step size and sketch may differ."""
    function("loss", loss, "from outputs and labels to one loss for each example")
    if progress is not None:
        function("progress", progress, "of the epochs done and each run's newest row")
    runs = Runs(model, data, jobs, loss)
    runs.loop.watch = watch
    with precision_of(jobs[0][1].precision):
        return runs.train(progress)


class Runs:
    """Runs side by side from their first epoch to their results: evaluated, saved, and gone on with.

    ``how`` are the round loop's own settings, which no result depends on.
    """

    def __init__(
        self,
        model: str | nn.Module,
        data: ClientData,
        jobs: Sequence[tuple[Policy[Any], Config]],
        loss: Loss = cross_entropy,
        **how: Any,
    ) -> None:
        check_jobs(jobs, data)
        self.config, self.data = jobs[0][1], data
        models = [_model_of(model, data, config.seed) for _, config in jobs]
        width = layout_of(models[0]).trained
        for policy, config in jobs:
            check_policy(policy, config, data.partition.n, width)
        self.loop = RoundLoop(models, data, jobs, loss, **how)
        trainer, sample = self.loop.trainer, self.config.train_sample
        self.evaluator = Evaluator(data, self.loop.store, trainer.model, trainer.layout, loss, sample)
        self.rows: list[list[Row]] = [[] for _ in jobs]
        self.seconds: list[list[float]] = [[] for _ in jobs]
        self.lost: set[int] = set()
        """Runs that have diverged, and were warned of."""
        self.spent = self.began = 0.0
        self.done = 0
        self.loop.look = self._look_inside
        self.kept = time.perf_counter()
        """When a checkpoint was last written."""
        if self.config.checkpoint is not None:
            self.loop.rest = self._keep_if_due

    def train(self, progress: Progress | None = None) -> list[Simulation]:
        """Train all epochs that the checkpoint, if there is one, has not seen."""
        done = self._resume()
        if not done and self.loop.underway is None:
            self._evaluate(0)
        while done < self.config.epochs:
            self.done, self.began = done, time.perf_counter()
            self.loop.epoch(done)
            self._stop_clock()
            done += 1
            rows = self._evaluate(done)
            due = done % self.config.checkpoint_every == 0 or done == self.config.epochs
            if due:
                self._keep(done)
            if progress is not None:
                progress(done, rows)
        return [self._result(r, run) for r, run in enumerate(self.loop.runs)]

    def _keep(self, done: int) -> None:
        """Write the checkpoint, if there is to be one."""
        if self.config.checkpoint is not None:
            save_state(self.config.checkpoint, self._saved(done))
            self.kept = time.perf_counter()

    def _keep_if_due(self) -> None:
        """Write it inside an epoch too, where epochs are long."""
        if time.perf_counter() - self.kept >= self.config.checkpoint_seconds:
            self._stop_clock()
            self._keep(self.done)
            self.began = time.perf_counter()

    def _evaluate(self, epoch: int) -> list[Row]:
        """Measure the servers at x_epoch, if it is their time."""
        every = self.config.evaluate
        if not every or (epoch % every and epoch < self.config.epochs):
            return [{} for _ in self.rows]
        return self._measured(float(epoch), [float(run.clock) for run in self.loop.runs])

    def _look_inside(self, turn: int, rounds: Sequence[int]) -> None:
        """Measure the servers in the middle of an epoch, after ``turn`` of its rounds."""
        self._stop_clock()
        # A run's clock was set to the epoch's end when that was planned.
        clocks = [
            float(run.clock - max(own - turn, 0)) for own, run in zip(rounds, self.loop.runs, strict=True)
        ]
        self._measured(self.done + turn / max(rounds), clocks)
        self.began = time.perf_counter()

    def _stop_clock(self) -> None:
        """Count the seconds since training last went on."""
        if self.loop.servers.is_cuda:
            torch.cuda.synchronize()
        self.spent += (time.perf_counter() - self.began) / len(self.rows)

    def _measured(self, epoch: float, clocks: Sequence[float]) -> list[Row]:
        """Add a row to each run's table."""
        for r, run in enumerate(self.loop.runs):
            head = {"epoch": epoch, "round": clocks[r]}
            error = {"order_error": run.errors[-1] if run.errors else np.nan}
            missed = {"missed": float(len(run.queue.absent))}
            self.rows[r].append({**head, **self.evaluator.measure(self.loop.servers[r]), **error, **missed})
            if not np.isfinite(self.rows[r][-1]["train_loss"]) and r not in self.lost:
                self.lost.add(r)
                warnings.warn(
                    f"{run.policy!r}, seed={run.config.seed}, step_size={run.config.step_size:g}: the run "
                    f"has diverged by epoch {epoch:g}; pass a smaller step_size, or clip=10.0",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self.seconds[r].append(self.spent)
        return [rows[-1] for rows in self.rows]

    def _result(self, r: int, run: Run) -> Simulation:
        trainer = self.loop.trainer
        constants = {name: p.cpu().numpy().copy() for name, p in trainer.constants.items()}
        weights = {**trainer.layout.named(self.loop.servers[r]), **constants}
        return Simulation(
            run.policy, run.config, _columns(self.rows[r]), np.array(run.orders), weights, run.queue.state,
            run.queue.units, np.array(run.errors), np.array(self.seconds[r]),
        )  # fmt: skip

    def fingerprint(self) -> str:
        """What a checkpoint belongs to: settings, policies, model and data."""
        crc = zlib.crc32(np.ascontiguousarray(self.data.inputs[:100]).data)
        for array in (self.data.labels, self.data.partition.examples, self.data.partition.starts):
            crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
        trainer, runs = self.loop.trainer, self.loop.runs
        for p in trainer.constants.values():
            crc = zlib.crc32(np.ascontiguousarray(p.cpu().numpy()).data, crc)
        jobs = "; ".join(f"{describe(run.policy)} {run.config.text()}" for run in runs)
        stored = " channels last" if trainer.layout.channels_last else ""
        return f"{jobs}; {trainer.layout.names} {trainer.layout.shapes}{stored}; data {crc:08x}"

    def _saved(self, epochs: int) -> dict[str, Any]:
        runs = {
            f"{r}": {
                "queue": run.queue.saved(), "clock": run.clock, "orders": np.array(run.orders),
                "errors": np.array(run.errors, np.float64),
                "local": run.local.saved() if run.local else {},
                "table": _columns(self.rows[r]), "seconds": np.array(self.seconds[r]),
            }
            for r, run in enumerate(self.loop.runs)
        }  # fmt: skip
        head = {"fingerprint": self.fingerprint(), "epochs": epochs, "spent": self.spent}
        servers = self.loop.servers.cpu().numpy()
        return {**head, "servers": servers, "runs": runs, "underway": self.loop.saved()}

    def _resume(self) -> int:
        path = self.config.checkpoint
        if path is None:
            return 0
        sweep(path)
        if not Path(path).exists():
            return 0
        try:
            saved = load_state(path)
        except ValueError as error:
            raise ValueError(f"checkpoint={str(path)!r}: {error}") from None
        if saved.get("fingerprint") != self.fingerprint():
            raise ValueError(
                f"checkpoint={str(path)!r} belongs to another run ({saved.get('fingerprint')}); "
                "pass another file, or delete it to start anew"
            )
        try:
            self._restore(saved)
            return int(saved["epochs"])
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"checkpoint={str(path)!r} is damaged ({error!r}); delete it to start anew"
            ) from error

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.loop.servers.copy_(torch.from_numpy(saved["servers"]))
        self.spent = float(saved["spent"])
        self.loop.restore(saved["underway"])
        for r, run in enumerate(self.loop.runs):
            own = saved["runs"][f"{r}"]
            run.queue.restore(own["queue"])
            run.clock, run.orders = own["clock"], list(own["orders"])
            run.errors = own["errors"].tolist()
            if run.local:
                run.local.restore(own["local"])
            count = len(next(iter(own["table"].values()), ()))
            self.rows[r] = [{k: float(column[i]) for k, column in own["table"].items()} for i in range(count)]
            self.seconds[r] = own["seconds"].tolist()


def check_jobs(jobs: Sequence[tuple[Policy[Any], Config]], data: ClientData) -> None:
    """Refuse runs that cannot share a device, and rounds larger than the federation."""
    if not isinstance(data, ClientData):
        raise ValueError(f"data={shown(data)}: pass a ClientData, such as federate(dataset, partition)")
    if not isinstance(jobs, list | tuple) or not jobs or not all(map(_is_job, jobs)):
        raise ValueError(f"jobs={shown(jobs)}: pass a list of (policy, config), at least one")
    for policy, _ in jobs:
        policy_of(policy)
    first = jobs[0][1]
    for _, config in jobs[1:]:
        if config.shared() != first.shared():
            raise ValueError(
                "jobs: runs that share a device may differ in policy, seed, step_size and sketch alone"
            )
    n = data.partition.n
    if first.cohort > n:
        raise ValueError(
            f"cohort={first.cohort}: a round takes at most the {n} clients there are; pass 1 to {n}"
        )
    if first.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={first.device!r}: no CUDA device is visible here; pass device='cpu'")


def _is_job(job: Any) -> bool:
    return isinstance(job, tuple) and len(job) == 2 and isinstance(job[1], Config)


def check_policy(policy: Policy[Any], config: Config, n: int, width: int, memory: int = MEMORY) -> None:
    """Refuse what would not fit into ``memory``, or cannot work, before training starts."""
    length = config.sketch or width
    if config.sketch > width:
        raise ValueError(f"sketch={config.sketch}: longer than the model's {width} numbers; pass sketch=0")
    if keeps_of(policy) is Keeps.ROWS and n * length * 8 > memory:
        raise ValueError(
            f"policy={policy!r} keeps every client's signal: {n} × {length} numbers are "
            f"{n * length * 8 / 2**30:.0f} GiB; use PairGraB, or pass sketch=512"
        )
    check_draws(policy, config.cohort, isinstance(config.availability, Always))
    local = config.local
    if local is None:
        return
    if not permutes(policy) and not hasattr(policy, "sampler"):
        raise ValueError(
            f"policy={policy!r} may take a client twice in one round, and local={local!r} orders one visit "
            f"after the other; use RandomCohorts(cohort={config.cohort}) or RandomReshuffling(), or no local"
        )
    if local.needs.at_start(0):
        raise ValueError(
            f"local={local!r} needs fresh gradients of every mini-batch; use PairGraB or RandomReshuffling"
        )
    keeps_a_mean = kind_of(local) == "centred" or keeps_of(local) is Keeps.ROWS
    if keeps_a_mean and n * width * 8 > memory:
        raise ValueError(
            f"local={local!r} keeps gradients for each of {n} clients; use PairGraB, which keeps none"
        )


def _model_of(model: str | nn.Module, data: ClientData, seed: int) -> nn.Module:
    """The model itself, or the one that the name stands for, made for the data."""
    if isinstance(model, nn.Module):
        return model
    if not isinstance(model, str):
        raise ValueError(f"model={shown(model)}: pass an nn.Module, or a name of NETWORKS")
    if not data.images:
        raise ValueError(
            f"model={shown(model)}: models by name take uint8 images; pass an nn.Module for other inputs"
        )
    channels, size = data.inputs.shape[1:3]
    return network(model, channels=channels, size=size, classes=data.classes, seed=seed)


def _columns(rows: list[Row]) -> dict[str, npt.NDArray[np.float64]]:
    return {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else {})}


def precision_of(name: str) -> AbstractContextManager[None]:
    """Let float32 products use tensor cores while inside, where this precision wants them."""
    return _TensorFloat() if name in ("tf32", "bf16") else nullcontext()


class _TensorFloat(AbstractContextManager[None]):
    def __enter__(self) -> None:
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self.before)
