"""The counted peak of a training step beside the peak of what torch really allocates.

    python benchmarks/memory_measured.py

Counted are weights, gradients and saved activations, all at once.  Really, gradients come while
activations go, and each operation has temporaries: the two differ by a few per cent either way.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from fedquilt.fit import Fit
from fedquilt.key import Key
from fedquilt.meter import peak, resting
from fedquilt.models import build
from fedquilt.step import begin, gradient, training
from fedquilt.task import Classification, NextToken, Task
from fedquilt.types import Handle

ROWS = [  # spec, input, classes, batch
    ({"name": "emnist_cnn"}, (1, 28, 28), 62, 16),
    ({"name": "cifar_cnn"}, (3, 32, 32), 10, 128),
    ({"name": "mlp", "inputs": 784, "hidden": (512, 512, 512)}, (784,), 10, 1024),
    ({"name": "lstm"}, (80,), 80, 10),
    ({"name": "transformer"}, (80,), 80, 10),
    ({"name": "resnet18"}, (3, 32, 32), 10, 8),
    ({"name": "vgg11"}, (3, 32, 32), 10, 20),
]


def request(spec: dict[str, object], input: tuple[int, ...], classes: int, batch: int) -> tuple[Fit, Tensor, Tensor]:
    """A training, and a batch for it."""
    model = build(spec, Key(0))
    task: Task = Classification(classes)
    x, y = torch.randn(batch, *input), torch.zeros(batch, dtype=torch.long)
    if spec["name"] in ("lstm", "transformer"):
        x = y = torch.randint(classes, (batch, *input))
        task = NextToken(classes)
    return Fit(model, task, model.params(), Handle(0, "train"), Key(0), batch=batch), x, y


def measured(fit: Fit, x: Tensor, y: Tensor) -> float:
    """The most bytes that are allocated at once during one gradient, beside the tensors that are there before it."""
    moving, held = begin(fit, y.unique())
    before = resting(fit, moving, held) - sum(v.numel() * v.element_size() for v in moving.values())  # no gradients yet
    with training(fit.model.net, fit.key):
        gradient(fit, moving, held, x[:2], y[:2])
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
            kept = gradient(fit, moving, held, x.clone(), y.clone())
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for e in sorted(events, key=lambda e: e.start_ns()):
        now += e.nbytes()
        most = max(most, now)
    assert kept
    return before + most


def main() -> None:
    torch.set_num_threads(1)
    print("| net | batch | counted | measured | measured / counted |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for spec, input, classes, batch in ROWS:
        fit, x, y = request(spec, input, classes, batch)
        said, real = peak(fit, x, y).total, measured(fit, x, y)
        print(f"| {spec['name']} | {batch} | {said / 1e6:.1f} MB | {real / 1e6:.1f} MB | {real / said:.2f} |")


if __name__ == "__main__":
    main()
