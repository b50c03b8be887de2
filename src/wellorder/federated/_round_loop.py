"""The round loop: an epoch of all runs, round by round, eagerly or as a captured CUDA graph.

An epoch is planned first (who is visited when needs no training), so that the device can draw mini-batches
and balance for many rounds ahead; then every round trains its lanes, shows the signals, moves the servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wellorder._clients.availability import Always
from wellorder._clients.queue import Queue, Rounds, plan_epoch
from wellorder._kernels.sketch import FlatSketch, fold
from wellorder._measure import strayed
from wellorder._order import Needs, Order, Policy, rng
from wellorder.federated._batched_models import Loss
from wellorder.federated._client_data import ClientData, Store
from wellorder.federated._config import Config
from wellorder.federated._device_balancing import DeviceBalancing, kind_of
from wellorder.federated._local_ordering import LocalOrdering
from wellorder.federated._local_training import Seen, Trainer, pick_mode, train_round
from wellorder.federated._minibatches import RoundInputs, epoch_keys, shape_of, whole_batches
from wellorder.federated._parameters import layout_of, tensors_of
from wellorder.federated._stateful_layers import check_forward, check_single_examples, with_counted_dropout

DTYPES = {"float64": torch.float64, "float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32}
COORDINATES = 1024
"""Parameters through which the servers' ways are seen, at most."""
NUMBERS = 2**21
"""Random numbers drawn ahead for one stretch of rounds, at most."""
TRIALS = 3
"""Rounds on a side stream before one is captured, as CUDA wants it."""


@dataclass
class Run:
    """What changes in one run, beside its parameters."""

    policy: Policy[Any]
    config: Config
    queue: Queue
    clock: int = 0
    """Rounds so far, idle ones too."""
    orders: list[Order] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    """The order error of each epoch so far, as its rounds showed it."""
    local: LocalOrdering | None = None


@dataclass(frozen=True)
class Plan:
    """An epoch's rounds for R runs side by side; a run that is through has rounds of nobody."""

    clients: npt.NDArray[np.int64]
    """(T, R, S)."""
    counts: npt.NDArray[np.int64]
    """(T, R): so many places of each round are taken."""
    before: npt.NDArray[np.int64]
    """(T, R): visits of the epoch before each round."""
    repeats: npt.NDArray[np.int64]
    """(T, R, S): how often the epoch has visited the client before."""

    @staticmethod
    def of(runs: Sequence[Rounds]) -> Plan:
        """Pad the runs to the longest."""
        length, cohort = max(len(run.counts) for run in runs), runs[0].clients.shape[1]
        clients = np.zeros((length, len(runs), cohort), np.int64)
        counts, repeats = np.zeros((length, len(runs)), np.int64), np.zeros_like(clients)
        for r, run in enumerate(runs):
            clients[: len(run.counts), r] = run.clients
            counts[: len(run.counts), r] = run.counts
            repeats[: len(run.counts), r] = run.repeats()
        return Plan(clients, counts, np.cumsum(counts, axis=0) - counts, repeats)

    def weights(self, sizes: npt.NDArray[np.int64] | None) -> npt.NDArray[np.float64]:
        """Each client's share in its round's mean (T, R, S): by its ``sizes``, or equal if that is None."""
        taken = np.arange(self.clients.shape[2]) < self.counts[..., None]
        shares = np.where(taken, 1.0 if sizes is None else sizes[self.clients], 0.0)
        total = shares.sum(axis=2, keepdims=True)
        mean: npt.NDArray[np.float64] = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
        return mean


@dataclass
class Underway:
    """The epoch that is being trained: its rounds run by run, the servers' first points, the rounds done."""

    rounds: list[Rounds]
    first: Tensor
    done: int = 0


