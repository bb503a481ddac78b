"""FedLPS's dense totals (Table I, row FedAvg) by its own rule, and what our counter says of the same training.

python benchmarks/flops_fedlps.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedquilt.key import Key
from fedquilt.meter import cost, fedlps_flops
from fedquilt.models import build

# net, input, batch, images of a client in an epoch, Table I (1e12); 5 epochs, 10 clients, 100 rounds
ROWS = [
    ("MNIST", "mnist_cnn", (1, 28, 28), 32, 192, 2.8),
    ("CIFAR10", "vgg11", (3, 32, 32), 20, 180, 825.4),
    ("CIFAR100", "vgg13", (3, 32, 32), 20, 720, 4934.3),
    ("Tiny-ImageNet", "vgg16", (3, 64, 64), 20, 720, 27081.0),
]


def main() -> None:
    torch.set_num_threads(1)
    print("| data | images an epoch | Table I | its rule | ours, products | ours, all |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for data, name, input, batch, images, printed in ROWS:
        model = build({"name": name}, Key(0))
        steps = images // batch * 5 * 10 * 100
        rule = fedlps_flops(model, input, samples=images * 5 * 10 * 100)
        weights = list(model.net.parameters())

        def step(x: torch.Tensor, y: torch.Tensor) -> object:
            return torch.autograd.grad(F.cross_entropy(model.net(x), y), weights)  # noqa: B023

        model.net.train()
        line = cost(step, torch.randn(2, *input), torch.zeros(2, dtype=torch.long), weights)
        used = line.at(batch)
        said = [f"{v / 1e12:,.1f}" for v in (rule, steps * used.products, steps * used.flops)]
        print(f"| {data} | {images} | {printed:,.1f} | {said[0]} | {said[1]} | {said[2]} |")


if __name__ == "__main__":
    main()
