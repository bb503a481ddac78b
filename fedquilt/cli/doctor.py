"""``doctor``: is everything there that a run may want?"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import psutil

from .. import __version__
from ..words import amount
from .tables import console, print_json, table

CORE = ("torch", "numpy", "scikit-learn", "scipy", "pydantic", "cyclopts", "rich", "safetensors", "psutil")
OURS = ("test", "test-all", "demo", "docs", "bench")  # extras that are for work on the project itself


def doctor(as_json: bool) -> int:
    """Say what is here; 1 if a run could not work."""
    said, faults = examined()
    if as_json:
        print_json({**said, "faults": faults})
        return 1 if faults else 0
    made = table("fedquilt doctor")
    made.add_column("what")
    made.add_column("found")
    for name, value in said.items():
        made.add_row(name, value if isinstance(value, str) else "\n".join(f"{k} {v}" for k, v in value.items()))
    out = console()
    out.print(made)
    for fault in faults:
        out.print(f"  fault: {fault}")
    out.print("  everything that a run needs is here" if not faults else "  this needs mending before a run")
    return 1 if faults else 0


def examined() -> tuple[dict[str, Any], list[str]]:
    """What was found, and what is at fault."""
    faults: list[str] = []
    memory = psutil.virtual_memory()
    said: dict[str, Any] = {
        "fedquilt": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "cores": f"{psutil.cpu_count(logical=False) or '?'} ({psutil.cpu_count() or '?'} threads)",
        "memory": f"{amount(memory.available, 'B')} of {amount(memory.total, 'B')} free",
        "disk": f"{amount(shutil.disk_usage('.').free, 'B')} free here",
        "versions": {name: _version(name) for name in CORE},
        "gpu": _gpu(),
        "flower": _flower(),
        "data folder": _data(faults),
    }
    faults += [f"{name} is not installed" for name, v in said["versions"].items() if v == "missing"]
    if not os.access(".", os.W_OK):
        faults.append("this folder cannot be written to: runs are kept in ./runs, or where --out says")
    said["extras"] = {extra: _extra(names) for extra, names in extras().items()}
    return said, faults


def extras() -> dict[str, tuple[str, ...]]:
    """The packages that each extra installs, as the installed project's own metadata say."""
    try:
        lines = requires("fedquilt") or []
    except PackageNotFoundError:  # imported from a folder
        lines = []
    found: dict[str, list[str]] = {}
    for line in lines:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"""extra == ['"]([\w-]+)['"]""", line)
        if name and extra and extra[1] not in OURS and name[0] != "fedquilt":
            found.setdefault(extra[1], []).append(name[0])
    return {extra: tuple(names) for extra, names in sorted(found.items())}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _extra(names: tuple[str, ...]) -> str:
    found = {n: _version(n) for n in names}
    missing = [n for n, v in found.items() if v == "missing"]
    there = ", ".join(f"{n} {v}" for n, v in found.items() if v != "missing")
    return there if not missing else f"{there + '; ' if there else ''}not installed: {', '.join(missing)}"


def _gpu() -> str:
    if importlib.util.find_spec("torch") is None:
        return "unknown: torch is missing"
    import torch

    if not torch.cuda.is_available():
        return "none that torch can use (none is needed)"
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _flower() -> str:
    found = _version("flwr")
    return f"flwr {found}" if found != "missing" else "not installed: pip install 'fedquilt[flower]'"


def _data(faults: list[str]) -> str:
    where = os.environ.get("FEDQUILT_DATA")
    if where is None:
        return "FEDQUILT_DATA is not set: only data that come with scikit-learn, unless --data-dir says where"
    path = Path(where)
    if not path.is_dir():
        faults.append(f"FEDQUILT_DATA is {where}, which is no folder")
        return f"{where} (no folder)"
    return f"{where}: {', '.join(sorted(p.name for p in path.iterdir() if p.is_dir())) or 'empty'}"
