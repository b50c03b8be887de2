"""Figures 2 and 3: federated training of the paper's CNN and ResNet-10, clients in order.

FL-RR, FL-OP and FL-GraB; one label a client, S=10, K=5, batch 16; clipping at 10, crop and flip as in the
published code; test accuracy and training loss after every epoch (100 rounds), as a moving average of 6,
in bands of one standard deviation over seeds.

From settings to report: `figure`, `dataset_of`, `run`, `publish`.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import real_number, whole_number
from wellorder._datasets.files import DATASETS, Dataset
from wellorder._datasets.partitions import Partition, label_shards
from wellorder._saving import write_text
from wellorder.experiments._compare import remembered
from wellorder.experiments._folder import RunFolder, machine, versions
from wellorder.experiments._names import MOST_SEEDS, check_policies, named_policies
from wellorder.experiments._tuning import Search, two_stage
from wellorder.report._table import Metric, Table, as_text, curves, policies_of, table_of
from wellorder.report._verdict import headline, verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wellorder.federated import ClientData, Simulation
    from wellorder.report._page import Page

ACCURACY = Metric(
    "test_accuracy", "test accuracy", lower_is_better=False, log=False, percent=True, held_out=True
)
TRAIN_LOSS = Metric("train_loss", "training loss")
METRICS = (ACCURACY, TRAIN_LOSS, Metric("test_loss", "test loss"))
METHODS = ("FL-RR=RandomReshuffling", "FL-OP=ShuffleOnce", "FL-GraB=PairGraB")
MODELS = {"fig2": "cnn", "fig3": "resnet10"}
STEP_SIZES = {"cnn": 0.1, "resnet10": 10**-0.5}
"""The paper's, found by the two-stage search on FL-RR."""
OPTIONS = {
    "dataset": "--dataset", "rounds": "--rounds", "seeds": "--seeds", "step_size": "--lr",
    "clients": "--clients", "device": "--device", "precision": "--precision",
    "train_sample": "--train-sample",
}  # fmt: skip
"""The command's options that take one value, by field."""
WINDOW = 6
LAST = 5
Progress = Callable[[int, list[dict[str, float]]], None]


@dataclass(frozen=True)
class FederatedFigure:
    """What to run for a figure; the defaults are the paper's Figure 2, at full size."""

    name: str = "fig2"
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

    @property
    def title(self) -> str:
        """What is trained on what, in words."""
        return f"{self.model} on {self.dataset}, {self.clients} clients"

    def check(self) -> None:
        """Refuse what cannot be run, before data are loaded or a folder is claimed."""
        whole_number("train_sample", self.train_sample, least=0)
        for field in ("rounds", "seeds", "clients", "cohort", "local_steps", "batch"):
            whole_number(field, getattr(self, field), least=1, most=MOST_SEEDS if field == "seeds" else 10**9)
        if self.cohort > self.clients:
            raise ValueError(
                f"clients={self.clients}: a round takes {self.cohort}; pass {self.cohort} clients or more"
            )
        if self.step_size is not None:
            real_number("step_size", self.step_size, above=0)
            if self.tune:
                raise ValueError(
                    f"step_size={self.step_size}: either give the step size or tune it, not both"
                )
        if self.dataset != "digits" and self.dataset not in DATASETS:
            raise ValueError(f"dataset={self.dataset!r}: pass one of digits, {', '.join(DATASETS)}")
        check_policies(named_policies(self.policies), self.clients)
        _check_device(self.device)
        _settings(self, self.gamma, 0, None)  # refuses an unknown precision

    def described(self) -> dict[str, Any]:
        """Plain data: what two runs must share to be one run; not where it is computed."""
        plain = asdict(replace(self, policies=list(self.policies)))
        return {key: value for key, value in plain.items() if key not in ("name", "device")}


def figure(name: str, *, quick: bool = False, **changes: Any) -> FederatedFigure:
    """The settings of ``fig2`` or ``fig3``, at full size or in a small form for two cores and two minutes.

    >>> round(figure("fig3").gamma, 3), figure("fig3", quick=True, seeds=3).seeds
    (0.316, 3)
    """
    small: dict[str, Any] = {
        "dataset": "digits", "rounds": 200, "seeds": 2, "clients": 50, "cohort": 5, "local_steps": 3,
        "batch": 5, "augment": False, "train_sample": 500,
    }  # fmt: skip
    if name == "fig3":
        small |= {"rounds": 40, "seeds": 1}  # ResNet-10 is large for a CPU
    chosen = {"name": name, "model": MODELS[name], **(small if quick else {}), **changes}
    chosen.setdefault(
        "precision", "tf32" if str(chosen.get("device", "cpu")).startswith("cuda") else "float32"
    )
    return FederatedFigure(**chosen)


