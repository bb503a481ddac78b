"""Replies made wrong, each in one way, with the codes that the guard may give for it.

They work on the real reply of any method, also on one that has no tensors.  Where a hash is made anew,
another rule is broken; a change of values within the rules is an honest reply and not made here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from fedquilt.cover import Cover, Params, block, masked
from fedquilt.drive.packing import BOOL, CODES, DIGEST, DTYPES, number, seal
from fedquilt.drive.wire import Head, agreed, encode_order, encode_reply, plan_digest
from fedquilt.guard import Code
from fedquilt.types import Order, Reply

Mutant = tuple[str, bytes, frozenset[Code]]
Recipe = tuple[str, Callable[[], bytes], frozenset[Code]]  # what is wrong, how to make it, what it breaks

FORMS = ("whole", "block", "mask")  # each is a case of the next
MUCH = 1 << 40
HUGE = 2**2000
UNKNOWN = len(DTYPES)  # the first number that stands for no dtype
LIMIT = 1 << 22  # no mutant is made longer than this
NAN, INF = math.nan, math.inf

# A bit flipped in the head may make it say anything; but the hash is then wrong at the latest.
SAYS_ANYTHING = frozenset(Code) - {
    Code.TOO_LARGE, Code.DUPLICATE, Code.NON_FINITE, Code.BAD_WEIGHT, Code.NORM_BOUND,
}  # fmt: skip


def mutants(data: bytes, reply: Reply, order: Order, rng: np.random.Generator) -> Iterator[Mutant]:
    """Wrong forms of ``data``, the encoded ``reply`` to ``order``, in random order: so the first few are a fair sample.

    Each is what is wrong, the bytes, and the codes of which the guard must give one, if the order's own
    client sends them, for the first time, and no bound is set on the norm.
    """
    m = Message(data, reply, order, rng)
    groups = (_damaged, _sealed_wrong, _addressed_wrong, _headed_wrong, _covering_wrong, _named_wrong, _typed_wrong)
    recipes = [r for group in (*groups, _valued_wrong) for r in group(m)]
    for i in rng.permutation(len(recipes)):
        name, made, codes = recipes[i]
        raw = made()
        too_large = len(raw) > order.grant.nbytes
        yield name, raw, frozenset({Code.TOO_LARGE}) if too_large else codes


@dataclass(frozen=True)
class Message:
    """A reply as it travels, in its parts."""

    data: bytes
    reply: Reply
    order: Order
    rng: np.random.Generator

    @cached_property
    def head(self) -> Head:
        return Head.read(self.data)[0]

    @cached_property
    def at(self) -> int:
        """Where the tensors begin."""
        return Head.read(self.data)[1]

    @property
    def body(self) -> bytes:
        """The tensors."""
        return self.data[self.at : -DIGEST]

    @property
    def plan_at(self) -> int:
        """Where the plan digest begins; the weight follows."""
        return self.data.index(self.head.plan)

    def below(self, n: int) -> int:
        """A random number."""
        return int(self.rng.integers(n))

    def other(self, raw: bytes | None = None, body: bytes | None = None, **changes: object) -> bytes:
        """The message with other bytes for its head, or other content there, or other tensors, and the right hash."""
        head = replace(self.head, **changes).encode() if raw is None else raw  # type: ignore[arg-type]
        return seal(head, [memoryview(self.body if body is None else body)])

    def flipped(self, start: int, end: int) -> bytes:
        """One bit flipped somewhere between, and the hash left as it is."""
        out = bytearray(self.data)
        out[start + self.below(end - start)] ^= 1 << self.below(8)
        return bytes(out)

    def saying(self, **changes: object) -> bytes:
        """The encoding of the reply with other content."""
        return encode_reply(replace(self.reply, **changes), self.order)  # type: ignore[arg-type]

    def holding(self, field: str, tensors: Params) -> bytes:
        """The encoding of the reply with other tensors."""
        return self.saying(**{field: tuple(tensors.values()) if field == "coded" else tensors})


def _wrong(
    name: str, breaks: Code | frozenset[Code], made: Callable[..., bytes], /, *args: object, **changes: object
) -> Recipe:
    codes = breaks if isinstance(breaks, frozenset) else frozenset({breaks})
    return name, partial(made, *args, **changes), codes


# ---- on the way
def _damaged(m: Message) -> Iterator[Recipe]:
    """Cut, lengthened, exchanged: without a new hash."""
    yield _wrong("no bytes", Code.BAD_HEADER, bytes)
    yield _wrong("random bytes", Code.BAD_HEADER, m.rng.bytes, len(m.data))
    yield _wrong("the order itself", Code.BAD_HEADER, encode_order, m.order)
    yield _wrong("cut in the head", Code.BAD_HEADER, lambda: m.data[: m.below(m.at)])
    yield _wrong("cut after the head", Code.BAD_LENGTH, lambda: m.data[: m.at + m.below(len(m.data) - m.at)])
    yield _wrong("the last byte missing", Code.BAD_LENGTH, lambda: m.data[:-1])
    yield _wrong("a byte more", Code.BAD_LENGTH, lambda: m.data + b"\0")
    yield _wrong("twice over", Code.BAD_LENGTH, lambda: m.data + m.data)
    if m.order.grant.nbytes < LIMIT:
        yield _wrong("too large", Code.TOO_LARGE, lambda: m.data.ljust(m.order.grant.nbytes + 1, b"\0"))
    for _ in range(4):
        yield _wrong("a bit of the head", SAYS_ANYTHING, m.flipped, 4, m.plan_at)
        yield _wrong("a bit after the weight", SAYS_ANYTHING, m.flipped, m.plan_at + DIGEST + 8, m.at)
        yield _wrong("a bit of the tensors or the hash", Code.BAD_HASH, m.flipped, m.at, len(m.data))
    yield _wrong("a bit of the magic", Code.BAD_HEADER, m.flipped, 0, 4)
    yield _wrong("a bit of the plan", Code.PLAN_MISMATCH, m.flipped, m.plan_at, m.plan_at + DIGEST)
    yield _wrong("a bit of the weight", Code.BAD_HASH, m.flipped, m.plan_at + DIGEST, m.plan_at + DIGEST + 8)


def _sealed_wrong(m: Message) -> Iterator[Recipe]:
    """Tensors and hash."""
    whole, half = m.data[:-DIGEST], len(m.body) // 2
    yield _wrong("no hash", Code.BAD_HASH, lambda: whole + bytes(DIGEST))
    yield _wrong("another hash", Code.BAD_HASH, lambda: whole + m.rng.bytes(DIGEST))
    yield _wrong("the plan for a hash", Code.BAD_HASH, lambda: whole + m.head.plan)
    yield _wrong("the tensors a byte longer", Code.BAD_LENGTH, lambda: m.other(body=m.body + b"\0"))
    if half:
        swapped = m.body[half:] + m.body[:half]
        if swapped != m.body:
            yield _wrong("halves swapped", Code.BAD_HASH, lambda: m.data[: m.at] + swapped + m.data[-DIGEST:])
        yield _wrong("the tensors twice", Code.BAD_LENGTH, lambda: m.other(body=m.body + m.body))
        yield _wrong("half of the tensors", Code.BAD_LENGTH, lambda: m.other(body=m.body[:half]))
        yield _wrong("no tensors", Code.BAD_LENGTH, lambda: m.other(body=b""))


# ---- in the head, with a hash made anew
def _addressed_wrong(m: Message) -> Iterator[Recipe]:
    """Of another client, run, round or order."""
    o, head = m.order, m.head
    for what, client in (("the next", o.client ^ 1), ("the opposite", ~o.client), ("a huge", ~o.client % HUGE)):
        yield _wrong(f"of {what} client", Code.WRONG_SENDER, m.other, client=client)
    for run in (o.run + "x", "x" + o.run, "\n\x1b[31m" * 1000):
        yield _wrong(f"of run {run[:9]!r}", Code.WRONG_RUN, m.other, run=run)
    for what, round in (("the next", o.round ^ 1), ("the opposite", ~o.round), ("a huge", ~o.round % HUGE)):
        yield _wrong(f"of {what} round", Code.STALE_ROUND, m.other, round=round)
    if head.client != head.round:
        yield _wrong("client and round swapped", Code.WRONG_SENDER, m.other, client=head.round, round=head.client)
    yield _wrong(
        "of client and round and weight", Code.WRONG_SENDER, m.other, client=~o.client, round=~o.round, weight=NAN
    )
    yield _wrong("to no order", Code.PLAN_MISMATCH, m.other, plan=bytes(DIGEST))
    for what, changed in (
        ("another version", replace(o, version=o.version ^ 1)),
        ("another seed", replace(o, seed=o.seed ^ 1)),
        ("another setting", replace(o, scalars={**o.scalars, "other": 1})),
        ("a larger grant", replace(o, grant=replace(o.grant, nbytes=o.grant.nbytes + 1))),
    ):
        yield _wrong(f"to an order of {what}", Code.PLAN_MISMATCH, lambda c: m.other(plan=plan_digest(c)), changed)
    if len(o.cover):
        less = o.cover.only(lambda k: k != min(o.cover))
        tier = replace(o, cover=less, params={k: o.params[k] for k in less})
        yield _wrong("to an order of less", Code.PLAN_MISMATCH, lambda: m.other(plan=plan_digest(tier)))


def _headed_wrong(m: Message) -> Iterator[Recipe]:
    """Spelled in another way, or claiming what is not there."""
    raw, much = m.head.encode(), number(1 << 62)
    to_metrics = raw[: m.plan_at + DIGEST + 8]
    for name, head in (
        ("of no magic", b"QF" + raw[2:]),
        ("of another format", raw[:2] + b"\x02" + raw[3:]),
        ("of another kind", raw[:3] + b"O" + raw[4:]),
        ("a length spelled too long", raw[:4] + bytes([raw[4] | 128, 0]) + raw[5:]),
        ("a name of 2**62 bytes", raw[:4] + much + raw[5:]),
        ("a length without end", raw[:4] + b"\xff" * 12 + raw[5:]),
        ("2**62 metrics", to_metrics + much),
        ("a run that is no text", raw[:4] + b"\x01\xff" + raw[5 + len(m.head.run.encode()) :]),
    ):
        if name == "a length spelled too long" and raw[4] > 127:
            continue
        yield _wrong(name, Code.BAD_HEADER, m.other, head)
    many = {f"{i:x}": 0.0 for i in range(500)}
    yield _wrong("500 metrics", Code.BAD_HEADER, m.other, metrics=many)
    yield _wrong("500 extras", Code.BAD_HEADER, m.other, extra=dict.fromkeys(many, (0, (1 << 60,))))


def _covering_wrong(m: Message) -> Iterator[Recipe]:
    """Speaking about what was not granted."""
    o, table = m.order, dict(agreed(m.order))
    yield _wrong("the order's cover spelled out", Code.PLAN_MISMATCH, m.other, cover=o.cover.encode())
    bomb = Cover.whole({"bomb": (MUCH, 2)})
    mask = b"C1\x00\x01\x01w\x02" + 2 * number(MUCH) + b"\x02\x01\x01\x00" + number(MUCH)
    for name, code in (
        ("no cover", b"nonsense"),
        ("a cover cut short", m.reply.cover.encode()[:-1]),
        ("a cover and more", m.reply.cover.encode() + b"\0"),
        ("terabytes", bomb.encode()),
        ("a mask of terabytes", mask),
        ("2**62 index vectors", b"C1" + number(1 << 62)),
        ("2**62 tensors", b"C1\0" + number(1 << 62)),
        ("a stranger", Cover.whole({**table, "a stranger": (3,)}).encode()),
        ("another shape", Cover.whole({k: (*s, 2) for k, s in table.items()} or {"a stranger": ()}).encode()),
    ):
        yield _wrong(f"a cover: {name}", Code.PLAN_MISMATCH, m.other, cover=code)
    for k, s in list(table.items())[:3]:
        wider = Cover({k: block(s, (None,) * len(s))})
        if not wider <= o.grant.outer:
            yield _wrong(f"more of {k!r}", Code.PLAN_MISMATCH, m.other, cover=(m.reply.cover | wider).encode())
    granted = FORMS[: 1 + max((FORMS.index(k) for k in o.grant.kinds if k in FORMS), default=-1)]
    for k in list(o.grant.outer)[:3]:
        less = o.grant.outer[k].dense().clone()
        less.view(-1)[int(less.flatten().nonzero()[m.below(o.grant.outer[k].numel)])] = False
        span = masked(less)
        if span is not None and span.kind not in granted:
            yield _wrong(f"a {span.kind} of {k!r}", Code.PLAN_MISMATCH, m.other, cover=Cover({k: span}).encode())


def _named_wrong(m: Message) -> Iterator[Recipe]:
    """Too many or too few."""
    head = m.head
    yield _wrong("a dtype more", Code.BAD_KEYS, m.other, codes=head.codes + b"\0")
    if head.codes:
        yield _wrong("a dtype less", Code.BAD_KEYS, m.other, codes=head.codes[:-1])
    bomb = {"a stranger": (0, (MUCH, MUCH))}
    yield _wrong("an extra of terabytes", Code.BAD_KEYS, m.other, extra={**head.extra, **bomb})
    yield _wrong("another metric", Code.BAD_KEYS, m.other, metrics={**head.metrics, "a stranger\n": 0.0})
    for k in list(head.metrics)[:2]:
        less = {n: x for n, x in head.metrics.items() if n != k}
        yield _wrong(f"no metric {k!r}", Code.BAD_KEYS, m.other, metrics=less)
        yield _wrong(f"the metric {k!r} renamed", Code.BAD_KEYS, m.other, metrics={**less, k + " renamed": 0.0})


def _typed_wrong(m: Message) -> Iterator[Recipe]:
    """Other shapes and dtypes."""
    head = m.head
    for k, (code, shape) in list(head.extra.items())[:2]:
        for other in ((*shape, MUCH), (*shape, 1), (0, *shape), (1,) * 255):
            extra = {**head.extra, k: (code, other)}
            yield _wrong(f"the extra {k!r} {other}"[:60], Code.BAD_SHAPE, m.other, extra=extra)
        for wrong in {0, UNKNOWN, 255, (code + 1) % len(DTYPES)} - {code}:
            extra = {**head.extra, k: (wrong, shape)}
            yield _wrong(f"the extra {k!r} as {wrong}", Code.BAD_DTYPE, m.other, extra=extra)
    for i, k in list(enumerate(m.reply.cover))[:4]:
        for code in {0, UNKNOWN, 255, CODES[torch.int32], (head.codes[i] + 1) % len(DTYPES)} - {head.codes[i]}:
            if k in m.order.cover or code >= UNKNOWN:
                codes = head.codes[:i] + bytes([code]) + head.codes[i + 1 :]
                yield _wrong(f"{k!r} as {code}", Code.BAD_DTYPE, m.other, codes=codes)
    if any(t.dtype == torch.bool and t.numel() for t in (*m.reply.params.values(), *m.reply.extra.values())):
        assert DTYPES[-1] is DTYPES[BOOL]  # so the last byte is a boolean
        yield _wrong("a boolean of 2", Code.BAD_DTYPE, lambda: m.other(body=m.body[:-1] + b"\2"))


# ---- in the values, with a hash made anew
def _valued_wrong(m: Message) -> Iterator[Recipe]:
    """NaN, infinity, weights."""
    in_code = {str(i): t for i, t in enumerate(m.reply.coded)}
    for field in ("coded", "extra") if in_code else ("params", "extra"):
        tensors: Params = in_code if field == "coded" else getattr(m.reply, field)
        floats = [k for k, t in tensors.items() if t.is_floating_point() and t.numel()]
        for k in floats[:3]:
            for x in (NAN, INF, -INF):
                poisoned = {**tensors, k: _poisoned(tensors[k], x, m)}
                yield _wrong(f"{x} in {field} {k!r}", Code.NON_FINITE, m.holding, field, poisoned)
        if floats:
            all_nan = {k: t * NAN if t.is_floating_point() else t for k, t in tensors.items()}
            yield _wrong(f"all {field} NaN", Code.NON_FINITE, m.holding, field, all_nan)
    for k in list(m.reply.metrics)[:2]:
        for x in (NAN, INF, -INF):
            yield _wrong(f"{x} as {k!r}", Code.NON_FINITE, m.saying, metrics={**m.reply.metrics, k: x})
    most = m.order.grant.weight
    for w in (0.0, -0.0, -1.0, NAN, INF, -INF, 1e18, math.nextafter(most, INF)):
        if not 0 < w <= most or w == INF:
            yield _wrong(f"weight {w}", Code.BAD_WEIGHT, m.saying, weight=w)


def _poisoned(t: Tensor, x: float, m: Message) -> Tensor:
    flat = t.detach().clone().flatten()
    flat[m.below(len(flat))] = x
    return flat.view(t.shape)
