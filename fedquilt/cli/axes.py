"""``axes``: the axes table of a net of one's own, as a module that a run can name; and whether one is right."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch

from ..cover import Axes, Axis
from ..key import Key
from ..model import Model, drawing
from ..models import own
from ..schema import BadSetting, worded
from ..trace import Found, Untraceable, axes_of, batch, broken
from .tables import print_json

DTYPES = ("float32", "float64", "int64", "int32", "bool")
KEY = Key(0).at("axes")
LAWS = "Checked: another order of a group's units changes nothing; with half of them it is the slimmer net."
FITTED = ("classes", "vocabulary")  # settings of a net that a run fits to its data


def axes(net: str, input: str, as_json: bool) -> int:
    """Print the axes table of the net that a text names, for such samples; a table that it has is held to the laws."""
    name, words = own.parted(net, {})
    if not own.is_own(name):
        raise BadSetting(f"a net of your own is named by its module and its class, such as my.module:Net, not {net!r}")
    try:
        make = own.found(name)
        given = worded(words, make, name, f"the net {net!r}")
        with drawing(KEY):
            made = make(**given)
            if isinstance(made, Model):
                return held(name, made, input, as_json)
            if not isinstance(made, torch.nn.Module):
                raise BadSetting(f"{name} makes a {type(made).__name__}, not a torch.nn.Module")
            found = axes_of(made, batch(*sample(input), made))
    except Untraceable as error:
        raise BadSetting(str(error)) from error
    except (TypeError, ValueError) as error:
        raise BadSetting(f"{name}: {error}") from error
    if not found.axes:
        raise BadSetting(f"no unit of {name} can be left out: {'; '.join(said(found)) or 'it has one layer alone'}")
    if as_json:
        table = {k: [spoken(a) for a in row] for k, row in found.axes.items()}
        whole, groups = dict(found.whole), found.model.groups
        print_json({"net": net, "head": found.model.head, "groups": groups, "axes": table, "whole": whole})
    else:
        print(module(name, given, make, found))
    return 0


def held(name: str, m: Model, input: str, as_json: bool) -> int:
    """Say whether the table that a model has already keeps both laws."""
    if not m.groups:
        raise BadSetting(f"the axes table of {name} has no group of units")
    x = batch(*sample(input), m.net)
    try:
        faults = broken(m, x)
    except Exception as error:
        raise BadSetting(f"{name} does not run on an input of {input}: {error}") from error
    if as_json:
        print_json({"net": name, "head": m.head, "groups": m.groups, "broken": faults})
    elif not faults:
        print("\n".join([f"The axes table of {name} keeps both laws. {units_of(m)}.", LAWS]))
    else:
        print("\n".join(f"{group} breaks a law: {why}" for group, why in faults.items()))
    return 1 if faults else 0


def units_of(m: Model) -> str:
    """The groups, and how many units each has."""
    return f"Groups and their units: {', '.join(f'{g} {n}' for g, n in m.groups.items())}"


def sample(text: str) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and the type that a text such as ``3,32,32`` or ``80:int64`` says."""
    sides, _, kind = text.partition(":")
    try:
        shape = tuple(int(n) for n in sides.replace("x", ",").split(",") if n.strip())
    except ValueError as error:
        raise BadSetting(f"--input is a shape such as 3,32,32 or 80:int64, not {text!r}", "input") from error
    if min(shape, default=0) < 1 or (kind and kind not in DTYPES):
        raise BadSetting(f"--input is sizes of 1 or more and a type of {', '.join(DTYPES)}, not {text!r}", "input")
    return shape, getattr(torch, kind or "float32")


def said(found: Found) -> list[str]:
    """What stays whole, and why, in sentences."""
    return [f"{name} stays whole: {why}" for name, why in found.whole.items()]


def spoken(along: Any) -> Any:
    """What an axis is made of, fit for JSON."""
    if isinstance(along, tuple):
        return [spoken(part) for part in along]
    return {"group": along.group, "block": along.block, "repeat": along.repeat} if isinstance(along, Axis) else along


def module(name: str, given: Mapping[str, Any], make: Callable[..., Any], found: Found) -> str:
    """The source of a module with the table and a function that makes the model."""
    where, _, what = name.partition(":")
    notes = [f"The axes table of {name}. {units_of(found.model)}.", LAWS, *said(found)]
    known = signature(make).parameters
    fitted = {k: given.get(k, known[k].default) for k in FITTED if k in known}
    fitted = {k: v for k, v in fitted.items() if isinstance(v, int)}
    values = {k: k if k in fitted else repr(v) for k, v in {**given, **fitted}.items()}
    call = f"{what}({', '.join(f'{k}={v}' for k, v in values.items())})"
    settings = ", ".join(f"{k}: int = {v}" for k, v in fitted.items())
    return "\n".join(
        [
            *(line for note in notes for line in comment(note)),
            f"from {where} import {what}",
            "",
            "from fedquilt import Axis, Model, model",
            "",
            *table(found.axes),
            "",
            "",
            f"def net({settings}) -> Model:",
            f"    return model({call}, AXES, head={json.dumps(found.model.head)})",
        ]
    )


def comment(text: str) -> list[str]:
    """A comment, of as many lines as it takes."""
    return textwrap.wrap(text, 110, initial_indent="# ", subsequent_indent="#   ")


def table(axes: Axes) -> list[str]:
    """The table as Python."""
    rows = [
        f'    "{name}": ({", ".join(map(written, row))}{"," if len(row) == 1 else ""}),' for name, row in axes.items()
    ]
    return ["AXES = {", *rows, "}"]


def written(along: Any) -> str:
    """What an axis is made of, as Python."""
    if isinstance(along, tuple):
        return f"({', '.join(map(written, along))}{',' if len(along) == 1 else ''})"
    if not isinstance(along, Axis):
        return repr(along)
    more = "".join(f", {k}={v}" for k, v in (("block", along.block), ("repeat", along.repeat)) if v != 1)
    return f'Axis("{along.group}"{more})'