def command_of(config: FederatedFigure) -> str:
    """The command that runs the same again; a call where an option for it does not exist."""
    for quick in (False, True):
        usual = figure(config.name, quick=quick, device=config.device)
        told = {field: getattr(config, field) for field in (*OPTIONS, "policies", "tune")}
        if replace(usual, **told) != config:
            continue  # they differ in what has no option: cohort, local steps, batch ...
        words = ["wellorder", "reproduce", config.name, *(["--quick"] if quick else [])]
        for field, option in OPTIONS.items():
            value = getattr(config, field)
            if value != (getattr(usual, field) if field != "device" else "cpu"):
                words += [option, str(value)]
        if tuple(config.policies) != tuple(usual.policies):
            words += [word for text in config.policies for word in ("--policy", text)]
        return shlex.join([*words, "--tune"] if config.tune else words)
    return "a call from Python, with the settings of config.json"


@dataclass(frozen=True)
class FigureRun:
    """A finished run of a figure: its table, the step size and how it was found, and its folder."""

    config: FederatedFigure
    table: Table
    step_size: float
    search: Search | None
    folder: RunFolder


def dataset_of(
    config: FederatedFigure, folder: str | Path | None = None, *, download: bool = False
) -> Dataset:
    """The data set by name: one of `wellorder.federated.DATASETS`, or scikit-learn's small ``digits``."""
    config.check()
    if config.dataset == "digits":
        return _digits(16 if config.model == "cnn" else 8)
    if config.dataset == "cinic10":
        return DATASETS["cinic10"](folder)
    return DATASETS[config.dataset](folder, download=download)


def run(
    config: FederatedFigure,
    dataset: Dataset,
    out: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    watch: Callable[[int, int, int], None] | None = None,
) -> FigureRun:
    """Train all policies with all seeds side by side; a checkpoint once a minute lets a run go on."""
    from wellorder.federated import federate, simulate_many

    config.check()
    policies = named_policies(config.policies)
    partition = label_shards(dataset.train_labels, config.clients)
    data = federate(dataset, partition)
    with RunFolder.claimed(out, resume=resume) as folder:
        _claim(folder, config)
        partition.save(out / "partition.npz")
        search = _searched(config, data, next(iter(policies.values())), folder) if config.tune else None
        gamma = search.best if search else config.gamma
        seeds = range(config.seeds)
        jobs = [
            (p, _settings(config, gamma, s, out / "checkpoint.npz")) for p in policies.values() for s in seeds
        ]
        names = [(label, seed) for label in policies for seed in seeds]
        runs = simulate_many(config.model, data, jobs, progress=progress, watch=watch)
        cells = [table_of(_rows(name, seed, one)) for (name, seed), one in zip(names, runs, strict=True)]
        return FigureRun(config, folder.seal(cells), gamma, search, folder)


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
            found[policy][f"{metric.column}_std"] = float(ends.std(ddof=1)) if len(ends) > 1 else float("nan")
    return found


