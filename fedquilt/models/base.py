"""What every builder of a model uses: layers by name, rows of the axes table, and a spec that builds it again."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from ..cover import Axis
from ..schema import recorded

__all__ = ["Rows", "chain", "recorded", "rows"]

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
