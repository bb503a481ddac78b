"""Upload codecs: a reply's change of the model in fewer bytes, and the memory of what was lost on the way.

A client says how its piece differs from what it was sent; a codec makes a few small tensors of that,
and these are what travels.  They are decoded once, where the message is read: the guard, the merge and
every part that learns see an ordinary reply.  The client decodes too, so both sides know the same.
Statistics of normalisation layers and integers travel as they are: a rounded variance may be negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from .cover import Cover, Params, Span, count_units
from .key import Key
from .norm import is_statistic
from .types import Order, Reply

Form = tuple[torch.dtype, tuple[int, ...]]
Forms = Mapping[str, Form]


class Codec:
    """A frozen dataclass of one number.  What it makes has a form that follows from the piece's alone.

    ``unbiased``: its expectation is what went in; what is biased needs an error memory to converge.
    """

    unbiased: ClassVar[bool] = True

    def forms(self, piece: Forms) -> list[Form]:
        """The dtype and the shape of each tensor that a piece of these forms becomes."""
        raise TypeError(f"{type(self).__name__} does not say what it makes")

    def encode(self, piece: Params, key: Key) -> list[Tensor]:
        """The tensors that travel."""
        raise TypeError(f"{type(self).__name__} does not say how to encode")

    def decode(self, coded: Sequence[Tensor], piece: Forms) -> Params:
        """The piece that they say; :class:`ValueError` if they say none."""
        raise TypeError(f"{type(self).__name__} does not say how to decode")

    @property
    def text(self) -> str:
        """How an order names it."""
        [number] = vars(self).values()
        return f"{type(self).__name__.lower()}:{number}"


@dataclass(frozen=True)
class Uniform(Codec):
    r"""Each tensor on a grid of :math:`2^b` points from its least to its greatest value, rounded up or down at random.

    .. math:: q = \lfloor (x - lo) / \delta + u \rfloor, \quad \delta = (hi - lo) / (2^b - 1), \quad u \sim U[0, 1),
        \qquad Q(x) = lo + q \delta, \quad E\,Q(x) = x

    Codes of less than eight bits are packed; the range travels in the tensor's own dtype.
    """

    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in (1, 2, 4, 8):
            raise ValueError(f"bits are 1, 2, 4 or 8, not {self.bits}")

    def forms(self, piece: Forms) -> list[Form]:
        """Of each tensor the codes, packed into bytes, and the range."""
        each = 8 // self.bits
        return [f for d, s in piece.values() for f in ((torch.uint8, (-(-math.prod(s) // each),)), (d, (2,)))]

    def encode(self, piece: Params, key: Key) -> list[Tensor]:
        """Codes and ranges."""
        out = []
        for k, v in piece.items():
            flat = v.flatten()
            low, high = flat.aminmax() if len(flat) else (flat.new_zeros(()), flat.new_zeros(()))
            scale = (high - low).double() / (2**self.bits - 1)
            place = (flat.double() - low) / torch.where(scale > 0, scale, 1.0)
            u = torch.rand(len(flat), generator=key.at(k).torch(), dtype=torch.float64)
            codes = (place + u).floor().clamp(0, 2**self.bits - 1).nan_to_num().to(torch.uint8)
            out += [packed(codes, self.bits), torch.stack([low, high])]
        return out

    def decode(self, coded: Sequence[Tensor], piece: Forms) -> Params:
        """The points of the grid."""
        out = {}
        for (k, (dtype, shape)), codes, (low, high) in zip(piece.items(), coded[::2], coded[1::2], strict=True):
            place = unpacked(codes, self.bits, math.prod(shape)).double()
            scale = (high - low).double() / (2**self.bits - 1)
            out[k] = (low + place * scale).to(dtype).view(shape)
        return out


@dataclass(frozen=True)
class QSGD(Codec):
    r"""QSGD (Alistarh, Grubic, Li, Tomioka, Vojnovic, NeurIPS 2017, arXiv:1610.02132), with the length of each tensor.

    .. math:: Q(x)_i = \lVert x \rVert_2 \, \mathrm{sign}(x_i) \, \zeta_i / s, \qquad
        \zeta_i = \lfloor s |x_i| / \lVert x \rVert_2 + u \rfloor, \quad u \sim U[0, 1)

    Levels travel with their sign in one byte (two, beyond 127); the paper's Elias code is not built.
    """

    levels: int = 127

    def __post_init__(self) -> None:
        if not 1 <= self.levels < 1 << 15:
            raise ValueError(f"levels are 1 to 32767, not {self.levels}")

    @property
    def dtype(self) -> torch.dtype:
        """What a level fits in."""
        return torch.int8 if self.levels < 128 else torch.int16

    def forms(self, piece: Forms) -> list[Form]:
        """Of each tensor the levels, and the length."""
        return [f for d, s in piece.values() for f in ((self.dtype, s), (d, ()))]

    def encode(self, piece: Params, key: Key) -> list[Tensor]:
        """Levels and lengths."""
        out = []
        for k, v in piece.items():
            length = torch.linalg.vector_norm(v.double()).to(v.dtype)
            share = v.double().abs() / torch.where(length > 0, length, 1.0)
            u = torch.rand(v.shape, generator=key.at(k).torch(), dtype=torch.float64)
            level = (share * self.levels + u).floor().clamp(max=self.levels).nan_to_num()
            out += [(level * v.sign().nan_to_num()).to(self.dtype), length]
        return out

    def decode(self, coded: Sequence[Tensor], piece: Forms) -> Params:
        """The levels at that length."""
        pairs = zip(piece.items(), coded[::2], coded[1::2], strict=True)
        return {k: (length.double() * level / self.levels).to(d) for (k, (d, _)), level, length in pairs}


@dataclass(frozen=True)
class TopK(Codec):
    r"""The ``max(1, floor(share n))`` greatest magnitudes of the whole piece, as they are; zero elsewhere.

    Of equal ones those that come first, so there are always as many.  Positions travel as a bitmap,
    or as numbers where these are fewer bytes.  It is biased: see the error memory of ``parts/codecs.py``.
    """

    unbiased: ClassVar[bool] = False

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is above 0 and at most 1, not {self.share}")

    def _sizes(self, piece: Forms) -> tuple[int, int]:
        n = sum(math.prod(s) for _, s in piece.values())
        return n, count_units(self.share, n) if n else 0

    def _bitmap(self, n: int, k: int) -> bool:
        return -(-n // 8) <= 4 * k or n >= 1 << 31

    def forms(self, piece: Forms) -> list[Form]:
        """The positions, and the values (in the widest of the piece's dtypes)."""
        n, k = self._sizes(piece)
        where = (torch.uint8, (-(-n // 8),)) if self._bitmap(n, k) else (torch.int32, (k,))
        return [where, (_widest(piece), (k,))]

    def encode(self, piece: Params, key: Key) -> list[Tensor]:
        """Positions and values, in the order of the tensors."""
        forms = {k: (v.dtype, tuple(v.shape)) for k, v in piece.items()}
        n, k = self._sizes(forms)
        flat = torch.cat([torch.zeros(0), *(v.flatten() for v in piece.values())]).to(_widest(forms))
        at = flat.abs().sort(descending=True, stable=True).indices[:k].sort().values
        if not self._bitmap(n, k):
            return [at.to(torch.int32), flat[at]]
        return [packed(torch.zeros(n, dtype=torch.uint8).index_fill(0, at, 1), 1), flat[at]]

    def decode(self, coded: Sequence[Tensor], piece: Forms) -> Params:
        """The values in their places."""
        where, values = coded
        n, k = self._sizes(piece)
        at = unpacked(where, 1, n).nonzero().flatten() if where.dtype == torch.uint8 else where.long()
        if len(at) != k or (k and not (at[0] >= 0 and at[-1] < n and bool((at.diff() > 0).all()))):
            raise ValueError(f"the reply does not name {k} different places in their order")
        flat = torch.zeros(n, dtype=values.dtype).index_put((at,), values)
        parts = flat.split([math.prod(s) for _, s in piece.values()])
        return {name: part.view(s).to(d) for (name, (d, s)), part in zip(piece.items(), parts, strict=True)}


CODECS: Mapping[str, type[Codec]] = {"uniform": Uniform, "qsgd": QSGD, "topk": TopK}


@cache
def codec_of(text: str) -> Codec:
    """The codec that ``uniform:8``, ``qsgd:127`` or ``topk:0.1`` names (without a number: its default)."""
    name, _, number = text.partition(":")
    if name not in CODECS:
        raise ValueError(f"no upload codec is called {name!r}; there are: {', '.join(CODECS)}")
    if not number:
        return CODECS[name]()
    try:
        value = float(number) if name == "topk" else int(number)
    except ValueError:
        raise ValueError(
            f"the upload codec {name} takes a number, as in {CODECS[name]().text}, not {number!r}"
        ) from None
    return CODECS[name](value)  # type: ignore[call-arg]


# ---- bits
def packed(codes: Tensor, bits: int) -> Tensor:
    """Codes of so many bits each, in bytes; the last one is filled up with zeros."""
    each = 8 // bits
    full = torch.cat([codes, codes.new_zeros(-len(codes) % each)]).view(-1, each)
    return (full.int() << torch.arange(0, 8, bits, dtype=torch.int32)).sum(1).to(torch.uint8)


def unpacked(raw: Tensor, bits: int, n: int) -> Tensor:
    """The ``n`` codes that :func:`packed` packed; :class:`ValueError` where the filling is none."""
    codes: Tensor = (raw[:, None].int() >> torch.arange(0, 8, bits, dtype=torch.int32)) & (2**bits - 1)
    if bool(codes.flatten()[n:].any()):
        raise ValueError("the reply's codes go on after the last coordinate")
    return codes.flatten()[:n].to(torch.uint8)


def _widest(piece: Forms) -> torch.dtype:
    out = torch.float32 if any(d == torch.float32 for d, _ in piece.values()) or not piece else None
    for d, _ in piece.values():
        out = d if out is None else torch.promote_types(out, d)
    return out or torch.float32


# ---- a reply in its code
def asked(order: Order) -> Codec | None:
    """The codec in which the reply to an order travels."""
    text = order.scalars.get("codec")
    return None if text is None else codec_of(str(text))


def forms_of(reply: Reply) -> Forms:
    """The dtype and the shape of each tensor of a reply."""
    return {k: (reply.params[k].dtype, shape) for k, shape in reply.cover.pieces.items()}


def coded_part(forms: Forms) -> dict[str, Form]:
    """What of a piece is encoded: floats that are no statistics."""
    return {k: f for k, f in forms.items() if f[0].is_floating_point and not is_statistic(k)}


def sent_at(order: Order, name: str, span: Span) -> Tensor:
    """What an order sent at these coordinates of a tensor, 0 where it sent nothing; in float64."""
    if name not in order.cover:
        return torch.zeros(span.piece, dtype=torch.float64)
    own, piece = order.cover[name], order.params[name].double()
    if own.same(span):
        return piece
    full = torch.zeros(own.shape, dtype=torch.float64)
    whole: Tensor = own.put(full, piece)
    return span.take(whole)


def decoded(order: Order, cover: Cover, forms: Forms, coded: Sequence[Tensor]) -> Params:
    """The plain values of the coordinates that are encoded: what was sent, and the change that the code says."""
    codec = asked(order)
    assert codec is not None
    part = coded_part(forms)
    change = codec.decode(coded, part)
    return {k: (sent_at(order, k, cover[k]) + change[k].double()).to(part[k][0]) for k in part}


def compress(reply: Reply, order: Order, key: Key, lost: Params | None = None) -> tuple[Reply, Params]:
    """The reply as the server will see it, with its code; and what the code lost of the change and of ``lost``."""
    codec = asked(order)
    assert codec is not None
    forms = forms_of(reply)
    part = coded_part(forms)
    change = {k: reply.params[k].double() - sent_at(order, k, reply.cover[k]) for k in part}
    change = {k: (v + lost[k] if lost else v).to(part[k][0]) for k, v in change.items()}
    coded = tuple(codec.encode(change, key))
    said = codec.decode(coded, part)
    seen = decoded(order, reply.cover, forms, coded)
    return replace(reply, params={**reply.params, **seen}, coded=coded), {k: change[k] - said[k] for k in part}
