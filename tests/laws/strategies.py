"""Random models, axes tables, covers and weights for the laws, and the dense picture they are judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from fedquilt.cover import Along, Axes, Axis, Cover, Params, Shapes

# The same examples on every machine and in every run: a red law stays red until it is mended.
_HEALTH = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def law(examples: int = 120) -> settings:
    """The settings of a law: repeatable, without a clock, without a database."""
    return settings(
        derandomize=True, deadline=None, database=None, max_examples=examples, suppress_health_check=list(_HEALTH)
    )


FLOATS = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
WHOLE_NUMBERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
DTYPES = FLOATS + WHOLE_NUMBERS
NAMES = ("a", "ab", "conv.weight", "conv.bias", "bn.running_mean", "bn.num_batches_tracked", "head.weight", "größe", "")

seeds = st.integers(0, 2**32 - 1)
shapes = st.lists(st.sampled_from((0, 1, 1, 2, 3, 4, 4, 6)), max_size=4).map(tuple)
models_shapes: st.SearchStrategy[dict[str, tuple[int, ...]]] = st.dictionaries(
    st.sampled_from(NAMES), shapes, max_size=5
)


# ---- tensors
def any_bits(shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
    """Any bit pattern: NaN of every payload, infinities, -0.0, denormals, the largest numbers."""
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, shape).astype(bool)).view(shape)
    raw = rng.bytes(math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(bytearray(raw), dtype=dtype).view(shape) if raw else torch.zeros(shape, dtype=dtype)


def finite(shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
    """Any finite bit pattern."""
    t = any_bits(shape, dtype, rng)
    return torch.where(t.isfinite(), t, torch.full_like(t, -0.0)) if dtype.is_floating_point else t


def ordinary(shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
    """Numbers such as a model has: a few orders of magnitude around 1, some of them equal; small integers."""
    if not dtype.is_floating_point:
        return torch.from_numpy(rng.integers(0, 2 if dtype == torch.bool else 200, shape)).view(shape).to(dtype)
    x = rng.choice([-1.5, 0.0, 1.0, 10.0], shape) + rng.integers(0, 2, shape) * rng.normal(size=shape)
    return torch.from_numpy(np.asarray(x * np.exp2(rng.integers(-4, 5, shape)))).view(shape).to(dtype)


Fill = Callable[[tuple[int, ...], torch.dtype, np.random.Generator], Tensor]


def like(p: Params, fill: Fill, seed: int) -> Params:
    """Other tensors of the same names, shapes and dtypes."""
    rng = np.random.default_rng(seed)
    return {k: fill(tuple(v.shape), v.dtype, rng) for k, v in p.items()}


@st.composite
def models(draw: st.DrawFn, fill: Fill = any_bits, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Params:
    """A parameter dict: 0-dim, 1-D, zero-size, float and integer tensors."""
    table = draw(models_shapes)
    rng = np.random.default_rng(draw(seeds))
    return {k: fill(s, draw(st.sampled_from(dtypes)), rng) for k, s in table.items()}


# ---- covers
@st.composite
def axes_tables(draw: st.DrawFn, table: Shapes) -> Axes:
    """A consistent axes table: groups shared between tensors, with blocks and repeats that divide the axes.

    A group is called after its size.  What stands beside others on an axis stands alone somewhere else.
    """
    out: dict[str, list[Along]] = {}
    for name, shape in table.items():
        row: list[Along] = []
        for n in shape:
            ways = [(b, r) for b in (1, 2, 3) for r in (1, 2) if n and n % (b * r) == 0]
            b, r = draw(st.sampled_from(ways)) if ways else (1, 1)
            row.append(Axis(f"{draw(st.sampled_from('gh'))}{n // (b * r)}", b, r) if draw(st.booleans()) else None)
        if any(row) or draw(st.booleans()):  # a tensor may be missing from the table
            out[name] = row
    alone = {a.group: int(a.group[1:]) for row in out.values() for a in row if isinstance(a, Axis)}
    for name, row in out.items():
        for d, n in enumerate(table[name]):
            if row[d] is None and draw(st.booleans()):
                row[d] = draw(several(alone, n))
    return {name: tuple(row) for name, row in out.items()}


@st.composite
def several(draw: st.DrawFn, alone: Mapping[str, int], size: int) -> Along:
    """Parts one after another that make an axis of this size, or None."""
    made: list[Axis | int] = []
    left = size
    while left:
        ways = [Axis(g, b, r) for g, n in alone.items() for b in (1, 2) for r in (1, 2) if n and n * b * r <= left]
        a = draw(st.sampled_from([*ways, 1]))
        made.append(a)
        left -= a if isinstance(a, int) else alone[a.group] * a.block * a.repeat
    return tuple(made) or None


def owned(axes: Axes, table: Shapes, name: str) -> list[list[tuple[str, int] | None]]:
    """Whose each entry of each axis of a tensor is: a group and a unit, or nobody's."""
    sizes = groups(axes, table)
    out = []
    for along, n in zip(axes.get(name, (None,) * len(table[name])), table[name], strict=True):
        row: list[tuple[str, int] | None] = []
        for a in along if isinstance(along, tuple) else (along,):
            if isinstance(a, Axis):
                units = range(sizes[a.group])
                row += [(a.group, u) for _ in range(a.repeat) for u in units for _ in range(a.block)]
            else:
                row += [None] * (n if a is None else a)
        out.append(row)
    return out


