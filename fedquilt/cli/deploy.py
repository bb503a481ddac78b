"""``deploy``: a run becomes a Flower app, and a Flower app a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

DEVICES = Group("On devices", sort_key=2)


def init(
    folder: Path,
    what: Annotated[str, Parameter(show_default=False)],
    /,
    *,
    out: Annotated[
        Path | None, Parameter(group=DEVICES, help="where the server keeps the run", show_default=False)
    ] = None,
    patience: Annotated[float, Parameter(group=DEVICES, help="seconds that a node may take to answer")] = 600.0,
    **said: Any,
) -> int:
    """Write a Flower app of a run's settings: a folder that `flwr run` and `fedquilt deploy run` accept.

    Parameters
    ----------
    folder
        where to; a new folder
    what
        a method of `fedquilt list methods`, or a TOML file that says one run
    """
    from ..deploy.app import init as write
    from ..run import slug
    from ..schema import BadSetting
    from .work import KEPT, asked

    study, place = asked([what], said, beside=False)
    entries = study.entries()
    if len(entries) > 1:
        raise BadSetting(f"a Flower app is one run, and {what} says {len(entries)}")
    with place:
        run = entries[0].run
        path = write(folder, run, out or Path(KEPT) / f"deployed-{slug(run)}", patience)
    print(f"{path} is a Flower app; submit it with: fedquilt deploy run {folder} CONNECTION")
    return 0


def run(
    folder: Path,
    connection: Annotated[str, Parameter(show_default=False)],
    /,
    *,
    attempts: Annotated[int, Parameter(group=DEVICES, help="submissions at most")] = 10,
    patience: Annotated[float, Parameter(group=DEVICES, help="seconds to try a SuperLink that is away")] = 300.0,
) -> int:
    """Submit a Flower app, and again if its server or the SuperLink dies, until the run is finished.

    Parameters
    ----------
    folder
        the app, as `fedquilt deploy init` made it
    connection
        a SuperLink of Flower's config.toml
    """
    from ..deploy.submit import Persistence, submit

    try:
        submit(folder, connection, Persistence(attempts, patience))
    except KeyboardInterrupt:
        hint = f"`flwr list {connection}` names it, `flwr stop RUN {connection}` ends it"
        raise KeyboardInterrupt(f"not watched any more; a run that Flower has begun goes on: {hint}") from None
    print("the run is finished")
    return 0
