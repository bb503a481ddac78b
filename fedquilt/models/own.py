"""What is one's own, by the name of what makes it: ``my.module:net``, importable from where one is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from importlib import import_module
from inspect import signature
from typing import Any

from ..model import Model
from ..schema import nearest

__all__ = ["found", "is_own", "maker", "parted"]


def is_own(name: str) -> bool:
    """Is this the name of something of one's own, and not of the package's?"""
    module, colon, thing = name.partition(":")
    return bool(colon) and thing.isidentifier() and all(part.isidentifier() for part in module.split("."))


def parted(text: str, zoo: Mapping[str, object]) -> tuple[str, Sequence[str]]:
    """The name and the settings of a text such as ``my.module:net:classes=4``."""
    words = text.split(":")
    if words[0] not in zoo and len(words) > 1 and is_own(":".join(words[:2])):
        return ":".join(words[:2]), words[2:]
    return words[0], words[1:]


def found(name: str, does: str = "makes a net") -> Callable[..., Any]:
    """What is called so and ``does`` this; modules are looked for where one is, and then wherever Python looks."""
    module, _, thing = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        made = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise ValueError(f"{module} cannot be imported: {error}") from error
        raise ValueError(f"no module is called {module!r}, neither in {here} nor where Python looks") from error
    except Exception as error:
        raise ValueError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(made, thing):
        raise ValueError(f"{module} has no {thing!r}; {nearest(thing, vars(made))}it has: {_public(made)}")
    there = getattr(made, thing)
    if not callable(there):
        raise ValueError(f"{name} is not a class or a function that {does}, it is a {type(there).__name__}")
    return there


def _public(module: Any) -> str:
    own = [k for k, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]
    return ", ".join(own) or "nothing of its own"


def maker(name: str) -> Callable[..., Model]:
    """The builder of this name; what it makes knows what builds it again."""
    there = found(name)

    @wraps(there)
    def build(**given: Any) -> Model:
        m = there(**given)
        if not isinstance(m, Model):
            raise ValueError(
                f"{name} makes a {type(m).__name__}, not a model: `fedquilt axes {name} --input SHAPE` prints the axes "
                f"table that it lacks, and the function to name instead"
            )
        said = signature(there).bind(**given)
        said.apply_defaults()
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in said.arguments.items()}
        return replace(m, spec={"name": name, **plain})

    return build
