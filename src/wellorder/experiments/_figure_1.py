"""Figure 1: distance to the optimum and order error on quadratics, for SGD and for federated learning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import wellorder as wo
from wellorder._arguments import whole_number
from wellorder._order import Order, Policy
from wellorder._training import Run
from wellorder.experiments._names import MOST_SEEDS, check_policies
from wellorder.experiments._pool import Job, work_off
from wellorder.experiments._training import Settings
from wellorder.federated import fedavg
from wellorder.policies import REGISTRY
from wellorder.problems import quadratics
from wellorder.report._table import Metric, Table, curves, joined, policies_of, table_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTANCE = Metric("distance", "‖x − x*‖")
ORDER_ERROR = Metric("order_error", "order error φ̄")
SETTINGS = ("SGD", "FL")
MOST_VISITS = 500_000_000
"""Every order of a run is kept: 2 GB."""


@dataclass(frozen=True)
class QuadraticsFigure:
    """The paper's set-up: N units, a step size shared by all, K local steps and S clients a round for FL."""

    n: int = 1000
    seeds: int = 10
    epochs: int = 100
    step_size: float = 1e-3
    cohort: int = 2
    local_steps: int = 5
    every_policy: bool = False

    def check(self) -> None:
        """Refuse what cannot be run, before anything is computed or written."""
        whole_number("seeds", self.seeds, least=1, most=MOST_SEEDS)
        whole_number("n", self.n, least=2)
        self.settings.check(self.n)
        if self.n * self.epochs > MOST_VISITS:
            raise ValueError(
                f"n={self.n}, epochs={self.epochs}: the orders of one run would be "
                f"{4 * self.n * self.epochs / 2**30:.3g} GiB; pass n·epochs up to {MOST_VISITS:,}"
            )
        check_policies(policies(self)["SGD"] | policies(self)["FL"], self.n)

    @property
    def settings(self) -> Settings:
        """The federated runs' settings; SGD shares the step size and the epochs."""
        return Settings(self.step_size, self.epochs, self.cohort, self.local_steps)


def policies(config: QuadraticsFigure) -> dict[str, dict[str, Policy[Any]]]:
    """The policies of each setting, by the names of the figure."""
    one, pair = wo.ShuffleOnce(), wo.PairGraB()
    found: dict[str, dict[str, Policy[Any]]] = {
        "SGD": {"RR": wo.RandomReshuffling(), "SO": one, "GraB": wo.GraB(), "PairGraB": pair},
        "FL": {"FL-RR": wo.RandomReshuffling(), "FL-OP": one, "FL-GraB": pair},
    }
    if config.every_policy:
        turned = wo.Arbitrary(partial(_turned, config.n))
        told: dict[Any, Policy[Any]] = {wo.Arbitrary: turned, wo.CDGraB: wo.CDGraB(4)}
        for entry in REGISTRY:
            found["SGD"][entry.short] = told[entry.policy] if entry.policy in told else entry.policy()
        found["FL"] |= {
            "FL-AP": turned, "FL-OP (IG)": wo.IncrementalGradient(), "FL-OP (NP)": wo.NicePermutation(),
            "FL-GraB-proto": wo.PairGraBProto(),
        }  # fmt: skip
    return found


def _turned(n: int, epoch: int) -> Order:
    """An arbitrary order: 0, 1, 2 …, begun one unit later in every epoch."""
    return np.roll(np.arange(n, dtype=np.int32), -epoch)


def run(config: QuadraticsFigure, *, jobs: int = 1) -> Iterator[Table]:
    """Train all policies with all seeds; yields each seed's table as it is finished."""
    config.check()
    if jobs < 1:
        raise ValueError(f"jobs={jobs}: pass 1 or more")
    task = cast(Any, _Seeds(config))
    batch = [Job(task, "Figure 1", wo.RandomReshuffling(), s, config.settings) for s in range(config.seeds)]
    rows: list[list[Any]] = [[] for _ in batch]
    for event in work_off(batch, jobs):
        if event.row is None:
            yield table_of(rows[event.job])
        else:
            rows[event.job].append(event.row)


@dataclass(frozen=True)
class _Seeds:
    """What a worker process is told: the job's seed says which."""

    config: QuadraticsFigure
    name: str = "fig1"

    def train(self, _: Policy[Any], seed: int, __: Settings) -> Iterator[dict[str, Any]]:
        yield from run_seed(self.config, seed).to_pylist()


def run_seed(config: QuadraticsFigure, seed: int) -> Table:
    """One seed: its quadratics, and every policy on them; a row for each setting, policy and epoch."""
    problem = quadratics(config.n, seed=seed)
    common: dict[str, Any] = {"step_size": config.step_size, "epochs": config.epochs, "seed": seed}
    rounds: dict[str, Any] = {"cohort": config.cohort, "local_steps": config.local_steps}
    rows: list[dict[str, Any]] = []
    for label, policy in policies(config)["SGD"].items():
        rows += _rows("SGD", label, wo.sgd(problem, policy, **common))
    for label, policy in policies(config)["FL"].items():
        rows += _rows("FL", label, fedavg(problem, policy, **common, **rounds))
    return table_of(rows)


def whole(parts: list[Table]) -> Table:
    """All seeds in one table, sorted by setting and policy."""
    table = joined(parts)
    names = policies_of(table)
    return table.take(
        np.lexsort(
            [table.column("seed").to_numpy(), [names.index(p) for p in table.column("policy").to_pylist()]]
        )
    )


def medians(table: Table) -> dict[str, dict[str, float]]:
    """Each policy's medians over the seeds at the last epoch."""
    return {
        policy: {
            m.column: float(np.median(curves(table, policy, m.column)[:, -1]))
            for m in (DISTANCE, ORDER_ERROR)
        }
        for policy in policies_of(table)
    }


def plot(table: Table) -> Figure:
    """Four panels on log axes: medians in bands from the least to the largest seed."""
    from matplotlib.figure import Figure  # slow to import, and workers never draw

    from wellorder._notebook import house_style
    from wellorder.report._pictures import draw_curves

    with house_style():
        most = max(len(policies_of(_part(table, setting))) for setting in SETTINGS)
        figure = Figure(figsize=(12.0, 3.5 + 0.22 * -(-most // 4)), layout="constrained")
        panels = figure.subplots(1, 4)
        for at, setting in enumerate(SETTINGS):
            for axes, metric in zip(panels[2 * at : 2 * at + 2], (DISTANCE, ORDER_ERROR), strict=True):
                draw_curves(axes, _part(table, setting), metric)
                axes.set(title=f"{setting}: {metric.label}", xlabel="epoch")
        for setting, axes, side in zip(SETTINGS, panels[::2], ("left", "right"), strict=True):
            place: Any = f"outside lower {side}"
            figure.legend(*axes.get_legend_handles_labels(), loc=place, ncols=4, title=setting)
    return figure


def _part(table: Table, setting: str) -> Table:
    return table.filter(table.column("setting").to_numpy() == setting)


def _rows(setting: str, label: str, done: Run) -> Iterator[dict[str, Any]]:
    for epoch in range(len(done.distance)):
        yield {
            "setting": setting, "policy": label, "seed": done.seed, "epoch": epoch,
            "distance": done.distance[epoch], "order_error": done.order_error[epoch],
        }  # fmt: skip
