"""What an audit found: a sentence, findings, numbers, and a picture."""

from __future__ import annotations

import html
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wellorder._arguments import instance_of
from wellorder._notebook import axes_for, html_table, literal

if TYPE_CHECKING:
    from wellorder._notebook import Axes

SHUFFLE = "a full shuffle"
Curve = tuple[float, ...]


@dataclass(frozen=True)
class Audit:
    """How an order compares with a full shuffle of the same examples; printed, it says so in a sentence."""

    ratio: float
    """Order error at the ends of batches, relative to a full shuffle's; the mean over epochs."""
    ratios: tuple[float, ...]
    """The same for each epoch."""
    shuffle_span: tuple[float, float]
    """The least and the largest of the shuffles that were compared with, relative to their mean."""
    examples: tuple[int, ...]
    """Visits in each epoch."""
    batch: float
    """Examples in a batch, on average."""
    label_ratio: float | None
    """The ratio by labels alone; None without labels."""
    shard_order: float | None
    """The part of the ratio that comes from which shards are read when; None if shards are not known."""
    inside_shards: float | None
    """The part that comes from the order of examples inside shards."""
    same_order: bool
    """Whether every epoch has the same order."""
    recognised: float | None
    """The share of examples that were recognised in the next epoch; None for a single epoch."""
    resemblance: float | None
    """Correlation of an example's places in two epochs: 1 for the same order, about 0 for fresh ones."""
    twice: tuple[int, ...]
    """Visits, in each epoch, to examples that were there before."""
    never: tuple[int, ...]
    """Examples, in each epoch, that never came."""
    norm_drift: float
    """The farthest that the mean norm in a tenth of the epoch is from that of the whole, relative to it."""
    norm_drift_by_chance: float
    """The largest of the same in shuffles."""
    label_drift: float | None
    """The farthest that the mix of labels in a tenth is from that of the whole, from 0 to 1."""
    label_drift_by_chance: float | None
    """The largest of the same in shuffles."""
    curves: tuple[Curve, ...]
    """The centred running sum along each epoch, in units of a shuffle's order error."""
    shuffle_curve: Curve
    """The mean of the same over shuffles."""
    norms: tuple[Curve, ...]
    """The mean norm in each tenth of each epoch, relative to the whole."""
    named: bool
    """Whether examples were recognised by names or numbers, not by what they look like."""
    whole: bool
    """Whether every epoch was watched to its end."""
    notes: tuple[str, ...]
    """What makes these numbers uncertain."""
    seconds: float
    """What the audit took, reading included."""

    @property
    def sentence(self) -> str:
        """The comparison in one plain sentence."""
        low, high = self.shuffle_span
        room = max(0.15, 1 - low, high - 1)
        if self.ratio > 1 + room:
            words = "a poor order" if self.ratio >= 2 else "somewhat worse than a full shuffle"
        else:
            words = "better than a full shuffle" if self.ratio < 1 - room else "as good as a full shuffle"
        shown = f"{self.ratio:.1f} times" if self.ratio >= 1.95 else f"{self.ratio:.2f} times"
        count, many = len(self.examples), f"{min(self.examples):,}"
        many += f" to {max(self.examples):,}" if max(self.examples) > min(self.examples) else ""
        batches = f", batches of {self.batch:.3g}" if self.batch > 1 else ""
        epochs = "1 epoch" if count == 1 else f"{count} epochs"
        return f"{shown} a full shuffle's order error: {words} ({epochs} of {many} examples{batches})."

    @property
    def findings(self) -> tuple[str, ...]:
        """What else was found, a sentence each; empty if all is well."""
        return tuple(
            filter(
                None,
                (self._repeats(), self._same_examples(), self._missing(), self._shards(), *self._drifts()),
            )
        ) + tuple(f"Beware: {note}" for note in self._beware())

    def metrics(self) -> dict[str, float]:
        """Numbers for a logger; those that are not known are left out."""
        names = (
            "ratio", "label_ratio", "shard_order", "inside_shards", "same_order", "recognised",
            "resemblance", "norm_drift", "label_drift", "seconds",
        )  # fmt: skip
        values = {name: getattr(self, name) for name in names}
        values |= {"twice": max(self.twice), "never": max(self.never)}
        return {f"audit/{name}": float(value) for name, value in values.items() if value is not None}

    def to_json(self) -> str:
        """Everything, as JSON."""
        told: dict[str, Any] = {"sentence": self.sentence, "findings": list(self.findings), **asdict(self)}
        return json.dumps(told, indent=2, ensure_ascii=False)

    def plot(self, *, axes: Axes | None = None, label: str = "this order") -> Axes:
        """Draw how far each epoch's sum strays, beside a full shuffle's; on axes of yours or on new ones."""
        instance_of("label", label, str, "pass a line of text")
        drawn = axes_for(axes, "Audit.plot")
        (first,) = drawn.plot(*_from_zero(self.curves[0]), label=literal(label))
        for curve in self.curves[1:]:
            drawn.plot(*_from_zero(curve), color=first.get_color(), alpha=0.6)
        if SHUFFLE not in drawn.get_legend_handles_labels()[1]:
            drawn.plot(*_from_zero(self.shuffle_curve), color="#767676", linestyle="dashed", label=SHUFFLE)
        drawn.set(xlabel="part of the epoch", ylabel="how far the sum strays\n(a shuffle's most = 1)")
        drawn.set_ylim(bottom=0)
        drawn.legend()
        return drawn

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.findings])

    def __repr__(self) -> str:
        return f"Audit: {self.sentence}"

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(found)}</li>" for found in self.findings)
        numbers = [[name.removeprefix("audit/"), value] for name, value in self.metrics().items()]
        return f"<div>{html_table([], numbers, title=self.sentence)}<ul>{items}</ul></div>"

    def _repeats(self) -> str:
        if self.same_order:
            return (
                "Every epoch has the same order: if there is a set_epoch, training must call it before each "
                "epoch (before_epoch=… here); else shuffle anew, or give no fixed generator."
            )
        if self.resemblance is not None and abs(self.resemblance) > 0.5 and self._recognisable():
            return (
                f"Epochs resemble each other: an example's places in two of them correlate by "
                f"{self.resemblance:.2f}, where fresh shuffles have 0."
            )
        return ""

    def _same_examples(self) -> str:
        if not max(self.twice):
            return ""
        told = f"{_counts(self.twice)} visits went to examples that had been there already"
        cure = (
            "" if self.named else " (or the data hold examples that look alike: pass key= to tell them apart)"
        )
        return f"{told}{cure}."

    def _missing(self) -> str:
        return (
            f"{_counts(self.never)} examples never came in an epoch (drop_last?)." if max(self.never) else ""
        )

    def _shards(self) -> str:
        if self.shard_order is None or self.inside_shards is None or self.ratio < 1.15:
            return ""
        return (
            f"Of this, which shards are read when makes {self.shard_order:.2f}, and the order inside shards "
            f"{self.inside_shards:.2f}."
        )

    def _drifts(self) -> list[str]:
        told = []
        if self.label_drift is not None and self.label_drift > 1.5 * (self.label_drift_by_chance or 0):
            told.append(
                f"Labels drift along the epoch: in one tenth of it {self.label_drift:.0%} of them are not "
                f"those of the whole; by chance at most {self.label_drift_by_chance:.0%}."
            )
        if self.norm_drift > 1.5 * self.norm_drift_by_chance and self.norm_drift > 0.02:
            told.append(
                f"Norms drift along the epoch: in one tenth of it they are {self.norm_drift:.0%} off the "
                f"mean; by chance at most {self.norm_drift_by_chance:.0%}."
            )
        return told

    def _beware(self) -> list[str]:
        told = list(self.notes)
        if not self.whole:
            told.append(
                f"only the first {max(self.examples):,} examples of an epoch were watched (most=), so "
                "examples that come twice or never may go unseen."
            )
        if not self._recognisable() and (self.whole or not self.recognised):
            told.append(
                f"only {self.recognised:.0%} of the examples were recognised in the next epoch (augmented at "
                "random?), so repeats may go unseen; pass key=, a function from a batch to its names."
            )
        return told

    def _recognisable(self) -> bool:
        return self.recognised is None or self.recognised >= 0.5


def _counts(values: tuple[int, ...]) -> str:
    low, high = min(values), max(values)
    return f"{high:,}" if low == high else f"{low:,} to {high:,}"


def _from_zero(curve: Curve) -> tuple[list[float], Curve]:
    """Where along the epoch, and how far: an epoch begins with nothing visited."""
    return [step / len(curve) for step in range(len(curve) + 1)], (0.0, *curve)
