"""The zoo: nets with their axes tables, by name.

No net has a width argument for its pieces: shapes come from the tensors, so a piece runs under
``torch.func.functional_call`` on the net that it was cut from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import signature

import torch

from ..key import Key
from ..model import Model
from .cnn import cifar_cnn, cnn, emnist_cnn, speech_cnn
from .lstm import lstm
from .mlp import mlp
from .norm import BatchNorm, GroupNorm
from .resnet import resnet18

__all__ = [
    "MODELS",
    "BatchNorm",
    "GroupNorm",
    "build",
    "cifar_cnn",
    "cnn",
    "emnist_cnn",
    "lstm",
    "mlp",
    "resnet18",
    "speech_cnn",
]

MODELS: Mapping[str, Callable[..., Model]] = {
    "cifar_cnn": cifar_cnn,
    "cnn": cnn,
    "emnist_cnn": emnist_cnn,
    "lstm": lstm,
    "mlp": mlp,
    "resnet18": resnet18,
    "speech_cnn": speech_cnn,
}


def build(spec: Mapping[str, object], key: Key) -> Model:
    """The model that ``{"name": "cnn", **settings}`` says, its parameters drawn from ``key`` alone.

    ``build(model.spec, key)`` makes the same net again, and ``build(spec, key).params()`` is the
    initial model of a run.  Torch's global generator is left as it was.
    """
    settings = dict(spec)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(f"a model's spec says its name, one of {', '.join(MODELS)}; this one says {dict(spec)}")
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}{_instead(name, MODELS)}")
    builder = MODELS[name]
    known = signature(builder).parameters
    for k in settings:
        if k not in known:
            raise ValueError(f"the model {name} has no setting {k!r}{_instead(k, known)}")
    fit = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed, which would seed the accelerators' generators too
        torch.default_generator.manual_seed(key.number())
        return builder(**fit)


def _instead(word: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(word, known, 1, 0.0)
    return f"; the nearest is {near[0]!r}, of {', '.join(known)}" if near else ""