def groups(axes: Axes, table: Shapes) -> dict[str, int]:
    """How many units each group has."""
    rows = [pair for k, row in axes.items() for pair in zip(row, table[k], strict=True)]
    return {a.group: a.units(n) for a, n in rows if isinstance(a, Axis)}


@st.composite
def unit_choices(draw: st.DrawFn, axes: Axes, table: Shapes) -> dict[str, Tensor]:
    """Some units (or none, in any order) of some groups."""
    out = {}
    for group, n in groups(axes, table).items():
        if draw(st.booleans()):
            chosen = draw(st.permutations(range(n)))[: draw(st.integers(0, n))]
            out[group] = torch.tensor(chosen, dtype=torch.int64)
    return out


@st.composite
def mask_tables(draw: st.DrawFn, table: Shapes) -> dict[str, Tensor]:
    """Boolean tensors for some of the names, from sparse to full."""
    rng = np.random.default_rng(draw(seeds))
    share = draw(st.sampled_from((0.0, 0.2, 0.5, 0.9, 1.0)))
    return {
        k: torch.from_numpy(np.asarray(rng.random(s) < share)).view(s) for k, s in table.items() if draw(st.booleans())
    }


@st.composite
def _simple(draw: st.DrawFn, table: Shapes) -> Cover:
    form = draw(st.sampled_from(("units", "masks", "named", "whole", "nothing")))
    if form == "units":
        axes = draw(axes_tables(table))
        return Cover.units(table, axes, draw(unit_choices(axes, table)))
    if form == "masks":
        return Cover.masks(draw(mask_tables(table)))
    if form == "named":
        return Cover.named(table, *draw(st.lists(st.sampled_from(("*", "conv.*", "*.weight", "a?", "größe")))))
    return Cover.whole(table) if form == "whole" else Cover({})


@st.composite
def covers(draw: st.DrawFn, p: Mapping[str, Any]) -> Cover:
    """A cover of every form: simple ones, and unions, intersections and differences of them."""
    table = {k: tuple(v.shape) if isinstance(v, Tensor) else v for k, v in p.items()}
    c = draw(_simple(table))
    for op in draw(st.lists(st.sampled_from("|&-"), max_size=2)):
        other = draw(_simple(table))
        c = c | other if op == "|" else c & other if op == "&" else c - other
    return c


# ---- the dense picture: a cover is a set of places, written out
Dense = dict[str, Tensor]


def dense(c: Cover, table: Shapes) -> Dense:
    """Every place of the model, true where the cover speaks of it."""
    return {k: c[k].dense() if k in c else torch.zeros(s, dtype=torch.bool) for k, s in table.items()}


def same_places(a: Dense, b: Dense) -> bool:
    """Equality of two dense pictures."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ---- bits
def bits(t: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    """What a tensor is, to the bit: NaN equals itself, -0.0 does not equal 0.0."""
    return t.dtype, tuple(t.shape), t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def all_bits(p: Params) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    """What a parameter dict is, to the bit."""
    return {k: bits(t) for k, t in p.items()}
