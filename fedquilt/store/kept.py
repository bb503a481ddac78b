"""What of a state stands in an older file already, so that a round writes what it changed and not all that there is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..cover import Params

FROM = 8 << 20  # bytes that would be written again: below, two copies that share nothing are worth more

Elsewhere = dict[int, dict[str, str]]  # generation -> the tensor's name now -> its name there


class Kept:
    """The tensors of the last state that was saved or loaded, and in which generation's file each stands.

    A tensor is the same if it is the same memory, not written to since: its memory cannot have been
    given to another, as it is held here.
    """

    def __init__(self) -> None:
        self._held: Params = {}
        self._where: dict[tuple[object, ...], tuple[int, str]] = {}

    def elsewhere(self, tensors: Params, sizes: Mapping[int, int]) -> Elsewhere:
        """The tensors that need not be written, by the generation whose file (of so many bytes) holds them.

        A file of which less than half is still of use is given up: files never hold more than twice what is.
        """
        found: Elsewhere = {}
        for name, t in tensors.items():
            if (at := self._where.get(_identity(t))) is not None:
                found.setdefault(at[0], {})[name] = at[1]
        live = {n: sum(tensors[name].nbytes for name in names) for n, names in found.items()}
        found = {n: names for n, names in found.items() if 2 * live[n] >= sizes[n]}
        return found if sum(live[n] for n in found) >= FROM else {}

    def stands(self, n: int, tensors: Params, elsewhere: Elsewhere) -> None:
        """These are the tensors of generation ``n``, written there but for those that stand elsewhere."""
        where = {name: (n, name) for name in tensors}
        where |= {name: (m, there) for m, names in elsewhere.items() for name, there in names.items()}
        self._held = dict(tensors)
        self._where = {_identity(t): where[name] for name, t in tensors.items()}


def _identity(t: Tensor) -> tuple[object, ...]:
    if t.is_inference():  # nothing tells whether it was written to
        return (object(),)
    return t.data_ptr(), t.dtype, tuple(t.shape), t._version
