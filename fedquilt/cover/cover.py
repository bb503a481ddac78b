"""A set of coordinates of a parameter dict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import blake2b
from typing import final

from torch import Tensor

from . import code
from .axes import Along, Axes, Params, Shapes, chosen, group_sizes, laid
from .span import Span, block, masked


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
                cache[along, n] = chosen(laid(along, n, sizes), units)
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
        return code.encode(self.spans)

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
            cover = Cover(code.decode(data, shapes))
        except (IndexError, UnicodeDecodeError, OverflowError, MemoryError, RuntimeError) as e:
            raise ValueError(f"not a cover: {e}") from e
        if cover.encode() != data:
            raise ValueError("not a cover in canonical form")
        return cover


def _shapes(p: Params | Shapes) -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) if isinstance(v, Tensor) else tuple(v) for k, v in p.items()}
