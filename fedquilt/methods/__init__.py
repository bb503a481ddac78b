"""Every method, by name.  A method is a builder whose signature is the schema of its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..method import Method
from .fedavg import fedavg
from .fedprox import fedprox
from .fedspu import fedspu
from .heterofl import heterofl
from .local import local

METHODS: Mapping[str, Callable[..., Method]] = {
    "local": local,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedspu": fedspu,
    "heterofl": heterofl,
}
