"""The rounds of an epoch, eagerly or as a captured CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder.federated._balancer import balances
from wellorder.federated._chunk import Chunk, empty_chunk, fill, put, work_of
from wellorder.federated._counter import bits, key_of
from wellorder.federated._graph import Captured
from wellorder.federated._group import Group
from wellorder.federated._plan import Epoch, weights_of
from wellorder.federated._training import Batches, Seen, train_round
from wellorder.policies import GraB, PairGraB

if TYPE_CHECKING:
    from wellorder.federated._engine import Engine

Ints = npt.NDArray[np.int64]
Who = tuple[Ints, Ints]
"""A round's clients (R, S), and how many places are taken in each run (R,)."""
HOST = ("cpu",)
"""Devices whose signals the host sees without a copy, so that it balances them itself."""
NUMBERS = 2**21
"""Random numbers drawn ahead for one stretch of rounds, at most."""


class Rounder:
    """Trains the rounds of an epoch for all runs of an engine.

    GraB and PairGraB are balanced on the accelerator, where there is one; every other policy that watches is
    shown its signals by the host, round by round.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        config, device = engine.config, engine.servers.device
        self.width = config.sketch or engine.servers.shape[1]
        self.signs = self._sketch_signs() if config.sketch else None
        watching = [r for r, run in enumerate(engine.runs) if run.policy.needs.at_visits()]
        on_device = [r for r in watching if device.type not in HOST and balances(engine.runs[r].policy)]
        self.told = [r for r in watching if r not in on_device]
        self.groups = [
            Group(engine, kind, [r for r in on_device if isinstance(engine.runs[r].policy, kind)], self.width)
            for kind in (GraB, PairGraB)
        ]
        self.groups = [group for group in self.groups if group.members]
        self.chunk: Chunk | None = None
        self.signals: Tensor | None = None
        self.captured: Captured | None = None

    def epoch(self, epoch: int, plan: Epoch) -> None:
        """Train all rounds of one epoch, moving the engine's servers."""
        engine, config = self.engine, self.engine.config
        clients = torch.from_numpy(plan.clients)
        sizes = engine.data.partition.sizes if config.weighting == "size" else None
        weights = torch.from_numpy(weights_of(plan, sizes)).to(engine.store.dtype)
        keys = engine.keys(epoch)
        chunk = self._buffers(len(plan.counts))
        for group in self.groups:
            group.open(plan, chunk.rounds)
        for start in range(0, len(plan.counts), chunk.rounds):
            stop = min(start + chunk.rounds, len(plan.counts))
            part = clients[start:stop].to(engine.servers.device)
            if config.local is None:
                fill(chunk, engine.store, part, keys, engine.shape, config.batch is None)
            else:
                self._inner_places(chunk, part, keys)
            chunk.weights[: stop - start] = weights[start:stop]
            for group in self.groups:
                group.fill(start, stop)
            for turn in range(start, stop):
                self._round(chunk, plan, turn)
            for group in self.groups:
                group.read(start, stop)
        for group in self.groups:
            group.close()

    def _round(self, chunk: Chunk, plan: Epoch, turn: int) -> None:
        engine = self.engine
        if engine.servers.is_cuda and engine.config.graph and engine.config.local is None:
            if self.captured is None:
                self.captured = Captured(lambda: self.body(chunk, None), self._changed(chunk))
            self.captured.replay()
        else:
            self.body(chunk, (plan.clients[turn], plan.counts[turn]))
        for r in self.told:
            count = int(plan.counts[turn, r])
            self._tell(r, plan.clients[turn, r, :count], count)
        if engine.config.local is not None:
            for r, run in enumerate(engine.runs):
                for client in plan.clients[turn, r, : plan.counts[turn, r]]:
                    run.inner.leave(int(client))  # type: ignore[union-attr]

    def body(self, chunk: Chunk, who: Who | None) -> None:
        """One round, in place: servers, balancers and the round's number; the same eagerly and captured."""
        engine = self.engine
        work, weights = work_of(chunk, engine.store)
        if who is not None:
            places = range(engine.config.cohort)
            taken = tuple(bool(place < count) for count in who[1] for place in places)
            work = Batches(work.inputs, work.labels, work.real, taken)
        seen = self._watch(*who) if who is not None and engine.config.local is not None else None
        after, moves = train_round(engine.trainer, engine.servers, work, weights, engine.step_sizes, seen)
        if self.groups or self.told:
            signals = self._sketches(moves)
            for group in self.groups:
                group.step(signals, chunk.at)
            if self.told:
                self.signals = signals if self.signals is None else self.signals.copy_(signals)
        engine.servers.copy_(after)
        chunk.at.add_(1)

    def _tell(self, r: int, units: Ints, count: int) -> None:
        """Show a run's policy the round's signals; units whose signals are not finite stay unobserved."""
        run = self.engine.runs[r]
        rows = self.signals[r, :count].div_(self.engine.step_sizes[r])  # type: ignore[index]
        try:
            run.state = run.policy.observe(run.state, units, rows)
        except ValueError:
            finite = torch.isfinite(rows).all(dim=1)
            if bool(finite.all()):
                raise
            if bool(finite.any()):
                run.state = run.policy.observe(run.state, units[finite.cpu().numpy()], rows[finite])

    def sketched(self, signals: Tensor, r: int) -> Tensor:
        """A run's signals (S, width) as (S, k): k sums of randomly signed numbers; or as they are."""
        if self.signs is None:
            return signals
        signed = torch.nn.functional.pad(signals * self.signs[r], (0, -signals.shape[1] % self.width))
        sketch: Tensor = signed.unflatten(1, (-1, self.width)).sum(dim=1)
        return sketch

    def _sketches(self, moves: Tensor) -> Tensor:
        if self.signs is None:
            return moves
        return torch.stack([self.sketched(rows, r) for r, rows in enumerate(moves)])

    def _sketch_signs(self) -> Tensor:
        engine = self.engine
        index = np.arange(engine.servers.shape[1])
        rows = [bits(key_of(run.config.seed, 0, "sketch"), index) & np.uint64(1) for run in engine.runs]
        return torch.from_numpy(np.array(rows, np.float64) * 2 - 1).to(engine.servers)

    def _buffers(self, rounds: int) -> Chunk:
        """One chunk for the whole run, as long as an epoch unless its random numbers would not fit."""
        engine, shape = self.engine, self.engine.shape
        if self.chunk is None:
            lanes = len(engine.runs) * engine.config.cohort
            each = lanes * max(shape.passes * shape.longest, shape.steps * shape.batch)
            length = 1 if engine.config.local is not None else max(1, min(rounds, NUMBERS // each))
            self.chunk = empty_chunk(length, len(engine.runs), engine.config.cohort, shape, engine.store)
        return self.chunk

    def _changed(self, chunk: Chunk) -> list[Tensor]:
        """All that a round changes, to be put back after trial rounds."""
        return [self.engine.servers, chunk.at, *(t for group in self.groups for t in group.changed)]

    def _inner_places(self, chunk: Chunk, clients: Tensor, keys: tuple[Tensor, Tensor]) -> None:
        engine = self.engine
        fill(chunk, engine.store, clients, keys, engine.shape, whole=False)
        pairs = [
            [engine.runs[r].inner.places(int(c)) for c in row]  # type: ignore[union-attr]
            for r, row in enumerate(clients[0].tolist())
        ]
        places, real = (
            torch.from_numpy(np.array([[[pair[i] for pair in row] for row in pairs]])) for i in (0, 1)
        )
        device = engine.servers.device
        put(chunk, engine.store, clients, places.to(device), real.to(device))

    def _watch(self, clients: Ints, counts: Ints) -> Seen | None:
        """A function that shows each client's own policy the gradients of its steps, if it wants any."""
        runs, cohort = self.engine.runs, self.engine.config.cohort
        if not runs[0].inner.watches:  # type: ignore[union-attr]
            return None

        def seen(step: int, grads: Tensor, work: Batches) -> Batches:
            for r, run in enumerate(runs):
                for place in range(counts[r]):
                    run.inner.see(int(clients[r, place]), step, grads[r * cohort + place])  # type: ignore[union-attr]
            return work

        return seen
