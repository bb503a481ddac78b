"""A run as a value: what is to be done, from Python, a file or the command line; importing this loads no torch.

    result = fedquilt.run(Run(method=fedspu(lr=0.05), data="digits", rounds=20))

A run of plain settings (names, numbers, texts) can be written down and started again; one that holds
a method, net or data set made in Python can too, but only Python can resume it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .schema import BadSetting, check

if TYPE_CHECKING:
    from .data.sources import Dataset
    from .history import Result
    from .method import Method
    from .model import Model

Watch = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Run:
    """The settings of a run.

    :param method: a name, a mapping of a name and settings (``{"name": "fedspu", "lr": 0.01}``), or a method
    :param data: a name (``fedquilt list data``) with settings, such as ``csv:mine.csv``; from Python also a data set
    :param model: a name with settings (``cnn:conv=16,32``) or ``my.module:net``; ``auto``: as the data say
    :param clients: how many clients the data are shared out among
    :param partition: who gets which samples: ``auto`` (what suits the data), ``dirichlet:0.1``, ``natural``, ...
    :param split: train/validation/test of each client in per cent; in 70/0/30 the test part doubles as validation
    :param unseen: a share of the clients that never train; they are scored before and after adaptation
    :param drift: how data change over the rounds: ``repartition:every=40``; several are joined by +
    :param fleet: the clients' devices: ``tiers:WIDTHS``, ``levels:high``, ``profiles:NAMES``, ``phones128``
    :param availability: when a client is there: ``always``, ``random:0.5``, ``day-night``, ``trace:FILE``
    :param dropout: how likely a client that has started never answers
    :param stragglers: who takes longer than its device says: ``random:SHARE:FACTOR``, ``fixed:SHARE:FACTOR``
    :param rounds: how many rounds
    :param seed: of all randomness
    :param engine: who does the work (``fedquilt list engines``): ``serial``, ``processes:4``
    :param schedule: when a round ends (``fedquilt list schedules``): ``deadline:60``, ...; empty: the method's own
    :param stop: what ends the run before its last round: ``plateau``, ...; empty: the method's own
    :param norm: whose the statistics of normalisation layers are (``fedquilt list norms``); empty: the method's own
    :param eval_every: every client's model is scored after so many rounds (0: only at the end)
    :param bound: the longest update that the guard lets pass
    :param data_dir: the folder that holds data sets; empty: the one that FEDQUILT_DATA names
    """

    method: Method | Mapping[str, Any] | str = "fedavg"
    data: Dataset | str = "digits"
    model: Model | str = "auto"
    clients: int = 20
    partition: str = "auto"
    split: str = "60/10/30"
    unseen: float = 0.0
    drift: str = ""
    fleet: str = "tiers:0.2,0.4,0.6,0.8,1"
    availability: str = "always"
    dropout: float = 0.0
    stragglers: str = "none"
    rounds: int = 30
    seed: int = 0
    engine: str = "serial"
    schedule: str = ""
    stop: str = ""
    norm: str = ""
    eval_every: int = 10
    bound: float = math.inf
    data_dir: str = ""

    def __post_init__(self) -> None:
        for name, least in (("clients", 1), ("rounds", 0), ("eval_every", 0)):
            if getattr(self, name) < least:
                raise BadSetting(f"{name} is at least {least}, not {getattr(self, name)}", name)

        if not self.bound > 0:
            raise BadSetting(f"bound is a length above 0, not {self.bound}", "bound")
        if not 0 <= self.unseen < 1:
            raise BadSetting(f"unseen is a share of the clients, from 0 to below 1, not {self.unseen}", "unseen")

    def plain(self) -> dict[str, Any]:
        """The run as settings fit for JSON; what Python made is there by its own record, else as its text."""
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("method", "model"):
            thing = said[name]
            if not isinstance(thing, (str, Mapping)):
                said[name] = dict(thing.spec) or {"made in Python": repr(thing)}
        if not isinstance(self.data, str):
            said["data"] = {"made in Python": self.data.name}
        return said | {"bound": None if math.isinf(self.bound) else self.bound}

    @staticmethod
    def of(settings: Mapping[str, Any], where: str = "the run") -> Run:
        """The run that plain settings say: those of a file or of the command line, checked.

        Settings that are not a run's are the method's: ``{"method": "fedspu", "lr": 0.01}``.
        """
        mine = {f.name for f in fields(Run)}
        given = dict(settings)
        method = given.pop("method", "fedavg")
        spec = {"name": method} if isinstance(method, str) else dict(method)
        spec |= {k: given.pop(k) for k in list(given) if k not in mine}
        for name in ("method", "model", "data"):
            if isinstance(settings.get(name), Mapping) and "made in Python" in settings[name]:
                raise BadSetting(
                    f"{where}: its {name} was made in Python ({settings[name]['made in Python']}), so only Python can "
                    f"run it again: fedquilt.run(Run(...), out=FOLDER, resume=True)"
                )
        things = {"method": spec, "model": _texted(given.pop("model", "auto")), "data": given.pop("data", "digits")}
        for name in ("model", "data"):
            if not isinstance(things[name], str):
                raise BadSetting(f"{where}: {name} is a text, not {things[name]!r}", name)
        if given.get("bound", 0) is None:
            del given["bound"]
        return Run(**things, **check(Run, given, where))


def _texted(model: Mapping[str, Any] | str) -> str:
    """A model's spec as the text that names it."""
    if not isinstance(model, Mapping) or "name" not in model:
        return model  # type: ignore[return-value]  # refused by who asks
    given = {k: ",".join(map(str, v)) if isinstance(v, list) else v for k, v in model.items() if k != "name"}
    return ":".join([str(model["name"]), *(f"{k}={v}" for k, v in given.items())])


def slug(run: Run) -> str:
    """A name for the folder of a run: what it is about, and a short digest of all its settings."""
    said = run.plain()
    method = said["method"] if isinstance(said["method"], str) else str(said["method"].get("name", "own"))
    words = [method, said["data"] if isinstance(said["data"], str) else "own", f"s{run.seed}"]
    del said["engine"], said["data_dir"]  # engines give the same run, and so do the same data elsewhere
    digest = blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join([*words, digest]))


def record_of(folder: Path) -> dict[str, Any]:
    """What run.json in a folder says of its run."""
    path = folder / "run.json"
    try:
        said = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadSetting(f"{folder} holds no run: there is no run.json in it") from None
    except ValueError as error:
        raise BadSetting(f"{path} is not readable as JSON ({error}): bring it back from a copy") from error
    wanted = {"id": str, "run": dict, "method": str, "data": dict, "engine": dict, "versions": dict, "machine": dict}
    if not isinstance(said, dict) or not all(isinstance(said.get(k), kind) for k, kind in wanted.items()):
        raise BadSetting(f"{path} is not what a run wrote: bring it back from a copy, or choose another folder")
    return said


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of the run that a folder holds."""
    return dict(record_of(folder)["run"])


def run(run: Run, out: str | Path | None = None, watch: Watch | None = None, resume: bool = False) -> Result:
    """Do the run.  With ``out`` it is kept in that folder and survives being killed; ``watch`` sees each record.

    With ``resume`` a run that was begun in the folder goes on where its last round ended.
    """
    from .conduct import conduct

    return conduct(run, None if out is None else Path(out), watch, resume)


def resume(folder: str | Path, watch: Watch | None = None) -> Result:
    """Go on with the run in a folder, where its last round ended."""
    return run(Run.of(settings_of(Path(folder)), f"the run in {folder}"), folder, watch, resume=True)
