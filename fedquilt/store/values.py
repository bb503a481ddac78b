"""Values as JSON and named tensors, and back: equal in type and in every bit.

What JSON says of itself stays as it is.  The rest is an object of one key that begins with ``!``::

    {"!tensor": name}    {"!cover": base64}    {"!bytes": base64}
    {"!tuple": [...]}    {"!set": [...]}       {"!frozenset": [...]}
    {"!dict": [[key, value], ...]}             a dict with a key that is no string, or begins with !
    {"!int": hexadecimal}                      an integer of more than 64 bits
    {"!float": the eight bytes}                nan and the infinities
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..cover import Cover, Params
from ..types import Json
from .files import Corrupt

DEEPEST = 64
LARGEST = 1 << 63
RESERVED = "__metadata__"  # safetensors keeps this name for itself

DTYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)

Place = tuple[object, ...]


def flatten(value: Any, called: str = "value") -> tuple[Json, Params]:
    """A nested value as JSON and named tensors; :func:`restore` is the inverse.

    It may be made of dict, list, tuple, set, frozenset, str, bool, int, float, None, bytes, Tensor
    and Cover, of exactly these types: a subclass would come back as something else.  Tensors are
    shared with the value where they can be, come back on the CPU and without history, each with
    memory of its own.  ``called`` is the value's name in errors.
    """
    flat = _Flat(called)
    return flat.json(value, ()), flat.tensors


def text(value: Json) -> str:
    """Compact JSON, in ASCII, with the keys in their order."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class _Flat:
    def __init__(self, called: str) -> None:
        self.called = called
        self.tensors: Params = {}
        self.storages: set[int] = set()

    def json(self, v: Any, place: Place) -> Json:
        kind = type(v)
        if v is None or kind is str or kind is bool:
            return v  # type: ignore[no-any-return]
        if kind is int:
            return v if -LARGEST <= v < LARGEST else {"!int": hex(v)}
        if kind is float:
            return v if math.isfinite(v) else {"!float": struct.pack(">d", v).hex()}
        if kind is bytes:
            return {"!bytes": b64encode(v).decode()}
        if kind is Cover:
            return {"!cover": b64encode(v.encode()).decode()}
        if kind is Tensor:
            return {"!tensor": self.tensor(v, place)}
        if kind in (list, tuple, set, frozenset, dict):
            if len(place) == DEEPEST:
                raise TypeError(f"{self.at(place[:3])}... is nested more than {DEEPEST} deep, or holds itself")
            return self.table(v, place) if kind is dict else self.many(kind, v, place)
        raise TypeError(
            f"{self.at(place)} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored; these can: dict, "
            "list, tuple, set, frozenset, str, bool, int, float, None, bytes, torch.Tensor (detached) and Cover"
        )

    def at(self, place: Place) -> str:
        return self.called + "".join(f"[{p!r:.60}]" for p in place)

    def many(self, kind: type, v: Any, place: Place) -> Json:
        items = [self.json(x, (*place, i)) for i, x in enumerate(v)]
        if kind is list:
            return items
        # a set has no order of its own: sorted, equal sets are equal bytes in every process
        return {f"!{kind.__name__}": items if kind is tuple else sorted(items, key=text)}

    def table(self, v: dict[Any, Any], place: Place) -> Json:
        if all(type(k) is str and not k.startswith("!") for k in v):
            return {k: self.json(x, (*place, k)) for k, x in v.items()}
        return {"!dict": [[self.json(k, (*place, "a key")), self.json(x, (*place, k))] for k, x in v.items()]}

    def tensor(self, t: Tensor, place: Place) -> str:
        if t.dtype not in DTYPES or t.layout is not torch.strided or t.is_meta:
            raise TypeError(
                f"{self.at(place)} is a tensor of {t.dtype}, {t.layout}, on {t.device}, which cannot be stored; dense "
                f"ones with values can, of {', '.join(sorted(str(d).removeprefix('torch.') for d in DTYPES))}"
            )
        t = t.detach().resolve_neg().cpu().contiguous()
        if t.untyped_storage().data_ptr() in self.storages:  # safetensors refuses tensors that share memory
            t = t.clone()
        self.storages.add(t.untyped_storage().data_ptr())
        name = "/".join(map(str, place)).encode("utf-8", "backslashreplace").decode()
        while name in self.tensors or name == RESERVED:
            name += "'"
        self.tensors[name] = t
        return name


def restore(value: Json, tensors: Mapping[str, Tensor]) -> Any:
    """The value that :func:`flatten` was given."""
    if isinstance(value, list):
        return [restore(x, tensors) for x in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith("!"):
        return {k: restore(x, tensors) for k, x in value.items()}
    said: Any = value[tag]
    if tag == "!tensor" and said in tensors:
        return tensors[said]
    if tag == "!dict":
        return {restore(k, tensors): restore(x, tensors) for k, x in said}
    if tag in _MANY:
        return _MANY[tag](restore(x, tensors) for x in said)
    if tag in _ONE:
        return _ONE[tag](said)
    raise Corrupt(f"{tag} {str(said)[:60]!r} cannot be read: another version of this library wrote it")


_MANY: Mapping[str, Callable[[Any], Any]] = {"!tuple": tuple, "!set": set, "!frozenset": frozenset}
_ONE: Mapping[str, Callable[[str], Any]] = {
    "!int": lambda s: int(s, 16),
    "!float": lambda s: struct.unpack(">d", bytes.fromhex(s))[0],
    "!bytes": b64decode,
    "!cover": lambda s: Cover.decode(b64decode(s)),
}
