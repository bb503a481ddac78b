"""Random orders, and honest replies to them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from fedquilt.cover import Cover, Params, take
from fedquilt.drive.packing import CODES
from fedquilt.method import largest
from fedquilt.types import Grant, Order, Reply, Scalar

from .strategies import FLOATS, NAMES, Fill, all_bits, any_bits, covers, finite, like, models, seeds, shapes

TRAVELLING = tuple(CODES)
HUGE = 2**2039 - 1  # the largest integer that travels; the smallest is ~HUGE
FORMS = ("whole", "block", "mask")  # each is a case of the next

names = st.sampled_from((*NAMES, "loss", "drift")) | st.text(max_size=5)
integers = st.integers(-3, 300) | st.sampled_from((2**63, -(2**63) - 1, HUGE, ~HUGE))
reals = st.floats() | st.sampled_from((-0.0, 5e-324, float("nan"), float("inf")))
scalars: st.SearchStrategy[Scalar] = st.booleans() | integers | reals | st.text(max_size=8)
kinds = st.frozensets(st.sampled_from(("same", *FORMS)), min_size=1)


def granted_forms(grant: Grant) -> tuple[str, ...]:
    """The forms that a tensor of a reply's own cover may have."""
    return FORMS[: 1 + max((FORMS.index(k) for k in grant.kinds if k in FORMS), default=-1)]


def _returnable(p: Params, cover: Cover) -> Cover:
    """The tensors whose dtype an order of this cover makes known."""
    sent = {p[k].dtype for k in cover}
    known = {d for d in sent if d.is_floating_point} or {torch.float32}
    known |= {d for d in sent if not d.is_floating_point} or {torch.int64}
    return Cover.whole({k: tuple(v.shape) for k, v in p.items() if k in cover or v.dtype in known})


@st.composite
def _extras(draw: st.DrawFn, fill: Fill) -> Params:
    rng = np.random.default_rng(draw(seeds))
    return {
        k: fill(draw(shapes), draw(st.sampled_from(TRAVELLING)), rng)
        for k in draw(st.lists(names, max_size=3, unique=True))
    }


RICH = {"conv.weight": (4, 3, 2), "conv.bias": (4,), "bn.num_batches_tracked": (), "head.weight": (3, 4), "größe": (9,)}


@st.composite
def _rich(draw: st.DrawFn, fill: Fill, dtypes: tuple[torch.dtype, ...]) -> Params:
    """A model that has something of everything."""
    rng = np.random.default_rng(draw(seeds))
    return {k: fill(s, dtypes[int(rng.integers(len(dtypes)))], rng) for k, s in RICH.items()}


def halves(p: Params) -> st.SearchStrategy[Cover]:
    """About half of the coordinates."""
    table = {k: torch.zeros(v.shape, dtype=torch.bool) for k, v in p.items()}
    return seeds.map(lambda seed: Cover.masks(like(table, any_bits, seed)))


def some(p: Params) -> st.SearchStrategy[Cover]:
    """A cover that is seldom empty."""
    return st.one_of(covers(p), halves(p), st.just(Cover.whole(p)))


@st.composite
def worlds(draw: st.DrawFn, fill: Fill = any_bits) -> tuple[Order, Params, Params]:
    """An order; the model that it is about; and a tensor for each extra that it grants."""
    one_float = (draw(st.sampled_from(FLOATS)), torch.int64)
    dtypes = draw(st.sampled_from((TRAVELLING, one_float)))
    p = draw(_rich(fill, dtypes) if draw(st.integers(0, 3)) else models(fill, dtypes))
    cover = draw(some(p))
    outer = draw(st.sampled_from((cover, Cover.whole(p)))) if draw(st.booleans()) else draw(some(p))
    extras = draw(_extras(fill))
    grant = Grant(
        outer & _returnable(p, cover),
        draw(kinds),
        {k: (v.dtype, tuple(v.shape)) for k, v in extras.items()},
        draw(st.frozensets(names, max_size=3)),
        draw(st.sampled_from((float("inf"), 1.0, 0.1, 12345.0))),
    )
    numbers = [draw(integers) for _ in range(4)]
    words = draw(st.dictionaries(st.text(max_size=4), scalars, max_size=4))
    order = Order(
        draw(st.sampled_from(("", "r", "größe/1", "run-20"))),
        numbers[0],
        numbers[1],
        numbers[2],
        take(p, cover),
        cover,
        replace(grant, nbytes=largest(grant)),
        numbers[3],
        words,
        draw(_extras(fill)),
    )
    return order, p, extras


@st.composite
def exchanges(draw: st.DrawFn, fill: Fill = finite) -> tuple[Order, Reply]:
    """An order and a reply that keeps to it."""
    order, p, extras = draw(worlds(fill))
    forms = granted_forms(order.grant)
    cover = order.cover
    if "same" not in order.grant.kinds or (forms and draw(st.integers(0, 3))):
        cover = draw(some(p)) & order.grant.outer
        cover = cover.only(lambda k: cover[k].kind in forms)
    metrics = {k: draw(st.floats(allow_nan=False, allow_infinity=False)) for k in order.grant.metrics}
    weight = draw(st.floats(5e-324, min(order.grant.weight, 1e300)))
    extra = {k: v for k, v in extras.items() if draw(st.booleans())}
    piece = take(like(p, fill, draw(seeds)), cover)
    return order, Reply(order.client, order.round, piece, cover, weight, metrics, extra)


# ---- equality, to the bit
def _exact(x: Scalar) -> tuple[str, object]:
    return type(x).__name__, struct.pack("<d", x) if isinstance(x, float) else x


def _exactly(table: Mapping[str, Scalar]) -> dict[str, tuple[str, object]]:
    return {k: _exact(x) for k, x in table.items()}


def order_bits(o: Order) -> tuple[object, ...]:
    """All that an order says."""
    g = o.grant
    grant = (g.outer, g.kinds, dict(g.extras), g.metrics, _exact(g.weight), g.nbytes)
    ids = (o.run, o.seed, o.client, o.round, o.version)
    return ids, all_bits(o.params), o.cover, grant, _exactly(o.scalars), all_bits(o.extra)


def reply_bits(r: Reply) -> tuple[object, ...]:
    """All that a reply says."""
    ids = (r.client, r.round, _exact(r.weight))
    return ids, all_bits(r.params), r.cover, _exactly(r.metrics), all_bits(r.extra)
