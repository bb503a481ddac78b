"""The guard: a pure function between wire and merge.  It returns a reply, or says which rule the bytes break.

A reply is held against the order that was issued and its grant, never against its own word.
Rules are looked at in the order of :class:`Code`, the cheapest first, and the first that is broken
is the answer; no tensor is unpacked before its dtype, its shape and the hash have been found right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum, auto
from hashlib import sha256

import torch
from torch import Tensor

from .codec import sent_at
from .cover import Cover
from .drive.packing import CODES, DIGEST, DTYPES, Spec, nbytes, sealed, specs, unpack
from .drive.wire import Head, compose, cover_of, plan_digest, specs_of
from .types import Order, Reply

MORE = 16  # so many names beyond those granted are still read, to say which are too many
LONGEST = 240  # characters of a reason
SIMPLER = {"whole": {"whole"}, "block": {"whole", "block"}, "mask": {"whole", "block", "mask"}}


class Code(StrEnum):
    """The rules, in the order in which they are looked at.

    | code          | what is wrong                                                                  |
    | ------------- | ------------------------------------------------------------------------------ |
    | TOO_LARGE     | more bytes than the grant allows                                               |
    | BAD_HEADER    | no head of a reply in its one spelling, or one with far too many names         |
    | WRONG_SENDER  | another client than the one that sent it, or than the one that was asked       |
    | WRONG_RUN     | an answer in another run                                                       |
    | STALE_ROUND   | an answer to another round                                                     |
    | DUPLICATE     | this order has had its reply                                                   |
    | PLAN_MISMATCH | an answer to another order, or a cover that is not granted: its kind, its      |
    |               | place, no cover at all, or the order's own spelled out                           |
    | BAD_KEYS      | a dtype too many or too few, an extra that is not granted, or other metrics    |
    |               | than those granted: one more, or one missing                                   |
    | BAD_SHAPE     | an extra of another shape                                                      |
    | BAD_DTYPE     | a tensor of another dtype, booleans that are neither 0 nor 1, or a code that   |
    |               | stands for nothing                                                             |
    | BAD_LENGTH    | the tensors do not just fill the bytes                                         |
    | BAD_HASH      | changed on its way                                                             |
    | NON_FINITE    | NaN or infinity among the floats, or as a metric                               |
    | BAD_WEIGHT    | not a number above 0 and at most that of the grant                             |
    | NORM_BOUND    | an update longer than the bound                                                |
    """

    TOO_LARGE = auto()
    BAD_HEADER = auto()
    WRONG_SENDER = auto()
    WRONG_RUN = auto()
    STALE_ROUND = auto()
    DUPLICATE = auto()
    PLAN_MISMATCH = auto()
    BAD_KEYS = auto()
    BAD_SHAPE = auto()
    BAD_DTYPE = auto()
    BAD_LENGTH = auto()
    BAD_HASH = auto()
    NON_FINITE = auto()
    BAD_WEIGHT = auto()
    NORM_BOUND = auto()


@dataclass(frozen=True)
class Rejection:
    """A reply that was not let in: the rule, the sender as the driver knows it, the order's round, a sentence.

    ``digest`` is the SHA-256 of the bytes (of one that is too large: of as many as were allowed).
    None of its content is kept.
    """

    code: Code
    client: int
    round: int
    reason: str
    digest: str


class _Broken(Exception):
    """A rule is broken.  Never leaves this module."""

    def __init__(self, code: Code, reason: object) -> None:
        super().__init__(code, reason)
        self.code = code
        # a stranger's words may be in it: one line, no control characters, not long
        text = str(reason)
        short = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
        self.reason = "".join(c if c.isprintable() else "?" for c in short)


def admit(data: bytes, order: Order, sender: int, answered: bool = False, norm: float = math.inf) -> Reply | Rejection:
    """The reply that these bytes are, if it keeps to every rule of its order; else the first rule that it breaks.

    ``sender`` is the client that the driver knows to have sent them, ``answered`` whether the order
    has had its reply.  ``norm`` bounds the Euclidean length of the update, all float tensors of the
    piece together: what came less what the order sent.  A coordinate that the order did not send
    counts with its full value: left out it would be unbounded.  Integers and extras do not count.

    A cover may be just the order's (and then must not be spelled out), or lie inside the grant's
    outer cover in a form that is granted; a mask that happens to be a block or whole, and a block
    that happens to be whole, is one nevertheless.  Tensors that the order sent come back in the dtype in
    which it sent them.  Others come in the float dtype, or the integer dtype, of those that it sent; where
    it sent none such, in float32 or int64.  Extras may be missing, metrics may not: the server reads them.
    """
    try:
        head, at = _head(data, order)
        _addressed(head, order, sender, answered)
        cover = _cover(head, order)
        _named(head, cover, order)
        _typed(head, cover, order)
        reply = _composed(head, cover, _tensors(data, at, specs_of(head, cover, order)), order)
        _measured(reply, order, norm)
    except _Broken as rule:
        digest = sha256(memoryview(data)[: order.grant.nbytes]).hexdigest()
        return Rejection(rule.code, sender, order.round, rule.reason, digest)
    return reply


def _head(data: bytes, order: Order) -> tuple[Head, int]:
    grant = order.grant
    if len(data) > grant.nbytes:
        raise _Broken(Code.TOO_LARGE, f"the reply has {len(data)} bytes, {grant.nbytes} are the most allowed")
    try:
        return Head.read(data, MORE + max(len(grant.metrics), len(grant.extras)))
    except ValueError as e:
        raise _Broken(Code.BAD_HEADER, e) from e


def _addressed(head: Head, order: Order, sender: int, answered: bool) -> None:
    """From whom it should be, to what it should answer, for the first time."""
    if not head.client == sender == order.client:
        who = f"the reply is from client {head.client}, was sent by client {sender}"
        raise _Broken(Code.WRONG_SENDER, f"{who}, and client {order.client} was asked")
    if head.run != order.run:
        raise _Broken(Code.WRONG_RUN, f"the reply is of run {head.run!r}, not of {order.run!r}")
    if head.round != order.round:
        raise _Broken(Code.STALE_ROUND, f"the reply is of round {head.round}, not of {order.round}")
    if answered:
        raise _Broken(Code.DUPLICATE, "the order has had its reply")
    if head.plan != plan_digest(order):
        raise _Broken(Code.PLAN_MISMATCH, "the reply answers another order than this one")


def _cover(head: Head, order: Order) -> Cover:
    """What it speaks about, if that is granted."""
    granted, outer = order.grant.kinds, order.grant.outer
    forms = {simple for kind in granted for simple in SIMPLER.get(kind, ())}
    if head.cover is not None and not forms:
        raise _Broken(Code.PLAN_MISMATCH, "the reply has a cover of its own, which is not granted")
    try:
        cover = cover_of(head, order)
    except ValueError as e:
        raise _Broken(Code.PLAN_MISMATCH, e) from e
    if head.cover is None and "same" in granted:
        return cover
    if not cover.kinds <= forms:
        odd = ", ".join(sorted(cover.kinds - forms))
        raise _Broken(Code.PLAN_MISMATCH, f"the reply's cover has tensors of the kind {odd}, which is not granted")
    if not cover <= outer:
        raise _Broken(Code.PLAN_MISMATCH, "the reply speaks about more than is granted")
    return cover


def _named(head: Head, cover: Cover, order: Order) -> None:
    """Nothing too many, nothing too few."""
    grant = order.grant
    if len(head.codes) != len(cover):
        raise _Broken(Code.BAD_KEYS, f"the reply has {len(head.codes)} dtypes for {len(cover)} tensors")
    if odd := head.extra.keys() - grant.extras.keys():
        raise _Broken(Code.BAD_KEYS, f"the reply has extras that are not granted: {_list(odd)}")
    if odd := head.metrics.keys() - grant.metrics:
        raise _Broken(Code.BAD_KEYS, f"the reply has metrics that are not granted: {_list(odd)}")
    if lacking := grant.metrics - head.metrics.keys():
        raise _Broken(Code.BAD_KEYS, f"the reply lacks metrics: {_list(lacking)}")


def _typed(head: Head, cover: Cover, order: Order) -> None:
    """Shapes and dtypes are those of the order and its grant."""
    schema = order.grant.extras
    for k, (_, shape) in head.extra.items():
        if shape != tuple(schema[k][1]):
            raise _Broken(Code.BAD_SHAPE, f"the extra {k} has shape {shape}, not {tuple(schema[k][1])}")
    for k, (code, _) in head.extra.items():
        if code != CODES[schema[k][0]]:
            raise _Broken(Code.BAD_DTYPE, f"the extra {k} is {_dtype(code)}, not {schema[k][0]}")
    sent = {k: code for k, (code, _) in specs(order.params).items()}
    others = _others(sent.values())
    for k, code in zip(cover, head.codes, strict=True):
        allowed = {sent[k]} if k in sent else others
        if code not in allowed:
            right = " or ".join(_dtype(c) for c in sorted(allowed))
            raise _Broken(Code.BAD_DTYPE, f"{k} is {_dtype(code)}, not {right}")


def _others(sent: Iterable[int]) -> set[int]:
    """What tensors that the order did not send may be: the model is not here, so what its other tensors are."""
    codes = set(sent)
    floats = {c for c in codes if DTYPES[c][0].is_floating_point}
    return (floats or {CODES[torch.float32]}) | (codes - floats or {CODES[torch.int64]})


def _tensors(data: bytes, at: int, wanted: list[Spec]) -> list[Tensor]:
    if (right := at + nbytes(wanted) + DIGEST) != len(data):
        raise _Broken(Code.BAD_LENGTH, f"the reply has {len(data)} bytes, its tensors make {right}")
    if not sealed(data):
        raise _Broken(Code.BAD_HASH, "the reply was changed on its way: its hash is wrong")
    try:
        return unpack(data, at, wanted)
    except ValueError as e:
        raise _Broken(Code.BAD_DTYPE, e) from e


def _composed(head: Head, cover: Cover, tensors: list[Tensor], order: Order) -> Reply:
    """The reply; decoded, where it travelled in a code, so that what follows sees plain values."""
    try:
        return compose(head, cover, tensors, order)
    except ValueError as e:
        raise _Broken(Code.BAD_DTYPE, e) from e


def _measured(reply: Reply, order: Order, norm: float) -> None:
    """The values."""
    for what, numbers in (("tensor", reply.params), ("extra", reply.extra)):
        for k, t in numbers.items():
            if t.is_floating_point() and not t.isfinite().all():
                raise _Broken(Code.NON_FINITE, f"the {what} {k} holds NaN or infinity")
    for k, x in reply.metrics.items():
        if not math.isfinite(x):
            raise _Broken(Code.NON_FINITE, f"the metric {k} is {x}")
    if not (0 < reply.weight <= order.grant.weight and reply.weight < math.inf):
        most = order.grant.weight
        raise _Broken(Code.BAD_WEIGHT, f"the weight is {reply.weight}, not a number above 0 and at most {most}")
    if norm < math.inf and not (length := _length(reply, order)) <= norm:
        raise _Broken(Code.NORM_BOUND, f"the update is {length:g} long, {norm:g} is the most allowed")


def _length(reply: Reply, order: Order) -> float:
    """How far the floats of the piece are from what the order sent."""
    total = 0.0
    for k, x in reply.params.items():
        if x.is_floating_point():
            total += float((x.double() - sent_at(order, k, reply.cover[k])).square().sum())
    return math.sqrt(total)


def _dtype(code: int) -> str:
    return str(DTYPES[code][0]) if code < len(DTYPES) else f"of the unknown dtype {code}"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:3])
