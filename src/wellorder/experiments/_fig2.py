"""Figure 2: federated training of the paper's CNN, clients in the order of FL-RR, FL-OP and FL-GraB.

One label a client, S=10, K=5, batch 16, clipping at 10, crop and flip; test accuracy and training loss after
every epoch (100 rounds), as a moving average of 6, in bands of one standard deviation over seeds. Figure 3 is
the same with ResNet-10 (`wellorder.experiments._fig3`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wellorder._datasets.files import DATASETS, Dataset
from wellorder._datasets.partitions import Partition, label_shards
from wellorder.experiments._folder import RunFolder
from wellorder.experiments._names import named_policies
from wellorder.experiments._tuning import Search, two_stage
from wellorder.report._table import Metric, Table, curves, policies_of, table_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wellorder.federated import ClientData, Simulation

ACCURACY = Metric("test_accuracy", "test accuracy", lower_is_better=False, log=False, percent=True)
TRAIN_LOSS = Metric("train_loss", "training loss")
METRICS = (ACCURACY, TRAIN_LOSS, Metric("test_loss", "test loss"))
METHODS = ("FL-RR=RandomReshuffling", "FL-OP=ShuffleOnce", "FL-GraB=PairGraB")
STEP_SIZES = {"cnn": 0.1, "resnet10": 10**-0.5}
"""The paper's, found by the two-stage search on FL-RR."""
WINDOW = 6
LAST = 5
Progress = Callable[[int, list[dict[str, float]]], None]


