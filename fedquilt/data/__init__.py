"""Data sets, who gets which samples, and each client's train, validation and test part."""

from __future__ import annotations

from .partition import Partition, dirichlet, iid
from .shard import Shards, deal, split
from .sources import SOURCES, Dataset, digits, load

__all__ = ["SOURCES", "Dataset", "Partition", "Shards", "deal", "digits", "dirichlet", "iid", "load", "split"]
