"""Where signals come from: the choice between exact, sketched and micro-batch signals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from torch import nn

from wellorder._arguments import shown
from wellorder._order import Keeps, Policy, keeps_of
from wellorder.policies import PairGraB, Steering
from wellorder.torch._batch_gradients import MicroBatch, MicroBatchSource
from wellorder.torch._batch_record import BatchRecord, BatchRecords
from wellorder.torch._hooks import Scaler
from wellorder.torch._per_example.exact import Exact, ExactSource
from wellorder.torch._per_example.layers import survey
from wellorder.torch._sketch import Sketch, SketchSource, modelled, sketchable
from wellorder.torch._validation import is_compiled, is_scripted

Spec = Exact | Sketch | MicroBatch
NAMES: dict[str, Spec] = {"exact": Exact(), "sketch": Sketch(), "batch": MicroBatch()}
ROOM = 1 << 31
"""Bytes that a sketch's rows may take before "auto" makes them shorter."""
MOST = 1.0
"""Multiplications of a sketch, relative to the training step's, before "auto" makes its rows shorter."""


class Source(Protocol):
    """Watches a model, and turns what a batch's record holds into signals."""

    def settled(self, records: list[BatchRecord], *, now: bool = False) -> Iterable[tuple[BatchRecord, Any]]:
        """The signals of batches that are closed, None where no gradient came; good until the next one's.

        Some may wait until others come, to be made at less cost together; not if they are wanted ``now``.
        An empty tuple, or a list, where there are none yet.
        """
        ...

    def forget(self) -> None:
        """Nothing comes of batches that wait."""
        ...

    def coverage(self) -> dict[str, str]:
        """How each trainable parameter's gradient is taken."""
        ...

    def attach(self) -> None:
        """Put the hooks on the model, if they are off."""
        ...

    def pause(self) -> None:
        """Take no signals until the hooks are attached again."""
        ...

    def remove(self) -> None:
        """Take the hooks off the model."""
        ...

    def note(self) -> str:
        """What there is to say about the model, to be put behind the reason for the choice."""
        ...


class Choice(NamedTuple):
    """What kind of signals, and the reason."""

    spec: Spec | None
    why: str


def default_policy(signals: Any) -> Policy[Any]:
    """The policy where none is named: `Steering`, or for exact signals, which have no rows, `PairGraB`."""
    exact = isinstance(signals, Exact) or (isinstance(signals, str) and signals == "exact")
    return PairGraB() if exact else Steering()


def choose(
    signals: Any, policy: Policy[Any], model: nn.Module | None, n: int, batch: int = 1, *, given: bool = False
) -> Choice:
    """Settle which signals to collect: as asked, or for "auto" by policy, model and modelled cost.

    ``given`` says that rows of the examples are known already: then no micro-batches are made units instead.
    """
    if not isinstance(signals, str | Spec):
        raise ValueError(_unknown(signals))
    if model is None:
        if signals != "auto":
            raise ValueError(
                f"signals={shown(signals)}, model=None: pass the model that signals are taken of"
            )
        return Choice(None, "no model was given, so orders are made from what is known before training")
    choice = _choose(signals, policy, model, n, batch)
    if given and isinstance(choice.spec, MicroBatch):
        if signals != "auto":
            raise ValueError(
                f"signals={signals!r} orders micro-batches, and rows= tells of examples; leave one out"
            )
        return Choice(None, f"orders are made from the rows given ({choice.why})")
    return choice


def _unknown(signals: Any) -> str:
    return (
        f'signals={shown(signals)}: pass "auto", "exact", "sketch" or "batch", or a spec such as '
        "Sketch(size=256)"
    )


def _choose(signals: Any, policy: Policy[Any], model: nn.Module, n: int, batch: int) -> Choice:
    if isinstance(signals, Spec):
        return Choice(signals, "as asked")
    if signals != "auto":
        if signals not in NAMES:
            raise ValueError(_unknown(signals))
        return Choice(NAMES[signals], "as asked")
    if not policy.needs.at_visits():
        return Choice(None, f"{type(policy).__name__} looks at no signals")
    if is_compiled(model):
        return Choice(
            MicroBatch(), "hooks inside a compiled model are not called; gradients of micro-batches are"
        )
    if is_scripted(model):
        return Choice(MicroBatch(), "a scripted model takes no hooks; its parameters do")
    layers = sketchable(survey(model, inside=True))
    if not layers and any(p.is_complex() for p in model.parameters()):
        return Choice(MicroBatch(), "there is no sketch of complex layers")
    if not layers:
        if keeps_of(policy) is Keeps.ROWS:
            why = f"no layer can be sketched, and {type(policy).__name__} keeps rows"
            return Choice(MicroBatch(), why)
        return Choice(Exact(), "no layer can be sketched")
    spec = Sketch()
    numbers, share = modelled(spec, layers)
    while spec.size > 64 and (4 * n * numbers > ROOM or share > MOST):
        spec = replace(spec, size=spec.size // 2)
        numbers, share = modelled(spec, layers)
    if 4 * n * numbers > ROOM:
        most = max(64, min(MicroBatch().coordinates, ROOM // (4 * -(-n // batch))))
        return Choice(MicroBatch(most), f"rows for {n} examples would take more than {ROOM >> 30} GiB")
    why = f"{numbers} numbers an example, {4 * n * numbers / 2**20:.0f} MiB of rows"
    return Choice(spec, f"{why}, modelled at {100 * share:.1f} % of a step's multiplications or less")


def watch(
    spec: Spec,
    model: nn.Module,
    policy: Policy[Any],
    seed: int,
    scaler: Scaler | None,
    records: BatchRecords,
    *,
    batch: int = 0,
    strict: bool = True,
) -> Source:
    """Put the hooks on the model; if not ``strict``, a sketch leaves out layers that it cannot attribute.

    With the loader's ``batch`` size, a sketch treats several steps of small layers together.
    """
    if not isinstance(spec, MicroBatch) and is_compiled(model):
        raise ValueError(
            f"signals={type(spec).__name__} needs hooks, which a compiled model does not call; "
            'pass the model from before torch.compile to ordered(...), or use signals="batch"'
        )
    if not isinstance(spec, MicroBatch) and is_scripted(model):
        raise ValueError(
            f"signals={type(spec).__name__} needs hooks, which a scripted or traced model does not take; "
            'pass the model from before torch.jit, or use signals="batch"'
        )
    if isinstance(spec, Exact):
        if keeps_of(policy) is Keeps.ROWS:
            raise ValueError(
                f'signals="exact" gives products, and policy={type(policy).__name__} keeps rows; use '
                'signals="sketch", or PairGraB()'
            )
        return ExactSource(spec, model, seed, scaler, records=records)
    if isinstance(spec, Sketch):
        return SketchSource(spec, model, seed, scaler, records=records, batch=batch, strict=strict)
    if any(hasattr(p, "placements") for p in model.parameters()):  # DTensors, as FSDP2 makes them
        raise ValueError(
            'signals="batch" reads the gradients of whole parameters, and this model\'s are sharded; use '
            'signals="sketch", or order by rows='
        )
    return MicroBatchSource(spec, model, seed, scaler, records=records)
