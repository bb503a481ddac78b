"""Covers as bytes: the same set gives the same bytes, everywhere, and no other bytes say it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from .axes import Shapes
from .span import Span, block, masked


def encode(spans: Mapping[str, Span]) -> bytes:
    """The canonical bytes of spans in the order of their names; each index vector stands there once."""
    sets: dict[bytes, int] = {}
    body = bytearray()
    for name, s in spans.items():
        raw = name.encode()
        body += number(len(raw)) + raw + bytes([len(s.shape)])
        for n in s.shape:
            body += number(n)
        if s.mask is not None:
            body += b"\x02" + _packed(s.mask.flatten().numpy())
        elif s.axes is None:
            body += b"\x00"
        else:
            body += b"\x01"
            for a, n in zip(s.axes, s.shape, strict=True):
                code = b""
                if a is not None:
                    bits = np.zeros(n, bool)
                    bits[a.numpy()] = True
                    code = number(n) + _packed(bits)
                body += number(0 if a is None else sets.setdefault(code, len(sets)) + 1)
    return b"C1" + number(len(sets)) + b"".join(sets) + number(len(spans)) + bytes(body)


def decode(data: bytes, shapes: Shapes | None) -> dict[str, Span | None]:
    """The spans that these bytes say, canonical or not; with ``shapes`` only those agreed on."""
    r = _Positions(data)
    # what may be claimed: an index vector for each axis, a mask for each tensor, each of its size
    axes = [n for s in shapes.values() for n in s] if shapes is not None else None
    if r.raw(2) != b"C1":
        raise ValueError("not a cover")
    sets: list[tuple[int, Tensor]] = []
    for _ in range(r.number()):
        n = r.number()
        if axes is not None and (n not in axes or len(sets) == len(axes)):
            raise ValueError(f"an index vector of {n} positions for an axis that was not agreed on")
        sets.append((n, torch.from_numpy(np.flatnonzero(r.positions(n)))))
    spans: dict[str, Span | None] = {}
    for _ in range(r.number()):
        name = r.raw(r.number()).decode()
        if spans and name <= next(reversed(spans)):  # so none is unpacked twice
            raise ValueError("names out of order")
        shape = tuple(r.number() for _ in range(r.raw(1)[0]))
        if shapes is not None and shapes.get(name) != shape:
            raise ValueError(f"{name} of shape {shape} is none of the tensors agreed on")
        kind = r.raw(1)
        if kind == b"\x02":
            spans[name] = masked(torch.from_numpy(r.positions(math.prod(shape))).view(shape))
        elif kind == b"\x01":
            picks = [r.number() for _ in shape]
            if any(i and sets[i - 1][0] != n for i, n in zip(picks, shape, strict=True)):
                raise ValueError(f"{name}: an index vector of another axis")
            spans[name] = block(shape, tuple(sets[i - 1][1] if i else None for i in picks))
        else:
            spans[name] = block(shape, (None,) * len(shape))
    if r.at != len(data):
        raise ValueError("bytes after the end")
    return spans


# ---- the small pieces
def number(n: int) -> bytes:
    """A count or a length, seven bits a byte."""
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _numbers(numbers: np.ndarray) -> bytes:
    """Many at once."""
    most = int(numbers.max(initial=1))
    groups = numbers[:, None] >> np.arange(0, most.bit_length(), 7)
    used = groups > 0
    used[:, 0] = True
    return (groups & 127 | (groups > 127) * 128)[used].astype(np.uint8).tobytes()


def _packed(bits: np.ndarray) -> bytes:
    """A set of positions, as runs (gap, length, gap, length, ...) or as a bitmap, whichever is shorter."""
    edges = np.flatnonzero(np.diff(bits.astype(np.int8), prepend=0, append=0))
    bitmap = np.packbits(bits, bitorder="little").tobytes()
    if len(edges) < len(bitmap):
        runs = number(len(edges) // 2) + _numbers(np.diff(edges, prepend=0))
        if len(runs) < len(bitmap):
            return b"\x01" + runs
    return b"\x00" + bitmap


class Reader:
    """Reads bytes from the left; no length that they claim goes beyond the bytes that are left."""

    def __init__(self, data: bytes) -> None:
        """At the first byte."""
        self.data, self.at = data, 0

    def raw(self, n: int) -> bytes:
        """The next ``n`` bytes."""
        if n > len(self.data) - self.at:
            raise ValueError(f"the message is cut short: {n} bytes wanted, {len(self.data) - self.at} left")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self) -> int:
        """A count or a length."""
        n = shift = 0
        while True:
            byte = self.raw(1)[0]
            n |= (byte & 127) << shift
            if byte < 128:
                return n
            if (shift := shift + 7) > 62:
                raise ValueError("the message holds a length of more than 63 bits")


class _Positions(Reader):
    """Reads sets of positions."""

    def numbers(self, count: int) -> np.ndarray:
        rest = len(self.data) - self.at
        ends = np.flatnonzero(np.frombuffer(self.data, np.uint8, min(9 * count, rest), self.at) < 128)[:count]
        if len(ends) < count:
            raise ValueError("cut short, or a number too large")
        here = np.frombuffer(self.raw(int(ends[-1]) + 1), np.uint8)
        starts = np.append(0, ends[:-1] + 1)
        shifts = 7 * (np.arange(len(here)) - np.repeat(starts, ends - starts + 1))
        if shifts.max() > 56:
            raise ValueError("a number too large")
        return np.add.reduceat((here & 127).astype(np.int64) << shifts, starts)

    def positions(self, n: int) -> np.ndarray:
        if n > 1 << 32:
            raise ValueError(f"{n} positions are more than any tensor has")
        if self.raw(1) == b"\x00":
            bits: np.ndarray = np.unpackbits(np.frombuffer(self.raw((n + 7) // 8), np.uint8), bitorder="little")[:n]
            return bits.astype(bool)
        if not 0 < 2 * (count := self.number()) < (n + 7) // 8:
            raise ValueError("no runs, or so many that a bitmap is shorter")
        edges = np.cumsum(self.numbers(2 * count))
        if int(edges[-1]) > n:
            raise ValueError("a run outside the axis")
        turns = np.zeros(n + 1, bool)
        turns[edges] = True
        out: np.ndarray = np.logical_xor.accumulate(turns)[:n]
        return out
