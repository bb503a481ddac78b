"""How a process of these tests dies at a moment of its own choosing."""

from __future__ import annotations

import os
import signal

from fedquilt import store
from fedquilt.types import Memory


def die_after(version: int, saves: int) -> None:
    """``kill -9`` to this process when so many memories of this version have been committed, before anything else."""
    real, left = store.OnDisk.save, [saves]

    def save(self: store.OnDisk, client: int, number: int, memory: Memory, base: int) -> None:
        real(self, client, number, memory, base)
        left[0] -= number == version
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    store.OnDisk.save = save  # type: ignore[method-assign]
