"""Selections through the simulator and its clock, on fleets where the right choice is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedquilt.fleet import Device, Fleet
from fedquilt.fleet.presence import Trace
from fedquilt.methods import METHODS
from fedquilt.parts.presence import LeastAvailable
from fedquilt.parts.schedule import Carried, Sync
from fedquilt.parts.utility import Utility

from ..world import play, small, world

DEVICE = Device(flops=1e7, down=1e7, up=1e7)


def cohorts(method: Any, fleet: Fleet, rounds: int, **given: Any) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Who was asked in each round, and the records."""
    _, told = play(world(method, "mlp", clients=len(fleet), fleet=fleet, **given), rounds)
    return [r.record["asked"] for r in told], [r.record for r in told]


def test_oort_tries_everybody_and_then_leaves_the_slow_alone() -> None:
    """Client 5 is forty times slower than the others, which are alike: only without the penalty does it come back."""
    devices = {i: replace(DEVICE, flops=2.5e5) if i == 5 else DEVICE for i in range(6)}
    fleet = Fleet(devices, dict.fromkeys(devices, 14))
    method = replace(small(METHODS["oort"]), schedule=Sync(clients=2))
    part = Utility(explore=1.0, decay=1.0, deadline=0.5)
    asked, told = cohorts(replace(method, select=part), fleet, 9)
    assert sorted(i for c in asked[:3] for i in c) == list(range(6)), "at first only who is new"
    slow = next(r for r in told[:3] if 5 in r["asked"])
    assert slow["seconds"] > 10 * min(r["seconds"] for r in told)
    assert not any(5 in c for c in asked[3:]) and len({i for c in asked[3:] for i in c}) >= 3
    blind, _ = cohorts(replace(method, select=replace(part, alpha=0.0, cut=0.0)), fleet, 12)
    assert any(5 in c for c in blind[3:])


@pytest.mark.parametrize("leaving", [(0, 1), (2, 3), (1, 2)])
def test_refl_asks_first_who_is_about_to_leave(leaving: tuple[int, int], tmp_path: Path) -> None:
    """All are there in the second round; two of them will be gone in the slot after it."""
    fleet = Fleet(dict.fromkeys(range(4), DEVICE), dict.fromkeys(range(4), 14))
    part = LeastAvailable(cooldown=0, accuracy=1.0)
    method = replace(small(METHODS["refl"]), select=part, schedule=Carried(clients=2, over=1.0))
    _, told = cohorts(method, fleet, 1)
    slot = told[0]["seconds"]
    trace = tmp_path / "trace.csv"
    ends = [2.1 * slot if i in leaving else 99 * slot for i in range(4)]
    trace.write_text("client,start,end\n" + "\n".join(f"{i},0,{end}" for i, end in enumerate(ends)))
    asked, told = cohorts(method, replace(fleet, present=Trace(str(trace))), 2)
    assert asked[1] == sorted(leaving) and told[1]["outcomes"] == {"accepted": 2}


def test_refl_lets_who_took_part_rest(tmp_path: Path) -> None:
    fleet = Fleet(dict.fromkeys(range(6), DEVICE), dict.fromkeys(range(6), 14))
    method = replace(small(METHODS["refl"]), select=LeastAvailable(cooldown=2), schedule=Carried(clients=2, over=1.0))
    asked, _ = cohorts(method, fleet, 7)
    assert all(not set(asked[t]) & set(asked[s]) for t in range(7) for s in range(max(0, t - 2), t))


def test_timelyfl_has_all_ready_in_time_where_work_goes_by_layers() -> None:
    """By the linear model of time: nobody's promised work lasts longer than the k-th fastest one's whole work."""
    devices = {i: replace(DEVICE, flops=f) for i, f in enumerate((1e6, 2e6, 4e6, 8e6, 3e7, 5e6))}
    fleet = Fleet(devices, dict.fromkeys(devices, 14))
    sim = world(replace(small(METHODS["timelyfl"]), norm="shared"), "mlp", clients=6, fleet=fleet)
    now, _ = play(sim, 1)
    note = now.state.notes["select"]["clients"]
    briefs = sim.method.select.together(now.state, fleet)  # type: ignore[attr-defined]
    whole = {i: c["unit"] + c["radio"] for i, c in note.items()}
    end = sorted(whole.values())[2]
    for i, brief in briefs.items():
        times, share = (float(brief.scalars[k]) for k in ("times", "share"))
        due = times * note[i]["unit"] + note[i]["radio"] if share == 1 else share * whole[i]
        assert due <= end * (1 + 1e-9)
        assert (share < 1) == (whole[i] > end) and (times > 1) == (2 * note[i]["unit"] + note[i]["radio"] <= end)
    assert (
        len({b.scalars["times"] for b in briefs.values()}) > 1
        and len({b.scalars["share"] for b in briefs.values()}) > 2
    )
