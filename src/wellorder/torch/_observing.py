"""What a policy is shown of the training: rows many at a time, products at once; and the order error."""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder._measure import strayed
from wellorder._order import Keeps, Order, Policy, keeps_of
from wellorder.torch._schedule import NextState, StateInTheMaking, advanced, let_threads_end

Rows = npt.NDArray[np.float32]
ROOM = 1 << 21
"""Numbers that are pending before a policy sees them: a step pays for a copy, and not for the policy."""
ROOM_IF_KEPT = 1 << 20
"""The same for a policy that keeps them, and has little to do: at an epoch's end the last are waited for."""
BESIDE = {"cuda"}
"""Devices whose rows come to the host, and to a policy that keeps them, in a thread beside the training."""
AT_EXIT = 2.0
"""Seconds that a process which ends waits for rows on their way: a thread must not be killed inside CUDA."""


class Observer:
    """A policy's state, what it was shown, and what it will be.

    With ``together``, the policy is shown the rows of all processes at once, at the epoch's end: those of
    this one, ``visits`` of them at most, wait until then. Else a policy is shown rows as they come, many at a
    time; one that keeps them, in the background where they are on a GPU, so that only the last of them are
    waited for at the epoch's end.
    """

    def __init__(
        self, policy: Policy[Any], state: Any, *, visits: int | None = None, together: bool = False
    ) -> None:
        self.policy, self._state = policy, state
        self.coming: StateInTheMaking | None = None
        """The state, while it is in the making."""
        self.running_error, self.errors = RunningOrderError(), list[float]()
        self.observed = self.unobserved = self.not_finite = self.steps = 0
        self.seconds = 0.0
        self.together = together
        self._keeps_rows = keeps_of(policy) is Keeps.ROWS and policy.needs.at_visits()
        self._pending = PendingRows(
            len(state.order) if visits is None else visits, for_an_epoch=self._keeps_rows, always=together
        )
        self._given_out: set[int] = set()
        self._shown_beside: list[RowsShownBeside] = []
        self._to_host = CopiesToHost()

    @property
    def state(self) -> Any:
        """The policy's state; waits for one that is in the making."""
        if self.coming is not None:
            made = self.coming.get()  # an interrupt in here loses nothing
            self._state, self.coming = made, None
            shown, self._shown_beside = self._shown_beside, []
            for each in shown:
                self._count(each.counts, each.totals, each.finite)
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state, self.coming, self._shown_beside = state, None, []

    @property
    def epoch(self) -> int:
        """The state's epoch, for which nobody has to wait."""
        return int(self._state.epoch if self.coming is None else self.coming.epoch)

    @property
    def learnt(self) -> bool:
        """Whether anything was seen in this epoch, though no batch may be finite as a whole."""
        return bool(self.running_error.sums) or getattr(self.state, "observed", 0) > 0

    def give_out(self, step: int) -> None:
        """The epoch's ``step``-th batch is in the training's hands: rows of later ones must wait for it."""
        self._given_out.add(step)

    def take(self, step: int, units: Order, signals: Any) -> None:
        """Take in the signals of the epoch's ``step``-th batch; None leaves its units unobserved.

        A unit of -1 stands for a second visit, which does not count.
        """
        self.steps += 1
        self._given_out.discard(step)
        if units[-1] < 0:
            counts = units >= 0
            units, signals = units[counts], None if signals is None else signals[torch.from_numpy(counts)]
            if not len(units):
                return
        if signals is None:
            self.unobserved += len(units)
        elif not isinstance(signals, Tensor):
            self._show_products(units, signals)
        elif self._pending.add(step, units, signals) and self._pending.come_before(self._given_out):
            self._show_pending()

    def flush(self) -> None:
        """Show the rows that are pending, in the order of their visits, unless others' must come first."""
        if not self.together:
            self._show_pending()
            self._wait_for_shown()

    def _show_pending(self) -> None:
        device = self._pending.device
        beside = self._keeps_rows and device is not None and device.type in BESIDE
        batches = self._pending.take(give_away=beside)
        if batches is None:
            return
        if beside:
            before = self._state if self.coming is None else self.coming
            self.coming = shown = RowsShownBeside(self.policy, before, batches, self._to_host)
            self._shown_beside.append(shown)
        else:
            self.show(batches)

    def _wait_for_shown(self) -> None:
        if self._shown_beside:
            _ = self.state

    def own_rows(self, step: int) -> tuple[npt.NDArray[np.int64], Tensor]:
        """What is pending: its places among the visits of this process, ``step`` a batch, and its rows."""
        return self._pending.placed(step)

    def show(self, batches: ManyBatches) -> None:
        """Show rows that follow those that were shown before."""
        totals, rows = batches.totals(), batches.rows.cpu().numpy()
        self.state, finite = shown_finite(self.policy, self.state, batches.units, rows, totals)
        self._count(batches.counts, totals, finite)

    def pending(self) -> dict[str, Tensor]:
        """What waits for other processes' rows, copied."""
        return self._pending.copied()

    def wait_with(self, pending: Mapping[str, Tensor], most: int) -> None:
        """Let the rows wait that `pending` gave, of batches of ``most`` units at most."""
        try:
            steps, lengths = (pending[name].long() for name in ("steps", "lengths"))
            units, rows = pending["units"].long(), pending["rows"].float()
            whole = len(steps) == len(lengths) and int(lengths.sum()) == len(units) == len(rows)
            whole = whole and rows.ndim == 2 and bool(((lengths > 0) & (lengths <= most)).all())
            last = -(-self._pending.most // most)
            whole = whole and bool((steps.diff() > 0).all() and ((steps > 0) & (steps <= last)).all())
            whole = whole and bool(((units >= 0) & (units < len(self.state.order))).all())
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"damaged state: pending rows are spoilt: {error}; load another") from error
        if not whole:
            raise ValueError("damaged state: pending rows fit no batches; load an intact copy")
        ends = lengths.cumsum(0).tolist()
        for step, end, length in zip(steps.tolist(), ends, lengths.tolist(), strict=True):
            mine = slice(end - length, end)
            self._pending.add(step, units[mine].numpy().astype(self.state.order.dtype), rows[mine])

    def advance(self, following: Any = None) -> None:
        """Close the epoch and open the next, whose state may have been made already, or be in the making."""
        self.flush()
        self._pending.take()  # of hooks that were taken off on the way: nobody asked the others for theirs
        self._given_out = set()
        if isinstance(following, NextState):
            self._state, self.coming = self.state, following
        else:
            self.state = advanced(self.policy, self.state) if following is None else following
        if self.running_error.sums:
            self.errors.append(self.running_error.error())
        self.running_error = RunningOrderError()

    def error_so_far(self) -> tuple[float, ...]:
        """The order error of the present epoch so far, pending rows included; empty if nothing was seen."""
        self._wait_for_shown()
        running, pending = RunningOrderError(), None if self.together else self._pending.batches()
        running.sums, running.counts = list(self.running_error.sums), list(self.running_error.counts)
        if pending is not None:
            running.add_all(pending.totals(), pending.counts)
        return (running.error(),) if running.sums else ()

    def counts(self) -> dict[str, int]:
        """Visits so far by what came of them, those among them whose rows are still pending."""
        self._wait_for_shown()
        finite, not_finite = self._pending.finite()
        return {
            "observed": self.observed + finite,
            "unobserved": self.unobserved,
            "not_finite": self.not_finite + not_finite,
        }

    def memory(self) -> int:
        """Bytes that stay between steps."""
        held = [getattr(self.state, name) for name in self.state.__dataclass_fields__]
        arrays = sum(int(v.nbytes) for v in held if hasattr(v, "nbytes"))
        held_for_copies = self._pending.nbytes + self._to_host.nbytes
        return arrays + held_for_copies + sum(row.nbytes for row in self.running_error.sums)

    def _count(self, counts: list[int], totals: Rows, finite: npt.NDArray[np.bool_] | None) -> None:
        """Note batches that were shown: their sizes and sums, and which rows were finite, None for all."""
        self.running_error.add_all(totals, counts)
        missing = 0 if finite is None else int((~finite).sum())
        self.observed += sum(counts) - missing
        self.not_finite += missing

    def _show_products(self, units: Order, signals: Any) -> None:
        if signals.total is not None:
            self.running_error.add(signals.total.cpu().numpy() * signals.scale, len(signals))
        finite = np.ones(len(signals), bool)
        if self.policy.needs.at_visits():
            finite = self._observe_finite(units, signals)
        self.observed += int(finite.sum())
        self.not_finite += int((~finite).sum())

    def _observe_finite(self, units: Order, signals: Any) -> npt.NDArray[np.bool_]:
        """Show products; where the policy finds one that is not finite, show it the others."""
        try:
            self.state = self.policy.observe(self.state, units, signals)
        except ValueError:
            finite: npt.NDArray[np.bool_] = signals.finite()
            if finite.all():
                raise
            if finite.any():
                rest = signals.take(np.flatnonzero(finite))
                self.state = self.policy.observe(self.state, units[finite], rest)
            return finite
        return np.ones(len(signals), bool)


