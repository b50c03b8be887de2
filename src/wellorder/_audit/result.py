"""What an audit found: a sentence, findings, numbers, and a small picture."""

from __future__ import annotations

import html
import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from wellorder._arguments import named_path
from wellorder._saving import write_text

WIDTH, HEIGHT, LEFT, BOTTOM = 460, 190, 44, 30
OWN, SHUFFLED = "#0072B2", "#999999"
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
    curves: tuple[Curve, ...] = field(repr=False)
    """The centred running sum along each epoch, in units of a shuffle's order error."""
    shuffle_curve: Curve = field(repr=False)
    """The mean of the same over shuffles."""
    norms: tuple[Curve, ...] = field(repr=False)
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

    def plot(self, path: str | os.PathLike[str] | None = None) -> str:
        """Draw how far each epoch strays, beside a full shuffle; as SVG, into a file if a path is given."""
        drawn = _drawing(self.curves, self.shuffle_curve)
        if path is not None:
            with named_path("path", path) as file:
                if file.suffix.lower() != ".svg":
                    raise ValueError("the picture is an SVG; pass a name that ends in .svg")
                write_text(file, drawn)
        return drawn

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.findings])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(found)}</li>" for found in self.findings)
        more = f"<ul>{items}</ul>" if items else ""
        return f"<div><p><b>{html.escape(self.sentence)}</b></p>{more}{self.plot()}</div>"

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
            told.append(f"only the first {max(self.examples):,} examples of an epoch were watched (most=).")
        if not self._recognisable():
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


def _drawing(curves: tuple[Curve, ...], shuffled: Curve) -> str:
    """Lines along the epoch, the shuffle's dashed, with an axis on the left; no library needed."""
    top = 1.1 * max(max(max(curve) for curve in curves), max(shuffled), 1.0)
    wide, high = WIDTH - LEFT - 10, HEIGHT - BOTTOM - 26

    def line(curve: Curve, look: str) -> str:
        points = [(0.0, 0.0), *(((i + 1) / len(curve), value) for i, value in enumerate(curve))]
        path = " ".join(f"{LEFT + wide * x:.1f},{26 + high * (1 - y / top):.1f}" for x, y in points)
        return f'<polyline fill="none" {look} points="{path}"/>'

    def text(x: float, y: float, words: str, look: str = "") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" font-size="11" font-family="sans-serif" {look}>{words}</text>'

    marks = [top / 1.1 * part for part in (0.0, 0.5, 1.0)]
    grid = "".join(
        f'<line x1="{LEFT}" x2="{LEFT + wide}" y1="{26 + high * (1 - v / top):.1f}" '
        f'y2="{26 + high * (1 - v / top):.1f}" stroke="#ddd"/>'
        + text(LEFT - 6, 30 + high * (1 - v / top), f"{v:.3g}", 'text-anchor="end" fill="#555"')
        for v in marks
    )
    own = "".join(line(curve, f'stroke="{OWN}" stroke-width="1.6" stroke-opacity="0.8"') for curve in curves)
    words = text(LEFT, 14, "how far the sum strays (a shuffle's most = 1)", 'fill="#333"')
    words += text(LEFT, HEIGHT - 8, "start of the epoch", 'fill="#555"')
    words += text(LEFT + wide, HEIGHT - 8, "end", 'text-anchor="end" fill="#555"')
    words += text(LEFT + wide, 14, "dashed: shuffles", f'text-anchor="end" fill="{SHUFFLED}"')
    dashed = line(shuffled, f'stroke="{SHUFFLED}" stroke-width="1.6" stroke-dasharray="5 4"')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="How far the order strays">'
        f'<rect width="100%" height="100%" fill="white"/>{grid}{own}{dashed}{words}</svg>'
    )
