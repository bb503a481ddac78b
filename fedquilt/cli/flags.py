"""Flags from the one schema: the settings of a run and of the methods that a command line names.

Every flag is a text here; the schema of :mod:`fedquilt.schema` says what it may be.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Annotated, Any

from cyclopts import Group, Parameter

from ..run import Run
from .cards import Setting, cards
from .options import RUN

ALONE = {"--plot": "partition.svg"}  # flags that may stand without a value, and what they then mean
TRUTHS = ("true", "false", "yes", "no", "on", "off", "1", "0")
COMMON = {  # what settings are that mean the same in every method
    "fraction": "the share of the clients that a round asks",
    "lr": "the learning rate of local training",
    "momentum": "of local training",
    "decay": "the learning rate is multiplied by this every round",
    "epochs": "passes of a client over its data in a round",
    "batch": "samples in a step",
    "server_lr": "the learning rate of the server's step",
    "weight": "what a client weighs in the mean",
    "finetune": "epochs that each client trains on its own before its model is used",
    "variant": "the paper's algorithm, or what papers that compare with it take it for",
    "masked": "a client's loss sees the classes alone that it holds",
    "head": "the tensors that stay at home, by patterns such as head.*; empty: the model's head",
}


def words_of_run() -> dict[str, str]:
    """What each setting of a run is, from its docstring."""
    found = re.findall(r"^\s*:param (\w+): *(.+)$", Run.__doc__ or "", re.MULTILINE)
    return {name: text.replace("``", "") for name, text in found}


def run_settings(less: Iterable[str] = ()) -> list[Setting]:
    """The settings of a run that can be flags."""
    left = {"method", *less}
    return [Setting(f.name, str(f.type), _shown(f.default)) for f in fields(Run) if f.name not in left]


def _shown(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def method_settings(methods: Iterable[str]) -> dict[str, Setting]:
    """The settings of any of these methods."""
    return {s.name: s for m in methods for s in cards("methods")[m].settings}


def flag(setting: Setting, group: Group, text: str = "") -> inspect.Parameter:
    """A setting as a parameter that is None where it is not given."""
    kind: Any = bool | None if setting.type == "bool" else str | None
    default = setting.default if setting.default not in (None, "", '""') else None
    shown: Any = (lambda _: default) if default is not None else False
    said = Parameter(help=text, group=group, show_default=shown, metavar=_metavar(setting.type))
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, said]
    )


def _metavar(kind: str) -> str | None:
    """A type, as the help shows it."""
    if kind.startswith("Literal["):
        return "|".join(re.findall(r"""["']([^"']+)["']""", kind))
    first = kind.split("|")[0].strip().split("[")[0]
    return {"int": "N", "float": "X", "tuple": "A,B,..", "str": "TEXT", "bool": None}.get(first, "TEXT")


def flags(methods: Sequence[str], less: Iterable[str] = ()) -> list[inspect.Parameter]:
    """The flags of a run of these methods, ``less`` those that the command has as its own."""
    left = set(less)
    texts = words_of_run()
    mine = [flag(s, RUN, texts.get(s.name, "")) for s in run_settings(left)]
    more = "What they mean: " + ", ".join(f"`fedquilt show {m}`" for m in methods)
    group = Group(f"Settings of {', '.join(methods)}", help=more, sort_key=1)
    theirs = [flag(s, group, COMMON.get(s.name, "")) for s in method_settings(methods).values() if s.name not in left]
    return [*mine, *(p for p in theirs if p.name not in {q.name for q in mine})]


def taking(command: Callable[..., Any], more: Sequence[inspect.Parameter], anything: bool) -> Callable[..., Any]:
    """The command, its ``**said`` spelt out as these flags (and still there, if it takes anything)."""
    own = inspect.signature(command, eval_str=True)
    plain = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    hidden = Annotated[Any, Parameter(show=False)]  # a method's settings, where no method is named
    rest = [p.replace(annotation=hidden) for p in own.parameters.values() if p.kind is p.VAR_KEYWORD and anything]

    def made(*args: Any, **given: Any) -> Any:
        return command(*args, **{k: v for k, v in given.items() if v is not None or k in own.parameters})

    made.__doc__, made.__name__ = command.__doc__, command.__name__
    made.__signature__ = own.replace(parameters=[*plain, *more, *rest])  # type: ignore[attr-defined]
    made.__annotations__ = {p.name: p.annotation for p in [*plain, *more, *rest]}
    return made


def tidy(words: Sequence[str], methods: Iterable[str]) -> list[str]:
    """The words with flags in one spelling: ``--eval_every 5`` as ``--eval-every``, ``--masked false`` as one word.

    A flag that may stand alone has its value: ``--plot`` is ``--plot=partition.svg``.
    """
    every = [*method_settings(methods).values(), *run_settings()]
    switches = {"--baselines", *(f"--{s.name.replace('_', '-')}" for s in every if s.type == "bool")}
    out: list[str] = []
    for word, after in pairwise([*words, "--"]):
        if word in ALONE and after.startswith("-"):
            out.append(f"{word}={ALONE[word]}")
        elif out and out[-1] in switches and word.lower() in TRUTHS:
            out[-1] += f"={word}"
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            out.append(name.replace("_", "-") + equals + value)
        else:
            out.append(word)
    return out
