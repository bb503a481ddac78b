"""Every test runs on one thread a process: results are then the same whatever the machine's load."""

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def strict_vmap() -> Iterator[None]:
    """An operation without a batching rule is an error, not a slow loop."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)
