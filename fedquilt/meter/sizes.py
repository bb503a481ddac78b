"""What each net of the zoo weighs, at its own settings and five widths: the table that ``list models`` reads.

    python -m fedquilt.meter.sizes      # writes it again: fedquilt/models/sizes.json, which a test compares

Nets are built and run without numbers (on torch's ``meta`` device), so the large ones cost no more than the small.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ..cover import Cover, take
from ..key import Key
from ..model import Model
from ..models import MODELS, build
from .counter import count

FILE = Path(__file__).parents[1] / "models" / "sizes.json"
WIDTHS = (0.2, 0.4, 0.6, 0.8, 1.0)
CIFAR, DIGIT, WORDS = (3, 32, 32), (1, 28, 28), (80,)
SAMPLES: Mapping[str, tuple[int, ...]] = {  # of nets whose settings do not say it; a text counts its tokens
    "cifar100_cnn": CIFAR,
    "cifar_cnn": CIFAR,
    "emnist_cnn": DIGIT,
    "lstm": WORDS,
    "mlp": (64,),
    "mnist_cnn": DIGIT,
    "reddit_lstm": (10,),
    "speech_cnn": (1, 32, 32),
    "transformer": WORDS,
}


def sizes(name: str, widths: tuple[float, ...] = WIDTHS) -> dict[str, Any]:
    """Parameters, groups, and at each width: parameters, bytes of the message, operations of training on a sample."""
    with torch.device("meta"):
        m = build({"name": name}, Key(0))
    shape: Any = SAMPLES.get(name) or m.spec["input"]
    covers = {str(w): m.whole if w == 1 else m.prefix(w) for w in widths}
    return {
        "parameters": m.count(),
        "groups": len(m.groups),
        "units": sum(m.groups.values()),
        "sample": list(shape),
        "widths": {
            w: {"parameters": m.count(c), "bytes": nbytes(m, c), "flops": flops(m, c, tuple(shape))}
            for w, c in covers.items()
        },
    }


def nbytes(m: Model, cover: Cover) -> int:
    """What it takes to send this part: its tensors, and the cover that says which entries they are."""
    each = {k: v.element_size() for k, v in m.params().items()}
    return cover.nbytes + sum(cover[k].numel * each[k] for k in cover)


def flops(m: Model, cover: Cover, shape: tuple[int, ...]) -> int:
    """All floating point operations of a training step on one sample more."""
    piece = take(m.params(), cover)
    words = m.shapes["embed.weight"] if "embed.weight" in m.shapes else m.shapes.get("embed.words.weight")

    def step(n: int) -> float:
        kind = torch.float32 if words is None else torch.int64
        x = torch.empty(n, *shape, dtype=kind, device="meta")
        free = {k: v.detach().requires_grad_(k in m.trainable) for k, v in piece.items()}

        def work() -> None:
            out: Tensor = functional_call(m.net, free, (x,))
            scores = out.flatten(0, -2)
            torch.nn.functional.cross_entropy(
                scores, torch.empty(len(scores), dtype=torch.int64, device="meta")
            ).backward()

        return count(work).total

    m.net.train()
    return round(step(3) - step(2))


def table() -> dict[str, Any]:
    """That of every net."""
    return {name: sizes(name) for name in MODELS}


def written(found: Mapping[str, Any]) -> str:
    """The table as it stands in its file."""
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(written(table()))
