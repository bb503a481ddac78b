"""The zoo: nets with their axes tables, by name.

No net has a width argument for its pieces: shapes come from the tensors, so a piece runs under
``torch.func.functional_call`` on the net that it was cut from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any

from ..key import Key
from ..model import Model, drawing
from ..schema import unknown, worded
from . import own
from .base import Exit, Staged
from .cnn import cifar100_cnn, cifar_cnn, cnn, emnist_cnn, mnist_cnn, speech_cnn
from .convnet import convnet, motion_cnn
from .lstm import lstm, reddit_lstm
from .mlp import mlp
from .norm import BatchNorm, GroupNorm, LayerNorm
from .resnet import resnet18
from .transformer import transformer, vit
from .vgg import vgg11, vgg13, vgg16

__all__ = [
    "MODELS",
    "BatchNorm",
    "Exit",
    "GroupNorm",
    "LayerNorm",
    "Staged",
    "build",
    "cifar100_cnn",
    "cifar_cnn",
    "cnn",
    "convnet",
    "emnist_cnn",
    "lstm",
    "mlp",
    "mnist_cnn",
    "motion_cnn",
    "reddit_lstm",
    "resnet18",
    "speech_cnn",
    "transformer",
    "vgg11",
    "vgg13",
    "vgg16",
    "vit",
]

MODELS: Mapping[str, Callable[..., Model]] = {
    "cifar100_cnn": cifar100_cnn,
    "cifar_cnn": cifar_cnn,
    "cnn": cnn,
    "convnet": convnet,
    "emnist_cnn": emnist_cnn,
    "lstm": lstm,
    "mlp": mlp,
    "mnist_cnn": mnist_cnn,
    "motion_cnn": motion_cnn,
    "reddit_lstm": reddit_lstm,
    "resnet18": resnet18,
    "speech_cnn": speech_cnn,
    "transformer": transformer,
    "vgg11": vgg11,
    "vgg13": vgg13,
    "vgg16": vgg16,
    "vit": vit,
}


def build(spec: Mapping[str, object], key: Key) -> Model:
    """The model that ``{"name": "cnn", **settings}`` says, its parameters drawn from ``key`` alone.

    A name such as ``my.module:net`` is that of a function of one's own, see :mod:`fedquilt.models.own`.

    ``build(model.spec, key)`` makes the same net again, and ``build(spec, key).params()`` is the
    initial model of a run.  Torch's global generator is left as it was.  Any spec may say ``units``,
    how many some groups have (``{"conv1": 8}``), and ``depth``, how many stages (see :meth:`Model.upto`).
    """
    settings = dict(spec)
    name = settings.pop("name", None)
    units: Any = settings.pop("units", None) or {}
    depth: Any = settings.pop("depth", None)
    if not isinstance(name, str):
        raise ValueError(f"a model's spec says its name, one of {', '.join(MODELS)}; this one says {dict(spec)}")
    builder = builder_of(name)
    known = signature(builder).parameters
    for k in settings:
        if k not in known:
            raise ValueError(f"the model {name} has no setting {k!r}{_instead(k, known)}")
    fit = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    with drawing(key):
        m = builder(**fit)
    if others := {g: n for g, n in units.items() if m.groups.get(g) != n}:
        m = m.sized(others, key.at("units"))
    return m if depth is None else m.upto(depth)


def named(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the settings of a text such as ``cnn:conv=16,32`` or ``my.module:net:classes=4``."""
    name, words = own.parted(text, MODELS)
    if not own.is_own(name) and name not in MODELS:
        raise unknown("model", name, MODELS)
    return name, worded(words, builder_of(name), name, f"model {text!r}")


def builder_of(name: str) -> Callable[..., Model]:
    """What makes the models of this name."""
    if own.is_own(name):
        return own.maker(name)
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}{_instead(name, MODELS)}; one's own is named my.module:net")
    return MODELS[name]


def _instead(word: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(word, known, 1, 0.0)
    return f"; the nearest is {near[0]!r}, of {', '.join(known)}" if near else ""
