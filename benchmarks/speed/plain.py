"""A loop over clients in one process: ``author`` as released code has it, on all cores; ``loop`` tuned, on one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .contest import serve
from .field import Field
from .loop import CLIENTS, Losses, Server, laid, net, scores, state


class Loop:
    version = torch.__version__

    def __init__(self, folder: Path, tuned: bool, cores: int) -> None:
        torch.set_num_threads(1 if tuned else cores)
        self.field, self.about = (field := Field(folder)), field.about
        made = net(self.about, {k: torch.from_numpy(v) for k, v in field.params.items()})
        image = len(self.about["shape"]) == 3
        self.made = made.to(memory_format=torch.channels_last) if tuned and image else made
        self.server, self.train, self.laid = Server(self.made), CLIENTS["tuned" if tuned else "author"], tuned

    def tensors(self, *arrays: object) -> list[Tensor]:
        x, y = (torch.from_numpy(a) for a in arrays)
        if self.about["model"].startswith("lstm"):
            x = x.long()
        return [laid(x) if self.laid else x, y]

    def round(self, n: int) -> tuple[int | None, int | None]:
        parts, steps, samples = [], 0, 0
        for i in self.about["cohorts"][n]:
            self.server.send()
            x, y = self.tensors(*self.field.client(i))
            orders = [torch.from_numpy(o) for o in self.field.orders(n, i)]
            steps += self.train(self.made, x, y, orders, self.about["lr"], self.about["batch"])
            samples += len(x) * len(orders)
            parts.append((state(self.made), len(x)))
        self.server.merge(parts)
        return steps, samples

    def score(self) -> Losses:
        self.server.send()
        return scores(self.made, *self.tensors(self.field.array("test_x"), self.field.array("test_y")))


def enter(name: str, folder: Path, cores: int) -> None:
    serve(lambda: Loop(folder, name == "loop", cores))
