"""What each client holds: how many samples in each part, and of each class."""

from __future__ import annotations

from typing import Any

import torch

from .shard import SPLITS, Shards


def held(shards: Shards) -> list[dict[str, Any]]:
    """A row a client, as before the first round; ``classes`` is empty where targets are not classes."""
    splits = ("train", "test") if shards.doubles else SPLITS
    out = []
    for client in shards.clients:
        y = shards.data.y.index_select(0, torch.cat([shards.parts.part(client, s) for s in splits])).flatten()
        counts = [] if y.is_floating_point() else torch.bincount(y, minlength=shards.data.classes).tolist()
        out.append({"client": client, **shards.counts(client), "classes": counts})
    return out
