"""What every builder of a model uses: layers by name, rows of the axes table, and a spec that builds it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import ParamSpec

from torch import nn

from ..cover import Axis
from ..model import Model

P = ParamSpec("P")
Rows = dict[str, tuple[Axis | None, ...]]


def chain(**layers: nn.Module) -> nn.Sequential:
    """These layers one after another, under these names."""
    return nn.Sequential(OrderedDict(layers))


def rows(name: str, layer: nn.Module, out: Axis | None, into: Axis | None = None) -> Rows:
    """The table rows of a layer: the first axis of each of its tensors is ``out``, the second ``into``.

    This fits convolutions, linear layers and normalisation layers; other axes are of no group.
    """
    table = {f"{name}.{k}": (out, into, None, None, None)[: v.dim()] for k, v in layer.state_dict().items()}
    return {k: row for k, row in table.items() if any(row)}


def recorded(builder: Callable[P, Model]) -> Callable[P, Model]:
    """The builder, whose models know their name and (in ``spec``, fit for JSON) all of their settings."""

    @wraps(builder)
    def build(*args: P.args, **settings: P.kwargs) -> Model:
        said = signature(builder).bind(*args, **settings)
        said.apply_defaults()
        name = builder.__name__
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in said.arguments.items()}
        return replace(builder(*args, **settings), name=name, spec={"name": name, **plain})

    return build
