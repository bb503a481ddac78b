"""What each kind of operation says about units: which stay apart, which are joined, and which cannot be moved.

A rule is given the trace, the arguments of the operation by their names, and its result; it gives the
labels of the result's entries.  An operation without a rule fixes all that goes into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .classes import FIXED
from .values import Trace, Value, Weight, first, varies

Args = Mapping[str, Any]
Rule = Callable[[Trace, Args, Any], Any]  # None: it says nothing

ALONE = """abs alias alpha_dropout bernoulli bitwise_not ceil celu clamp clamp_max clamp_min clone contiguous cos cosh
detach dropout elu erf erfc exp expm1 feature_alpha_dropout feature_dropout floor frac gelu hardshrink hardsigmoid
hardswish hardtanh isfinite isinf isnan leaky_relu lift_fresh_copy log log10 log1p log2 log_sigmoid logical_not mish
nan_to_num neg reciprocal relu relu6 round rrelu rsqrt selu sigmoid sign silu sin sinh softplus softshrink softsign
sqrt square tan tanh tanhshrink threshold to _to_copy trunc type_as zero fill zeros_like ones_like full_like
rand_like randn_like empty_like"""
MEET = """add addcdiv addcmul atan2 bitwise_and bitwise_or bitwise_xor copy div eq fmod floor_divide ge gt hypot le
lerp logaddexp logical_and logical_or logical_xor lt masked_fill maximum minimum mul ne pow remainder rsub sub
subtract multiply divide where true_divide fmax fmin xlogy"""
MOVE = """broadcast_to cat chunk concat concatenate diagonal expand expand_as flatten flip gather hstack vstack im2col
index index_select masked_select movedim narrow permute pixel_shuffle pixel_unshuffle channel_shuffle repeat
repeat_interleave reshape reshape_as roll rot90 select select_scatter slice slice_scatter split
split_with_sizes squeeze stack swapaxes swapdims t mT numpy_T matrix_H adjoint take_along_dim tensor_split
transpose tril triu unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze view view_as _unsafe_view
_reshape_alias"""
BESIDE = frozenset(["cat", "concat", "concatenate", "stack"])
SIZED = frozenset(["view", "reshape", "unflatten", "expand", "narrow", "split", "split_with_sizes", "chunk", "slice"])
SUMMED = """all amax amin any argmax argmin count_nonzero linalg_vector_norm logsumexp max mean min norm prod std
std_mean sum var var_mean median"""
ORDERED = "cumsum cumprod logcumsumexp cummax cummin sort topk argsort"
MADE = "arange eye empty full linspace new_empty new_full new_ones new_zeros ones rand randn scalar_tensor zeros"

RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """This is the rule of these operations."""

    def known(f: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), f))
        return f

    return known


def values(t: Trace, given: Any) -> list[Value]:
    """All tensors among arguments, each with a label for every entry."""
    found = [v for v in torch.utils._pytree.tree_leaves(given) if isinstance(v, (Value, Weight))]
    return [t.spread(v) for v in found]


def nobody(out: Tensor) -> Tensor:
    """Labels of what belongs to no unit."""
    return torch.zeros(1, dtype=torch.int64).expand(out.shape) if out.dim() else torch.tensor(0)


# ---- one by one
@rule(ALONE)
def alone(t: Trace, a: Args, out: Tensor) -> Tensor:
    """Each entry by itself."""
    return values(t, list(a.values()))[0].labels


@rule(MEET)
def meet(t: Trace, a: Args, out: Tensor) -> Tensor:
    """Entries of several tensors, one by one."""
    some = values(t, list(a.values()))
    acc = some[0]
    for other in some[1:]:
        acc = t.together(acc, other)
    return acc.labels.expand(out.shape)


@rule(MADE)
def made(t: Trace, a: Args, out: Tensor) -> Tensor:
    """Numbers out of nothing."""
    return nobody(out)


@rule(ORDERED)
def ordered(t: Trace, a: Args, out: Any) -> Any:
    """What depends on the order along an axis."""
    [x] = values(t, a["self"])
    dim = a.get("dim")
    if varies(t.classes.of(x.labels), -1 if dim is None else dim):
        t.classes.fix(x.labels, t.why("depends on the order of the units"))
    return torch.utils._pytree.tree_map(lambda o: first_of(x.labels, o), out)


def first_of(labels: Tensor, out: Tensor) -> Tensor:
    """The labels of a result that is as long as its input along all axes but some, along which they are the same."""
    for d, n in enumerate(out.shape):
        if labels.shape[d] != n:
            labels = labels.narrow(d, 0, 1)
    return labels.expand(out.shape)


# ---- moved about
def move(t: Trace, run: Callable[..., Any], args: Sequence[Any], more: Mapping[str, Any]) -> Any:
    """Do with the labels what is done with the entries; what says where to is used as it is."""
    lead, rest = args[0], args[1:]
    things = torch.utils._pytree.tree_leaves(lead)
    if all(isinstance(v, Weight) for v in things if isinstance(v, (Value, Weight))) and isinstance(lead, Weight):
        ids = run(lead.ids, *plain((rest, more))[0], **plain((rest, more))[1])
        data = run(lead.data, *plain((rest, more))[0], **plain((rest, more))[1])
        return torch.utils._pytree.tree_map(lambda i, d: Weight(lead.name, d, i), ids, data)

    def labels(v: Any) -> Any:
        if isinstance(v, (Value, Weight)):
            value = t.spread(v)
            if t.where.op in SIZED:
                t.sized.append((value.labels.unique(), t.where))
            return t.classes.of(value.labels).expand(value.data.shape)
        return v

    if t.where.op in ("view", "_unsafe_view"):
        run = torch.ops.aten.reshape.default  # labels that are the same everywhere are stored once
    if t.where.op in BESIDE and all(isinstance(v, (Value, Weight)) for v in things):
        beside(t, things, (*rest, *more.values(), 0)[0])
    moved = torch.utils._pytree.tree_map(labels, lead)
    others = torch.utils._pytree.tree_map(
        lambda v: labels(v) if isinstance(v, (Value, Weight)) and v.data.is_floating_point() else v, (rest, more)
    )
    rest, more = plain(others)
    return run(moved, *rest, **more)


def beside(t: Trace, parts: Sequence[Value | Weight], dim: int) -> None:
    """What is put beside one another along an axis that is not made of units: along the others they are the same units.

    Such as a token of a class before those of an image, or what several experts say.
    """
    found = []
    for part in map(t.spread, parts):
        units = t.classes.of(part.labels).expand(part.data.shape)
        units = units.unsqueeze(dim) if t.where.op == "stack" else units
        if varies(units, dim):
            return
        found.append(first(units, [dim % units.dim()]))
    if all(bool((units != FIXED).all()) for units in found):
        for other in found[1:]:
            t.classes.unite(found[0], other, t.why("joins units that stand beside each other"))


def plain(given: Any) -> Any:
    """Arguments with tensors for values."""
    return torch.utils._pytree.tree_map(lambda v: v.data if isinstance(v, (Value, Weight)) else v, given)


@rule("pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d")
def pad(t: Trace, a: Args, out: Tensor) -> Tensor:
    """More entries at the ends: along an axis that is not made of units they are their neighbours' kind."""
    [x] = values(t, a["self"])
    labels, widths = t.classes.of(x.labels), a.get("pad") or a["padding"]
    for i in range(len(widths) // 2):
        d, (low, high) = labels.dim() - 1 - i, widths[2 * i : 2 * i + 2]
        n, fixed = labels.shape[d], varies(labels, d)
        at = torch.arange(-low, n + high)
        wide = labels.index_select(d, at.clamp(0, n - 1))
        outside = ((at < 0) | (at >= n)).view(-1, *[1] * i)
        labels = wide.masked_fill(outside, 0) if fixed else wide
    return labels


# ---- several into one
def dims_of(dim: Any, x: Tensor) -> list[int]:
    """The axes that an argument names: all, if none."""
    if dim is None or dim == []:
        return list(range(x.dim()))
    return [d % max(x.dim(), 1) for d in ([dim] if isinstance(dim, int) else dim)]


@rule(SUMMED)
def summed(t: Trace, a: Args, out: Any) -> Any:
    """Sums, means, extremes over axes."""
    if isinstance(a.get("other"), (Value, Weight)):  # the larger of two
        return meet(t, a, out)
    [x] = values(t, a["self"])
    dims = dims_of(a.get("dim"), x.data)
    labels = t.settle(x.labels, dims, "sums up units of which each has a part of its own")

    def kept(o: Tensor) -> Tensor:
        return labels.expand(o.shape) if o.dim() == labels.dim() else labels.squeeze(dims)

    return torch.utils._pytree.tree_map(kept, out)


@rule("softmax log_softmax _softmax _log_softmax softmin normalize")
def shared(t: Trace, a: Args, out: Tensor) -> Tensor:
    """Shares of a whole."""
    [x] = values(t, a["self"])
    t.settle(x.labels, dims_of(a["dim"], x.data), "shares out among units of which each has a part of its own")
    return x.labels


POOLS = """avg_pool adaptive_avg_pool max_pool adaptive_max_pool lp_pool _adaptive_avg_pool upsample_nearest
upsample_nearest_exact _upsample_nearest_exact"""
POOLED = " ".join(f"{name}{k}d" for name in POOLS.split() for k in (1, 2, 3))


@rule(POOLED + " max_pool2d_with_indices upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d")
def pooled(t: Trace, a: Args, out: Any) -> Any:
    """Neighbours into one, or one into neighbours, along the last axes."""
    [x] = values(t, a.get("self", a.get("input")))
    one = out[0] if isinstance(out, tuple) else out
    sides = next(int(c) for c in t.where.op if c.isdigit())
    dims = list(range(x.data.dim() - sides, x.data.dim()))
    units = t.classes.of(x.labels)
    t.classes.unite(first(units, dims), units, t.why("puts neighbours together, and here they are units"))
    labels = first(t.classes.of(x.labels), dims).expand(one.shape)
    return (labels,) * len(out) if isinstance(out, tuple) else labels


MOVES = frozenset(MOVE.split())  # these are done with the labels
