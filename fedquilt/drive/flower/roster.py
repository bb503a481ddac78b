"""Who is there: clients by the hello that their nodes said, never by Flower's node ids, which change."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ... import __version__
from ...fleet import Device
from .letter import Letter
from .post import Came, Post, numeric, one_line

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Hello:
    """What a node said of itself: whose it is, how much data it has, on what device."""

    client: int
    device: Device
    counts: Mapping[str, int]
    fingerprint: str
    own: bool


@dataclass(frozen=True)
class Terms:
    """What the server holds a hello against; who does not fit takes no part."""

    run: str
    clients: frozenset[int]
    fingerprint: str
    shape: tuple[int, ...]
    classes: int
    widths: frozenset[float] | None = None  # where the model holds statistics of just these widths

    def read(self, facts: Mapping[str, Any]) -> Hello:
        """The hello that these facts are, or :class:`ValueError`."""
        if facts.get("version") != __version__:
            raise ValueError(f"it has version {facts.get('version')} of the library, the server {__version__}")
        client, own = facts.get("client"), facts.get("own") is True
        if not isinstance(client, int) or isinstance(client, bool) or client not in self.clients:
            raise ValueError(f"it says that it is client {client!r}, which is none of this run")
        if not own and (facts.get("run"), facts.get("fingerprint")) != (self.run, self.fingerprint):
            raise ValueError(
                f"its settings or data are not those of this run: run {facts.get('run')} on data "
                f"{facts.get('fingerprint')}, not run {self.run} on data {self.fingerprint}"
            )
        if (facts.get("shape"), facts.get("classes")) != (list(self.shape), self.classes):
            raise ValueError(
                f"its data have shape {facts.get('shape')} and {facts.get('classes')} classes, those of the run "
                f"{list(self.shape)} and {self.classes}"
            )
        counts = facts.get("counts")
        if not isinstance(counts, dict) or not all(_count(counts.get(s)) for s in SPLITS) or not counts["train"]:
            raise ValueError("it does not say how many samples it has")
        device = _device(facts.get("device"))
        if self.widths is not None and device.width not in self.widths:
            some = ", ".join(f"{w:g}" for w in sorted(self.widths))
            raise ValueError(f"it has width {device.width:g}, and this run has statistics of the widths {some} alone")
        return Hello(client, device, {s: counts[s] for s in SPLITS}, str(facts.get("fingerprint", "")), own)


def _device(said: object) -> Device:
    """The device that a stranger says it is: every figure a number, every word a short one."""
    if not isinstance(said, dict):
        raise ValueError(f"it does not say what device it is, but {said!r}")
    given: dict[str, Any] = {}
    for f in dataclasses.fields(Device):
        value, usual = said.get(f.name, f.default), f.default
        if isinstance(usual, float) and numeric(value):
            given[f.name] = float(value)
        elif not isinstance(usual, float) and type(value) is type(usual):
            given[f.name] = one_line(value) if isinstance(value, str) else value
        else:
            raise ValueError(f"it does not say what device it is: its {f.name} is {value!r}")
    return Device(**given)


def _count(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 53


@dataclass(eq=False)
class Roster:
    """Hellos by node, and which client is at which node now.  ``notice`` hears of who does not fit."""

    post: Post
    terms: Terms
    notice: Callable[[str], None]
    hellos: dict[int, Hello] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    tried: dict[int, float] = field(default_factory=dict)  # when a node may be asked again that did not answer

    def greet(self) -> None:
        """Ask every node that is new who it is; who was refused may have been put right while it was away."""
        now, busy, nodes = self.post.clock(), self.post.busy(), self.post.nodes()
        self.refused = {n: why for n, why in self.refused.items() if n in nodes}
        for node in nodes:
            if node in self.hellos or node in self.refused or node in busy or self.tried.get(node, -math.inf) > now:
                continue
            asked = Letter({"kind": "hello", "version": __version__, "run": self.terms.run})
            for failed in self.post.push([(node, None, asked)]):
                self.heard(failed)

    def heard(self, came: Came) -> Hello | None:
        """A node has answered, or has not."""
        node = came.sent.node
        if came.answer is None:
            self.tried[node] = self.post.clock() + 5.0
            self.notice(f"node {node} did not say who it is: {came.reason}")
            return None
        try:
            hello = self.terms.read(came.answer.facts)
        except ValueError as error:
            self._refuse(node, str(error))
            return None
        # a node that came back under another id: the newest hello is the client's
        for other in [n for n, h in self.hellos.items() if h.client == hello.client]:
            del self.hellos[other]
            if other != node:
                self._refuse(other, f"client {hello.client} is at node {node} now")
        self.hellos[node] = hello
        return hello

    def _refuse(self, node: int, why: str) -> None:
        self.refused[node] = one_line(why)
        self.notice(f"node {node} takes no part: {self.refused[node]}")

    def here(self) -> dict[int, int]:
        """The node of each client that is there and free."""
        busy = self.post.busy()
        return {self.hellos[n].client: n for n in self.post.nodes() if n in self.hellos and n not in busy}