class RoundLoop:
    """The runs, their servers' points (R, width), and the rounds that move them.

    GraB and PairGraB are balanced on the accelerator, where there is one; every other policy that watches is
    shown its signals by the host, round by round.

    Parameters
    ----------
    models, data, jobs, loss
        A model a run (one architecture), who holds what, the runs, and a loss an example.
    on_device
        Whether the device balances; None: where signals would have to be copied to the host.
    numbers
        Random numbers drawn ahead, at most.
    kernels
        Whether Triton's kernels are used; None: on CUDA.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        data: ClientData,
        jobs: Sequence[tuple[Policy[Any], Config]],
        loss: Loss,
        *,
        on_device: bool | None = None,
        numbers: int = NUMBERS,
        kernels: bool | None = None,
    ) -> None:
        self.config, self.numbers = jobs[0][1], numbers
        config, device = self.config, torch.device(self.config.device)
        dtype = DTYPES[config.precision]
        self.store = Store(data, device, dtype, augment=config.augment)
        net = with_counted_dropout(models[0]).to(device, dtype)
        mode, half = pick_mode(net, device, config.mode), config.precision == "bf16"
        self.layout = layout_of(models[0], channels_last=mode == "stacked")
        self.trainer = Trainer(
            net, self.layout, loss, mode, config.clip, half, self.store.images, kernels=kernels
        )
        few = torch.arange(min(2, len(data.labels)), device=device)
        ready = self.trainer._ready(self.store.plain(few))
        check_forward(net, ready, self.store.labels[few], loss)
        if mode == "loop":  # elsewhere short mini-batches are padded
            check_single_examples(net, ready[:1], data.partition.sizes, config)
        rows = [self.layout.flat(tensors_of(model)) for model in models]
        self.servers = torch.stack(rows).to(device, dtype)
        self.step_sizes = torch.tensor([own.step_size for _, own in jobs], dtype=dtype, device=device)
        sizes = data.partition.sizes
        self.shares = sizes if config.weighting == "size" else None
        self.shape = shape_of(sizes.tolist(), config.local_steps, config.batch)
        self.runs = [Run(policy, own, Queue(policy, own.seed)) for policy, own in jobs]
        for run in self.runs:
            run.queue.open(data.partition.n)
            if config.local is not None:
                run.local = LocalOrdering(config.local, sizes, self.shape, run.config.seed)
        dim = self.layout.trained
        self.signs = {
            r: torch.from_numpy(FlatSketch.draw(dim, own.sketch, own.seed).signs).to(self.servers)
            for r, (policy, own) in enumerate(jobs)
            if own.sketch and policy.needs is not Needs.NOTHING
        }
        """The random signs of each run that balances sketches."""
        balance = device.type != "cpu" if on_device is None else on_device
        watching = [r for r, run in enumerate(self.runs) if run.policy.needs.at_visits()]
        self.balanced = [r for r in watching if balance and kind_of(self.runs[r].policy)]
        self.told = [r for r in watching if r not in self.balanced]
        self.path = ServerPath(dim, jobs, device)
        self.inputs: RoundInputs | None = None
        self.groups: list[DeviceBalancing] = []
        self.signals: dict[int, Tensor] = {}
        """The last round's signals of each run whose policy the host shows them to."""
        self.captured: CapturedRound | None = None
        self.watch: Callable[[int, int, int], None] | None = None
        """Called after every round: the epoch, how many of its rounds are done, and how many it has."""
        self.look: Callable[[int, Sequence[int]], None] | None = None
        """Called ``config.looks`` − 1 times an epoch: how many rounds are done, of how many in each run."""
        self.rest: Callable[[], None] | None = None
        """Called after every round but an epoch's last, when all of it can be `saved`."""
        self.underway: Underway | None = None
        self._restored: Mapping[str, Any] = {}
        self._at = 0
        """Rounds done of the stretch at hand."""

    def epoch(self, epoch: int) -> None:
        """Plan and train an epoch of all runs, or the rest of a restored one; and let policies reorder."""
        if self.underway is None:
            before = self.servers.clone()
            self.underway = Underway([self._plan(r, run) for r, run in enumerate(self.runs)], before)
        self.train(epoch, self.underway)
        eta, before = self.config.server_step, self.underway.first
        if eta != 1:  # parameters alone: a variance that is moved on may become negative
            servers, before = (rows[:, : self.layout.trained] for rows in (self.servers, before))
            servers.copy_(servers + (1 - eta) * (before - servers))
        self.underway = None
        for run in self.runs:
            run.orders.append(np.concatenate([run.queue.visited, run.queue.missed]))
            run.queue.close()

    def _plan(self, r: int, run: Run) -> Rounds:
        """Show fresh signals where the policy wants them, and draw the epoch's rounds."""
        if run.policy.needs.at_start(run.queue.state.epoch):
            self._observe_fresh(r, run)
        rounds, run.clock = plan_epoch(run.queue, run.config.cohort, run.config.availability, run.clock)
        return rounds

    def _observe_fresh(self, r: int, run: Run) -> None:
        """Show the policy every client's whole gradient at the epoch's first point."""
        queue, shape, device = run.queue, replace(self.shape, steps=1), self.servers.device
        order = queue.state.order
        for at in range(0, len(order), self.config.cohort):
            units = order[at : at + self.config.cohort]
            clients = torch.from_numpy(queue.units[units]).to(device)
            places, real = whole_batches(self.store.sizes[clients], shape)
            examples = self.store.examples[self.store.starts[clients][:, None, None] + places][:, 0]
            lanes = self.servers[r].expand(len(units), -1).contiguous()
            grads = self.trainer.gradients_at(lanes)(
                self.store.plain(examples), self.store.labels[examples], real[:, 0]
            )
            rows = self.sketched(grads[:, : self.layout.trained], r)
            queue.state = run.policy.observe(queue.state, units, rows)
        queue.line_up()

    def saved(self) -> dict[str, Any]:
        """The epoch underway, for a checkpoint; empty between epochs."""
        if self.underway is None:
            return {}
        own = {f"{r}": {"clients": p.clients, "counts": p.counts} for r, p in enumerate(self.underway.rounds)}
        groups = {f"{g}": group.saved(self._at) for g, group in enumerate(self.groups)}
        return {
            "done": self.underway.done, "first": self.underway.first.cpu().numpy(), "rounds": own,
            "groups": groups, "points": self.path.passed(self.underway.done),
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Let `epoch` go on with the rest of a `saved` epoch."""
        if not saved:
            return
        own = [saved["rounds"][f"{r}"] for r in range(len(self.runs))]
        rounds = [Rounds(one["clients"], one["counts"]) for one in own]
        n, cohort = len(self.store.sizes), self.config.cohort
        for plan in rounds:
            fits = plan.clients.shape == (len(plan.counts), cohort) and plan.counts.max(initial=0) <= cohort
            if not fits or plan.clients.min(initial=0) < 0 or plan.clients.max(initial=0) >= n:
                raise ValueError(f"rounds that are not of {n} clients, {cohort} at a time")
        first = torch.from_numpy(saved["first"]).to(self.servers)
        self.underway, self._restored = Underway(rounds, first, int(saved["done"])), saved

    def train(self, epoch: int, underway: Underway) -> None:
        """Train the rounds of one epoch that are left, a stretch of them at a time, moving the servers."""
        rounds = underway.rounds
        config, queues, plan = self.config, [run.queue for run in self.runs], Plan.of(rounds)
        weights = torch.from_numpy(plan.weights(self.shares)).to(self.store.dtype)
        clients, seeds = torch.from_numpy(plan.clients), [run.config.seed for run in self.runs]
        # A client that comes again in an epoch draws as one of numbers beyond those of all clients.
        visits = torch.from_numpy(plan.clients + len(self.store.sizes) * plan.repeats)
        inputs = self._buffers(len(plan.counts))
        self.path.open(self.servers, len(plan.counts))
        looks, length = config.looks, len(plan.counts)
        marks = {round(length * i / looks) for i in range(1, looks)} - {0, length}
        keys = epoch_keys(seeds, epoch, self.servers.device)
        for group in self.groups:
            group.open(queues, rounds, whole=isinstance(config.availability, Always))
        if self._restored:
            self.path.restore(self._restored["points"])
            for g, group in enumerate(self.groups):
                group.restore(self._restored["groups"][f"{g}"])
            self._restored = {}
        for start in range(underway.done, len(plan.counts), inputs.rounds):
            stop = min(start + inputs.rounds, len(plan.counts))
            part = clients[start:stop].to(self.servers.device)
            drawn = visits[start:stop].to(self.servers.device)
            inputs.fill(self.store, part, drawn, keys, self.shape, whole=config.batch is None)
            if config.local is not None:
                self._put_local(inputs, part)
            inputs.weights[: stop - start] = weights[start:stop]
            for group in self.groups:
                group.fill(start, stop)
            for turn in range(start, stop):
                self._round(inputs, plan, turn)
                self.path.pass_by(self.servers, turn)
                underway.done, self._at = turn + 1, turn + 1 - start
                if self.watch is not None:
                    self.watch(epoch, turn + 1, length)
                if self.look is not None and turn + 1 in marks:
                    self.look(turn + 1, [len(run.counts) for run in rounds])
                if self.rest is not None and turn + 1 < length:
                    self.rest()
            for group in self.groups:
                group.read(stop - start)
        for group in self.groups:
            group.close(queues)
        for run, error in zip(self.runs, self.path.order_errors(plan.counts), strict=True):
            run.errors.append(error)

    def _round(self, inputs: RoundInputs, plan: Plan, turn: int) -> None:
        """One round: on the device, then what the host must see of it."""
        clients, counts = plan.clients[turn], plan.counts[turn]
        if self.servers.is_cuda and self.config.graph and self.config.local is None:
            if self.captured is None:
                changed = [self.servers, inputs.at, *(t for group in self.groups for t in group.changed)]
                self.captured = CapturedRound(lambda: self.body(inputs), changed)
            self.captured.graph.replay()
        else:
            taken = np.arange(clients.shape[1]) < counts[:, None]
            seen = self._watch(clients, counts) if self.config.local is not None else None
            self.body(inputs, tuple(taken.ravel().tolist()), seen)
        for r in self.told:
            if count := int(counts[r]):
                rows = self.signals[r][:count].div_(self.step_sizes[r])
                self.runs[r].queue.observe(int(plan.before[turn, r]), clients[r, :count], rows)
        if self.config.local is not None:
            for r, run in enumerate(self.runs):
                for client in clients[r, : counts[r]]:
                    run.local.leave(int(client))  # type: ignore[union-attr]

    def body(
        self, inputs: RoundInputs, taken: tuple[bool, ...] | None = None, seen: Seen | None = None
    ) -> None:
        """One round, in place: servers, balancing and the round's number; the same eagerly and captured."""
        work, weights = inputs.work(self.store)
        work = replace(work, taken=taken)
        after, moves = train_round(self.trainer, self.servers, work, weights, self.step_sizes, seen)
        moves = moves[..., : self.layout.trained]  # running statistics are averaged, but no direction
        for group in self.groups:
            rows = [self.sketched(moves[r], r) for r in group.members] if group.sketched else []
            group.step(torch.stack(rows) if rows else group.own(moves), inputs.at)
        for r in self.told:  # a captured round always writes into the same memory
            signals = self.sketched(moves[r], r)
            self.signals[r] = self.signals[r].copy_(signals) if r in self.signals else signals.clone()
        self.servers.copy_(after)
        inputs.at.add_(1)

    def sketched(self, signals: Tensor, r: int) -> Tensor:
        """A run's signals (S, width) as (S, k): k sums of randomly signed numbers; or as they are."""
        if r not in self.signs:
            return signals
        sketch: Tensor = fold(signals, self.signs[r], self.runs[r].config.sketch)
        return sketch

    def _buffers(self, rounds: int) -> RoundInputs:
        """Buffers for the whole run, as long as an epoch unless its random numbers would not fit."""
        if self.inputs is None:
            shape, cohort, runs = self.shape, self.config.cohort, len(self.runs)
            each = runs * cohort * max(shape.passes * shape.longest, shape.steps * shape.batch)
            # With local ordering, what a client takes next depends on the round before.
            length = 1 if self.config.local is not None else max(1, min(rounds, self.numbers // each))
            self.inputs = RoundInputs.empty(length, runs, cohort, shape, self.store)
            alike: dict[tuple[str, int], list[int]] = {}
            for r in self.balanced:
                alike.setdefault((kind_of(self.runs[r].policy), self.runs[r].config.sketch), []).append(r)
            for (kind, sketch), members in sorted(alike.items()):
                width = sketch or self.layout.trained
                group = DeviceBalancing(kind, members, self.step_sizes, cohort, width, length)
                group.sketched = bool(sketch)
                self.groups.append(group)
        return self.inputs

    def _put_local(self, inputs: RoundInputs, clients: Tensor) -> None:
        """Replace one round's mini-batches by those that the clients' own policies want next."""
        pairs = [
            [self.runs[r].local.places(int(c)) for c in row]  # type: ignore[union-attr]
            for r, row in enumerate(clients[0].tolist())
        ]
        places, real = (
            torch.from_numpy(np.array([[[pair[i] for pair in row] for row in pairs]])) for i in (0, 1)
        )
        inputs.put(self.store, clients, places.to(clients.device), real.to(clients.device))

    def _watch(self, clients: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Seen | None:
        """A function that shows each client's own policy the gradients of its steps, if it wants any."""
        runs, cohort = self.runs, self.config.cohort
        if not runs[0].local.watches:  # type: ignore[union-attr]
            return None

        def seen(step: int, grads: Tensor) -> None:
            for r, run in enumerate(runs):
                for place in range(counts[r]):
                    run.local.see(int(clients[r, place]), step, grads[r * cohort + place])  # type: ignore[union-attr]

        return seen


class ServerPath:
    """Where the servers passed in an epoch, seen through some coordinates: it shows how far the order strays.

    A round moves the server by −γ times the mean of its clients' signals, so its way tells the rounds' sums,
    and they the order error, without a look at any signal. A model with more than ``coordinates`` parameters
    is seen through so many random ones, scaled so that lengths keep their expectation.
    """

    def __init__(
        self,
        dim: int,
        jobs: Sequence[tuple[Policy[Any], Config]],
        device: torch.device,
        coordinates: int = COORDINATES,
    ) -> None:
        count = min(dim, coordinates)
        chosen = np.sort(rng(0, 0, "server path").permutation(dim)[:count])
        self.chosen = torch.from_numpy(chosen).to(device)
        stretch = float(np.sqrt(dim / count))
        self.scales = [stretch / (own.step_size * own.local_steps) for _, own in jobs]
        self.points: Tensor | None = None

    def open(self, servers: Tensor, rounds: int) -> None:
        """Note an epoch's first points."""
        if self.points is None or len(self.points) <= rounds:
            self.points = servers.new_empty(rounds + 1, len(servers), len(self.chosen))
        self.pass_by(servers, -1)

    def pass_by(self, servers: Tensor, turn: int) -> None:
        """Note where the servers are after a round."""
        torch.index_select(servers, 1, self.chosen, out=self.points[turn + 1])  # type: ignore[index]

    def passed(self, rounds: int) -> npt.NDArray[Any]:
        """The epoch's first points and those after so many rounds, for a checkpoint."""
        points: npt.NDArray[Any] = self.points[: rounds + 1].cpu().numpy()  # type: ignore[index]
        return points

    def restore(self, points: npt.NDArray[Any]) -> None:
        """Go on in an epoch that has passed these points."""
        self.points[: len(points)] = torch.from_numpy(points).to(self.points)  # type: ignore[index]

    def order_errors(self, counts: npt.NDArray[np.int64]) -> list[float]:
        """Each run's order error in the epoch, in units of a local step's gradient."""
        points = self.points[: len(counts) + 1].double().cpu().numpy()  # type: ignore[index]
        sums = np.diff(points, axis=0) * counts[..., None]
        return [
            self.scales[r] * strayed(np.ascontiguousarray(sums[:, r]), counts[:, r].astype(np.float64))
            for r in range(counts.shape[1])
        ]


class CapturedRound:
    """A round captured as a CUDA graph: hundreds of kernels, one launch.

    ``body`` is run a few times on a side stream, what it changed is put back, and then it is captured.
    """

    def __init__(self, body: Callable[[], None], changed: list[Tensor]) -> None:
        before = [tensor.clone() for tensor in changed]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(TRIALS):
                body()
                _put_back(changed, before)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            body()
        _put_back(changed, before)


def _put_back(changed: list[Tensor], before: list[Tensor]) -> None:
    for tensor, old in zip(changed, before, strict=True):
        tensor.copy_(old)
