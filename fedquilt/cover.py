"""The algebra of partial models: take a patch, put it back, average many.

A :class:`Cover` says which coordinates of a parameter dict an exchange speaks about.  Three
functions replace every hand-written sub-model utility, and ``tests/laws`` proves them::

    put(p, c, take(p, c)) == p            take(put(p, c, s), c) == s
    mean(p, [(take(p, c), c, n), ...]) == p, bit for bit;  mean(p, []) == p

Parameters are a flat ``dict[str, Tensor]``, buffers included, and are never changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import blake2b
from typing import final

import numpy as np
import torch
from torch import Tensor

Params = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Axis:
    """An axis made of the units of ``group``.

    Unit ``u`` of ``n`` owns the entries ``(r * n + u) * block + b`` for every ``r < repeat`` and
    ``b < block``: ``block`` for flattened maps and attention heads, ``repeat`` for LSTM gates.
    """

    group: str
    block: int = 1
    repeat: int = 1

    def units(self, size: int) -> int:
        """How many units an axis of ``size`` entries holds."""
        n, rest = divmod(size, self.block * self.repeat)
        if rest:
            raise ValueError(f"an axis of {size} entries is no multiple of block {self.block} x repeat {self.repeat}")
        return n

    def entries(self, units: Tensor, size: int) -> Tensor:
        """The entries that belong to ``units`` on an axis of ``size`` entries, in unit order."""
        n = self.units(size)
        rows = torch.arange(self.repeat)[:, None] * n + units
        return (rows[:, :, None] * self.block + torch.arange(self.block)).flatten()


# What one axis is made of: units; parts one after another, of which a number stands for entries of no group; neither.
Along = Axis | tuple[Axis | int, ...] | None
Axes = Mapping[str, tuple[Along, ...]]


@dataclass(frozen=True)
class Place:
    """Where units of a group stand: on axis ``dim`` of tensor ``name``, ``length`` entries from ``start`` on."""

    name: str
    dim: int
    axis: Axis
    start: int
    length: int

    @property
    def units(self) -> int:
        """How many units the group has."""
        return self.axis.units(self.length)

    def entries(self, units: Tensor) -> Tensor:
        """The entries that belong to ``units``, in unit order."""
        return self.start + self.axis.entries(units, self.length)


def places(axes: Axes, shapes: Shapes) -> Iterator[Place]:
    """Where the units of all groups stand."""
    sizes = group_sizes(axes, shapes)
    for k, row in axes.items():
        for d, (along, n) in enumerate(zip(row, shapes[k], strict=True)):
            for a, start, length in laid(along, n, sizes):
                if a is not None:
                    yield Place(k, d, a, start, length)


def laid(along: Along, n: int, sizes: Mapping[str, int]) -> Iterator[tuple[Axis | None, int, int]]:
    """The parts of an axis of ``n`` entries: whose units (None: nobody's), from where on, how many entries."""
    if not isinstance(along, tuple):
        yield along, 0, n
        return
    start = 0
    for a in along:
        length = a if isinstance(a, int) else sizes[a.group] * a.block * a.repeat
        yield None if isinstance(a, int) else a, start, length
        start += length
    if start != n:
        raise ValueError(f"an axis has {n} entries, its parts {along} have {start}")


def group_sizes(axes: Axes, shapes: Shapes) -> dict[str, int]:
    """How many units each group has; a group that stands beside others on one axis stands alone on another."""
    found: dict[str, tuple[int, str]] = {}
    beside: dict[str, str] = {}
    for k, row in axes.items():
        for a, n in zip(row, shapes[k], strict=True):
            if isinstance(a, tuple):
                beside |= {part.group: k for part in a if isinstance(part, Axis)}
            elif a is not None:
                units, where = found.setdefault(a.group, (a.units(n), k))
                if units != a.units(n):
                    raise ValueError(f"group {a.group} has {units} units in {where} and {a.units(n)} in {k}")
    if lost := beside.keys() - found.keys():
        group = min(lost)
        raise ValueError(f"{group} stands only beside others, as in {beside[group]}: its number of units is not known")
    return {group: n for group, (n, _) in found.items()}


def count_units(ratio: float, n: int) -> int:
    """``max(1, floor(ratio * n))``, the one rounding of the project, safe against 0.6 * 5 = 2.999."""
    return max(1, math.floor(ratio * n + 1e-9))


@dataclass(frozen=True, eq=False)
class Span:
    """The coordinates of one tensor: all of it, a block (one index vector an axis) or a mask.

    Built only by :func:`block` and :func:`masked`, which make the form canonical: two spans are
    the same set of coordinates exactly if they have the same form and the same content.
    """

    shape: tuple[int, ...]
    axes: tuple[Tensor | None, ...] | None = None
    mask: Tensor | None = None

    @property
    def kind(self) -> str:
        """``whole``, ``block`` or ``mask``."""
        return "mask" if self.mask is not None else "block" if self.axes is not None else "whole"

    @cached_property
    def piece(self) -> tuple[int, ...]:
        """The shape of what :func:`take` gives."""
        if self.mask is not None:
            return (int(self.mask.sum()),)
        if self.axes is None:
            return self.shape
        return tuple(n if a is None else len(a) for a, n in zip(self.axes, self.shape, strict=True))

    @property
    def numel(self) -> int:
        """How many coordinates."""
        return math.prod(self.piece)

    def dense(self) -> Tensor:
        """The same set as a boolean tensor of the full shape."""
        if self.mask is not None:
            return self.mask
        out = torch.full(self.shape, self.axes is None)
        if self.axes is not None:
            out[self.index] = True
        return out

    @cached_property
    def index(self) -> tuple[slice | Tensor, ...] | Tensor:
        """What addresses these coordinates inside a tensor of the full shape."""
        if self.mask is not None:
            return self.mask
        if self.axes is None:
            return (slice(None),) * len(self.shape)
        runs = [_run(a, n) for a, n in zip(self.axes, self.shape, strict=True)]
        if all(r is not None for r in runs):
            return tuple(r for r in runs if r is not None)
        full = [torch.arange(n) if a is None else a for a, n in zip(self.axes, self.shape, strict=True)]
        return tuple(a.view([-1 if k == j else 1 for j in range(len(full))]) for k, a in enumerate(full))

    def take(self, t: Tensor) -> Tensor:
        """The piece of ``t``; ``t`` itself when the span is whole."""
        if self.mask is not None:
            return t[self.mask]
        if self.axes is None:
            return t
        for d, (a, n) in enumerate(zip(self.axes, self.shape, strict=True)):
            if a is not None:
                run = _run(a, n)
                t = t.index_select(d, a) if run is None else t.narrow(d, run.start, run.stop - run.start)
        return t.contiguous()

    def put(self, t: Tensor, piece: Tensor) -> Tensor:
        """A copy of ``t`` with ``piece`` sewn in."""
        if self.kind == "whole":
            return piece.to(t.dtype)
        out = t.clone()
        out[self.index] = piece.to(t.dtype)
        return out

    def same(self, other: Span) -> bool:
        """Equality of sets (and of the full shape)."""
        if self.shape != other.shape or self.kind != other.kind:
            return False
        if self.mask is not None and other.mask is not None:
            return torch.equal(self.mask, other.mask)
        if self.axes is None or other.axes is None:
            return True
        return all(
            (a is None) == (b is None) and (a is None or b is None or torch.equal(a, b))
            for a, b in zip(self.axes, other.axes, strict=True)
        )

    def __and__(self, other: Span) -> Span | None:
        if self.mask is not None or other.mask is not None:
            return masked(self.dense() & other.dense())
        if self.axes is None or other.axes is None:
            return self if other.axes is None else other

        def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
            return b if a is None else a if b is None else a[torch.isin(a, b, assume_unique=True)]

        return block(self.shape, tuple(both(a, b) for a, b in zip(self.axes, other.axes, strict=True)))


def _chosen(laid: Iterable[tuple[Axis | None, int, int]], units: Mapping[str, Tensor]) -> Tensor | None:
    """The entries of the chosen units on an axis of such parts; None if it has none of these groups."""
    out, some = [], False
    for a, start, length in laid:
        if a is None or a.group not in units:
            out.append(torch.arange(start, start + length))
            continue
        some, own = True, a.entries(units[a.group], length)
        if len(own) and not 0 <= int(own.min()) <= int(own.max()) < length:  # they would be another part's
            raise ValueError(f"positions {int(own.min())}..{int(own.max())} do not fit an axis of {length}")
        out.append(start + own)
    return torch.cat(out) if some else None


def _run(a: Tensor | None, n: int) -> slice | None:
    """The slice that a sorted index vector is, or None if it has gaps."""
    if a is None:
        return slice(0, n)
    first, last = int(a[0]), int(a[-1])
    return slice(first, last + 1) if last - first + 1 == len(a) else None


def block(shape: tuple[int, ...], axes: tuple[Tensor | None, ...]) -> Span | None:
    """The span of a block: one vector of positions (any order) an axis, or None for the whole axis."""
    if len(axes) != len(shape):
        raise ValueError(f"{len(axes)} index vectors for a tensor of {len(shape)} axes")
    out: list[Tensor | None] = []
    for a, n in zip(axes, shape, strict=True):
        if a is None:
            out.append(None)
            continue
        a = a.to(torch.int64).unique()
        if len(a) == 0:
            return None
        if int(a[0]) < 0 or int(a[-1]) >= n:
            raise ValueError(f"positions {int(a[0])}..{int(a[-1])} do not fit an axis of {n}")
        out.append(None if len(a) == n else a)
    if math.prod(shape) == 0:
        return None
    return Span(shape, None if all(a is None for a in out) else tuple(out))


def masked(mask: Tensor) -> Span | None:
    """The span of a boolean mask, as whole or block where it is one."""
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask is boolean, not {mask.dtype}")
    count = int(mask.sum())
    if count == 0:
        return None
    shape = tuple(mask.shape)
    if count == mask.numel():
        return Span(shape)
    rays = [mask.flatten() if mask.dim() == 1 else mask.movedim(d, 0).flatten(1).any(1) for d in range(mask.dim())]
    if math.prod(int(r.sum()) for r in rays) == count:
        return block(shape, tuple(r.nonzero().flatten() for r in rays))
    return Span(shape, mask=mask.clone())


@final
class Cover:
    """A set of coordinates of a parameter dict.  Immutable, canonical, comparable, encodable.

    Make one with :meth:`whole`, :meth:`named`, :meth:`units` or :meth:`masks`; combine with
    ``&``, ``|``, ``-``; compare with ``==`` and ``<=`` (is inside).
    """

    __slots__ = ("__dict__", "spans")
    spans: Mapping[str, Span]

    def __init__(self, spans: Mapping[str, Span | None]) -> None:
        self.spans = {k: s for k, s in sorted(spans.items()) if s is not None}

    # ---- ways to make one
    @staticmethod
    def whole(p: Params | Shapes) -> Cover:
        """Every coordinate of every tensor."""
        return Cover({k: block(s, (None,) * len(s)) for k, s in _shapes(p).items()})

    @staticmethod
    def named(p: Params | Shapes, *patterns: str) -> Cover:
        """The tensors whose name matches one of the shell patterns (``head.*``)."""
        return Cover.whole({k: s for k, s in _shapes(p).items() if any(fnmatchcase(k, q) for q in patterns)})

    @staticmethod
    def units(p: Params | Shapes, axes: Axes, units: Mapping[str, Tensor]) -> Cover:
        """These units of each group; groups not named, and axes of no group, stay whole."""
        shapes = _shapes(p)
        mixed = any(isinstance(a, tuple) for row in axes.values() for a in row)
        sizes = group_sizes({k: row for k, row in axes.items() if k in shapes}, shapes) if mixed else {}
        cache: dict[tuple[Along, int], Tensor | None] = {}

        def entries(along: Along, n: int) -> Tensor | None:
            if (along, n) not in cache:
                cache[along, n] = _chosen(laid(along, n, sizes), units)
            return cache[along, n]

        return Cover({k: block(s, tuple(map(entries, axes.get(k, (None,) * len(s)), s))) for k, s in shapes.items()})

    @staticmethod
    def masks(masks: Mapping[str, Tensor]) -> Cover:
        """The coordinates at which these boolean tensors are true."""
        return Cover({k: masked(m) for k, m in masks.items()})

    # ---- what it says
    def __iter__(self) -> Iterator[str]:
        return iter(self.spans)

    def __len__(self) -> int:
        return len(self.spans)

    def __contains__(self, name: object) -> bool:
        return name in self.spans

    def __getitem__(self, name: str) -> Span:
        return self.spans[name]

    @property
    def numel(self) -> int:
        """How many coordinates it holds."""
        return sum(s.numel for s in self.spans.values())

    @property
    def kinds(self) -> frozenset[str]:
        """Which forms its tensors have: ``whole``, ``block``, ``mask``."""
        return frozenset(s.kind for s in self.spans.values())

    @property
    def pieces(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor's piece."""
        return {k: s.piece for k, s in self.spans.items()}

    def only(self, keep: Callable[[str], bool]) -> Cover:
        """The tensors whose name passes."""
        return Cover({k: s for k, s in self.spans.items() if keep(k)})

    def __repr__(self) -> str:
        full = sum(math.prod(s.shape) for s in self.spans.values())
        forms = ", ".join(
            f"{n} {kind}"
            for kind in ("whole", "block", "mask")
            if (n := sum(s.kind == kind for s in self.spans.values()))
        )
        return f"Cover({forms or 'nothing'}: {self.numel:,} of {full:,} coordinates)"

    # ---- set algebra
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cover):
            return NotImplemented
        return self.spans.keys() == other.spans.keys() and all(s.same(other[k]) for k, s in self.spans.items())

    def __hash__(self) -> int:
        return hash(self.encode())

    def _join(self, other: Cover, both: Callable[[Span, Span], Span | None]) -> Iterator[tuple[str, Span | None]]:
        for k in self.spans.keys() & other.spans.keys():
            if self[k].shape != other[k].shape:
                raise ValueError(f"{k}: a cover of shape {self[k].shape} meets one of shape {other[k].shape}")
            yield k, both(self[k], other[k])

    def __and__(self, other: Cover) -> Cover:
        return Cover(dict(self._join(other, lambda a, b: a & b)))

    def __or__(self, other: Cover) -> Cover:
        def both(a: Span, b: Span) -> Span | None:
            if a.kind == "whole" or a.same(b):
                return a
            return b if b.kind == "whole" else masked(a.dense() | b.dense())

        return Cover({**self.spans, **other.spans, **dict(self._join(other, both))})

    def __sub__(self, other: Cover) -> Cover:
        def both(a: Span, b: Span) -> Span | None:
            return None if b.kind == "whole" or a.same(b) else masked(a.dense() & ~b.dense())

        return Cover({**self.spans, **dict(self._join(other, both))})

    def __le__(self, other: Cover) -> bool:
        """Is every coordinate of this cover one of the other's?"""
        return self.spans.keys() <= other.spans.keys() and all(
            s.shape == other[k].shape and (m := s & other[k]) is not None and m.same(s) for k, s in self.spans.items()
        )

    # ---- bytes: the same set gives the same bytes, everywhere
    def encode(self) -> bytes:
        """The canonical bytes; :meth:`decode` is the inverse."""
        return self._bytes

    @cached_property
    def _bytes(self) -> bytes:
        sets: dict[bytes, int] = {}
        body = bytearray()
        for name, s in self.spans.items():
            raw = name.encode()
            body += _varint(len(raw)) + raw + bytes([len(s.shape)])
            for n in s.shape:
                body += _varint(n)
            if s.mask is not None:
                body += b"\x02" + _pack_set(s.mask.flatten().numpy())
            elif s.axes is None:
                body += b"\x00"
            else:
                body += b"\x01"
                for a, n in zip(s.axes, s.shape, strict=True):
                    code = b""
                    if a is not None:
                        bits = np.zeros(n, bool)
                        bits[a.numpy()] = True
                        code = _varint(n) + _pack_set(bits)
                    body += _varint(0 if a is None else sets.setdefault(code, len(sets)) + 1)
        return b"C1" + _varint(len(sets)) + b"".join(sets) + _varint(len(self.spans)) + bytes(body)

    @property
    def nbytes(self) -> int:
        """Its exact size on the wire."""
        return len(self._bytes)

    @property
    def digest(self) -> str:
        """A short name for the set, equal for equal covers."""
        return blake2b(self._bytes, digest_size=8).hexdigest()

    @staticmethod
    def decode(data: bytes, shapes: Shapes | None = None) -> Cover:
        """The cover that these bytes say.

        With ``shapes`` nothing larger is ever unpacked, and another name or shape is refused: the
        sizes of a stranger's message are those that were agreed on, not those that it claims.
        Bytes that are not the canonical form raise :class:`ValueError`.
        """
        try:
            cover = _decode(data, shapes)
        except (IndexError, UnicodeDecodeError, OverflowError, MemoryError, RuntimeError) as e:
            raise ValueError(f"not a cover: {e}") from e
        if cover.encode() != data:
            raise ValueError("not a cover in canonical form")
        return cover


def _shapes(p: Params | Shapes) -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) if isinstance(v, Tensor) else tuple(v) for k, v in p.items()}


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _varints(numbers: np.ndarray) -> bytes:
    """Many at once."""
    most = int(numbers.max(initial=1))
    groups = numbers[:, None] >> np.arange(0, most.bit_length(), 7)
    used = groups > 0
    used[:, 0] = True
    return (groups & 127 | (groups > 127) * 128)[used].astype(np.uint8).tobytes()