class ManyBatches(NamedTuple):
    """The units of some batches in the order of their visits, how many each has, and all their rows."""

    units: Order
    counts: list[int]
    rows: Tensor

    def sums(self) -> Tensor:
        """Sum of each batch's rows, where these are."""
        size, even = self.counts[0], len(self.counts)
        if any(count != size for count in self.counts[:-1]):
            even = 0
        elif self.counts[-1] != size:
            even -= 1
        first = self.rows[: even * size].reshape(even, size, self.rows.shape[1]).sum(1)
        rest = self.rows[even * size :].split(self.counts[even:])
        return torch.cat([first, *(part.sum(0, keepdim=True) for part in rest)]) if rest else first

    def totals(self) -> Rows:
        """Sum of each batch's rows, on the host."""
        totals: Rows = self.sums().cpu().numpy()
        return totals


def shown_finite(
    policy: Policy[Any], state: Any, units: Order, rows: Rows, totals: Rows
) -> tuple[Any, npt.NDArray[np.bool_] | None]:
    """Show a policy the rows that are finite; the state then, and which rows these are, None for all.

    ``totals`` are sums over all of the rows: where they are finite, nothing has to be looked for.
    """
    finite: npt.NDArray[np.bool_] | None = None
    if not np.isfinite(totals).all():
        finite = np.asarray(np.isfinite(rows).all(axis=1))
        units, rows = units[finite], rows[finite]
    if len(rows) and policy.needs.at_visits():
        state = policy.observe(state, units, rows)
    return state, finite


