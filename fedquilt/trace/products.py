"""What products of tensors say about units."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .rules import Args, rule
from .values import Trace, Value, Weight, first, varies


@rule("linear")
def linear(t: Trace, a: Args, out: Tensor) -> Tensor:
    """A matrix of the net by vectors."""
    x, w = a["input"], a["weight"]
    labels = product(t, x, "k", turned(w), "kn", "n", out)
    return biased(t, labels, a.get("bias"), out, -1)


def turned(w: Value | Weight) -> Value | Weight:
    """The transpose."""
    if isinstance(w, Weight):
        return Weight(w.name, w.data.mT, w.ids.mT)
    return Value(w.data.mT, w.labels.mT)


def biased(t: Trace, labels: Tensor, bias: Any, out: Tensor, dim: int) -> Tensor:
    """With a bias for each entry along an axis."""
    if bias is None:
        return labels
    b = t.spread(bias)
    shape = [1] * out.dim()
    shape[dim] = -1
    return t.together(Value(out, labels), Value(b.data.view(shape), b.labels.view(shape))).labels


@rule("matmul mm bmm mv dot")
def matmul(t: Trace, a: Args, out: Tensor) -> Tensor:
    """A product of matrices, of which either may be the net's."""
    x, y = list(a.values())[:2]
    left = "mk" if x.data.dim() > 1 else "k"
    right = "kn" if y.data.dim() > 1 else "k"
    return product(t, x, left, y, right, (left + right).replace("k", ""), out)


@rule("addmm baddbmm")
def added(t: Trace, a: Args, out: Tensor) -> Tensor:
    """A product, and something added."""
    labels = matmul(t, {"self": list(a.values())[1], "mat2": list(a.values())[2]}, out)
    return t.together(t.spread(a["self"]), Value(out, labels)).labels


@rule("einsum")
def einsum(t: Trace, a: Args, out: Tensor) -> Tensor | None:
    """A product of two tensors whose axes have letters."""
    inside, arrow, after = a["equation"].replace(" ", "").partition("->")
    names, things = inside.split(","), a["tensors"]
    if len(things) != 2 or not arrow or "." in inside or any(len(set(n)) < len(n) for n in names):
        return None
    return product(t, things[0], names[0], things[1], names[1], after, out)


@rule("scaled_dot_product_attention")
def attention(t: Trace, a: Args, out: Tensor) -> Tensor:
    """Queries by keys, shared out, by values."""
    q, k, v = (t.spread(a[name]) for name in ("query", "key", "value"))
    data = (q.data @ k.data.mT).softmax(-1)
    scores = Value(data, product(t, q, "td", k, "sd", "ts", data))
    if a.get("attn_mask") is not None:
        scores = Value(data, t.together(scores, t.spread(a["attn_mask"])).labels)
    return product(t, scores, "ts", v, "sd", "td", out)


def product(t: Trace, x: Any, left: str, y: Any, right: str, after: str, out: Tensor) -> Tensor:
    """A sum of products over the letters that ``after`` lacks; axes before those with letters go along."""
    for w, mine, other, others in ((x, left, y, right), (y, right, x, left)):
        common = {*mine} & {*others}
        if isinstance(w, Weight) and len(mine) == 2 == w.data.dim() and len(common) == 1 and not common & {*after}:
            [k] = common
            rows = t.axes(w, 0, 1)
            if rows is not None:
                z = t.spread(other)
                t.columns(z, others.index(k) - len(others), rows[mine.index(k)])
                own = mine.replace(k, "")
                at = after.index(own) - len(after)
                return rows[mine.index(own)].view([-1, *[1] * (-at - 1)]).expand(out.shape)
    return contracted(t, t.spread(x), left, t.spread(y), right, after, out)


def contracted(t: Trace, x: Value, left: str, y: Value, right: str, after: str, out: Tensor) -> Tensor:
    """A sum of products of what was computed."""
    summed = [c for c in left + right if c not in after]
    before = max(x.data.dim() - len(left), y.data.dim() - len(right))
    letters = list(dict.fromkeys(after + left + right))

    def laid(v: Tensor, names: str) -> Tensor:
        """With the axes that go along first, then one for each letter, of length one where it has none."""
        v = v.reshape(*[1] * (before - v.dim() + len(names)), *v.shape)
        has = [c for c in letters if c in names]
        v = v.permute(*range(before), *(before + names.index(c) for c in has))
        for i, c in enumerate(letters):
            v = v if c in names else v.unsqueeze(before + i)
        return v

    sides = [(laid(v.data, names), laid(v.labels.expand(v.data.shape), names)) for v, names in ((x, left), (y, right))]
    over = [before + letters.index(c) for c in dict.fromkeys(summed)]
    said = "sums up products of units of which each has a part of its own"
    found = [t.settle(labels, over, said) for _, labels in sides]
    (p, a), (q, b) = [(data, t.classes.of(labels)) for data, labels in sides]
    for d in over:
        if varies(a, d) or varies(b, d):  # whoever is summed over is summed over on both sides
            rest = [e for e in range(a.dim()) if e not in over]
            one, other = first(a, rest), first(b, rest)
            t.together(Value(first(p, rest), one), Value(first(q, rest), other))
            break
    ends = [(first(v, over), t.classes.of(labels)) for (v, _), labels in zip(sides, found, strict=True)]
    labels = t.together(*(Value(v, m) for v, m in ends)).labels
    labels = labels.squeeze(over)
    return labels.expand(out.shape)
