"""The commands and their flags; each one's work is in a module that is imported when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from .. import __version__
from .cards import TABLES, cards
from .flags import flags, taking, tidy
from .options import OUTPUT, WORK, Beside, Dry, Force, Jobs, Json, Out, Quiet, Seeds, Sets, Sharings, Track, Word

HELP = "Personalised federated learning on devices of unequal means."
EPILOGUE = "With `--debug` an unexpected error shows its traceback."
GRID = ("data", "partition", "seed")  # of which a comparison has several


def app(words: Sequence[str]) -> tuple[App, list[str]]:
    """The application for these words, and the words, tidy: the methods that they name have their settings as flags."""
    methods = list(dict.fromkeys(w for w in words if w in cards("methods")))
    made = App(
        name="fedquilt",
        version=f"fedquilt {__version__}",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="markdown",
        suppress_keyboard_interrupt=False,
    )
    anything = not methods
    for command, less in ((run, ()), (compare, GRID), (tune, ("seed",))):
        more = flags(methods, less) if command.__name__ in words else []  # none of the others need theirs
        made.command(taking(command, more, anything))
    made.command(resume)
    made.command(listing, name="list")
    made.command(show)
    made.command(report)
    sharing = [f for f in flags(()) if f.name in SHARING] if "partition" in words else []
    made.command(taking(partition, sharing, False))
    made.command(axes)
    made.command(export)
    made.command(board)
    made.command(doctor)
    made.command(deploying(words, methods))
    return made, tidy(words, methods)


def deploying(words: Sequence[str], methods: Sequence[str]) -> App:
    """The commands that bring a run to real devices."""
    from .deploy import init, run

    made = App(name="deploy", help="Run a method on real devices, through Flower.")
    more = flags(methods) if "deploy" in words and "init" in words else []
    made.command(taking(init, more, not methods))
    made.command(run)
    return made


def run(
    what: Word = "",
    /,
    *,
    jobs: Jobs = None,
    dry_run: Dry = False,
    out: Out = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    track: Track = None,
    **said: Any,
) -> int:
    """Run a method, or a study; without either, a first comparison in under a minute.

    `fedquilt run METHOD --help` shows the method's settings. The same command again goes on where it
    was interrupted; a finished run is shown, not repeated.

    Parameters
    ----------
    what
        a method of `fedquilt list methods`, or a study: a TOML file with the flags below as its keys
    """
    from .work import How, do_run

    return do_run([what] if what else [], said, How(out, force, json, quiet, dry_run, jobs, track or ()))


def compare(
    *what: str,
    data: Sets = None,
    partition: Sharings = None,
    seeds: Seeds = None,
    baselines: Beside = True,
    tuned: Annotated[Path | None, Parameter(group=WORK, help="a search whose choices are used")] = None,
    jobs: Jobs = None,
    dry_run: Dry = False,
    out: Out = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    track: Track = None,
    **said: Any,
) -> int:
    """Set methods beside each other: the same data, splits, cohorts and budget.

    A setting of a method stands for all that have it. Give `--data` or `--partition` more than once
    for several. A comparison that was interrupted goes on; no finished run is repeated.

    Parameters
    ----------
    what
        methods, or a study: a TOML file
    """
    from .work import How, do_compare

    said |= {k: v for k, v in (("data", data), ("partition", partition), ("seeds", seeds)) if v}
    return do_compare(what, said, How(out, force, json, quiet, dry_run, jobs, track or ()), baselines, tuned)


def tune(
    *what: str,
    over: Annotated[
        list[str] | None,
        Parameter(group=WORK, help="a setting and its values: lr=0.01,0.1 or lr=0.001..0.3:4", negative=()),
    ] = None,
    on_test: Annotated[
        bool, Parameter(group=WORK, help="judge on test data where they double as validation", negative=())
    ] = False,
    seeds: Seeds = None,
    baselines: Beside = True,
    jobs: Jobs = None,
    out: Out = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    **said: Any,
) -> int:
    """Search settings: as many trials for every method, judged on validation data alone.

    Without `--over`, four learning rates. `fedquilt compare ... --tuned FOLDER` uses what was chosen.

    Parameters
    ----------
    what
        methods, or a study: a TOML file
    """
    from .work import How, do_tune, space

    said |= {"seeds": seeds} if seeds else {}
    return do_tune(what, said, How(out, force, json, quiet, False, jobs), baselines, space(over or []), on_test)


def resume(folder: Path, /, *, jobs: Jobs = None, json: Json = False, quiet: Quiet = False, track: Track = None) -> int:
    """Go on with an interrupted run, comparison or search, where it ended.

    Parameters
    ----------
    folder
        the folder that keeps it
    """
    from .work import How, do_resume

    return do_resume(folder, How(json=json, quiet=quiet, jobs=jobs, track=track or ()))


def listing(kind: Word = "", /, *, json: Json = False) -> int:
    """List what there is.

    Parameters
    ----------
    kind
        one of the kinds of things that have names; empty: all
    """
    from .show import list_kinds

    return list_kinds([kind] if kind else list(TABLES), json)


def show(name: str, /, *, json: Json = False) -> int:
    """Show a method, a model or another thing that has a name, or a run.

    Parameters
    ----------
    name
        a name of `fedquilt list`, or the folder of a run
    """
    from .show import show_name

    return show_name(name, json)


def report(
    *folders: Path,
    out: Annotated[Path | None, Parameter(group=OUTPUT, help="the page; by default in the folder")] = None,
    figures: Annotated[
        bool, Parameter(group=OUTPUT, help="also each figure as .svg and .pdf, for papers", negative=())
    ] = False,
    parquet: Annotated[bool, Parameter(group=OUTPUT, help="also the records, as Parquet files", negative=())] = False,
    target: Annotated[
        float | None, Parameter(help="the accuracy whose cost is asked for; by default what half reach")
    ] = None,
    json: Json = False,
) -> int:
    """Write a page of figures and tables of runs, finished or not; it opens without a network.

    Parameters
    ----------
    folders
        the folder of a run, a comparison or a search, or one that holds several
    """
    from .paper import write

    return write(folders, out, figures, parquet, target, json)


SHARING = ("partition", "clients", "split", "unseen", "seed", "data_dir")


def partition(
    data: str,
    /,
    *,
    plot: Annotated[Path | None, Parameter(group=OUTPUT, help="draw it: a file named .svg (partition.svg)")] = None,
    json: Json = False,
    **said: Any,
) -> int:
    """Share data out among clients and show what each of them holds.

    Parameters
    ----------
    data
        the name of a data set
    """
    from .share import partition as do

    return do({"data": data, **said}, plot, json)


def axes(
    net: str,
    /,
    *,
    input: Annotated[str, Parameter(help="the shape of a sample: 3,32,32; with its type where that matters: 80:int64")],
    json: Json = False,
) -> int:
    """Find the axes table of your own net: Python to put in a file, whose `net` is then a model for `--model`.

    The net is followed once, and two laws are checked for each group of units: their order says nothing, and the net
    runs on some of them. What stays whole is said, and why. Of a net with its table, `my.module:net`, the laws alone.

    Parameters
    ----------
    net
        what makes the net: my.module:Net, with settings where it needs some: my.module:Net:classes=4
    """
    from .axes import axes as do

    return do(net, input, json)


def export(
    folder: Path,
    /,
    *,
    client: Annotated[str, Parameter(help="a client's number, or global")] = "global",
    to: Annotated[Path | None, Parameter(help="where to; by default inside the run's folder")] = None,
    onnx: Annotated[bool, Parameter(help="as an ONNX graph too", negative=())] = False,
    json: Json = False,
) -> int:
    """Take a trained model out of a run: a sub-model at its own shape, ready for `fedquilt.load`.

    Parameters
    ----------
    folder
        the folder of a run
    """
    from .take import take

    return take(folder, client, to, onnx, json)


def board(
    folder: Annotated[Path, Parameter(help="where the runs are")] = Path("runs"),
    /,
    *,
    every: Annotated[float, Parameter(group=WORK, help="look again after so many seconds")] = 1.0,
    json: Json = False,
) -> int:
    """Watch the runs in a folder: their state, progress, accuracy and costs; in a terminal, live."""
    from .board import board as do

    return do(folder, every, json)


def doctor(*, json: Json = False) -> int:
    """Examine this machine: versions, data, cores, GPU, extras."""
    from .doctor import doctor as do

    return do(json)
