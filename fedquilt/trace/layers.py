"""What the layers of a net say about units: convolutions, norms, look-ups, recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .products import biased
from .rules import Args, meet, rule, values
from .values import Trace, Value, Weight, varies

GROUPED = "is a convolution of groups: a unit is a whole group"


@rule("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
def convolution(t: Trace, a: Args, out: Tensor) -> Tensor | None:
    """Channels into channels; of a convolution of groups, a group is a unit."""
    x, w, groups = t.spread(a["input"]), a["weight"], a.get("groups", 1)
    back = "transpose" in t.where.op
    rows = t.axes(w, *((0,) if groups > 1 else (0, 1))) if isinstance(w, Weight) else None
    if rows is None or x.data.dim() != out.dim() or out.dim() != w.data.dim():
        return None
    if groups == 1:
        t.turned |= {w.name} if back else set()
        into, made = (rows[0], rows[1]) if back else (rows[1], rows[0])
        t.columns(x, 1, into)
    else:
        made = grouped(t, x, rows[0], groups, out.shape[1])
    labels = made.view(-1, *[1] * (out.dim() - 2)).expand(out.shape)
    return biased(t, labels, a.get("bias"), out, 1)


def grouped(t: Trace, x: Value, row: Tensor, groups: int, outs: int) -> Tensor:
    """The labels of the channels that groups make; all of a group, and what goes into it, is one unit."""
    each = row.view(groups, -1)
    t.classes.unite(each[:, :1], each, t.why(GROUPED))
    t.columns(x, 1, each[:, :1].expand(-1, x.data.shape[1] // groups).flatten(), GROUPED)
    return each[:, :1].expand(-1, outs // groups).flatten()


@rule("batch_norm instance_norm")
def channelled(t: Trace, a: Args, out: Tensor) -> Tensor:
    """Each channel by itself, with numbers of its own."""
    x = t.spread(a["input"])
    for name in ("weight", "bias", "running_mean", "running_var"):
        if a.get(name) is not None:
            t.columns(x, 1, t.spread(a[name]).labels)
    return t.classes.of(x.labels)


@rule("group_norm")
def group_norm(t: Trace, a: Args, out: Tensor) -> Tensor:
    """Some channels together."""
    x = t.spread(a["input"])
    if a["num_groups"] > 1:
        units = t.classes.of(x.labels).unflatten(1, (a["num_groups"], -1))
        t.classes.unite(units[:, :, :1], units, t.why("normalises channels together: a unit is all of a norm group"))
    labels: Tensor = channelled(t, a, out)
    return labels


@rule("layer_norm rms_norm")
def layer_norm(t: Trace, a: Args, out: Tensor) -> Tensor:
    """The last axes together, with numbers for each entry of theirs."""
    x = t.spread(a["input"])
    dims = list(range(x.data.dim() - len(a["normalized_shape"]), x.data.dim()))
    t.settle(x.labels, dims, "normalises units together of which each has a part of its own")
    labels: Tensor = meet(t, {k: a[k] for k in ("input", "weight", "bias") if a.get(k) is not None}, out)
    return labels


@rule("glu")
def glu(t: Trace, a: Args, out: Tensor) -> Tensor:
    """One half of an axis by the other."""
    x = t.spread(a["self"])
    halves = [Value(d, m) for d, m in zip(x.data.chunk(2, a["dim"]), x.labels.chunk(2, a["dim"]), strict=True)]
    return t.together(*halves).labels


@rule("prelu")
def prelu(t: Trace, a: Args, out: Tensor) -> Tensor:
    """Each channel by itself, with a slope of its own."""
    x, w = t.spread(a["self"]), t.spread(a["weight"])
    if w.data.numel() > 1:
        t.columns(x, 1, w.labels)
    else:
        t.classes.fix(w.labels, t.why("one slope for all", True))
    return t.classes.of(x.labels)


@rule("embedding")
def embedding(t: Trace, a: Args, out: Tensor) -> Tensor | None:
    """Rows that are looked up."""
    rows = t.axes(a["weight"], 1) if isinstance(a["weight"], Weight) else None
    return None if rows is None else rows[1].expand(out.shape)


GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule("lstm gru rnn_tanh rnn_relu")
def recurrent(t: Trace, a: Args, out: Any) -> Any:
    """Layers of hidden units, each with a row in every gate."""
    gates, both, each = GATES[t.where.op], 2 if a["bidirectional"] else 1, 4 if a["has_biases"] else 2
    hidden = out[1].shape[-1]
    params, x = list(a["params"]), t.spread(a["input"])
    if out[0].shape[-1] != both * hidden or len(params) != each * both * a["num_layers"]:
        return None  # projected states
    states = []
    for i in range(a["num_layers"]):
        ends = []
        for way in range(both):
            w_ih, w_hh, *biases = params[(i * both + way) * each :][:each]
            into, back = t.axes(w_ih, 0, 1), t.axes(w_hh, 0, 1)
            if into is None or back is None:
                return None
            t.columns(x, -1, into[1])
            for row in (into[0], back[0], *(t.spread(b).labels for b in biases)):
                t.classes.unite(row.view(gates, -1), back[1], t.why("a hidden unit has a row in every gate", True))
            ends.append(back[1])
        states += ends
        x = Value(out[0], torch.cat(ends).expand(out[0].shape))
    for other in states[1:]:
        t.classes.unite(states[0], other, t.why("all its layers and directions are of one width", True))
    last = torch.stack(states).unsqueeze(1).expand(-1, out[1].shape[1], -1)
    for start in values(t, a.get("hx")):
        if any(varies(start.data, d) for d in range(start.data.dim())):
            t.classes.unite(start.labels, last, t.why("begins with a state of its own"))
    return (x.labels, *[last] * (len(out) - 1))