class RowsShownBeside(StateInTheMaking):
    """The state of a policy that was shown some more rows: they come to the host beside the training."""

    def __init__(self, policy: Policy[Any], before: Any, batches: ManyBatches, to_host: CopiesToHost) -> None:
        self.counts = batches.counts
        self.totals: Rows = np.zeros((0, 0), np.float32)
        self.finite: npt.NDArray[np.bool_] | None = None
        self._policy, self._units, self._to_host = policy, batches.units, to_host
        self._on_device: list[Tensor] = [batches.rows, batches.sums()]
        self._ready = to_host.mark(batches.rows)
        super().__init__(before, before.epoch, "wellorder-rows")

    def _make(self, state: Any) -> Any:
        rows, self.totals = self._to_host.fetch(*self._on_device, ready=self._ready)
        self._on_device = []  # memory of an accelerator is the training's to use
        state, self.finite = shown_finite(self._policy, state, self._units, rows, self.totals)
        return state


@atexit.register
def _let_rows_arrive() -> None:
    let_threads_end(RowsShownBeside, AT_EXIT)


class CopiesToHost:
    """Copies of rows on the host. From a GPU they come in a stream of their own, through pinned memory.

    Nothing in the training's own stream waits for them, or they for what comes there after their `mark`.
    """

    def __init__(self) -> None:
        self._pinned: Tensor | None = None
        self._stream: Any = None

    def mark(self, rows: Tensor) -> Any:
        """A mark in the training's stream, behind which the rows are there; None where they are by now."""
        if rows.device.type != "cuda":
            return None
        ready = torch.cuda.Event(blocking=True)  # who waits for it leaves the processor to others
        ready.record(torch.cuda.current_stream(rows.device))
        return ready

    def fetch(self, rows: Tensor, sums: Tensor, *, ready: Any) -> tuple[Rows, Rows]:
        """Wait for rows and sums, and copy them; the rows are good until the next are fetched."""
        if ready is None:
            return rows.numpy(), sums.numpy()
        if self._stream is None or self._stream.device != rows.device:
            self._stream = torch.cuda.Stream(rows.device)
        first, last = rows.numel(), rows.numel() + sums.numel()
        if self._pinned is None or len(self._pinned) < last or self._pinned.dtype != rows.dtype:
            self._pinned = torch.empty(last, dtype=rows.dtype, device="cpu", pin_memory=True)
        copies = self._pinned[:first].view(rows.shape), self._pinned[first:last].view(sums.shape)
        ready.synchronize()
        arrived = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(self._stream):
            for copy, original in zip(copies, (rows, sums), strict=True):
                copy.copy_(original, non_blocking=True)
            arrived.record(self._stream)
        arrived.synchronize()
        return copies[0].numpy(), copies[1].numpy().copy()

    @property
    def nbytes(self) -> int:
        """Bytes taken."""
        return 0 if self._pinned is None else int(self._pinned.nbytes)


