"""Personalised federated learning on devices of unequal means.

One global model, sewn from patches that each device can carry.  ``import fedquilt`` is cheap: torch
is loaded when the first public name is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compare import compare
    from .cover import Axis, Cover, mean, put, take
    from .export import export, load
    from .key import Key
    from .log import tracked
    from .model import Model, model
    from .run import Run, resume, run
    from .study import Study
    from .tune import tune

__all__ = [
    "Axis",
    "Cover",
    "Key",
    "Model",
    "Run",
    "Study",
    "compare",
    "export",
    "load",
    "mean",
    "model",
    "put",
    "resume",
    "run",
    "take",
    "tracked",
    "tune",
]
__version__ = "0.1.0"

_HOME = {
    "Axis": "cover",
    "Cover": "cover",
    "Key": "key",
    "Model": "model",
    "Run": "run",
    "Study": "study",
    "compare": "compare",
    "export": "export",
    "load": "export",
    "mean": "cover",
    "model": "model",
    "put": "cover",
    "resume": "run",
    "run": "run",
    "take": "cover",
    "tracked": "log",
    "tune": "tune",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


class _Package(ModuleType):
    """Keeps ``fedquilt.run`` and ``fedquilt.model`` the functions that they say.

    They live in modules of the same names, and importing a module makes Python hang it into its
    package under its name, over whatever was there.  (``from fedquilt.run import ...`` works.)
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
