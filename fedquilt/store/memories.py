"""What clients keep for themselves: versions of a memory, in RAM or on a disk.

A client that works on version ``base`` stores its next version and keeps ``base``: if the server
never hears of it, or dies and repeats the order, the work begins again from what it began with.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from safetensors.torch import load as tensors_of
from safetensors.torch import save as tensors_as_bytes

from ..types import Memory
from .files import Corrupt, Missing, make_folder, read, replace, saving
from .values import flatten, restore, text

SHARDS = 256
_OURS = re.compile(r"(\d+)\.safetensors(\.tmp)?")
_MARK = b'"{\\"sha256\\":\\"'  # what stands before the hash in the file's header
_BLANK = b"0" * 64  # what stands in its place while it is computed


class Memories(Protocol):
    """Where the memories of clients live.

    Version 0 is the empty memory; another that is not there raises :class:`Missing`.  ``save``
    stores ``version``, keeps ``base`` and drops all others.  What is loaded is the caller's own:
    equal in type and bit to what was saved, and shared with nobody.
    """

    def load(self, client: int, version: int) -> Memory: ...
    def save(self, client: int, version: int, memory: Memory, base: int) -> None: ...


# ---- a memory as bytes
def _encode(client: int, version: int, memory: Memory) -> bytes:
    """A safetensors file whose metadata hold the facts, the spec, and the SHA-256 of the whole file."""
    value = {"tensors": dict(memory.tensors), "facts": dict(memory.facts), "spec": dict(memory.spec)}
    said, tensors = flatten(value, f"the memory of client {client}")
    about = text({"sha256": _BLANK.decode(), "client": client, "version": version, "memory": said})
    raw = tensors_as_bytes(tensors, {"fedquilt": about})
    at = raw.index(_MARK) + len(_MARK)
    return b"".join((raw[:at], sha256(raw).hexdigest().encode(), raw[at + 64 :]))


def _decode(raw: bytes) -> Memory:
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    said = json.loads(header["__metadata__"]["fedquilt"])["memory"]
    # clones have memory as aligned as that of any new tensor, so that arithmetic gives the same bits
    return Memory(**restore(said, {k: t.clone() for k, t in tensors_of(raw).items()}))


def _check(raw: bytes, path: Path, client: int, version: int) -> None:
    """Are these the bytes that were written, and for this client and version?"""
    at = raw.find(_MARK) + len(_MARK)
    h = sha256(raw[:at])
    h.update(_BLANK)
    h.update(memoryview(raw)[at + 64 :])
    if raw[at : at + 64] != h.hexdigest().encode():
        raise Corrupt(f"{path} is damaged: bring it back from a copy, or remove it and let client {client} begin anew")
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    about = json.loads(header["__metadata__"]["fedquilt"])
    if (about["client"], about["version"]) != (client, version):
        raise Corrupt(f"{path} holds version {about['version']} of client {about['client']}: it was put there by hand")


def _ordered(version: int, base: int) -> None:
    if not 0 <= base < version:
        raise ValueError(f"a memory's version follows its base, and 0 is the empty one: not {version} on {base}")


def _missing(client: int, version: int, there: list[int], where: str) -> Missing:
    held = f"there: {', '.join(map(str, sorted(there)))}" if there else "there is none of this client"
    return Missing(
        f"version {version} of the memory of client {client} is not {where} ({held}); "
        "it was lost, or the run went back further than memories are kept: bring it back from a copy, "
        "or let the client begin anew"
    )


class InRam:
    """Memories that end with the process."""

    def __init__(self) -> None:
        self._versions: dict[int, dict[int, bytes]] = {}

    def load(self, client: int, version: int) -> Memory:
        if version == 0:
            return Memory()
        there = self._versions.get(client, {})
        if version not in there:
            raise _missing(client, version, list(there), "in RAM")
        return _decode(there[version])

    def save(self, client: int, version: int, memory: Memory, base: int) -> None:
        _ordered(version, base)
        there = self._versions.get(client, {})
        kept = {base: there[base]} if base in there else {}
        self._versions[client] = {**kept, version: _encode(client, version, memory)}


class OnDisk:
    """Memories in files, ``<two hex digits>/<client>/<version>.safetensors`` under a folder.

    A kill at any moment leaves a version as it was or as it is to be.  Up to ``hot_bytes`` of what
    was used last stay in RAM as well, and are read from there.  ``durable=False`` leaves out what
    protects against the loss of power, for runs that are thrown away.  ``spare`` versions older
    than the base are kept too: with one, a run whose newest state is damaged finds the memories
    that the state before it names.
    """

    def __init__(self, folder: Path | str, hot_bytes: int = 64 << 20, durable: bool = True, spare: int = 0) -> None:
        self.folder, self.durable, self.spare = Path(folder), durable, spare
        self._hot = _Hot(hot_bytes)

    def _home(self, client: int) -> Path:
        # a folder a client: what is there is known without a look at those of others
        return self.folder / f"{client % SHARDS:02x}" / str(client)

    def _there(self, home: Path) -> dict[str, int]:
        try:
            return {m[0]: -1 if m[2] else int(m[1]) for m in map(_OURS.fullmatch, os.listdir(home)) if m}
        except FileNotFoundError:
            return {}

    def load(self, client: int, version: int) -> Memory:
        if version == 0:
            return Memory()
        raw = self._hot.get((client, version))
        if raw is None:
            path = self._home(client) / f"{version}.safetensors"
            if not path.exists():
                there = [v for v in self._there(path.parent).values() if v > 0]
                raise _missing(client, version, there, f"in {self.folder}")
            raw = read(path)
            _check(raw, path, client, version)
            self._hot.put((client, version), raw)
        return _decode(raw)

    def save(self, client: int, version: int, memory: Memory, base: int) -> None:
        _ordered(version, base)
        raw = _encode(client, version, memory)
        home = self._home(client)
        with saving(f"version {version} of the memory of client {client} cannot be saved"):
            if base == 0 or not home.is_dir():  # a base was stored here, so that the folder is known to last
                self._make(home)
            replace(home / f"{version}.safetensors", raw, self.durable)
        self._hot.put((client, version), raw)
        there = self._there(home)
        spare = sorted(v for v in there.values() if 0 < v < base)[-self.spare :] if self.spare else []
        for name, v in there.items():
            if v not in (version, base, *spare):
                self._hot.drop((client, v))
                with suppress(OSError):  # the next save tries again
                    os.unlink(home / name)

    def _make(self, home: Path) -> None:
        for folder in (self.folder, home.parent, home):
            make_folder(folder, self.durable)


class _Hot:
    """Bytes used lately, up to a sum."""

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self.held: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def get(self, key: tuple[int, int]) -> bytes | None:
        if key in self.held:
            self.held.move_to_end(key)
        return self.held.get(key)

    def put(self, key: tuple[int, int], raw: bytes) -> None:
        self.drop(key)
        if len(raw) <= self.limit:
            self.held[key] = raw
            self.size += len(raw)
        while self.size > self.limit:
            self.drop(next(iter(self.held)))

    def drop(self, key: tuple[int, int]) -> None:
        if key in self.held:
            self.size -= len(self.held.pop(key))
