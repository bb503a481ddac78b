"""The clients of a simulation in worker processes: the whole work of a client in one of them.

A worker is started once and lives as long as the run; it has one thread, the data (shared, not
copied) and the clients' memories on disk.  Orders and replies go through a pipe as the same bytes
as on a network.  What comes back is put in the order of the orders, so any number of workers gives
the same bits as none.  A worker that dies costs the client that it worked for, and is replaced.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection as connections
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.multiprocessing  # registers how tensors are shared with a process that is not forked

from ..meter import Usage
from ..store import InRam
from ..types import EVERYONE, Order
from .site import Here, Scores, Worked
from .wire import decode_order, encode_order

WORK, SCORE = b"W", b"S"


class Lost(RuntimeError):
    """A worker process died."""


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    at: int | None = None  # the place of the order that it works on


class Pool:
    """``workers`` processes that do what ``here`` does; use it in a ``with`` statement, or close it.

    ``start`` is ``fork`` (quick, shares memory as it is) or ``spawn``; by default fork, where the
    system has it and no other thread runs that a fork would cut off.
    """

    def __init__(self, here: Here, workers: int = 2, start: str | None = None) -> None:
        if isinstance(here.memories, InRam):
            raise ValueError("workers share the clients' memories on a disk: give the site an OnDisk, not an InRam")
        if workers < 1:
            raise ValueError(f"a pool has one worker at least, not {workers}")
        lone = sys.platform == "linux" and threading.active_count() == 1
        self.here, self.start = here, start or ("fork" if lone else "spawn")
        self._context: Any = multiprocessing.get_context(self.start)
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(self._hire())

    def _hire(self) -> _Worker:
        mine, its = self._context.Pipe()
        # a forked worker inherits our ends of the others' pipes, which would keep them open when we die
        ours = [mine, *(w.pipe for w in self._workers)] if self.start == "fork" else []
        process = self._context.Process(target=_serve, args=(self.here, its, ours), daemon=True)
        process.start()
        its.close()
        return _Worker(process, mine)

    # ---- what a site does
    def work(self, orders: Sequence[Order]) -> list[Worked]:
        """Have the orders worked on, the longest first."""

        def failed(reason: str) -> Worked:
            return Worked(None, reason=reason)

        return self._share(orders, WORK, _worked, failed, _effort(self.here))

    def score(self, orders: Sequence[Order], splits: Sequence[str]) -> list[Scores]:
        """Score the model that each of these clients would use."""

        def failed(reason: str) -> Scores:
            raise Lost(reason)

        def read(raw: bytes) -> Scores:
            said = json.loads(raw)
            if "error" in said:
                raise RuntimeError(f"a model could not be scored: {said['error']}")
            return dict(said)

        head = SCORE + ",".join(splits).encode() + b"\n"
        return self._share(orders, head, read, failed, _effort(self.here, scored=True))

    def _share(
        self,
        orders: Sequence[Order],
        head: bytes,
        read: Callable[[bytes], Any],
        failed: Callable[[str], Any],
        effort: Callable[[Order], float],
    ) -> list[Any]:
        waiting = sorted(range(len(orders)), key=lambda i: (-effort(orders[i]), i))
        done: dict[int, Any] = {}
        while len(done) < len(orders):
            for k, w in enumerate(self._workers):
                if w.at is None and waiting:
                    if not w.process.is_alive():
                        self._workers[k] = w = self._replaced(k)
                    w.at = waiting.pop(0)
                    self._send(w, head + encode_order(orders[w.at]))
            busy = {w.pipe: k for k, w in enumerate(self._workers) if w.at is not None}
            for pipe in connections.wait(list(busy)):
                k = busy[pipe]  # type: ignore[index]
                w = self._workers[k]
                place = w.at
                assert place is not None
                try:
                    done[place] = read(w.pipe.recv_bytes())
                    w.at = None
                except (EOFError, ConnectionResetError):
                    w.process.join()
                    self._workers[k] = self._replaced(k)
                    done[place] = failed(
                        f"Lost: the worker process of client {orders[place].client} ended ({_exit(w.process.exitcode)})"
                    )
        return [done[i] for i in range(len(orders))]

    def _send(self, w: _Worker, raw: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it died idle: the wait finds its pipe at the end
            w.pipe.send_bytes(raw)

    def _replaced(self, k: int) -> _Worker:
        old = self._workers.pop(k)
        old.pipe.close()
        new = self._hire()
        self._workers.insert(k, new)
        return new

    # ---- ending
    def close(self) -> None:
        """End the workers."""
        for w in self._workers:
            w.pipe.close()
        for w in self._workers:
            w.process.join(5)
            if w.process.is_alive():
                w.process.kill()
                w.process.join()
        self._workers = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _effort(here: Here, scored: bool = False) -> Callable[[Order], float]:
    """How long an order will take, in no particular unit: samples times parameters."""

    def effort(order: Order) -> float:
        counts = here.shares.counts(order.client)
        samples = counts["test"] if scored else counts["train"]
        return float(samples * max(1, order.cover.numel)) * (2 if order.client == EVERYONE else 1)

    return effort


def _exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _worked(raw: bytes) -> Worked:
    size = int.from_bytes(raw[:4], "little")
    said = json.loads(raw[4 : 4 + size])
    return Worked(raw[4 + size :] if said["replied"] else None, Usage(**said["usage"]), said["reason"])


# ---- in the worker
def _serve(here: Here, pipe: Connection, others: Sequence[Connection]) -> None:
    """Work until the other end of the pipe closes, which it does however the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    for other in others:
        other.close()
    torch.set_num_threads(1)
    while True:
        try:
            raw = pipe.recv_bytes()
        except EOFError:
            return
        try:
            pipe.send_bytes(_answer(here, raw))
        except BrokenPipeError:
            return


def _answer(here: Here, raw: bytes) -> bytes:
    if raw[:1] == WORK:
        [done] = here.work([decode_order(raw[1:])])
        head = json.dumps(
            {"replied": done.reply is not None, "usage": vars(done.usage), "reason": done.reason}
        ).encode()
        return len(head).to_bytes(4, "little") + head + (done.reply or b"")
    end = raw.index(b"\n")
    try:
        [scores] = here.score([decode_order(raw[end + 1 :])], raw[1:end].decode().split(","))
        return json.dumps(scores).encode()
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()
