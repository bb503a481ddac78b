"""Letters over a Grid: pushed and pulled, at most one out to a node, none waited for without end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from flwr.app import Message
from flwr.serverapp import Grid

from .letter import Broken, Letter
from .records import KINDS, content, letter

LOOK = 0.5  # seconds after which it is asked again who is online
MARGIN = 30.0  # seconds that Flower may take to say that a message has expired, before it is taken for lost


@dataclass(frozen=True, eq=False)
class Sent:
    """A letter that is out: to which node, what it asks, what the sender knows it by, and when it was sent."""

    node: int
    kind: str
    ticket: Any
    at: float


@dataclass(frozen=True, eq=False)
class Came:
    """What came of a letter: the answer, or why there is none; ``seconds`` since it was sent."""

    sent: Sent
    answer: Letter | None
    reason: str
    seconds: float


@dataclass(eq=False)
class Post:
    """``patience`` is how many seconds a node may take to answer, ``poll`` how many pass between two looks."""

    grid: Grid
    patience: float = 600.0
    poll: float = 0.1
    group: str = ""
    out: dict[str, Sent] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    seen: tuple[float, list[int]] = (-math.inf, [])

    def nodes(self) -> list[int]:
        """The nodes that Flower takes for online, or took a moment ago."""
        if self.clock() - self.seen[0] > LOOK:
            self.seen = (self.clock(), sorted(self.grid.get_node_ids()))
        return self.seen[1]

    def busy(self) -> set[int]:
        """The nodes that have not answered yet: they get no second letter."""
        return {s.node for s in self.out.values()}

    def push(self, letters: Sequence[tuple[int, Any, Letter]]) -> list[Came]:
        """Send letters, each to a node under a ticket; those that could not be sent come back at once."""
        failed = []
        for node, ticket, text in letters:
            kind = str(text.facts["kind"])
            sent = Sent(node, kind, ticket, self.clock())
            if node in self.busy():
                failed.append(Came(sent, None, "its node has not answered the last message yet", 0.0))
                continue
            message = Message(content(text), node, KINDS[kind], ttl=self.patience, group_id=self.group)
            ids = list(self.grid.push_messages([message]))  # one at a time: an id in it says which was refused
            if not ids or not ids[0]:
                failed.append(Came(sent, None, f"Flower did not take the message to node {node}", 0.0))
            else:
                self.out[ids[0]] = sent
        return failed

    def pull(self) -> list[Came]:
        """What has come since the last look, and what will not come any more."""
        came = []
        if self.out:
            for message in self.grid.pull_messages(list(self.out)):
                sent = self.out.pop(message.metadata.reply_to_message_id, None)
                if sent is not None:
                    came.append(self._came(sent, message))
        for key, sent in list(self.out.items()):
            if self.clock() - sent.at > self.patience + MARGIN:
                del self.out[key]
                came.append(Came(sent, None, f"no answer in {self.patience:g} s", self.clock() - sent.at))
        return came

    def _came(self, sent: Sent, message: Message) -> Came:
        seconds = self.clock() - sent.at
        if message.has_error():
            reason = one_line(f"Flower's error {message.error.code}: {message.error.reason or 'no reason given'}")
            return Came(sent, None, reason, seconds)
        if message.metadata.src_node_id != sent.node:
            return Came(sent, None, f"node {message.metadata.src_node_id} answered for node {sent.node}", seconds)
        try:
            return Came(sent, letter(message), "", seconds)
        except Broken as error:
            return Came(sent, None, one_line(str(error)), seconds)

    def rest(self) -> None:
        """Until the next look."""
        time.sleep(self.poll)


def one_line(text: str) -> str:
    """One line that is not long: a stranger's words may be in it."""
    short = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in short[:240])


def number(facts: Mapping[str, Any], name: str, most: float = float("inf")) -> float:
    """A number at least 0 that a stranger says, or 0 if it says none."""
    value = facts.get(name, 0)
    return value if numeric(value) and 0 <= value < most else 0.0


def numeric(value: object) -> TypeGuard[float]:
    """Is it a number that fits into a float?  In JSON a number may have thousands of figures."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) < 1 << 1000
