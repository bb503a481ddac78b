"""Where the files of a data set are: in a folder in the hub's layout, or on the hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from .table import Entry

VARIABLE = "FEDQUILT_DATA"
SUMS = "SHA256SUMS"


class Missing(ValueError):
    """The files of a data set are not to be had; the text says how to get them."""


@dataclass(frozen=True)
class Place:
    """The folder that holds data sets, each in a folder of its own name; if empty, FEDQUILT_DATA says it."""

    folder: str = ""

    @property
    def path(self) -> Path | None:
        """The folder, if anybody named one."""
        said = self.folder or os.environ.get(VARIABLE, "")
        return Path(said).expanduser() if said else None


Files = Mapping[str, tuple[Path, ...]]  # of each split that is there, its files in order


def find(name: str, entry: Entry, place: Place) -> Files:
    """The files of a data set: those of the folder, or else those that the hub gives."""
    root = place.path
    if place.folder and root is not None and not root.is_dir():
        raise Missing(f"there is no folder {root}, which data-dir names")
    if root is not None and (root / entry.folder).is_dir():
        found = within(root / entry.folder, entry)
        if entry.splits[0] not in found:
            raise Missing(f"{root / entry.folder} has no {entry.splits[0]}.{entry.ending}; {_get(name, entry)}")
        _sums(root / entry.folder, found)
        return found
    if not entry.hub:
        raise Missing(_absent(name, entry))
    found = within(_download(name, entry), entry)
    if entry.splits[0] not in found:
        raise Missing(f"{entry.hub} on the hub has no files of its split {entry.splits[0]!r}; {_get(name, entry)}")
    return found


def within(folder: Path, entry: Entry) -> dict[str, tuple[Path, ...]]:
    """The files of each split: ``train.parquet``, ``data/train-00000-of-00002.parquet`` or ``train/0000.parquet``."""
    out: dict[str, tuple[Path, ...]] = {}
    for split in entry.splits:
        found = sorted(
            p
            for p in folder.rglob(f"*.{entry.ending}")
            if (p.stem == split or p.stem.startswith(split + "-") or p.parent.name == split)
            and (not entry.config or entry.config in p.relative_to(folder).parts or p.parent == folder)
        )
        if found:
            out[split] = tuple(found)
    return out


def _download(name: str, entry: Entry) -> Path:
    """The data set's folder as the hub's own package keeps it, downloaded if it is not there yet."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise Missing(_absent(name, entry)) from None
    prefix = f"{entry.config}/" if entry.config else ""
    patterns = [f"{prefix}*{split}*.{entry.ending}" for split in entry.splits]
    patterns += [f"{prefix}{split}/*.{entry.ending}" for split in entry.splits]
    try:
        said = snapshot_download(entry.hub, repo_type="dataset", revision=entry.revision, allow_patterns=patterns)
    except Exception as error:  # whatever its many layers raise, the data are not to be had
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise Missing(f"{name} could not be taken from the hub ({reason}); {_get(name, entry)}") from error
    return Path(said)


def _absent(name: str, entry: Entry) -> str:
    said = os.environ.get(VARIABLE, "")
    where = f" ({VARIABLE} names {said}, which is no folder)" if said and not Path(said).expanduser().is_dir() else ""
    return f"{name} is not here{where}; {_get(name, entry)}"


def _get(name: str, entry: Entry) -> str:
    files = " and ".join(f"{split}.{entry.ending}" for split in entry.splits)
    put = f"put {files} into the folder {entry.folder} of the one that --data-dir or {VARIABLE} names"
    if entry.hub:
        return f"{put}, or with a connection pip install 'fedquilt[data]': it then comes from {entry.hub} on the hub"
    return f"{put}: {entry.get}"


def _sums(folder: Path, found: Files) -> None:
    """Hold files against a list of their SHA-256 sums, where the folder has one."""
    listed = folder / SUMS
    if not listed.is_file():
        return
    lines = [line.split(maxsplit=1) for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()]
    sums = {line[1].lstrip("*"): line[0].lower() for line in lines if len(line) == 2}
    for path in (p for paths in found.values() for p in paths):
        name = path.relative_to(folder).as_posix()
        if name in sums and sha256(path.read_bytes()).hexdigest() != sums[name]:
            raise ValueError(f"{folder.name}/{name} is not what {SUMS} says that it is: get it again")