class PendingRows:
    """Batches' rows on the device that they were made on, until they are taken.

    It is time to take them when `ROOM` is used up, unless they must ``always`` wait for the epoch's end.
    Where a policy keeps them anyway, a device that nothing can be copied from beside the training holds those
    of a whole epoch (``units`` of them, so n·k numbers), and nothing waits for it before the epoch's end.
    """

    def __init__(self, units: int, *, for_an_epoch: bool = False, always: bool = False) -> None:
        self.most, self._for_an_epoch, self._always = units, for_an_epoch, always
        self._batches: list[tuple[int, Order]] = []
        self._buffer: Tensor | None = None
        self._used = 0

    def add(self, step: int, units: Order, rows: Tensor) -> bool:
        """Copy the rows of the epoch's ``step``-th batch; says whether it is time to take them."""
        kind, end = rows.device.type, self._used + rows.shape[0]
        beside = self._for_an_epoch and kind in BESIDE
        at_the_end = self._always or (self._for_an_epoch and not beside and kind != "cpu")
        if self._buffer is None or end > self._buffer.shape[0]:
            room = (ROOM_IF_KEPT if self._for_an_epoch else ROOM) // rows.shape[1]
            count = self.most if at_the_end else min(self.most, max(room, 2 * self._used))
            larger = rows.new_empty(max(count, end), rows.shape[1])
            if self._buffer is not None:
                larger[: self._used] = self._buffer[: self._used]
            self._buffer = larger
        # A copy: the rows of a step may be views of what the next step writes over.
        self._buffer[self._used : end] = rows
        self._batches.append((step, units))
        self._used = end
        return not at_the_end and end + rows.shape[0] > self._buffer.shape[0]

    @property
    def device(self) -> torch.device | None:
        """Where the rows are; None if there are none."""
        return None if self._buffer is None or not self._used else self._buffer.device

    def come_before(self, steps: Set[int]) -> bool:
        """Whether all that is pending comes before all of some steps."""
        return not steps or max(step for step, _ in self._batches) < min(steps)

    def batches(self) -> ManyBatches | None:
        """All that is pending, by steps; the rows are good until the next are added."""
        if not self._batches or self._buffer is None:
            return None
        rows, steps = self._buffer[: self._used], [step for step, _ in self._batches]
        units = [each for _, each in self._batches]
        if steps != sorted(steps):  # a gradient that came late
            parts, right = rows.split([len(each) for each in units]), np.argsort(steps, kind="stable")
            units, rows = [units[i] for i in right], torch.cat([parts[i] for i in right])
        return ManyBatches(np.concatenate(units), [len(each) for each in units], rows)

    def take(self, *, give_away: bool = False) -> ManyBatches | None:
        """All that is pending, by steps, and begin anew; in other memory, if this is to be given away."""
        found = self.batches()
        self._batches, self._used = [], 0
        if give_away or (self._buffer is not None and self._buffer.device.type != "cpu"):
            self._buffer = None  # memory of an accelerator is the training's to use
        return found

    def placed(self, step: int) -> tuple[npt.NDArray[np.int64], Tensor]:
        """Places of the rows among the visits, of which every batch has ``step``, ascending; and the rows."""
        found = self.batches()
        if found is None:
            return np.zeros(0, np.int64), torch.zeros(0, 0)
        steps = sorted(at for at, _ in self._batches)
        places = [(at - 1) * step + np.arange(count) for at, count in zip(steps, found.counts, strict=True)]
        return np.concatenate(places), found.rows

    def copied(self) -> dict[str, Tensor]:
        """All that is pending, by steps, as tensors."""
        found = self.batches()
        if found is None:
            found = ManyBatches(np.zeros(0, np.int64), [], torch.zeros(0, 0))
        return {
            "steps": torch.tensor(sorted(at for at, _ in self._batches), dtype=torch.int64),
            "lengths": torch.tensor(found.counts, dtype=torch.int64),
            "units": torch.from_numpy(found.units.astype(np.int64)),
            "rows": found.rows.cpu().clone(),
        }

    def finite(self) -> tuple[int, int]:
        """How many of the rows that are here are finite, and how many are not; nothing is taken."""
        if self._buffer is None or not self._used:
            return 0, 0
        finite = int(torch.isfinite(self._buffer[: self._used]).all(dim=1).sum())
        return finite, self._used - finite

    @property
    def nbytes(self) -> int:
        """Bytes taken."""
        return 0 if self._buffer is None else int(self._buffer.nbytes)


