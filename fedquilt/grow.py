"""Growth and shrinkage of a net by width and by depth: pure functions from a model and its parameters to others.

Growing preserves what the net says, normalisation statistics included; shrinking takes the units or
the stages that are kept.  ``key`` is for random shares, and for what the new model's ``params()`` say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .cover import Axis, Params, count_units, laid, take
from .key import Key
from .model import Model, drawing
from .models import MODELS, BatchNorm, GroupNorm, LayerNorm, build
from .models.convnet import split
from .models.lstm import Words

Spec = Mapping[str, Any]
Scale = float | tuple[float, int]


# ---- width
def widen(
    model: Model, params: Params, units: Mapping[str, int], key: Key, shared: bool = True
) -> tuple[Model, Params]:
    """So many units in each of these groups: the new ones copy the old in turn (Net2Wider; Chen et al., ICLR 2016).

    What reads a unit's output divides its weights between the unit and its copies, in random shares, so that
    the copies learn different things.  With ``shared=False`` the copies are not read yet: the first units
    are then, to the bit, the net that there was.  A tensor's second axis is taken to be what reads.

    What is not a layer of tensors is not seen: a net of one's own that sums over units by itself (a dot
    product), or reads a weight transposed, says something else when it is widened.
    """
    wider = resized(model, units, key.at("model"))
    out, sizes = dict(params), dict(model.groups)
    for group, m in units.items():
        n = sizes[group]
        if m < n:
            raise ValueError(f"group {group} has {n} units: widening does not make them {m}")
        source = torch.arange(m) % n
        for k, d in dict.fromkeys((p.name, p.dim) for p in model.places if p.axis.group == group and m > n):
            owner, wide = model.net.get_submodule(k.rpartition(".")[0]), []
            for a, start, length in laid(model.axes[k][d], out[k].shape[d], sizes):
                part = out[k].narrow(d, start, length)
                if a is not None and a.group == group:
                    copyable(owner, a, n, m)
                    part = part.index_select(d, a.entries(source, length))
                    if reads(owner, d, out[k]):
                        part = divided(part, d, a, source, n, key.at(k, d, start) if shared else None)
                wide.append(part)
            out[k] = torch.cat(wide, d)
        sizes[group] = m
    return wider, {k: out[k] for k in wider.shapes}


def copyable(owner: nn.Module, a: Axis, n: int, m: int) -> None:
    """Refuse what no copying of units preserves."""
    if isinstance(owner, Words):
        raise ValueError(f"one table is looked up and decodes: copies of the units of {a.group} change what it says")
    if isinstance(owner, (LayerNorm, nn.LayerNorm)) and m % n:
        raise ValueError(f"a layer norm sees all units of {a.group}: only a multiple of {n} keeps its mean, not {m}")


def reads(owner: nn.Module, d: int, t: Tensor) -> bool:
    """Does this tensor of a layer, along this axis, hold weights on what comes in?"""
    if isinstance(owner, nn.modules.conv._ConvTransposeNd):
        return t.dim() > 1 and d == 0 and owner.groups == 1  # a group reads its own channels alone
    known = isinstance(owner, (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase))
    scales = len(t) == 1 and not known  # such as a number for each channel, of shape (1, C, 1, 1)
    return d == 1 and not scales and not isinstance(owner, nn.Embedding)


def divided(t: Tensor, d: int, a: Axis, source: Tensor, n: int, key: Key | None) -> Tensor:
    """Weights divided between a unit and its copies: their shares add up to one."""
    parts = t.unflatten(d, (a.repeat, len(source), a.block))
    share = (torch.arange(len(source)) < n).double().view(-1, *[1] * (parts.dim() - d - 2)).expand(parts.shape)
    if key is not None:
        share = 0.5 + torch.rand(parts.shape, dtype=torch.float64, generator=key.torch())
    total = torch.zeros(*parts.shape[: d + 1], n, *parts.shape[d + 2 :], dtype=torch.float64)
    total.index_add_(d + 1, source, share)
    share = share / total.index_select(d + 1, source)
    return torch.flatten(parts * share, d, d + 2).to(t.dtype)


def shrink(model: Model, params: Params, units: Mapping[str, Tensor], key: Key) -> tuple[Model, Params]:
    """The net of these units of each group (groups not named stay whole), with their parameters."""
    cover = model.cover(units)
    kept = {g: len(u) for g, u in model.units(cover).items() if g in units}
    return resized(model, kept, key), take(params, cover)


def resized(model: Model, units: Mapping[str, int], key: Key) -> Model:
    """The model with so many units in these groups; built from its spec where it has one."""
    if not model.spec:
        return model.sized(units, key)
    old: Any = model.spec.get("units", {})
    return build({**model.spec, "units": {**old, **units}}, key)


# ---- depth
def deepen(model: Model, params: Params, where: str, key: Key) -> tuple[Model, Params]:
    """One layer or block more behind those of ``where``, one of :func:`places`; at first it changes nothing.

    A residual block begins with its last layer at zero, a plain layer as the identity: on what a ReLU has
    left, ReLU changes nothing.  Batch norm is then the identity in evaluation alone (in training it goes by
    the batch); group norm never is, so a plain net with it is refused.
    """
    spec, place = deeper(model, where)
    deep = build(spec, key)
    kind = next(v.dtype for v in params.values() if v.is_floating_point())
    fresh = {k: v.to(kind) for k, v in deep.params().items() if k not in params}
    still(deep.net.get_submodule(place), place, fresh)
    return deep, {k: params[k] if k in params else fresh[k] for k in deep.shapes}


def shorten(model: Model, params: Params, k: int) -> tuple[Model, Params]:
    """The net of the first ``k`` stages with exit ``k`` as its head, and its parameters."""
    short = model.upto(k)
    return short, take(params, short.whole)


def still(layer: nn.Module, place: str, fresh: Params) -> None:
    """Give the tensors of a new layer, in place, values at which the layer changes nothing."""
    quiet = getattr(layer, "quiet", None)  # of a residual block
    for name, part in layer.named_modules():
        at = f"{place}.{name}."
        own = [at + k for k, _ in part.named_parameters(recurse=False)]
        if quiet is not None:
            fresh |= {k: torch.zeros_like(fresh[k]) for k in own if name in quiet}
        elif isinstance(part, (GroupNorm, nn.Tanh)):
            raise ValueError(f"{place} would hold {type(part).__name__}, with which no layer there changes nothing")
        elif isinstance(part, BatchNorm):
            fresh[at + "weight"] = torch.full_like(fresh[at + "weight"], (1 + part.eps) ** 0.5)
        elif own:
            fresh |= {k: torch.zeros_like(fresh[k]) for k in own}
            weight = fresh[at + "weight"]
            middle: Any = (..., *(n // 2 for n in weight.shape[2:]))
            weight[middle] = torch.eye(len(weight), dtype=weight.dtype)


def places(model: Model) -> tuple[str, ...]:
    """What :func:`deepen` can add a layer behind: a stage's layers, or the last dense layer or block."""
    spec = general(model.spec)
    dense = spec.get("hidden" if spec["name"] == "mlp" else "dense")
    match spec["name"]:
        case "resnet18" | "convnet":
            return model.stages
        case "transformer" | "vit":
            return (f"block{spec['blocks']}",)
        case "mlp" | "cnn" if dense:
            return (f"dense{len(dense)}",)
    return ()