def _pack_set(bits: np.ndarray) -> bytes:
    """A set of positions, as runs (gap, length, gap, length, ...) or as a bitmap, whichever is shorter."""
    edges = np.flatnonzero(np.diff(bits.astype(np.int8), prepend=0, append=0))
    bitmap = np.packbits(bits, bitorder="little").tobytes()
    if len(edges) < len(bitmap):
        runs = _varint(len(edges) // 2) + _varints(np.diff(edges, prepend=0))
        if len(runs) < len(bitmap):
            return b"\x01" + runs
    return b"\x00" + bitmap


class _Reader:
    """Reads from the left what the functions above have written."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def raw(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise ValueError("cut short")
        self.at += n
        return self.data[self.at - n : self.at]

    def varint(self) -> int:
        n = shift = 0
        while True:
            byte = self.raw(1)[0]
            n |= (byte & 127) << shift
            if byte < 128:
                return n
            if (shift := shift + 7) > 62:
                raise ValueError("a number too large")

    def varints(self, count: int) -> np.ndarray:
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
        if not 0 < 2 * (count := self.varint()) < (n + 7) // 8:
            raise ValueError("no runs, or so many that a bitmap is shorter")
        edges = np.cumsum(self.varints(2 * count))
        if int(edges[-1]) > n:
            raise ValueError("a run outside the axis")
        turns = np.zeros(n + 1, bool)
        turns[edges] = True
        out: np.ndarray = np.logical_xor.accumulate(turns)[:n]
        return out


def _decode(data: bytes, shapes: Shapes | None) -> Cover:
    r = _Reader(data)
    # what may be claimed: an index vector for each axis, a mask for each tensor, each of its size
    axes = [n for s in shapes.values() for n in s] if shapes is not None else None
    if r.raw(2) != b"C1":
        raise ValueError("not a cover")
    sets: list[tuple[int, Tensor]] = []
    for _ in range(r.varint()):
        n = r.varint()
        if axes is not None and (n not in axes or len(sets) == len(axes)):
            raise ValueError(f"an index vector of {n} positions for an axis that was not agreed on")
        sets.append((n, torch.from_numpy(np.flatnonzero(r.positions(n)))))
    spans: dict[str, Span | None] = {}
    for _ in range(r.varint()):
        name = r.raw(r.varint()).decode()
        if spans and name <= next(reversed(spans)):  # so none is unpacked twice
            raise ValueError("names out of order")
        shape = tuple(r.varint() for _ in range(r.raw(1)[0]))
        if shapes is not None and shapes.get(name) != shape:
            raise ValueError(f"{name} of shape {shape} is none of the tensors agreed on")
        kind = r.raw(1)
        if kind == b"\x02":
            spans[name] = masked(torch.from_numpy(r.positions(math.prod(shape))).view(shape))
        elif kind == b"\x01":
            picks = [r.varint() for _ in shape]
            if any(i and sets[i - 1][0] != n for i, n in zip(picks, shape, strict=True)):
                raise ValueError(f"{name}: an index vector of another axis")
            spans[name] = block(shape, tuple(sets[i - 1][1] if i else None for i in picks))
        else:
            spans[name] = block(shape, (None,) * len(shape))
    if r.at != len(data):
        raise ValueError("bytes after the end")
    return Cover(spans)


def take(p: Params, c: Cover) -> Params:
    """The piece of ``p`` that ``c`` speaks about, at its own compact shapes."""
    return {k: s.take(p[k]) for k, s in c.spans.items()}


def put(p: Params, c: Cover, piece: Params) -> Params:
    """``p`` with ``piece`` sewn back in; tensors that ``c`` does not name are shared, not copied."""
    return {k: c[k].put(v, piece[k]) if k in c else v for k, v in p.items()}


def mean(base: Params, parts: Iterable[tuple[Params, Cover, float]]) -> Params:
    r"""Each coordinate averaged over those who spoke of it; where nobody did, ``base``.

    .. math:: p_j + \frac{\sum_{i: j \in C_i} n_i (x_{ij} - p_j)}{\sum_{i: j \in C_i} n_i}

    summed in float64 in the order given.  Differences, not values, are summed: so a coordinate
    that everybody returns as it was sent does not move by one bit.  Who weighs nothing says nothing.
    Integers are rounded, halves to the even one.
    """
    num: Params = {}
    den: Params = {}
    for piece, cover, n in parts:
        if not (math.isfinite(n) and n >= 0):
            raise ValueError(f"a weight is a finite number, at least 0, not {n}")
        if n == 0:
            continue
        for k, s in cover.spans.items():
            if k not in num:
                num[k] = torch.zeros(base[k].shape, dtype=torch.float64)
                den[k] = torch.zeros(base[k].shape, dtype=torch.float64)
            num[k][s.index] += n * _difference(piece[k], s.take(base[k]))
            den[k][s.index] += n
    return {k: _moved(v, num[k], den[k]) if k in num else v for k, v in base.items()}


def _difference(x: Tensor, p: Tensor) -> Tensor:
    if p.is_floating_point():
        return x.to(torch.float64) - p.to(torch.float64)
    return (x.to(torch.int64) - p.to(torch.int64)).to(torch.float64)


def _moved(p: Tensor, num: Tensor, den: Tensor) -> Tensor:
    step = num / torch.where(den > 0, den, 1.0)
    if p.is_floating_point():
        return torch.where(step == 0, p, (p.to(torch.float64) + step).to(p.dtype))
    down = step.floor()
    low, rest = p.to(torch.int64) + down.to(torch.int64), step - down
    up = (rest > 0.5) | ((rest == 0.5) & (low % 2 == 1))  # of the value, not of the step: p has no say
    return (low + up).to(p.dtype)
