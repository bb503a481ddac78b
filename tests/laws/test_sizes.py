"""The table of what the zoo's nets weigh is that of the code, and a list of it says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedquilt.cli import main
from fedquilt.cover import take
from fedquilt.drive.wire import order_size
from fedquilt.key import Key
from fedquilt.meter.counter import count
from fedquilt.meter.sizes import FILE, WIDTHS, nbytes, sizes, table, written
from fedquilt.methods import METHODS
from fedquilt.models import MODELS, build

from ..world import small, world

WHOLE: dict[str, Any] = json.loads(FILE.read_text())


def test_the_table_speaks_of_every_net_of_the_zoo_in_their_order() -> None:
    assert list(WHOLE) == list(MODELS)
    assert all(list(said["widths"]) == [str(w) for w in WIDTHS] for said in WHOLE.values())


@pytest.mark.parametrize("name", MODELS)
def test_the_table_is_what_the_code_says(name: str) -> None:
    """Made again; of the net that takes seconds a width, the widest alone (all of it: see the slow test)."""
    widths = WIDTHS if name != "lstm" else (1.0,)
    made = json.loads(json.dumps(sizes(name, widths)))
    said = {**WHOLE[name], "widths": {str(w): WHOLE[name]["widths"][str(w)] for w in widths}}
    assert made == said, "python -m fedquilt.meter.sizes writes it anew"


@pytest.mark.slow
def test_the_whole_table_is_what_its_command_writes() -> None:
    assert written(table()) == FILE.read_text()


@pytest.mark.parametrize("width", [0.4, 1.0])
def test_operations_without_numbers_are_those_with(width: float) -> None:
    m = build({"name": "cifar_cnn"}, Key(0))
    x, y = torch.randn(3, 3, 32, 32), torch.tensor([1, 2, 3])
    piece = {k: v.requires_grad_(k in m.trainable) for k, v in take(m.params(), m.prefix(width)).items()}
    m.net.train()
    free = [piece[k] for k in m.trainable]

    def cost(n: int) -> float:
        def step() -> None:
            out = functional_call(m.net, piece, (x[:n],))
            torch.autograd.grad(F.cross_entropy(out, y[:n]), free)

        return count(step).total

    assert cost(3) - cost(2) == WHOLE["cifar_cnn"]["widths"][str(width)]["flops"] > 0


@pytest.mark.parametrize("width", WIDTHS)
def test_bytes_are_those_of_the_message_but_for_what_does_not_depend_on_the_net(width: float) -> None:
    sim = world(small(METHODS["heterofl"]), widths=(width,))
    [order, *_] = sim.method.plan(sim.begin().state, sim.fleet, sim.model, sim.key, (), sim.run)
    assert 0 < order_size(order) - nbytes(sim.model, order.cover) < 600


def test_a_list_shows_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models", "--json"]) == 0
    for said in json.loads(capsys.readouterr().out):
        assert {k: said[k] for k in WHOLE[said["name"]]} == WHOLE[said["name"]]
    assert main(["list", "models"]) == 0
    out = capsys.readouterr().out
    assert "134,902" in out and "223 k 589 k 1.1 M 1.8 M 3.0 M" in out and "21.3 k 82.6 k 184 k 326 k 540 k" in out
    assert main(["show", "vgg16"]) == 0
    out = capsys.readouterr().out
    assert "15,132,936" in out and "see convnet for the settings" in out
