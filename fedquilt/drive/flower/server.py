"""The ServerApp: a run of the settings in the app's configuration, kept in a folder and resumed from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...conduct import conduct
from ...deploy.app import refuse
from ...history import Result
from ...prepare import Prepared
from ...run import Run
from ...schema import BadSetting, check
from .carry import Deployed, Manner
from .client import settings_in
from .post import Post
from .roster import Terms

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the run, or what is left of it."""
    serve(grid, context.run_config)


def serve(grid: Grid, config: Mapping[str, Any], watch: Callable[[Mapping[str, Any]], None] | None = None) -> Result:
    """Do the run that a Flower app's configuration says."""
    run = Run.of(settings_in(config), "the Flower app's configuration")
    refuse(run)
    own = {k.replace("-", "_"): v for k, v in config.items() if not k.startswith("run.") and k != "out"}
    manner = Manner(**check(Manner, own, "the Flower app's configuration"))
    if not config.get("out"):
        raise BadSetting("the Flower app's configuration says with `out` which folder keeps the run", "out")
    out = Path(str(config["out"])).expanduser()
    return conduct(run, out, watch or tell, resume=True, world=partial(deployed, grid=grid, manner=manner))


@contextmanager
def deployed(prepared: Prepared, grid: Grid, manner: Manner) -> Iterator[Deployed]:
    """The run, its clients at the nodes of a grid."""
    sim, data = prepared.sim, prepared.data
    widths = frozenset(sim.fleet.widths) if sim.method.norm == "per-width" else None
    terms = Terms(sim.run, frozenset(data.clients), data.fingerprint, data.data.shape, data.data.classes, widths)
    post = Post(grid, manner.patience, manner.poll, sim.run)
    yield Deployed(
        sim.method, sim.model, sim.fleet, sim.key, sim.site, sim.run, sim.norm, sim.unseen, sim.sizes,
        post=post, terms=terms, manner=manner,
    )  # fmt: skip


def tell(record: Mapping[str, Any]) -> None:
    """One line for each round and score, in the log of the Flower run."""
    if "notice" in record:
        print(record["notice"], flush=True)
    elif "scored" in record:
        figures = {s: f"{v['metric']} {v['mean']:.3f}" for s, v in record["scored"].items() if v["mean"] is not None}
        print(f"after round {record['round']}: {figures}", flush=True)
    else:
        print(f"round {record['round']}: {record['outcomes']} in {record['seconds']:.1f} s", flush=True)
