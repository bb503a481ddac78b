"""Orders and replies as bytes: a small index, one packed little-endian buffer a dtype, a hash.

::

    head     magic, version, kind; ids, scalars, covers; a dtype for each tensor of the cover
    tensors  one buffer a dtype, in the order of DTYPES; in a buffer the piece's tensors by name,
             then the extras by name; the shapes of a piece are its cover's, so are not sent
    hash     SHA-256 of everything before it

Equal values give equal bytes, and no value has a second spelling: a head that is not what its own
content encodes to is refused.  A reply is bound to its order by the order's hash, the *plan
digest*; a reply on just the coordinates of the order does not repeat them.  Where the order asks for an
upload codec, the floats that it encodes are not in the first buffer: the tensors of the code follow the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..codec import asked, coded_part, decoded
from ..cover import Cover, Params, Shapes
from ..types import Grant, Order, Reply
from .packing import (
    CODES,
    DIGEST,
    DTYPES,
    Reader,
    Spec,
    blob,
    code,
    integer,
    nbytes,
    pack,
    real,
    scalar,
    seal,
    sealed,
    spec,
    specs,
    table,
    text,
    unpack,
)  # fmt: skip

VERSION = 1

ODD = (IndexError, TypeError, OverflowError, MemoryError, RuntimeError)  # what unpacking nonsense may raise


def _travelling(
    what: str, params: Params, cover: Cover, extra: Params, order: Order | None = None, coded: Sequence[Tensor] = ()
) -> list[Tensor]:
    if params.keys() != cover.spans.keys():
        odd = sorted(params.keys() ^ cover.spans.keys())
        raise ValueError(f"{what}'s params and cover name different tensors: {', '.join(odd)} in only one of the two")
    for k, shape in cover.pieces.items():
        if tuple(params[k].shape) != shape:
            raise ValueError(f"{what}'s {k} has shape {tuple(params[k].shape)}, its cover says {shape}")
    codec = asked(order) if order else None
    part = coded_part({k: (params[k].dtype, shape) for k, shape in cover.pieces.items()}) if codec else {}
    if codec and [(t.dtype, tuple(t.shape)) for t in coded] != codec.forms(part):
        raise ValueError(f"{what} is not in the code {codec.text}, for which the order asks")
    return [params[k] for k in cover if k not in part] + [*coded] + [extra[k] for k in sorted(extra)]


@dataclass(frozen=True)
class Head:
    """What a reply says of itself before its tensors: read, but neither checked nor trusted."""

    run: str
    client: int
    round: int
    plan: bytes
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    cover: bytes | None = None  # None: just that of the order
    codes: bytes = b""  # a dtype for each tensor of the cover
    extra: Mapping[str, Spec] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The one spelling of this head."""
        return b"".join((
            _start(b"R"), text(self.run), integer(self.client), integer(self.round), self.plan, real(self.weight),
            table({k: real(v) for k, v in self.metrics.items()}),
            blob(self.cover or b""), blob(self.codes), table({k: spec(s) for k, s in self.extra.items()}),
        ))  # fmt: skip

    @staticmethod
    def read(data: bytes, most: int = 1 << 63) -> tuple[Head, int]:
        """The head of a reply and where its tensors begin; :class:`ValueError` if it is no head in its one spelling.

        Nor may a table of it have more than ``most`` names.
        """
        r = _started(data, b"R", most)
        head = Head(
            r.text(), r.integer(), r.integer(), r.raw(DIGEST), r.real(),
            r.table(r.real), r.blob() or None, r.blob(), r.table(r.spec),
        )  # fmt: skip
        _one_spelling(head.encode(), data, r.at)
        return head, r.at


def _start(kind: bytes) -> bytes:
    return b"FQ" + bytes([VERSION]) + kind


def _started(data: bytes, kind: bytes, most: int = 1 << 63) -> Reader:
    r = Reader(data, most)
    if (start := r.raw(4)) != _start(kind):
        what = "an order" if kind == b"O" else "a reply"
        raise ValueError(f"not {what} of format {VERSION}: it begins with {start!r} instead of {_start(kind)!r}")
    return r


