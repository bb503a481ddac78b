"""What each net of the zoo weighs: read from the table that ``fedquilt.meter.sizes`` writes, without torch."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from ..words import amount
from .cards import ROOT


@cache
def sizes() -> dict[str, dict[str, Any]]:
    """The table, by model."""
    found: dict[str, dict[str, Any]] = json.loads((ROOT / "models" / "sizes.json").read_text(encoding="utf-8"))
    return found


def facts(name: str) -> dict[str, str]:
    """What a list shows of a model at its own settings; operations and bytes at each width."""
    said = sizes()[name]
    widths = said["widths"]
    return {
        "parameters": f"{said['parameters']:,}",
        "groups": str(said["groups"]),
        "FLOP a sample": " ".join(amount(w["flops"], "") for w in widths.values()),
        "bytes": " ".join(amount(w["bytes"], "") for w in widths.values()),
        "widths": " ".join(widths),
    }
