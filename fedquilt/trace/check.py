"""The two laws that an axes table must keep, and in words where it does not.

Permuting the units of a group must not change what the net says; and the net must run on the tensors of
fewer units, which are those of the slimmer net, as many as it would have.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call

from ..cover import Params, take
from ..key import Key
from ..model import Model, adopt
from .walk import foreign

KEY = Key(0).at("laws")


def broken(m: Model, x: Tensor) -> dict[str, str]:
    """The groups that break a law, and how."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        m.net.eval()
        p, x, said = spoken(m, x)
        found = {}
        for group in m.groups:
            fault = permuted(m, p, x, said, group) or slimmer(m, p, x, said, {group: m.groups[group]})
            if fault:
                found[group] = fault
        if not found and m.groups and (fault := slimmer(m, p, x, said, m.groups)):
            found = dict.fromkeys(m.groups, f"all groups together: {fault}")
    return found


def spoken(m: Model, x: Tensor) -> tuple[Params, Tensor, Tensor]:
    """Scrambled tensors, the samples, and what the net says: in float64, or as it was built if it insists on that."""
    fine = x.double() if x.is_floating_point() else x
    try:
        p = scrambled(m, torch.float64)
        return p, fine, functional_call(m.net, p, (fine,))
    except RuntimeError:
        p = scrambled(m, torch.float32)
        return p, x, functional_call(m.net, p, (x,))


def scrambled(m: Model, dtype: torch.dtype) -> Params:
    """Tensors that are all different: a fresh net's ones and zeros would hide mistakes."""
    p = {}
    for k, v in m.params().items():
        noise = torch.rand(v.shape, dtype=torch.float64, generator=KEY.at(k).torch()) / 2 - 0.25
        p[k] = (v + noise).to(dtype) if v.is_floating_point() else v
    return p


def permuted(m: Model, p: Params, x: Tensor, said: Tensor, group: str) -> str:
    """Does the order of a group's units matter?  In words, or nothing.

    All orders follow from two: each unit in the next one's place, and two that change places.  A net may
    bear the first alone (neighbours on a ring stay neighbours).
    """
    n = m.groups[group]
    units = torch.arange(n)
    for order in (units.roll(1), torch.cat([units[:2].flip(0), units[2:]])):
        moved = dict(p)
        for place in m.places:
            if place.axis.group == group:
                at = torch.arange(moved[place.name].shape[place.dim])
                at[place.entries(units)] = place.entries(order)
                moved[place.name] = moved[place.name].index_select(place.dim, at)
        again = functional_call(m.net, moved, (x,))
        if not near(again, said):
            return f"another order of its units changes what the net says, by {float((again - said).abs().max()):.2g}"
    return ""


def near(a: Tensor, b: Tensor) -> bool:
    """Equal, but for rounding."""
    small = 1e-8 if b.dtype == torch.float64 else 1e-4
    return torch.allclose(a, b, rtol=small, atol=small * float(b.abs().max()))


def slimmer(m: Model, p: Params, x: Tensor, said: Tensor, groups: Mapping[str, int]) -> str:
    """Does the net run on half of the units, as the slimmer net does?  In words what goes wrong, or nothing."""
    units = {g: KEY.at("half", g).permutation(n)[: max(1, n // 2)].sort().values for g, n in groups.items()}
    cover = m.cover(units)
    piece = take(p, cover)
    try:
        out = functional_call(m.net, piece, (x,))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"the net does not run on fewer of its units: {line_of(error)}{reason}"
    if out.shape != said.shape or not bool(out.isfinite().all()):
        return f"with fewer of its units the net gives {tuple(out.shape)} instead of {tuple(said.shape)}"
    slim = deepcopy(m.net)
    for name, tensor in piece.items():
        adopt(slim, name, tensor)
    if (counted := sum(v.numel() for v in slim.parameters() if v.requires_grad)) != m.count(cover):
        return f"the slimmer net has {counted} parameters, the piece {m.count(cover)}"
    if not near(slim(x), out):
        return "the slimmer net says something else than the piece"
    return ""


def line_of(error: BaseException) -> str:
    """The last line of a user's own source through which an error came."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not foreign(frame.filename):
            return f"{Path(frame.filename).name} line {frame.lineno}, `{frame.line}`: "
    return ""
