"""What an ordered loader tells of itself: what is collected and why, what it costs, what it brings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wellorder._arguments import instance_of
from wellorder._notebook import axes_for, html_table, plot_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Report:
    """What ordering does, costs, and brings: plain numbers, and a page when printed.

    Attributes
    ----------
    signals, why, policy, units
        What is collected, the reason, the rule that makes the orders, and how many units it orders.
    epoch, step, steps
        Where the loader is, and how many steps an epoch has.
    observed, unobserved, not_finite
        Visits that the policy learns from, those without a backward pass, and those with a NaN or infinity.
    seconds_per_step
        Processor time spent on signals and the policy; on an accelerator the host's part.
    memory
        Bytes that stay between steps.
    order_error
        One estimate for each epoch that was observed, the present one's so far at the end.
    coverage
        How each trainable parameter's gradient is taken.
    rows
        What is known of the units, and from when.
    overhead
        Our processor time in the training's thread, by the time that the epochs took.
    latest
        The last epochs, at most five: number, whether it was observed, and our share of its time.
    rank, ranks
        Which of how many processes this is.
    sent
        Bytes that this process gave to the others.
    """

    signals: str
    why: str
    policy: str
    units: int
    epoch: int
    step: int
    steps: int
    observed: int
    unobserved: int
    not_finite: int
    seconds_per_step: float
    memory: int
    order_error: tuple[float, ...]
    coverage: Mapping[str, str]
    rows: str
    overhead: float
    latest: tuple[tuple[int, bool, float], ...] = ()
    rank: int = 0
    ranks: int = 1
    sent: int = 0

    def plot(self, *, axes: Axes | None = None, label: str = "") -> Axes:
        """Draw the order error of each epoch that was observed, on axes of yours or on new ones."""
        words = instance_of("label", label, str, "pass a line of text") or self.policy.partition("(")[0]
        drawn, errors = axes_for(axes, "Report.plot"), self.order_error
        plot_series(drawn, range(1, len(errors) + 1), errors, label=words, log=True, marker=".")
        drawn.set(xlabel="observed epoch", ylabel="order error")
        return drawn

    def __repr__(self) -> str:
        where = f"epoch {self.epoch}, step {self.step} of {self.steps}"
        return f"Report: {self.policy}, {self.units} units, {where}"

    def _repr_html_(self) -> str:
        return html_table([], list(self._lines()), title=repr(self))

    def __str__(self) -> str:
        lines = [f"{name:<12} {words}" for name, words in self._lines()]
        if self.coverage:
            width = max(map(len, self.coverage))
            lines += ["parameters", *(f"  {name:<{width}}  {how}" for name, how in self.coverage.items())]
        return "\n".join(lines)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """What is told, by name."""
        yield "signals", f"{self.signals}: {self.why}"
        yield "policy", f"{self.policy}, {self.units} units"
        yield "where", f"epoch {self.epoch}, step {self.step} of {self.steps}"
        without = f"{self.unobserved} without a gradient, {self.not_finite} not finite"
        yield "visits", f"{self.observed} observed, {without}"
        yield "known", self.rows
        share = f"{100 * self.overhead:.1f} % of the time so far, {self.memory / 2**20:.1f} MiB kept"
        step = f"{1e3 * self.seconds_per_step:.3f} ms an observed step"
        yield "cost", f"{step if self.seconds_per_step else 'no step was observed'}, {share}"
        if self.latest:
            last = [
                f"{at}{' (observed)' if seen else ''} {100 * part:.1f} %" for at, seen, part in self.latest
            ]
            yield "last epochs", ", ".join(last)
        yield "order error", ", ".join(f"{value:.4g}" for value in self.order_error[-5:]) or "none yet"
        if self.ranks > 1:
            yield "ranks", f"{self.rank} of {self.ranks}, {self.sent / 2**20:.1f} MiB sent from here"


def rows_in_words(state: Any, seen_in: int) -> str:
    """What a policy's state knows of the units, and from which epoch."""
    known = getattr(state, "known", None)
    if known is None:
        return "none kept"
    count = int((known > 0).sum())
    if not count:
        return "none yet: the order is a shuffle"
    when = "given before training"
    if seen_in >= 0:
        given = getattr(state, "given", 0)
        beside = f", beside what was {when}" if isinstance(given, int) and given else ""
        when = f"last seen in epoch {seen_in}{beside}"
    return f"{count} of {len(known)} units, {when}"
