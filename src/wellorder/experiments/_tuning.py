"""The paper's two-stage grid search for the step size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wellorder._arguments import function, instance_of, numbers, shown
from wellorder.report._table import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COARSE = (1e-2, 1e-1, 1e0)
FAR = 1e6
"""Times the best value: what is beyond is drawn as diverged, for it would leave no room to the others."""
Loss = Callable[[Sequence[float]], Sequence[float]]


@dataclass(frozen=True)
class Search:
    """The best step size, everything that was tried, and whether the search ended at its edge."""

    best: float
    coarse: tuple[float, ...]
    fine: tuple[float, ...]
    tried: dict[float, float]
    edge: str
    """"low", "high", or "" where the best value has tried neighbours on both sides."""

    @property
    def note(self) -> str:
        """What a reader should know about the search, in words."""
        found = (
            f"best step size {self.best:.3g} of {', '.join(f'{value:.3g}' for value in sorted(self.tried))}"
        )
        if not self.edge:
            return found
        other = "smaller" if self.edge == "low" else "larger"
        low, _, high = fine_grid(self.best)
        beyond = low if self.edge == "low" else high
        return f"{found}: at the grid's edge, so a {other} one may be better still; try --lr {beyond:.3g}"

    def curve(self) -> tuple[list[float], list[float]]:
        """Step sizes that were tried, smallest first, and the final value of each; infinite if diverged."""
        grid = sorted(self.tried)
        return grid, [self.tried[value] for value in grid]

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON, where a diverged loss is null."""
        tried = [[value, loss if np.isfinite(loss) else None] for value, loss in self.tried.items()]
        return {
            "best": self.best,
            "coarse": self.coarse,
            "fine": self.fine,
            "tried": tried,
            "edge": self.edge,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Search:
        """Undo `as_data`; refuses what it cannot have made."""
        instance_of("data", data, Mapping, "pass what Search.as_data returned")
        try:
            tried = {float(value): np.inf if loss is None else float(loss) for value, loss in data["tried"]}
            coarse, fine = (tuple(float(value) for value in data[name]) for name in ("coarse", "fine"))
            found = cls(float(data["best"]), coarse, fine, tried, str(data["edge"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"holds no search for a step size ({error!r}): pass what Search.as_data returned"
            ) from None
        if found.best not in tried or min(tried) <= 0 or found.edge not in ("", "low", "high"):
            raise ValueError(f"holds a search whose best step size {found.best} is none that it tried")
        return found


def fine_grid(best: float) -> tuple[float, float, float]:
    """The value and its neighbours half a decade away.

    >>> [round(value, 4) for value in fine_grid(0.1)]
    [0.0316, 0.1, 0.3162]
    """
    middle = float(np.log10(best))
    return float(10 ** (middle - 0.5)), float(best), float(10 ** (middle + 0.5))


def two_stage(losses: Loss, coarse: Sequence[float] = COARSE) -> Search:
    """Search a coarse grid, then half a decade about its best value, as the paper does.

    Parameters
    ----------
    losses
        From step sizes to their losses, lower is better; a diverged one is NaN or infinite. Called twice, so
        that each stage can run in parallel.
    coarse
        The first grid.

    >>> two_stage(lambda grid: [abs(np.log10(value) + 1.4) for value in grid]).best.__round__(4)
    0.0316
    """
    function("losses", losses, "from step sizes to their losses")
    cure = "pass one or more positive step sizes"
    grid = numbers("coarse", coarse, cure=cure)
    first = tuple(sorted(grid.ravel().tolist()))
    if grid.ndim != 1 or not first or not 0 < first[0] <= first[-1] < np.inf:
        raise ValueError(f"coarse={shown(coarse)}: {cure}")
    tried = _evaluate(losses, first)
    second = fine_grid(_best(tried))
    tried |= _evaluate(losses, [value for value in second if value not in tried])
    best = _best(tried)
    edge = "low" if best == min(tried) else "high" if best == max(tried) else ""
    return Search(best, first, second, tried, edge)


def _evaluate(losses: Loss, grid: Sequence[float]) -> dict[float, float]:
    cure = f"return one loss for each of the {len(grid)} step sizes"
    found = numbers("losses(grid)", losses(grid), cure=cure).tolist() if len(grid) else []
    if not isinstance(found, list) or len(found) != len(grid):
        raise ValueError(f"losses(grid)={shown(found)}: {cure}")
    return {value: loss if np.isfinite(loss) else np.inf for value, loss in zip(grid, found, strict=True)}


def _best(tried: dict[float, float]) -> float:
    """The lowest loss; the smaller step size on a tie."""
    best = min(sorted(tried), key=tried.__getitem__)
    if np.isinf(tried[best]):
        grid = ", ".join(f"{value:.3g}" for value in sorted(tried))
        raise ValueError(f"every step size of {grid} diverged; pass smaller ones")
    return best


def plot(searches: Mapping[str, Search], metric: Metric) -> Figure:
    """The final value for every step size that was tried, a curve for each policy; rings mark the best."""
    from matplotlib.figure import Figure  # slow to import

    from wellorder._notebook import house_style, literal
    from wellorder.report._style import looks_of

    sign = 1.0 if metric.lower_is_better else -1.0  # searches minimise
    with house_style():
        figure = Figure(figsize=(6.0, 3.6), layout="constrained")
        axes = figure.subplots()
        for label, (colour, dash) in looks_of(list(searches)).items():
            grid, values = (np.array(part) for part in searches[label].curve())
            told = values <= FAR * np.abs(values).min()
            axes.plot(grid[told], sign * values[told], marker="o", color=colour, linestyle=dash, markersize=4,
                      label=literal(label))  # fmt: skip
            best = searches[label].best
            axes.plot(best, sign * searches[label].tried[best], "o", markersize=11, markerfacecolor="none",
                      markeredgecolor=colour)  # fmt: skip
            for lost in grid[~told]:
                axes.axvline(lost, color=colour, linestyle=":", linewidth=1)
        axes.set_xscale("log")
        if metric.log:
            axes.set_yscale("log", nonpositive="mask")
        axes.set(
            xlabel="step size", ylabel=f"final {metric.label}", title="Step sizes tried (dotted: diverged)"
        )
        axes.legend(loc="best")
    return figure
