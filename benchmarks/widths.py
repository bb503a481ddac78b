"""What a sub-model of each width weighs, computes and takes, for VGG11 and ResNet-18: writes docs/widths.md.

python benchmarks/widths.py               # bytes and operations
python benchmarks/widths.py --time        # and the seconds of a step, on this machine, one thread
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import pages
import torch

from fedquilt.cover import take
from fedquilt.drive.wire import order_size, reply_size
from fedquilt.engine import Setup
from fedquilt.engine.trim import blocks, trimmed
from fedquilt.fit import Fit
from fedquilt.fleet import Device, Fleet
from fedquilt.key import Key
from fedquilt.meter import count
from fedquilt.methods import METHODS
from fedquilt.model import Model
from fedquilt.models import build
from fedquilt.step import Training, begin, gradient, training
from fedquilt.task import Classification
from fedquilt.types import Handle, Reply

NETS = ("vgg11", "resnet18")
WIDTHS = (0.0625, 0.125, 0.2, 0.25, 0.4, 0.5, 0.6, 0.8, 1.0)
SENDS = {"prefix": "heterofl", "window": "fedrolex", "random": "efd"}
BATCH, STEPS = 20, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", action="store_true", help="measure steps too")
    parser.add_argument("--page", default="docs/widths.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in NETS:
        pages.written(args.page, name, pages.table(HEAD, rows(build({"name": name}, Key(0)))))
        if args.time:
            machine = f"{platform.machine()}, torch {torch.__version__}, one thread, batches of {BATCH}"
            head = ["width", "ms a step, sub-model", "of the whole", "ms a step, frozen (fedspu)"]
            table = pages.table(head, seconds(build({"name": name}, Key(0))))
            pages.written(args.page, f"{name} time", f"{table}\n\n{machine}; the median of {STEPS} steps.")


HEAD = ["width", "parameters", *(f"MB each way, {s}" for s in SENDS), "MFLOP a sample", "of the whole", "width²"]


def messages(model: Model, method: str, width: float) -> tuple[int, int]:
    """Bytes of an order and of its reply."""
    fleet, made = Fleet({0: Device(width=width)}, {0: 1}), METHODS[method]()
    order = made.order(replace(made.begin(model, fleet), round=1), 0, fleet, model, Key(0))
    return order_size(order), reply_size(Reply(0, 0, order.params, order.cover, 1.0, {"loss": 1.0}), order)


def fit_of(model: Model, width: float, frozen: bool = False) -> Fit:
    """A training of the sub-model, or of the whole with all else frozen."""
    cover = model.prefix(width)
    start = model.params() if frozen else take(model.params(), cover)
    free = cover if frozen else None
    return Fit(model, Classification(10), start, Handle(0, "train"), Key(0), batch=BATCH, free=free)


def operations(model: Model, width: float) -> float:
    """FLOPs of a training step, a sample."""
    f, x, y = fit_of(model, width), torch.randn(2, 3, 32, 32), torch.arange(2)
    moving, held = begin(f, y)
    with training(model.net, f.key):
        ways = count(lambda: gradient(f, moving, held, x, y))
    return (ways.forward + ways.backward) / 2


def rows(model: Model) -> Iterator[list[object]]:
    whole = operations(model, 1.0)
    for w in WIDTHS:
        flops = operations(model, w)
        sent = ("{:.2f} / {:.2f}".format(*(n / 1e6 for n in messages(model, m, w))) for m in SENDS.values())
        part = model.count(model.prefix(w))
        yield [f"{w:g}", f"{part:,}", *sent, f"{flops / 1e6:.1f}", f"{flops / whole:.3f}", f"{w * w:.3f}"]


def step_time(model: Model, width: float, frozen: bool = False) -> float:
    """Seconds of a step; the first is not counted."""
    layout = Setup.resolve(model).layout
    x, y = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH) % 10
    laid = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    f = fit_of(model, width, frozen)
    run = Training.of(f, y, lambda t: t.contiguous(memory_format=laid) if t.dim() == 4 else t)
    x, took = x.contiguous(memory_format=laid), []
    with training(model.net, f.key), trimmed(blocks(f), run.moving):
        for _ in range(STEPS + 1):
            began = time.perf_counter()
            run.step(x, y)
            took.append(time.perf_counter() - began)
    return median(took[1:])


def seconds(model: Model) -> Iterator[list[object]]:
    whole = step_time(model, 1.0)
    for w in WIDTHS:
        mine, frozen = step_time(model, w), step_time(model, w, frozen=True)
        yield [f"{w:g}", f"{1e3 * mine:.1f}", f"{mine / whole:.3f}", f"{1e3 * frozen:.1f}"]


if __name__ == "__main__":
    main()
