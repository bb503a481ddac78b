"""A large state of which a round changes little: only that is written, and it comes back whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedquilt.store import Corrupt, RunFolder, kept

from ..laws.strategies import all_bits


@pytest.fixture(autouse=True)
def small_states_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FROM", 1 << 10)


def state(round: int, clients: int = 40, each: int = 4) -> dict[str, Any]:
    """What 40 clients said last, when four of them come a round."""
    last = {i: round - 1 - (round - 1 - i // each) % (clients // each) for i in range(clients)}
    return {"round": round, "last": {i: torch.full((256,), float(r * 100 + i)) for i, r in last.items() if r >= 0}}


def play(folder: RunFolder, rounds: range) -> None:
    """Only what a round changes is a new tensor."""
    now: dict[str, Any] = (folder.load() or (0, {"last": {}}))[1]
    for round in rounds:
        new = state(round)["last"]
        old = now["last"]
        now = {
            "round": round,
            "last": {i: old[i] if i in old and torch.equal(old[i], t) else t for i, t in new.items()},
        }
        folder.save(round, now)


def sizes(path: Path) -> list[int]:
    return [f.stat().st_size for f in (path / "state").glob("*.safetensors")]


def test_a_round_writes_what_it_changed_and_all_comes_back(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        play(folder, range(1, 31))
    newest = max((tmp_path / "state").glob("*.safetensors"), key=lambda f: int(f.stem))
    assert newest.stat().st_size < 12 * 1024 + 4096, "four tensors, and at times those of a file given up"
    assert sum(sizes(tmp_path)) < 3 * 40 * 1024 + 20_000, "files hold little more than twice what is of use"
    with RunFolder(tmp_path) as folder:
        found = folder.load()
        assert found is not None and found[0] == 30
        assert all_bits({str(k): v for k, v in found[1]["last"].items()}) == all_bits(
            {str(k): v for k, v in state(30)["last"].items()}
        )
        play(folder, range(31, 45))
    with RunFolder(tmp_path) as folder:
        found = folder.load()
    assert found is not None and all(torch.equal(t, found[1]["last"][i]) for i, t in state(44)["last"].items())


def test_the_generation_before_is_whole_too(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        play(folder, range(1, 31))
    newest = max((tmp_path / "state").glob("*.json"), key=lambda f: int(f.stem.split(".")[0]))
    newest.write_bytes(b"{}")
    with RunFolder(tmp_path) as folder:
        found = folder.load()
        assert found is not None and found[0] == 29
        assert all(torch.equal(t, found[1]["last"][i]) for i, t in state(29)["last"].items())
        play(folder, range(30, 33))
        found = folder.load()
    assert found is not None and all(torch.equal(t, found[1]["last"][i]) for i, t in state(32)["last"].items())


def test_what_is_written_to_in_place_is_written_again(tmp_path: Path) -> None:
    value = {"big": torch.zeros(4096), "other": torch.ones(4096)}
    with RunFolder(tmp_path) as folder:
        folder.save(1, value)
        value["big"][7] = 5.0
        folder.save(2, value)
        found = folder.load()
    assert (
        found is not None
        and torch.equal(found[1]["big"], value["big"])
        and torch.equal(found[1]["other"], value["other"])
    )


def test_damage_to_an_older_file_is_named(tmp_path: Path) -> None:
    value = {"big": torch.zeros(4096), "counts": torch.ones(4)}
    with RunFolder(tmp_path) as folder:
        folder.save(1, value)
        for round in (2, 3):
            folder.save(round, value | {"counts": torch.full((4,), float(round))})
    oldest = min((tmp_path / "state").glob("*.safetensors"), key=lambda f: int(f.stem))
    raw = bytearray(oldest.read_bytes())
    raw[-9] ^= 1
    oldest.write_bytes(raw)
    with RunFolder(tmp_path) as folder, pytest.raises(Corrupt, match=oldest.name):
        folder.load()
