"""What run.json says of a run, and whether a run that goes on in a folder is the one that was begun there."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from . import __version__
from .prepare import FREE, Prepared
from .schema import BadSetting

MADE_WITH = ("versions", "machine", "engine")  # what may change bits, and may change when a run goes on


def describe(prepared: Prepared) -> dict[str, Any]:
    """What run.json says: enough to know what was done, and to do it again."""
    sim = prepared.sim
    return {
        "format": 1,
        "id": sim.run,
        "run": prepared.run.plain(),
        "method": repr(sim.method),
        "engine": dict(prepared.setup.record()),
        "data": {
            "name": prepared.data.data.name,
            "fingerprint": prepared.data.fingerprint,
            "clients": len(prepared.data),
            "test doubles as validation": prepared.data.doubles,
            "unseen": sorted(prepared.data.unseen),
            "repeats": prepared.data.repeats,
            "files": dict(prepared.data.data.files),
        },
        "model": {
            "name": sim.model.name,
            "parameters": sim.model.count(),
            "groups": sim.model.groups,
            "spec": {k: list(v) if isinstance(v, tuple) else v for k, v in sim.model.spec.items()},
        },
        "versions": {"fedquilt": __version__, "python": platform.python_version(), "torch": torch.__version__},
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        },
        "commit": _commit(),
        "command": sys.argv,
    }


@cache
def _commit() -> dict[str, Any] | None:
    """Which commit of this project it is that runs, and whether its files differ; None if it is installed without."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    ask = ["git", "-C", str(root)]
    try:
        name = subprocess.run([*ask, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run([*ask, "status", "--porcelain", "--", "fedquilt"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"name": name, "changed": bool(changes.stdout)}


def same(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> list[str]:
    """Refuse to go on with another run; say what differs that may change bits."""
    if old["id"] != new["id"]:
        differ = [k for k in new["run"] if k not in FREE and old["run"].get(k) != new["run"][k]] or ["the data"]
        raise BadSetting(
            f"{folder} holds another run: {', '.join(differ)} differ from what is asked for; "
            "choose another folder, or do it anew with --force"
        )
    notices = []
    for part in MADE_WITH:
        for k, v in new[part].items():
            if old[part].get(k) != v:
                notices.append(f"{part}: {k} was {old[part].get(k)} and is {v}: bits may differ from here on")
    return notices


def resumed(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The record of a run that goes on; ``before`` tells with what else its earlier rounds were made."""
    before = list(old.get("before", []))
    if any(old[part] != new[part] for part in MADE_WITH):
        before.append({part: old[part] for part in MADE_WITH} | {"commit": old.get("commit")})
    return new | {"before": before} if before else new
