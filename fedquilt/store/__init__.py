"""What outlives a process: a run's state, its journals, and the memories of clients.

Tensors are stored as safetensors and everything else as JSON, each with its SHA-256; nothing is
ever pickled.  Every write is whole or absent, and durable before what it replaces is removed.
"""

from .files import Busy, Corrupt, Missing, StoreError, Unsaved
from .folder import RunFolder
from .journal import Journal
from .memories import InRam, Memories, OnDisk
from .values import flatten, restore

__all__ = [
    "Busy",
    "Corrupt",
    "InRam",
    "Journal",
    "Memories",
    "Missing",
    "OnDisk",
    "RunFolder",
    "StoreError",
    "Unsaved",
    "flatten",
    "restore",
]
