"""CD-GraB's point: order error of many workers who balance against one sum, and of those who do so alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import wellorder as wo
from wellorder._arguments import whole_number
from wellorder._order import Order
from wellorder.experiments._names import MOST_SEEDS
from wellorder.report._table import Metric, Table, curves, table_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDER_ERROR = Metric("order_error", "order error φ̄ at the rounds' ends")
TOGETHER, ALONE, RESHUFFLED = "CD-GraB", "PairGraB", "RR"
LABELS = {TOGETHER: "coordinated (CD-GraB)", ALONE: "each worker alone (PairGraB)", RESHUFFLED: "RR"}
Vectors = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CoordinationFigure:
    """Random vectors in [0, 1]^dim, dealt to the workers; each visits one in a round, all in every epoch."""

    n: int = 4096
    dim: int = 16
    workers: tuple[int, ...] = (1, 4, 16, 64)
    epochs: int = 10
    seeds: int = 5

    def check(self) -> None:
        """Refuse what cannot be run, before anything is computed or written."""
        whole_number("seeds", self.seeds, least=1, most=MOST_SEEDS)
        for name, least in (("n", 2), ("dim", 1), ("epochs", 1)):
            whole_number(name, getattr(self, name), least=least)
        if not self.workers:
            raise ValueError("workers=(): pass at least one number of workers")
        for each in self.workers:
            whole_number(
                "workers", each, least=1, most=self.n // 2, cure="leave two vectors or more for each worker"
            )
        if self.n * self.dim > 10**9:
            raise ValueError(f"n={self.n}, dim={self.dim}: {8e-9 * self.n * self.dim:.3g} GB; pass less")


def run(config: CoordinationFigure) -> Iterator[Table]:
    """Order the same vectors in all ways, for each number of workers; yields each seed's table."""
    config.check()
    for seed in range(config.seeds):
        vectors = wo.rng(seed, 0, "coordination").random((config.n, config.dim))
        rows = []
        for workers in config.workers:
            for policy, orders in (
                (TOGETHER, _together(vectors, workers, seed)),
                (ALONE, _alone(vectors, workers, seed)),
                (RESHUFFLED, _reshuffled(config.n, seed)),
            ):
                rows += [
                    {"setting": _name(workers), "policy": policy, "seed": seed, "epoch": epoch,
                     "order_error": wo.order_error(vectors, order, every=workers)}
                    for epoch, order in zip(range(config.epochs + 1), orders, strict=False)
                ]  # fmt: skip
        yield table_of(rows)


def medians(table: Table) -> dict[str, dict[str, float]]:
    """The last epoch's order error, by workers and then by policy; medians over the seeds."""
    settings = dict.fromkeys(table.column("setting").to_pylist())
    return {
        setting: {
            policy: float(np.median(curves(_part(table, setting), policy, "order_error")[:, -1]))
            for policy in LABELS
        }
        for setting in settings
    }


def plot(table: Table) -> Figure:
    """Order error by epochs for the most workers, and by workers in the last epoch."""
    from matplotlib.figure import Figure  # slow to import

    from wellorder._notebook import house_style
    from wellorder.report._pictures import draw_curves
    from wellorder.report._style import looks_of

    settings = list(dict.fromkeys(table.column("setting").to_pylist()))
    most = max(settings, key=_number)
    with house_style():
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        draw_curves(left, _part(table, most), ORDER_ERROR)
        left.set(title=f"{most}, by epochs", xlabel="epoch", ylabel=ORDER_ERROR.label)
        for policy, (colour, dash) in looks_of(list(LABELS)).items():
            ends = np.array([curves(_part(table, s), policy, "order_error")[:, -1] for s in settings])
            along = [_number(setting) for setting in settings]
            right.fill_between(along, ends.min(1), ends.max(1), color=colour, alpha=0.15, linewidth=0)
            right.plot(
                along, np.median(ends, axis=1), marker="o", color=colour, linestyle=dash, label=LABELS[policy]
            )
        right.set_xscale("log", base=2)
        right.set(title="last epoch, by workers", xlabel="workers", xticks=along, xticklabels=along)
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _together(vectors: Vectors, workers: int, seed: int) -> Iterator[Order]:
    """CD-GraB's orders."""
    policy = wo.CDGraB(workers)
    state = policy.init(len(vectors), seed=seed)
    while True:
        yield state.order
        state = policy.advance(policy.observe(state, state.order, vectors[state.order]))


def _alone(vectors: Vectors, workers: int, seed: int) -> Iterator[Order]:
    """Orders of workers with the same units as CD-GraB's, each of whom has a sum of its own."""
    policy, order = wo.PairGraB(), wo.CDGraB(workers).init(len(vectors), seed=seed).order.copy()
    own: list[tuple[Any, Any]] = []
    for w in range(workers):
        units = order[w::workers].copy()
        own.append((policy.init(len(units), seed=seed), units))
        units[own[w][0].order] = order[w::workers].copy()  # the first order is CD-GraB's
    while True:
        yield order
        for w, (state, units) in enumerate(own):
            state = policy.advance(policy.observe(state, state.order, vectors[units[state.order]]))
            own[w] = state, units
            order[w::workers] = units[state.order]


def _reshuffled(n: int, seed: int) -> Iterator[Order]:
    policy = wo.RandomReshuffling()
    state = policy.init(n, seed=seed)
    while True:
        yield state.order
        state = policy.advance(state)


def _part(table: Table, setting: str) -> Table:
    return table.filter(table.column("setting").to_numpy() == setting)


def _name(workers: int) -> str:
    return f"{workers} worker{'s' * (workers > 1)}"


def _number(setting: str) -> int:
    return int(setting.split()[0])
