"""Decoded data on disk, so that files are decoded once: tensors, not pickles, named by what they came from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .dataset import digest
from .hub import Files

VARIABLE = "FEDQUILT_CACHE"
VERSION = 1  # of the decoders: another one reads the files again


@dataclass(frozen=True, eq=False)
class Raw:
    """What files hold, decoded: samples as compact as can be, targets, and to whom and which series they belong."""

    x: Tensor
    y: Tensor
    groups: Tensor | None = None
    series: Tensor | None = None
    owners: tuple[str, ...] = ()
    own_test: int = 0
    files: Mapping[str, int] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """Those that it has."""
        mine = {"x": self.x, "y": self.y, "groups": self.groups, "series": self.series}
        return {k: v for k, v in mine.items() if v is not None}


def folder() -> Path:
    """Where decoded data are kept: FEDQUILT_CACHE, or the system's own place for such things."""
    if said := os.environ.get(VARIABLE):
        return Path(said).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "fedquilt"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedquilt"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedquilt"


def kept(name: str, files: Files, settings: Mapping[str, object], make: Callable[[], Raw]) -> Raw:
    """What ``make`` decodes, from disk if these very files were decoded with these settings before."""
    path = folder() / f"{name}-{fingerprint(files, settings)}.safetensors"
    found = _read(path)
    if found is not None:
        return found
    raw = make()
    _write(path, raw)
    return raw


def fingerprint(files: Files, settings: Mapping[str, object]) -> str:
    """A short name of the contents of files."""
    h = blake2b(json.dumps([VERSION, {k: str(v) for k, v in settings.items()}]).encode(), digest_size=12)
    for split, paths in files.items():
        for path in paths:
            with path.open("rb") as f:
                inside = blake2b(f.read(), digest_size=16)
            h.update(f"{split} {path.name} {inside.hexdigest()}\n".encode())
    return h.hexdigest()


def _read(path: Path) -> Raw | None:
    """What was written there; None if nothing was, or if it is not what was written."""
    try:
        with path.open("rb") as f:
            size = int.from_bytes(f.read(8), "little")
            said = json.loads(f.read(min(size, 1 << 24)))["__metadata__"]
        tensors = load_file(path)
        facts: dict[str, Any] = json.loads(said["facts"])
        if digest(dict(sorted(tensors.items()))) != said["digest"]:
            return None
        more: dict[str, Any] = {**tensors, **facts, "owners": tuple(facts["owners"])}
        return Raw(**more)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None


def _write(path: Path, raw: Raw) -> None:
    """Keep it, if that can be: a cache that cannot be written costs time, not the run."""
    facts = {"owners": raw.owners, "own_test": raw.own_test, "files": dict(raw.files)}
    tensors = {k: v.contiguous() for k, v in sorted(raw.tensors().items())}
    half = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, half, {"facts": json.dumps(facts), "digest": digest(tensors)})
        os.replace(half, path)
    except (OSError, SafetensorError):
        with suppress(OSError):
            half.unlink(missing_ok=True)
