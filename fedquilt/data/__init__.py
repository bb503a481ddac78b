"""Data sets, who gets which samples, and each client's train, validation and test part."""

from __future__ import annotations

from .dataset import Dataset
from .own import own
from .partition import Partition, dirichlet, iid
from .ready import Prepare
from .shard import Shards, deal, split
from .sources import SOURCES, digits, load

__all__ = [
    "SOURCES",
    "Dataset",
    "Partition",
    "Prepare",
    "Shards",
    "deal",
    "digits",
    "dirichlet",
    "iid",
    "load",
    "own",
    "split",
]
