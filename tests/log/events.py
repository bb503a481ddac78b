"""What a folder of TensorBoard's event files says, read by the format: length, checksum, protobuf, checksum."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def events(path: Path) -> Iterator[Event]:
    """The events in a file."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        (n,) = struct.unpack_from("<Q", data, at)
        yield Event.FromString(data[at + 12 : at + 12 + n])
        at += 16 + n
    assert at == len(data)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The points of each chart, in the order in which they were written."""
    out: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((folder / "tensorboard").glob("events.out.*"), key=lambda p: p.stat().st_mtime_ns):
        for event in events(path):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    out.setdefault(value.tag, []).append((event.step, value.simple_value))
    return out


def texts(folder: Path) -> str:
    """All texts."""
    said = []
    for path in (folder / "tensorboard").glob("events.out.*"):
        for event in events(path):
            said += [s.decode() for v in event.summary.value for s in v.tensor.string_val]
    return "\n".join(said)


def pieces(data: bytes) -> Iterator[bytes]:
    """The records in a file of Weights & Biases: LevelDB's log format behind seven bytes."""
    at, block, parts = 7, 32768, b""
    while at + 7 <= len(data):
        if (left := block - at % block) < 7:
            at += left
            continue
        n, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + n]
        at += 7 + n
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