def _one_spelling(head: bytes, data: bytes, end: int) -> None:
    if head != data[:end]:
        raise ValueError("the head of the message is not spelled as its content is")


def _order_head(o: Order) -> bytes:
    g = o.grant
    extras = {k: spec((code(k, dtype), shape)) for k, (dtype, shape) in g.extras.items()}
    return b"".join((
        _start(b"O"), text(o.run), *map(integer, (o.seed, o.client, o.round, o.version)),
        table({k: scalar(k, x) for k, x in o.scalars.items()}), blob(o.cover.encode()),
        blob(b"" if g.outer == o.cover else g.outer.encode()), table(dict.fromkeys(g.kinds, b"")),
        table(extras), table(dict.fromkeys(g.metrics, b"")), real(g.weight), integer(g.nbytes),
        blob(bytes(code(k, o.params[k].dtype) for k in o.cover)),
        table({k: spec(s) for k, s in specs(o.extra).items()}),
    ))  # fmt: skip


def encode_order(order: Order) -> bytes:
    """The order as bytes."""
    tensors = _travelling("the order", order.params, order.cover, order.extra)
    data = seal(_order_head(order), pack(tensors))
    vars(order)["_plan"] = data[-DIGEST:]
    return data


def order_size(order: Order) -> int:
    """``len(encode_order(order))``, without making it."""
    tensors = _travelling("the order", order.params, order.cover, order.extra)
    return len(_order_head(order)) + sum(t.nbytes for t in tensors) + DIGEST


def plan_digest(order: Order) -> bytes:
    """The hash at the end of the order's bytes: to it a reply is bound.  Kept with the order once it is known."""
    return vars(order).get("_plan") or encode_order(order)[-DIGEST:]


def decode_order(data: bytes, shapes: Shapes | None = None) -> Order:
    """The order that these bytes say, or :class:`ValueError`.

    Give the ``shapes`` of the model that you have: its covers then speak of nothing else, and cannot claim more memory.
    """
    if not sealed(data):
        raise ValueError("the order was changed or cut short on its way: its hash is wrong")
    try:
        return _order(data, shapes)
    except ODD as e:
        raise ValueError(f"not an order: {e}") from e


def _order(data: bytes, shapes: Shapes | None) -> Order:
    r = _started(data, b"O")
    run, (seed, client, round, version), scalars = r.text(), [r.integer() for _ in range(4)], r.table(r.scalar)
    cover = Cover.decode(r.blob(), shapes)
    outer = Cover.decode(raw, shapes) if (raw := r.blob()) else cover
    kinds, extras, metrics = r.table(bytes), r.table(r.spec), r.table(bytes)
    weight, limit, codes, extra = r.real(), r.integer(), r.blob(), r.table(r.spec)
    wanted = [*zip(codes, cover.pieces.values(), strict=True), *extra.values()]
    if r.at + nbytes(wanted) + DIGEST != len(data):
        raise ValueError("the order's tensors do not fill its bytes")
    tensors = unpack(data, r.at, wanted)
    schema = {k: (DTYPES[c][0], shape) for k, (c, shape) in extras.items()}
    order = Order(
        run, seed, client, round, dict(zip(cover, tensors, strict=False)), cover,
        Grant(outer, frozenset(kinds), schema, frozenset(metrics), weight, limit),
        version, scalars, dict(zip(extra, tensors[len(cover) :], strict=True)),
    )  # fmt: skip
    _one_spelling(_order_head(order), data, r.at)
    vars(order)["_plan"] = data[-DIGEST:]
    return order


def _reply_head(reply: Reply, order: Order, plan: bytes) -> bytes:
    cover = None if reply.cover == order.cover else reply.cover.encode()
    codes = bytes(code(k, reply.params[k].dtype) for k in reply.cover)
    return Head(
        order.run, reply.client, reply.round, plan, reply.weight, reply.metrics, cover, codes, specs(reply.extra)
    ).encode()


