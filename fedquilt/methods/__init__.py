"""Every method, by name.  A method is a builder whose signature is the schema of its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from .. import schema
from ..method import Method
from ..schema import recorded, unknown
from .apfl import apfl
from .cs import cs
from .depthfl import depthfl
from .ditto import ditto
from .efd import efd
from .fedadam import fedadam
from .fedasync import fedasync
from .fedavg import fedavg
from .fedbn import fedbn
from .fedbuff import fedbuff
from .fedcom import fedcom
from .fedcomgate import fedcomgate
from .feddrop import feddrop
from .feddyn import feddyn
from .fedlps import fedlps
from .fedmp import fedmp
from .fedp3 import fedp3
from .fedper import fedper
from .fedprox import fedprox
from .fedrep import fedrep
from .fedrolex import fedrolex
from .fedselect import fedselect
from .fedspa import fedspa
from .fedspu import fedspu
from .fedyogi import fedyogi
from .fjord import fjord
from .flrce import flrce
from .hermes import hermes
from .heterofl import heterofl
from .local import local
from .lotteryfl import lotteryfl
from .mpfl import mpfl
from .oort import oort
from .perfedavg import perfedavg
from .pfedme import pfedme
from .powerofchoice import powerofchoice
from .prunefl import prunefl
from .pyramidfl import pyramidfl
from .refl import refl
from .scaffold import scaffold
from .timelyfl import timelyfl

_BUILDERS: tuple[Callable[..., Method], ...] = (
    local,
    fedavg,
    fedprox,
    apfl,
    cs,
    depthfl,
    ditto,
    efd,
    fedadam,
    fedasync,
    fedbn,
    fedbuff,
    fedcom,
    fedcomgate,
    feddrop,
    feddyn,
    fedlps,
    fedmp,
    fedp3,
    fedper,
    fedrep,
    fedrolex,
    fedselect,
    fedspa,
    fedspu,
    fedyogi,
    fjord,
    flrce,
    hermes,
    heterofl,
    lotteryfl,
    mpfl,
    oort,
    perfedavg,
    pfedme,
    powerofchoice,
    prunefl,
    pyramidfl,
    refl,
    scaffold,
    timelyfl,
)

METHODS: Mapping[str, Callable[..., Method]] = {b.__name__: recorded(b) for b in _BUILDERS}


def build(spec: Mapping[str, object], also: Iterable[str] = ()) -> Method:
    """The method that ``{"name": "fedspu", **settings}`` says (``also``: other words that may have been meant)."""
    given = dict(spec)
    name = str(given.pop("name", None))
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return schema.build(METHODS[name], given, f"the method {name}", also)
