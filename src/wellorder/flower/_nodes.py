"""Which Flower node is which client, and the grid as the inner strategy may see it."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

LOG = logging.getLogger("flwr")
QUERY = "query.wellorder"
"""The message that asks a ClientApp for its name; it answers by ``@app.query("wellorder")``."""
NOT_REACHED = (3, 4, 5)
"""Codes of errors that mean that no ClientApp was reached; others were made by one (no such handler, a mod
that wants a training message, a crash)."""
AGAIN = 10.0
"""Seconds after which a node that was not reached is asked again."""
SAME = 3
"""So many connected nodes that tell one name are no restarts."""
POLLS = 30
"""How often an inner strategy may ask who is there before we tell that it waits for ever."""


@dataclass
class Nodes:
    """Which node is which client: asks those that are new, and does not wait for the answer."""

    names: str
    of: dict[str, int] = field(default_factory=dict)
    """The connected node of each name."""
    known: dict[int, str] = field(default_factory=dict)
    told: dict[int, str] = field(default_factory=dict)
    """What each node said, also those whose place another has taken."""
    asked: dict[str, int] = field(default_factory=dict)
    later: dict[int, float] = field(default_factory=dict)
    """Nodes that were not reached, and when they are asked again."""
    since: float = -math.inf
    """When a node was asked last."""
    warned: tuple[str, int] = ("", 0)
    """The name that so many nodes told, when that was last warned of."""

    def pending(self, patience: float) -> bool:
        """Whether nodes asked lately have not yet told their names; one may take a dead node's place."""
        return bool(self.asked) and time.monotonic() < self.since + patience

    def look(self, grid: Grid, refuse: bool = False) -> list[str]:
        """Find out who is connected; returns the names. If many tell the same one, ``refuse`` or warn."""
        nodes = {info.node_id: info for info in grid.get_nodes()}
        self.known = {node: name for node, name in self.known.items() if name or node in nodes}
        self.told = {node: name for node, name in self.told.items() if node in nodes}
        self.asked = {at: node for at, node in self.asked.items() if node in nodes}
        now = time.monotonic()
        again = [node for node, at in self.later.items() if node in nodes and at <= now]
        self.later = {node: at for node, at in self.later.items() if node in nodes and node not in again}
        busy = {*self.known, *self.asked.values(), *self.later}
        new = [node for node in nodes if node not in busy]
        if self.names == "key":
            for node in new:
                self._call(node, _key_name(nodes[node].public_key) or f"node-{node}")
        elif new:
            sent = list(grid.push_messages([Message(RecordDict(), node, QUERY) for node in new]))
            self.asked |= {at: node for at, node in zip(sent, new, strict=False) if at}
            if set(new) - set(again):
                self.since = now
        for reply in grid.pull_messages(list(self.asked)) if self.asked else ():
            at = reply.metadata.reply_to_message_id
            if at in self.asked:
                node = self.asked.pop(at)
                name = _told_name(reply) or self._fallback(node, nodes[node].public_key, reply)
                if name:
                    self._call(node, name)
        self._check_names(refuse)
        self.of = {name: node for node, name in self.known.items() if node in nodes and name}
        return list(self.of)

    def _call(self, node: int, name: str) -> None:
        """The latest node with a name is that client: it was restarted, and its old self is not yet gone."""
        for other, theirs in self.known.items():
            if theirs == name != "":
                LOG.warning("[ORDER] node %d takes the place of node %d as client %s", node, other, name)
                self.known[other] = ""
        self.known[node] = self.told[node] = name

    def _check_names(self, refuse: bool) -> None:
        """Tell of a ClientApp that gives every node the same name."""
        name, count = Counter(self.told.values()).most_common(1)[0] if self.told else ("", 0)
        if count < SAME:
            return
        text = (
            f"{count} connected nodes tell the name {name!r}, which makes them one client; let "
            '@app.query("wellorder") answer with a name of the node\'s own, such as its partition-id'
        )
        if refuse:
            raise ValueError(text)
        if (name, count) != self.warned:  # no run is ended for it: a node that dies often looks the same
            LOG.warning("[ORDER] %s", text)
            self.warned = name, count

    def _fallback(self, node: int, key: bytes, reply: Message) -> str:
        """Name a node whose ClientApp cannot tell; one that was not reached is asked again later."""
        why = (reply.error.reason or "an error") if reply.has_error() else "it holds no name"
        why = (why.strip().splitlines() or ["an error"])[-1][:200]
        if reply.has_error() and reply.error.code in NOT_REACHED:
            LOG.warning("[ORDER] node %d was not reached (%s); it is asked again in %.0f s", node, why, AGAIN)
            self.later[node] = time.monotonic() + AGAIN
            return ""
        LOG.warning(
            "[ORDER] node %d does not tell its name (%s), so its place will not survive a restart; add "
            '@app.query("wellorder") to the ClientApp, or pass names="key"', node, why,
        )  # fmt: skip
        return _key_name(key) or f"node-{node}"


class NodesView(Grid):
    """The grid as the inner strategy sees it: these nodes, and phantoms up to the minimum that it wants."""

    def __init__(self, grid: Grid, nodes: list[int], wanted: int) -> None:
        self._grid, self._polls = grid, 0
        self._listed = nodes + [-1 - i for i in range(wanted - len(nodes))]

    def get_node_ids(self) -> list[int]:
        self._polls += 1
        if self._polls > POLLS:
            raise RuntimeError(
                f"inner: it waits for more nodes than the {len(self._listed)} of this round; let it want at "
                "most cohort of them"
            )
        return list(self._listed)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self._grid.create_message(*args, **kwargs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)


def _told_name(reply: Message) -> str:
    """Read the name that a ClientApp answered with: ``name`` or ``partition-id`` in any of its records."""
    if reply.has_error():
        return ""
    records: list[Any] = [*reply.content.config_records.values(), *reply.content.metric_records.values()]
    for record in records:
        for key in ("name", "partition-id"):
            if isinstance(told := record.get(key), str | int) and str(told).strip():
                return str(told).strip()[:200]
    return ""


def _key_name(key: bytes) -> str:
    return f"key-{hashlib.sha256(key).hexdigest()[:16]}" if key else ""