def encode_reply(reply: Reply, order: Order) -> bytes:
    """The reply to an order as bytes."""
    tensors = _travelling("the reply", reply.params, reply.cover, reply.extra, order, reply.coded)
    return seal(_reply_head(reply, order, plan_digest(order)), pack(tensors))


def reply_size(reply: Reply, order: Order) -> int:
    """``len(encode_reply(reply, order))``, without making it."""
    tensors = _travelling("the reply", reply.params, reply.cover, reply.extra, order, reply.coded)
    return len(_reply_head(reply, order, bytes(DIGEST))) + sum(t.nbytes for t in tensors) + DIGEST


def decode_reply(data: bytes, order: Order) -> Reply:
    """The reply that these bytes say, or :class:`ValueError`.  For trusted bytes; others go through the guard."""
    if not sealed(data):
        raise ValueError("the reply was changed or cut short on its way: its hash is wrong")
    try:
        return _reply(data, order)
    except ODD as e:
        raise ValueError(f"not a reply: {e}") from e


def _reply(data: bytes, order: Order) -> Reply:
    head, at = Head.read(data)
    if head.plan != plan_digest(order) or head.run != order.run:
        raise ValueError("the reply answers another order than this one")
    cover = cover_of(head, order)
    wanted = specs_of(head, cover, order)
    if at + nbytes(wanted) + DIGEST != len(data):
        raise ValueError("the reply's tensors do not fill its bytes")
    return compose(head, cover, unpack(data, at, wanted), order)


def cover_of(head: Head, order: Order) -> Cover:
    """What a reply speaks about, as its head says it; :class:`ValueError` if that is no cover in its one spelling."""
    if head.cover is None:
        return order.cover
    if head.cover == order.cover.encode():
        raise ValueError("the reply spells out the cover of the order instead of saying that it is the same")
    return Cover.decode(head.cover, agreed(order))


def _carried(head: Head, cover: Cover, order: Order) -> tuple[dict[str, Spec], list[Spec]]:
    """What of a piece travels as it is, and the tensors of the code in which the rest does."""
    plain = dict(zip(cover, zip(head.codes, cover.pieces.values(), strict=True), strict=True))
    codec = asked(order)
    if codec is None:
        return plain, []
    part = coded_part({k: (DTYPES[c][0], shape) for k, (c, shape) in plain.items()})
    return {k: s for k, s in plain.items() if k not in part}, [(CODES[d], shape) for d, shape in codec.forms(part)]


def specs_of(head: Head, cover: Cover, order: Order) -> list[Spec]:
    """The dtype and the shape of each tensor of a reply, in the order of the wire."""
    plain, coded = _carried(head, cover, order)
    return [*plain.values(), *coded, *head.extra.values()]


def agreed(order: Order) -> Shapes:
    """The full shape of every tensor that the order or its grant speaks about."""
    return {k: s.shape for k, s in (dict(order.grant.outer.spans) | dict(order.cover.spans)).items()}


def compose(head: Head, cover: Cover, tensors: Sequence[Tensor], order: Order) -> Reply:
    """The reply that a head, its cover and its tensors make, decoded; :class:`ValueError` if its code says nothing."""
    plain, specs = _carried(head, cover, order)
    first, last = len(plain), len(plain) + len(specs)
    params, coded = dict(zip(plain, tensors[:first], strict=True)), tuple(tensors[first:last])
    if asked(order):
        forms = {k: (DTYPES[c][0], shape) for (k, shape), c in zip(cover.pieces.items(), head.codes, strict=True)}
        params |= decoded(order, cover, forms, coded)
    return Reply(
        head.client, head.round, {k: params[k] for k in cover}, cover, head.weight, head.metrics,
        dict(zip(head.extra, tensors[last:], strict=True)), coded=coded,
    )  # fmt: skip