def deeper(model: Model, where: str) -> tuple[dict[str, Any], str]:
    """The spec with one layer more, and that layer's name; its groups are as large as those of the layer before it."""
    if where not in places(model):
        raise ValueError(f"{model.name} takes no layer behind {where!r}; places: {', '.join(places(model)) or 'none'}")
    if "depth" in model.spec:
        raise ValueError(f"{model.name} is cut to {model.spec['depth']} stages: deepen the whole net")
    spec, number = general(model.spec), int(where.lstrip("abcdefghijklmnopqrstuvwxyz"))
    match spec["name"]:
        case "resnet18":
            blocks = list(spec["blocks"])
            n = blocks[number - 1]
            blocks[number - 1] += 1
            spec["blocks"] = blocks
            new, like = f"{where}.{n}", {f"{where}.{n}": f"{where}.{n - 1}"}
        case "convnet":
            conv, pool = list(spec["conv"]), list(spec["pool"])
            sizes = [len(part) for part in split(tuple(conv), tuple(pool))]
            end, n = sum(sizes[:number]), sizes[number - 1]
            conv.insert(end, conv[end - 1])
            spec |= {"conv": conv, "pool": [p + (p >= end) for p in pool]}
            new, like = f"{where}.conv{n + 1}", {f"{where}.conv{n + 1}": f"{where}.conv{n}"}
        case "transformer" | "vit":
            spec["blocks"] += 1
            new = f"block{number + 1}"
            like = {f"{new}.{part}": f"{where}.{part}" for part in ("heads", "hidden")}
        case name:
            listed = "hidden" if name == "mlp" else "dense"
            spec[listed] = [*spec[listed], spec[listed][-1]]
            new = f"dense{number + 1}"
            like = {new: where}
    spec["units"] = {**model.groups, **{group: model.groups[old] for group, old in like.items()}}
    return spec, new


