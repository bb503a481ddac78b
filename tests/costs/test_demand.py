"""What a server can tell of a training before it: that is what is then counted."""

from __future__ import annotations

import pytest

from fedquilt.fitting import fitted
from fedquilt.fleet import Demand, Device, Fleet
from fedquilt.meter.demand import demand
from fedquilt.methods import METHODS
from fedquilt.parts.local import Train
from fedquilt.parts.schedule import Windows

from ..world import FAMILIES, play, replace, small, world


@pytest.mark.parametrize("family", ["cnn", "lstm", "mlp", "resnet-group"])
def test_a_demand_is_what_is_then_counted(family: str) -> None:
    method = replace(small(METHODS["fedavg"]), local=Train(epochs=2, batch=4))
    sim = world(method, family, widths=(1.0,))
    x, y = sim.site.shares.data.x[:2], sim.site.shares.data.y[:2]  # type: ignore[attr-defined]
    said = demand(sim.model, FAMILIES[family].task, x, y, batch=4)
    (told,) = play(sim, 1)[1]
    for c in told.clients:
        n, device = c["samples"] // 2, sim.fleet.devices[c["client"]]
        assert said.seconds(device, n, 2) == pytest.approx(c["seconds"], rel=0.05), "but for names and scalars"
        assert said.peak == pytest.approx(c["peak"])


def test_it_fits_where_time_and_memory_suffice() -> None:
    d = Demand(sample=10.0, step=5.0, peak=100.0, message=20.0, batch=4)
    device = Device(flops=10.0, down=10.0, up=5.0, memory=100.0)
    assert d.seconds(device, 10, 2) == 2 * (100 + 3 * 5) / 10 + 2 + 4 == 29.0
    assert d.fits(device, 10, 2, 29.0) and not d.fits(device, 10, 2, 28.9)
    assert not d.fits(replace(device, memory=99.0), 10, 2, 100.0)


def test_a_round_in_windows_is_as_long_as_its_slowest_takes() -> None:
    fleet = Fleet({i: Device(flops=1e7 / (1 + i), down=1e12, up=1e12) for i in range(5)}, dict.fromkeys(range(5), 14))
    method = replace(small(METHODS["fedavg"]), schedule=Windows(1.0))
    sim = world(method, "mlp", fleet=fleet)
    ready, model = fitted(method, sim.model, fleet, sim.site.shares.data, sim.key)  # type: ignore[attr-defined]
    (told,) = play(world(small(METHODS["fedavg"]), "mlp", fleet=fleet), 1)[1]
    assert model is sim.model and ready.local is method.local
    assert ready.schedule.seconds == pytest.approx(told.record["clock"], rel=1e-3)  # type: ignore[attr-defined]
    given = replace(method, schedule=Windows(1.0, seconds=3.0))
    assert fitted(given, sim.model, fleet, sim.site.shares.data, sim.key)[0] == given  # type: ignore[attr-defined]