@dataclass(frozen=True)
class Config:
    """What to run; the defaults are the paper's, at full size."""

    model: str = "cnn"
    dataset: str = "cifar10"
    rounds: int = 20_000
    seeds: int = 5
    policies: Sequence[str] = METHODS
    step_size: float | None = None
    """None: the paper's for this model."""
    tune: bool = False
    """Search the step size in two stages on the first policy and its first seed, and reuse it for all."""
    clients: int = 1000
    cohort: int = 10
    local_steps: int = 5
    batch: int = 16
    augment: bool = True
    train_sample: int = 0
    device: str = "cpu"
    precision: str = "float32"

    @property
    def epochs(self) -> int:
        """Whole passes over the clients."""
        return max(1, self.rounds // -(-self.clients // self.cohort))

    @property
    def gamma(self) -> float:
        """The step size to use unless it is searched."""
        return STEP_SIZES.get(self.model, 0.1) if self.step_size is None else self.step_size

    def described(self) -> dict[str, Any]:
        """Plain data: what two runs must share to be one run; not where it is computed."""
        return {k: v for k, v in asdict(replace(self, policies=list(self.policies))).items() if k != "device"}


def quick(model: str = "cnn", *, dataset: str = "digits", **changes: Any) -> Config:
    """A small form for two CPU cores and two minutes: 50 clients, 20 epochs, two seeds."""
    small = {"rounds": 200, "seeds": 2, "clients": 50, "cohort": 5, "local_steps": 3, "batch": 5}
    return Config(model, dataset, **{**small, "augment": False, "train_sample": 500, **changes})


@dataclass(frozen=True)
class Done:
    """A finished run: its table, the step size and how it was found, and its folder."""

    config: Config
    table: Table
    step_size: float
    search: Search | None
    folder: RunFolder


def dataset_of(config: Config, folder: str | Path | None = None, *, download: bool = False) -> Dataset:
    """The data set by name: one of `wellorder.federated.DATASETS`, or scikit-learn's small ``digits``."""
    if config.dataset == "digits":
        return _digits(16 if config.model == "cnn" else 8)
    if config.dataset not in DATASETS:
        raise ValueError(f"dataset={config.dataset!r}: pass one of digits, {', '.join(DATASETS)}")
    if config.dataset == "cinic10":
        return DATASETS["cinic10"](folder)
    return DATASETS[config.dataset](folder, download=download)


def run(
    config: Config, dataset: Dataset, out: Path, *, resume: bool = False, progress: Progress | None = None
) -> Done:
    """Train all policies with all seeds side by side; a checkpoint after every epoch lets a run go on."""
    from wellorder.federated import federate, simulate_many

    policies = named_policies(config.policies)
    if config.seeds < 1:
        raise ValueError(f"seeds={config.seeds}: pass 1 or more")
    partition = label_shards(dataset.train_labels, config.clients)
    data, folder = federate(dataset, partition), RunFolder.start(out, resume=resume)
    _claim(folder, config)
    partition.save(out / "partition.npz")
    search = _searched(config, data, next(iter(policies.values())), folder) if config.tune else None
    gamma = search.best if search else config.gamma
    seeds = range(config.seeds)
    jobs = [
        (p, _settings(config, gamma, s, out / "checkpoint.npz")) for p in policies.values() for s in seeds
    ]
    names = [(label, seed) for label in policies for seed in seeds]
    runs = simulate_many(config.model, data, jobs, progress=progress)
    cells = [table_of(_rows(name, seed, one)) for (name, seed), one in zip(names, runs, strict=True)]
    return Done(config, folder.seal(cells), gamma, search, folder)


def smoothed(values: npt.NDArray[np.float64], window: int = WINDOW) -> npt.NDArray[np.float64]:
    """The mean of the last ``window`` entries along the last axis; of fewer at the start.

    >>> smoothed(np.array([0.0, 2.0, 4.0]), 2)
    array([0., 1., 3.])
    """
    total = np.cumsum(values, axis=-1)
    before = np.zeros_like(total)
    before[..., window:] = total[..., :-window]
    mean: npt.NDArray[np.float64] = (total - before) / np.minimum(np.arange(values.shape[-1]) + 1, window)
    return mean


def finals(table: Table) -> dict[str, dict[str, float]]:
    """Each policy's mean over its last five evaluations, then mean and standard deviation over seeds."""
    found: dict[str, dict[str, float]] = {}
    for policy in policies_of(table):
        found[policy] = {}
        for metric in METRICS:
            ends = curves(table, policy, metric.column)[:, -LAST:].mean(axis=1)
            found[policy][metric.column] = float(ends.mean())
            found[policy][f"{metric.column}_std"] = float(ends.std(ddof=1)) if len(ends) > 1 else 0.0
    return found


def plot(table: Table, title: str = "") -> Figure:
    """Test accuracy and training loss against rounds: moving averages, bands of one standard deviation."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    from wellorder.report._pictures import house_style
    from wellorder.report._style import colours_of

    with house_style():
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, metric in zip(panels, (ACCURACY, TRAIN_LOSS), strict=True):
            for policy, colour in colours_of(policies_of(table)).items():
                rounds = curves(table, policy, "round").mean(axis=0)
                trained = rounds > 0
                lines = smoothed(curves(table, policy, metric.column)[:, trained])
                middle, spread = lines.mean(axis=0), lines.std(axis=0)
                at = rounds[trained]
                axes.fill_between(at, middle - spread, middle + spread, color=colour, alpha=0.15, lw=0)
                axes.plot(at, middle, color=colour, label=policy)
            axes.set(title=metric.label, xlabel="round")
        panels[0].yaxis.set_major_formatter(PercentFormatter(1.0))
        panels[1].set_yscale("log")
        panels[0].legend(loc="lower right")
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def plot_partition(partition: Partition, labels: npt.ArrayLike, classes: int) -> Figure:
    """Who holds what: a stripe for each client, darker where it holds more examples of a label."""
    from matplotlib.figure import Figure

    from wellorder.report._pictures import house_style

    with house_style():
        figure = Figure(figsize=(9.0, 2.6), layout="constrained")
        axes = figure.subplots()
        shown = axes.imshow(partition.table(labels, classes).T, aspect="auto", cmap="Blues", origin="lower")
        axes.set(xlabel="client", ylabel="label", title="examples of each label, by client")
        axes.grid(visible=False)
        figure.colorbar(shown, ax=axes)
    return figure


def _settings(config: Config, gamma: float, seed: int, checkpoint: Path | None) -> Any:
    from wellorder.federated import paper_config

    precision: Any = config.precision
    return paper_config(
        gamma, config.rounds, clients=config.clients, cohort=config.cohort, local_steps=config.local_steps,
        batch=config.batch, augment=config.augment, seed=seed, train_sample=config.train_sample,
        device=config.device, precision=precision, checkpoint=checkpoint,
    )  # fmt: skip


def _searched(config: Config, data: ClientData, policy: Any, folder: RunFolder) -> Search:
    """The two-stage search on one policy; all step sizes of a stage are trained side by side."""
    known = folder.read("tuning.json")
    if known:
        return Search.from_data(known)
    from wellorder.federated import simulate_many

    def losses(grid: Sequence[float]) -> list[float]:
        jobs = [
            (policy, replace(_settings(config, gamma, 0, None), evaluate=config.epochs)) for gamma in grid
        ]
        ends = [float(done.table["train_loss"][-1]) for done in simulate_many(config.model, data, jobs)]
        return [end if np.isfinite(end) else np.inf for end in ends]

    search = two_stage(losses)
    folder.write("tuning.json", search.as_data())
    return search


def _claim(folder: RunFolder, config: Config) -> None:
    """Write what will be run, or make sure that the folder's run is the same."""
    before, wanted = folder.read("config.json"), config.described()
    if before is None:
        folder.write("config.json", wanted)
    elif before != wanted:
        other = [f"{k}={wanted[k]!r} (was {before.get(k)!r})" for k in wanted if before.get(k) != wanted[k]]
        raise ValueError(f"out={folder.path}: its run has other options: {'; '.join(other)}; choose another")


def _rows(label: str, seed: int, done: Simulation) -> list[dict[str, Any]]:
    steps, names = done.config.cohort * done.config.local_steps, ("round", *(m.column for m in METRICS))
    return [
        {
            "policy": label,
            "seed": seed,
            "epoch": int(epoch),
            "gradients": int(done.table["round"][i] * steps),
            "seconds": float(done.seconds[i]),
            **{name: float(done.table[name][i]) for name in names},
        }
        for i, epoch in enumerate(done.table["epoch"])
    ]


def _digits(side: int) -> Dataset:
    """Scikit-learn's 8×8 digits, enlarged to ``side`` pixels; the last 297 are for testing."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images * 15).astype(np.uint8).repeat(side // 8, axis=1).repeat(side // 8, axis=2)[:, None]
    labels = found.target.astype(np.int64)
    return Dataset("digits", images[:1500], labels[:1500], images[1500:], labels[1500:], 10, (0.29,), (0.35,))