def general(spec: Spec) -> dict[str, Any]:
    """The spec by the name of the builder that does the work: a ``vgg11`` is a ``convnet``."""
    if spec.get("name") not in MODELS:
        raise ValueError("a net of one's own has no spec that says how to build it deeper")
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.items()}
    cut = {k: settings.pop(k) for k in ("units", "depth") if k in settings}
    builder: Any = MODELS[settings.pop("name")]
    with torch.device("meta"), drawing(Key(0)):
        inner = builder.__wrapped__(**settings).spec
    return {**(inner or spec), **cut}


# ---- both
def climb(model: Model, params: Params, scale: Scale, key: Key) -> tuple[Model, Params]:
    """The net at a scale of the :func:`ladder` of its spec, grown or shrunk to it: depth first, then width."""
    width, more = (scale, 0) if isinstance(scale, (int, float)) else scale
    for i in range(more):
        model, params = deepen(model, params, nth(model, i), key.at("deeper", i))
    if more < 0:
        model, params = shorten(model, params, len(model.stages) + more)
    sizes = {g: count_units(width, n) for g, n in model.groups.items()}
    if width < 1:
        return shrink(model, params, {g: torch.arange(n) for g, n in sizes.items()}, key)
    return widen(model, params, sizes, key)


def ladder(spec: Spec, scales: Sequence[Scale]) -> list[dict[str, Any]]:
    """Specs of one net in several sizes, the smallest first (by parameters).

    A scale is a width (1.25: a quarter more units in every group), or a width and how many layers more,
    one behind each stage in turn; fewer than none leaves out so many of the last stages, and needs exits.
    """
    found = []
    for scale in scales:
        width, more = (scale, 0) if isinstance(scale, (int, float)) else scale
        with torch.device("meta"):
            m = build(spec, Key(0))
            for i in range(more):
                m = build(deeper(m, nth(m, i))[0], Key(0))
            if more < 0:
                m = m.upto(len(m.stages) + more)
            m = resized(m, {g: count_units(width, n) for g, n in m.groups.items()}, Key(0))
        found.append((m.count(), dict(m.spec)))
    return [said for _, said in sorted(found, key=lambda f: f[0])]


def nth(model: Model, i: int) -> str:
    """Where the ``i``-th layer more is added."""
    found = places(model)
    if not found:
        raise ValueError(f"{model.name} takes no more layers")
    return found[i % len(found)]


def enlarged(model: Model, params: Params, width: float, more: int, key: Key) -> tuple[Model, Params]:
    """The net so much wider and so many layers deeper, as far as it can be; it says what it said.

    Groups that the first stage touches stay as they are, so that the two nets can have that stage in common,
    and so do those that no copying of units preserves.  ``params()`` of the new model are drawn from ``key``.
    """
    for i in range(more):
        try:
            model, params = deepen(model, params, nth(model, i), key.at("deeper", i))
        except ValueError:  # it takes no layer there
            break
    first = model.stages[0] + "." if model.stages else ""
    fixed = {p.axis.group for p in model.places if p.name.startswith(first)}
    sizes = {g: max(n, int(width * n + 1e-9)) for g, n in model.groups.items() if g not in fixed}
    return widen(model, params, {g: n for g, n in sizes.items() if n > model.groups[g]}, key)