class RunningOrderError:
    r"""Estimates :math:`\bar\phi` of the present epoch from one summed row per batch, at the batches' ends.

    The rows are those that the policy sees (a sketch, or some coordinates of the gradient), scaled so that
    squared norms keep their expectation; the mean is that of the epoch, as the gradients were when visited.

    >>> running = RunningOrderError()
    >>> for row in ([1.0, 0.0], [1.0, 0.0], [-2.0, 0.0]):
    ...     running.add(np.array(row), count=4)
    >>> running.error()
    2.0
    """

    def __init__(self) -> None:
        self.sums: list[Rows] = []
        self.counts: list[int] = []

    def add(self, row: npt.NDArray[np.floating], count: int) -> None:
        """Take in the sum of a batch's rows, and how many they were."""
        if np.isfinite(row).all():
            self.sums.append(np.array(row, np.float32))
            self.counts.append(count)

    def add_all(self, totals: Rows, counts: list[int]) -> None:
        """Take in every batch's sum, and how many rows it has."""
        for total, count in zip(totals, counts, strict=True):
            self.add(total, count)

    def error(self) -> float:
        """Largest norm of Σ (row − mean) over the epoch's beginnings that end with a batch; NaN if none."""
        if not self.sums:
            return float("nan")
        return strayed(np.stack(self.sums), np.array(self.counts, np.float64))