def plot(table: Table, title: str = "") -> Figure:
    """Test accuracy and training loss against rounds: moving averages, bands of one standard deviation."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    from wellorder._notebook import house_style, literal
    from wellorder.report._style import looks_of

    with house_style():
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, metric in zip(panels, (ACCURACY, TRAIN_LOSS), strict=True):
            for policy, (colour, dash) in looks_of(policies_of(table)).items():
                rounds = curves(table, policy, "round").mean(axis=0)
                trained = rounds > 0
                lines = smoothed(curves(table, policy, metric.column)[:, trained])
                middle, spread = lines.mean(axis=0), lines.std(axis=0)
                at = rounds[trained]
                axes.fill_between(at, middle - spread, middle + spread, color=colour, alpha=0.15, lw=0)
                axes.plot(at, middle, color=colour, linestyle=dash, label=literal(policy))
            axes.set(title=metric.label, xlabel=f"round (moving average of {WINDOW} evaluations)")
        panels[0].yaxis.set_major_formatter(PercentFormatter(1.0))
        panels[1].set_yscale("log")
        panels[0].legend(loc="lower right")
        if title:
            figure.suptitle(literal(title), x=0.01, ha="left", fontsize=11)
    return figure


def plot_partition(partition: Partition, labels: npt.ArrayLike, classes: int) -> Figure:
    """Who holds what: a stripe for each client, darker where it holds more examples of a label."""
    from matplotlib.figure import Figure

    from wellorder._notebook import house_style

    with house_style():
        figure = Figure(figsize=(9.0, 2.6), layout="constrained")
        axes = figure.subplots()
        shown = axes.imshow(partition.table(labels, classes).T, aspect="auto", cmap="Blues", origin="lower")
        axes.set(xlabel="client", ylabel="label", title="examples of each label, by client")
        axes.grid(visible=False)
        figure.colorbar(shown, ax=axes)
    return figure


def publish(done: FigureRun, dataset: Dataset) -> Path:
    """Write ``png`` and ``.pdf`` (or ``fig3``), ``partition.png``, ``summary.json``, ``report.html``."""
    from wellorder.report._page import render  # plotting libraries are slow to import
    from wellorder.report._pictures import costs, save_picture

    path, config, table = done.folder.path, done.config, done.table
    drawn = plot(table, config.title)
    for suffix in (".png", ".pdf"):
        save_picture(drawn, path / f"{config.name}{suffix}")
    save_picture(costs(table, TRAIN_LOSS, config.title), path / "costs.png")
    who = Partition.load(path / "partition.npz")
    save_picture(plot_partition(who, dataset.train_labels, dataset.classes), path / "partition.png")
    final = {"final": finals(table), "step_size": done.step_size, "config": config.described()}
    write_text(path / "summary.json", as_text(final))
    write_text(path / "report.html", render(_page(done)))
    return path / "report.html"


def _page(done: FigureRun) -> Page:
    from wellorder.report._page import Page

    config, baseline = done.config, policies_of(done.table)[0]
    found = verdicts(done.table, ACCURACY, baseline, ACCURACY)
    facts = {
        "Federation": f"{config.clients} clients of about one label, {config.cohort} a round, "
        f"{config.local_steps} local steps of {config.batch} examples",
        "Step size": f"{done.step_size:.3g}",
        "Machine": ", ".join(f"{key} {value}" for key, value in machine().items() if key != "byteorder"),
        "Versions": ", ".join(f"{key} {value}" for key, value in versions().items()),
        "Gradients": "mini-batch gradients, summed over clients",
        "Seconds": "wall clock of training, a run's share where runs were trained side by side",
        "Data": "table.parquet and timings.parquet (also as CSV) beside this page hold every number shown",
    }
    return Page(
        title=f"Clients in order: {config.title}",
        subtitle=f"{config.epochs} epochs · {config.seeds} seeds · step size {done.step_size:.3g}",
        table=done.table, metrics=METRICS, baseline=baseline, headline=headline(found, baseline),
        verdicts=found, notes=[f"{baseline}: {done.search.note}."] if done.search else [],
        command=command_of(config), how=facts,
    )  # fmt: skip


def _settings(config: FederatedFigure, gamma: float, seed: int, checkpoint: Path | None) -> Any:
    from wellorder.federated import paper_config

    precision: Any = config.precision
    return paper_config(
        gamma, config.rounds, clients=config.clients, cohort=config.cohort, local_steps=config.local_steps,
        batch=config.batch, augment=config.augment, seed=seed, train_sample=config.train_sample,
        device=config.device, precision=precision, checkpoint=checkpoint,
    )  # fmt: skip


def _check_device(name: str) -> None:
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device={name!r}: pass cpu, cuda or cuda:NUMBER")
    seen = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= seen:
        found = f"only {seen} CUDA devices are" if seen else "no CUDA device is"
        raise ValueError(f"device={name!r}: {found} visible here; pass --device cpu, or one that is")


def _searched(config: FederatedFigure, data: ClientData, policy: Any, folder: RunFolder) -> Search:
    """The two-stage search on one policy; all step sizes of a stage are trained side by side."""
    known = folder.read("tuning.json")
    if known is not None:
        return remembered(folder, known)
    from wellorder.federated import simulate_many

    def losses(grid: Sequence[float]) -> list[float]:
        jobs = [
            (policy, replace(_settings(config, gamma, 0, None), evaluate=config.epochs)) for gamma in grid
        ]
        with warnings.catch_warnings():  # the search itself looks for step sizes that are too large
            warnings.filterwarnings("ignore", ".*has diverged", RuntimeWarning)
            ends = [float(done.table["train_loss"][-1]) for done in simulate_many(config.model, data, jobs)]
        return [end if np.isfinite(end) else np.inf for end in ends]

    search = two_stage(losses)
    folder.write("tuning.json", search.as_data())
    return search


def _claim(folder: RunFolder, config: FederatedFigure) -> None:
    """Write what will be run, or make sure that the folder's run is the same."""
    before, wanted = folder.read("config.json"), config.described()
    if before is None:
        folder.write("config.json", wanted)
    elif before != wanted:
        other = [f"{k}={wanted.get(k)!r} (was {before.get(k)!r})" for k in {**wanted, **before}
                 if before.get(k) != wanted.get(k)]  # fmt: skip
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
