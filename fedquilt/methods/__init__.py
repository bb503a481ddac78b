"""Every method, by name.  A method is a builder whose signature is the schema of its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from .. import schema
from ..method import Method
from ..schema import recorded, unknown
from .fedavg import fedavg
from .fedbn import fedbn
from .fedper import fedper
from .fedprox import fedprox
from .fedspu import fedspu
from .heterofl import heterofl
from .local import local

_BUILDERS: tuple[Callable[..., Method], ...] = (local, fedavg, fedprox, fedbn, fedper, fedspu, heterofl)

METHODS: Mapping[str, Callable[..., Method]] = {b.__name__: recorded(b) for b in _BUILDERS}


def build(spec: Mapping[str, object], also: Iterable[str] = ()) -> Method:
    """The method that ``{"name": "fedspu", **settings}`` says (``also``: other words that may have been meant)."""
    given = dict(spec)
    name = str(given.pop("name", None))
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return schema.build(METHODS[name], given, f"the method {name}", also)
