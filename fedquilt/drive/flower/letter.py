"""A letter: facts and bytes, as they go between server, app and worker.  Neither torch nor flwr is imported here.

On a local socket it is a frame: magic and version, two lengths, the facts as JSON, the bytes.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROTOCOL = 1  # of letters and frames; both ends must have the same
MAGIC = b"FQL" + bytes([PROTOCOL])
FRAME = struct.Struct("<4sIQ")
MOST_FACTS = 1 << 24  # bytes


class Broken(RuntimeError):
    """What came is no letter of this protocol, or the line was cut."""


@dataclass(frozen=True)
class Letter:
    """``facts`` are JSON; ``blob`` is an order or a reply, as the wire says it, or nothing."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    blob: bytes = b""


def send(line: socket.socket, letter: Letter) -> None:
    """Write a letter to a socket."""
    facts = json.dumps(letter.facts).encode()
    line.sendall(FRAME.pack(MAGIC, len(facts), len(letter.blob)) + facts)
    if letter.blob:  # who has read a letter without may have answered and closed the line by now
        line.sendall(letter.blob)


def receive(line: socket.socket) -> Letter:
    """Read a letter from a socket."""
    magic, facts, blob = FRAME.unpack(_read(line, FRAME.size))
    if magic != MAGIC or facts > MOST_FACTS:
        raise Broken(
            f"the other end of the socket speaks {magic!r}, this one {MAGIC!r}: another version of the library"
        )
    try:
        said = json.loads(_read(line, facts))
    except ValueError as error:
        raise Broken(f"the facts of a letter are no JSON: {error}") from error
    return Letter(said, bytes(_read(line, blob)))


def _read(line: socket.socket, n: int) -> bytearray:
    out = bytearray(n)
    view, at = memoryview(out), 0
    while at < n:
        got = line.recv_into(view[at:])
        if not got:
            raise Broken(f"the line was cut after {at} of {n} bytes")
        at += got
    return out
