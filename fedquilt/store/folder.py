"""The durable state of a run: two generations in a folder, and the lock that makes it one process's own.

::

    run.lock                  who holds the folder
    state/12.safetensors      the tensors of generation 12
    state/12.json             everything else of it
    state/12.manifest.json    round, size and SHA-256 of both, how long the journals were, and its own seal

A generation exists when its manifest does, and that is the last to be written.  Where much of a large
state has not changed, its manifest names the older files in which that stands.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors.torch import load as tensors_of
from safetensors.torch import save as tensors_as_bytes

from .files import Corrupt, StoreError, make_folder, read, replace, saving, sync_folder, write
from .journal import Journal
from .kept import Kept
from .lock import Lock
from .values import flatten, restore, text

FORMAT = 1
MANIFEST = "manifest.json"
_OURS = re.compile(r"(\d+)\.(safetensors|json|manifest\.json)(\.tmp)?")


class RunFolder:
    """A run's folder, held by this process until :meth:`close`; use it in a ``with`` statement.

    ``notices`` collects what a person should know of though the run goes on.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.notices: list[str] = []
        self._state = self.path / "state"
        self._whole: int | None = None  # the generation that is known to be whole
        self._kept = Kept()
        self._seals: dict[int, dict[str, Any]] = {}  # of each generation's file of tensors: its size and hash
        with saving(f"the folder {self.path} cannot be used"):
            make_folder(self.path)
            self._lock = Lock(self.path / "run.lock")
            try:
                make_folder(self._state)
            except BaseException:
                self._lock.release()
                raise

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # ---- saving
    def save(self, round: int, value: Any, journals: Mapping[str, Journal] | None = None) -> None:
        """Store a generation, with the journals as they are now; durable when this returns.

        The generation before it is kept.  An error of the disk raises :class:`Unsaved`, and a value
        that :func:`flatten` does not take :class:`TypeError`: what was saved before is untouched.
        """
        self._hold()
        said, tensors = flatten(value)
        elsewhere = self._kept.elsewhere(tensors, {m: seal["bytes"] for m, seal in self._seals.items()})
        older = {name for names in elsewhere.values() for name in names}
        fresh = {name: t for name, t in tensors.items() if name not in older}
        blobs = {"safetensors": tensors_as_bytes(fresh), "json": text(said).encode()}
        with saving(f"round {round} cannot be saved in {self.path}"):
            manifests, _ = self._files()
            self._remove_all_but(manifests)  # what an interrupted save has left: it may fill the disk
            before = self._newest_whole() if self._whole is None else self._whole
            for journal in (journals or {}).values():
                journal.sync()
            n = max(manifests, default=0) + 1
            for kind, data in blobs.items():
                write(self._file(n, kind), data)
            sync_folder(self._state)  # a manifest never stands without its blobs
            manifest: dict[str, Any] = {
                "format": FORMAT,
                "round": round,
                "blobs": {k: {"bytes": len(d), "sha256": sha256(d).hexdigest()} for k, d in blobs.items()},
                "older": {str(m): {**self._seals[m], "names": names} for m, names in elsewhere.items()},
                "journals": {k: j.offset for k, j in (journals or {}).items()},
            }
            replace(self._file(n, MANIFEST), _sealed(manifest))
        self._whole = n
        self._seals = {m: self._seals[m] for m in elsewhere} | {n: manifest["blobs"]["safetensors"]}
        self._kept.stands(n, tensors, elsewhere)
        try:
            self._remove_all_but({n, n if before is None else before})
        except OSError as e:
            self.notices.append(f"an old generation in {self._state} is not removed yet: {e.strerror}")

    def write(self, name: str, text: str) -> None:
        """A file of text in the folder; after a crash it is the old one or this, whole."""
        self._hold()
        with saving(f"{name} cannot be written in {self.path}"):
            replace(self.path / name, text.encode())

    def _files(self) -> tuple[set[int], list[tuple[int, str, Path]]]:
        """The generations, by their manifests, and all files: number, kind and path, manifests first."""
        found = [(m, self._state / m[0]) for m in map(_OURS.fullmatch, os.listdir(self._state)) if m]
        files = sorted((int(m[1]), m[2] + (m[3] or ""), path) for m, path in found)
        return {n for n, kind, _ in files if kind == MANIFEST}, sorted(files, key=lambda f: f[1] != MANIFEST)

    def _remove_all_but(self, keep: Collection[int]) -> None:
        older = set().union(*map(self._older, keep))
        for n, kind, path in self._files()[1]:
            if kind.endswith(".tmp") or not (n in keep or (n in older and kind == "safetensors")):
                path.unlink(missing_ok=True)

    def _older(self, n: int) -> set[int]:
        """The older generations whose tensors this one names."""
        try:
            return set(map(int, self._manifest(n).get("older", {})))
        except Corrupt:
            return set()
        except StoreError:  # of another version of the library: nobody here knows what it needs
            return {m for m, _, _ in self._files()[1]}

    def _file(self, n: int, kind: str) -> Path:
        return self._state / f"{n}.{kind}"

    def _hold(self) -> None:
        if not self._lock.held:
            raise StoreError(f"{self.path} is not held by this process: it was closed, or this is a forked worker")

    # ---- loading
    def load(self, journals: Mapping[str, Journal] | None = None) -> tuple[int, Any] | None:
        """The round and value of the newest whole generation, or None where none was ever saved.

        The journals are cut to what they were then.  A damaged generation is passed over with a
        notice; if no other is left, :class:`Corrupt` says which files are damaged.
        """
        self._hold()
        bad: list[str] = []
        for n in sorted(self._files()[0], reverse=True):
            try:
                manifest = self._manifest(n)
                value = self._value(n, manifest)
                for k, j in (journals or {}).items():
                    j.check(manifest["journals"].get(k, 0))
            except Corrupt as e:
                bad.append(str(e))
                continue
            with saving(f"the state in {self.path} cannot be made durable"):
                sync_folder(self._state)  # a killed process may have renamed the manifest and no more
            for k, j in (journals or {}).items():
                j.truncate(manifest["journals"].get(k, 0))
            self._whole = n
            self.notices += [f"{why}: the run goes back to round {manifest['round']}" for why in bad]
            return manifest["round"], value
        if bad:
            raise Corrupt(
                f"no whole state is left in {self.path}: {'; '.join(bad)}. "
                "Bring these files back from a copy, or begin again in another folder"
            )
        for j in (journals or {}).values():
            j.truncate(0)
        return None

    def _manifest(self, n: int) -> dict[str, Any]:
        path = self._file(n, MANIFEST)
        raw = read(path)
        try:
            said = json.loads(raw)
            del said["seal"]
            whole = _sealed(said) == raw
        except (ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise Corrupt(f"{path} is damaged")
        if said["format"] != FORMAT:
            raise StoreError(
                f"{path} has format {said['format']}, and this version of the library reads format {FORMAT}: "
                "resume the run with the version that wrote it"
            )
        return dict(said)

    def _value(self, n: int, manifest: dict[str, Any]) -> Any:
        blobs = {kind: self._blob(n, kind, said) for kind, said in manifest["blobs"].items()}
        # clones have memory as aligned as that of any new tensor, so that arithmetic gives the same bits
        tensors = {k: t.clone() for k, t in tensors_of(blobs["safetensors"]).items()}
        older = {int(m): said for m, said in manifest.get("older", {}).items()}
        for m, said in older.items():
            there = tensors_of(self._blob(m, "safetensors", said))
            tensors |= {name: there[old].clone() for name, old in said["names"].items()}
        self._seals = {m: {k: said[k] for k in ("bytes", "sha256")} for m, said in older.items()}
        self._seals[n] = manifest["blobs"]["safetensors"]
        self._kept.stands(n, tensors, {m: said["names"] for m, said in older.items()})
        return restore(json.loads(blobs["json"]), tensors)

    def _blob(self, n: int, kind: str, said: Mapping[str, Any]) -> bytes:
        """A file's bytes, if they are those that a manifest speaks of."""
        path = self._file(n, kind)
        raw = read(path)
        if len(raw) != said["bytes"]:
            raise Corrupt(f"{path} holds {len(raw)} bytes of {said['bytes']}")
        if sha256(raw).hexdigest() != said["sha256"]:
            raise Corrupt(f"{path} is damaged")
        return raw

    def _newest_whole(self) -> int | None:
        for n in sorted(self._files()[0], reverse=True):
            try:
                self._value(n, self._manifest(n))
                return n
            except Corrupt:
                continue
        return None


def _sealed(manifest: dict[str, Any]) -> bytes:
    """The only bytes that say this manifest: any other are damaged."""
    seal = sha256(text(manifest).encode()).hexdigest()
    return json.dumps({**manifest, "seal": seal}, indent=1).encode() + b"\n"
