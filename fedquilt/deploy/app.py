"""A thin Flower app from a run's settings: a folder with one commented file; the work is in the installed library.

Flower's configuration knows flat tables of numbers, truths and texts, so that is how the settings stand in it:
lists as texts, no setting for none.  :meth:`fedquilt.run.Run.of` reads them back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..run import Run
from ..schema import BadSetting
from ..store import files

FILE = "pyproject.toml"
MINE = ("engine", "data_dir")  # each machine's own affair
# What only a simulation can say: on devices it is as it is.
SIMULATED: Mapping[str, Any] = {"availability": "always", "dropout": 0.0, "stragglers": "none", "unseen": 0.0}

TEMPLATE = """\
# A Flower app that runs a method of FedQuilt on real devices.
#
#   flwr run . CONNECTION --stream             submits it once
#   fedquilt deploy run . CONNECTION           submits it again until the run is finished
#
# The bundle that Flower sends to its nodes is this folder.  It holds no code: FedQuilt is installed on every machine,
# in the same version, and the data are where FEDQUILT_DATA says on each, or a node has its own.  A node says which
# client it is when it is started:
#
#   flower-supernode --node-config 'client-id=0' ...
#   flower-supernode --node-config 'client-id=1 profile="jetson-nano" width=0.4 memory="/var/lib/fedquilt"' ...
#   flower-supernode --node-config 'client-id=2 data="csv:/srv/mine.csv"' ...

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = {description}
license = "Apache-2.0"
dependencies = []  # Flower would install them on the server for each run; FedQuilt is there

[tool.flwr.app]
publisher = "fedquilt"

[tool.flwr.app.components]
serverapp = "fedquilt.drive.flower.server:app"
clientapp = "fedquilt.drive.flower.client:app"

[tool.flwr.app.config]
# Where the server keeps the run; submitted again, it goes on from there.
out = {out}
# How many seconds a node may take to answer, and how long a round waits for enough clients to be there.
patience = {patience}
# How many clients must be there for a round to begin (the first round waits for all, as long as patience lasts).
least = 1
# Seconds between two looks whether replies have come.
poll = 0.1
# What a method hears of how long a client took: "priced" (its counts on its device) or "measured".
seconds = "priced"

# The run: what `fedquilt list settings` and `fedquilt show METHOD` describe.  All of it can be changed here, or for one
# submission: flwr run . CONNECTION -c 'run.rounds=50'.  A changed run is another run and needs another folder.
[tool.flwr.app.config.run]
{settings}
"""


def init(folder: Path, run: Run, out: Path, patience: float = 600.0) -> Path:
    """Write the app; the folder must be new, or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise BadSetting(f"{folder} is not empty: choose another folder for the app, or remove it")
    refuse(run)
    settings = flat(run)
    text = TEMPLATE.format(
        name=re.sub(r"[^a-z0-9]+", "-", f"fedquilt-{settings['method']}-{settings['data']}".lower()).strip("-"),
        description=_toml(f"{settings['method']} on {settings['data']}, by FedQuilt"),
        out=_toml(str(out.expanduser().absolute())),
        patience=_toml(float(patience)),
        settings="\n".join(f"{k} = {_toml(v)}" for k, v in settings.items()),
    )
    files.make_folder(folder)
    files.replace(folder / FILE, text.encode())
    return folder / FILE


def refuse(run: Run) -> None:
    """A run of what happens by itself on devices is refused."""
    for name, plain in SIMULATED.items():
        if getattr(run, name) != plain:
            raise BadSetting(
                f"{name} is simulated, and on real devices it comes by itself: leave it out (it is {plain!r}, "
                f"not {getattr(run, name)!r})",
                name,
            )


def flat(run: Run) -> dict[str, Any]:
    """A run as flat settings: those of the run, and beside them those of its method."""
    from ..prepare import resolved  # here, because it loads torch

    said = resolved(run).plain()
    for name in ("method", "model", "data"):
        if isinstance(said[name], Mapping) and "made in Python" in said[name]:
            raise BadSetting(f"a {name} that was made in Python cannot be sent to devices: choose one that has a name")
    method = dict(said.pop("method"))
    model = said.pop("model")
    if isinstance(model, Mapping):
        words = [f"{k}={_text(v)}" for k, v in model.items() if k != "name"]
        model = ":".join([str(model["name"]), *words])
    every = {"method": method.pop("name"), "model": model, **said, **method}
    return {k: _scalar(v) for k, v in every.items() if k not in MINE and not (k == "bound" and v is None)}


def _scalar(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # inf and nan are TOML
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
