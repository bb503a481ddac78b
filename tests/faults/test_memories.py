"""A client's memories are whole after any fault, and the version that an order names is still there."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedquilt.cover import Params
from fedquilt.store import Corrupt, InRam, Memories, Missing, OnDisk, StoreError, Unsaved
from fedquilt.types import Json, Memory

from ..laws.strategies import law, models
from .failpoints import Died, Platter, syscalls
from .processes import kill, memory, remember_forever, start
from .test_store import any_text, canon, floats, no_power_fails, wait, whole

__all__ = ["no_power_fails"]

json_values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | whole | floats | any_text,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(any_text, x, max_size=3),
    max_leaves=6,
)
facts = st.dictionaries(any_text, json_values, max_size=3)


def same(a: Memory, b: Memory) -> bool:
    return all(canon(getattr(a, k)) == canon(getattr(b, k)) for k in ("tensors", "facts", "spec"))


@pytest.fixture(params=["ram", "disk", "cold", "careless"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Memories:
    if request.param == "ram":
        return InRam()
    return OnDisk(tmp_path / "memory", 0 if request.param == "cold" else 1 << 20, request.param != "careless")


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> list[Memories]:
    folder = tmp_path_factory.mktemp("memories")
    return [InRam(), OnDisk(folder / "hot", 1 << 20), OnDisk(folder / "cold", 0)]


@law(80)
@given(models(), facts, facts, st.integers(0, 600), st.integers(1, 50))
def test_a_memory_comes_back_equal_in_type_and_bit(
    shelves: list[Memories], p: Params, said: Any, spec: Any, client: int, version: int
) -> None:
    m = Memory(p, said, spec)
    for shelf in shelves:
        shelf.save(client, version, m, version - 1)
        assert same(shelf.load(client, version), m)


# ---- versions
def test_version_0_is_the_empty_memory(store: Memories) -> None:
    assert same(store.load(3, 0), Memory())


def test_an_empty_memory_is_a_version_too(store: Memories) -> None:
    store.save(3, 5, Memory(), 0)
    assert same(store.load(3, 5), Memory())
    with pytest.raises(Missing):
        store.load(3, 4)


def test_the_newest_two_versions_are_kept(store: Memories) -> None:
    for version, base in ((1, 0), (4, 1), (9, 4)):
        store.save(7, version, memory(version), base)
    store.save(263, 2, memory(2), 0)  # a neighbour in the same shard
    assert same(store.load(7, 9), memory(9)) and same(store.load(7, 4), memory(4))
    assert same(store.load(263, 2), memory(2))
    with pytest.raises(Missing, match=r"version 1 of the memory of client 7 is not in .*\(there: 4, 9\).*begin anew"):
        store.load(7, 1)
    with pytest.raises(Missing, match="there is none of this client"):
        store.load(8, 1)


def test_the_redo_of_an_order_begins_with_what_the_order_named(store: Memories) -> None:
    store.save(7, 1, memory(1), 0)
    store.save(7, 3, memory(99), 1)  # the server dies and repeats the order
    assert same(store.load(7, 1), memory(1))
    store.save(7, 3, memory(3), 1)
    assert same(store.load(7, 3), memory(3)) and same(store.load(7, 1), memory(1))
    store.save(7, 5, memory(5), 1)  # the reply of round 2 never came: the next order names version 1 again
    assert same(store.load(7, 5), memory(5)) and same(store.load(7, 1), memory(1))
    with pytest.raises(Missing):
        store.load(7, 3)


@pytest.mark.parametrize(("version", "base"), [(0, 0), (3, 3), (2, 3), (1, -1)])
def test_a_version_follows_its_base(store: Memories, version: int, base: int) -> None:
    with pytest.raises(ValueError, match="follows its base"):
        store.save(1, version, memory(1), base)


def test_spare_versions_are_those_just_before_the_base(tmp_path: Path) -> None:
    store = OnDisk(tmp_path, spare=1)
    for version in range(1, 6):
        store.save(7, version, memory(version), version - 1)
    assert [same(store.load(7, v), memory(v)) for v in (3, 4, 5)] == [True] * 3
    with pytest.raises(Missing, match=r"\(there: 3, 4, 5\)"):
        store.load(7, 2)
    store.save(7, 6, memory(6), 4)  # back to 4: what was done on it is no longer so
    with pytest.raises(Missing, match=r"\(there: 3, 4, 6\)"):
        store.load(7, 5)


def test_what_is_loaded_is_the_callers_own(store: Memories) -> None:
    mine = Memory({"w": torch.ones(4)}, {"a": [1]})
    store.save(1, 1, mine, 0)
    mine.tensors["w"].zero_()
    for _ in range(2):
        got = store.load(1, 1)
        assert same(got, Memory({"w": torch.ones(4)}, {"a": [1]}))
        got.tensors["w"].zero_()
        got.facts["a"].append(2)  # type: ignore[union-attr]


def test_what_is_not_json_is_refused_with_its_place(store: Memories) -> None:
    store.save(4, 1, memory(1), 0)
    with pytest.raises(TypeError, match=r"the memory of client 4\['facts'\]\['f'\]\[0\] is a builtins.object"):
        store.save(4, 2, Memory({}, {"f": [object()]}), 1)  # type: ignore[list-item]
    assert same(store.load(4, 1), memory(1))


# ---- files
def test_a_memory_is_a_safetensors_file_and_the_same_memory_the_same_bytes(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    m = Memory({"w": torch.ones(3), "größe": torch.tensor(2)}, {"loss": 0.5})
    for name in ("a", "b"):
        OnDisk(tmp_path / name).save(258, 1, m, 0)
    a, b = (tmp_path / name / "02" / "258" / "1.safetensors" for name in ("a", "b"))
    assert a.read_bytes() == b.read_bytes()
    assert load_file(a)["tensors/w"].tolist() == [1, 1, 1]


def test_a_hot_memory_needs_no_disk(tmp_path: Path) -> None:
    store = OnDisk(tmp_path / "m", 1 << 20)
    store.save(1, 1, memory(1), 0)
    store.save(2, 1, memory(1), 0)
    shutil.rmtree(tmp_path / "m")
    assert same(store.load(1, 1), memory(1)) and same(store.load(2, 1), memory(1))


def test_the_hottest_memories_fit_into_their_bytes(tmp_path: Path) -> None:
    one = OnDisk(tmp_path, 1 << 20)
    one.save(0, 1, memory(1), 0)
    size = one._hot.size
    assert 1200 < size < 2000
    store = OnDisk(tmp_path, 3 * size + 100)
    for client in range(1, 5):
        store.save(client, 1, memory(1), 0)
        store.load(1, 1)
    assert [c for c, _ in store._hot.held] == [3, 4, 1] and store._hot.size <= 3 * size + 100
    shutil.rmtree(tmp_path)
    assert same(store.load(3, 1), memory(1))
    with pytest.raises(Missing):
        store.load(2, 1)


def test_looking_up_a_memory_lists_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = OnDisk(tmp_path, 0)
    for client in range(3):
        store.save(client * 256, 1, memory(1), 0)
    listed: list[Any] = []
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda p: listed.append(p) or real(p))
    store.load(0, 1)
    assert not listed
    store.save(0, 2, memory(2), 1)
    assert listed == [tmp_path / "00" / "0"]


# ---- faults
def _damaged(raw: bytes) -> Iterator[bytes]:
    rng = random.Random(3)
    for _ in range(300):
        bit = rng.randrange(8 * len(raw))
        yield raw[: bit // 8] + bytes([raw[bit // 8] ^ 1 << bit % 8]) + raw[bit // 8 + 1 :]
    for _ in range(100):
        yield raw[: rng.randrange(len(raw))]
    yield raw + b"\0"


@pytest.mark.parametrize("m", [memory(2), Memory()])
def test_every_flipped_bit_and_every_cut_is_detected(tmp_path: Path, m: Memory) -> None:
    store = OnDisk(tmp_path, 0)
    store.save(7, 1, memory(1), 0)
    store.save(7, 2, m, 1)
    file = tmp_path / "07" / "7" / "2.safetensors"
    raw = file.read_bytes()
    for wrong in _damaged(raw):
        file.write_bytes(wrong)
        with pytest.raises(Corrupt, match=rf"{file} is damaged.*client 7 begin anew"):
            store.load(7, 2)
    file.write_bytes(raw)
    assert same(store.load(7, 2), m) and same(store.load(7, 1), memory(1))


def test_a_file_of_another_client_or_version_is_refused(tmp_path: Path) -> None:
    store = OnDisk(tmp_path, 0)
    store.save(7, 1, memory(1), 0)
    store.save(8, 1, memory(1), 0)
    store.save(7, 2, memory(2), 1)
    for source in ("08/8/1.safetensors", "07/7/1.safetensors"):
        shutil.copy(tmp_path / source, tmp_path / "07/7/2.safetensors")
        with pytest.raises(Corrupt, match=r"2.safetensors holds version 1 of client [78]"):
            store.load(7, 2)


def _whole(path: Path, certain: int, possible: int) -> None:
    """What was stored is there, and what was being stored is whole or absent."""
    store = OnDisk(path, 0)
    assert same(store.load(7, certain), memory(certain))
    try:
        assert same(store.load(7, possible), memory(possible))
    except Missing:
        assert certain != possible
    store.save(7, possible, memory(possible), certain if certain < possible else 0)
    assert same(store.load(7, possible), memory(possible))
    kept = {f"{v}.safetensors" for v in (certain, possible) if v}
    assert {p.name for p in (path / "07" / "7").iterdir()} == kept


@pytest.mark.parametrize("how", ["full", "die"])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_fault_at_any_call_leaves_the_old_version_and_a_whole_new_one_or_none(
    tmp_path: Path, how: str, before: int
) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    for version in range(1, before + 1):
        OnDisk(begun).save(7, version, memory(version), version - 1)
    for at in itertools.count():
        path = shutil.copytree(begun, tmp_path / str(at))
        store, saved = OnDisk(path, 1 << 20), False
        try:
            with syscalls(at, how) as seen:
                store.save(7, before + 1, memory(before + 1), before)
            saved = True
        except Unsaved as e:
            assert how == "full" and str(e).startswith(f"version {before + 1} of the memory of client 7 cannot be")
            assert isinstance(e, StoreError)
            store.save(7, before + 1, memory(before + 1), before)  # room was made
            assert same(store.load(7, before + 1), memory(before + 1))
        except Died:
            pass
        _whole(path, before, before + 1)
        if saved:
            assert same(OnDisk(path, 0).load(7, before + 1), memory(before + 1))
        if not seen.hit:
            assert at > 4
            return


def test_nothing_is_removed_before_the_new_version_is_durable(tmp_path: Path) -> None:
    store = OnDisk(tmp_path)
    store.save(7, 1, memory(1), 0)
    store.save(7, 2, memory(2), 1)
    with syscalls() as seen:
        store.save(7, 3, memory(3), 2)
    home, file = tmp_path / "07" / "7", "3.safetensors.tmp"
    calls = [(c.name, Path(c.path).relative_to(home).as_posix()) for c in seen.log]
    assert calls == [
        ("open", file),
        ("write", file),
        ("fsync", file),
        ("replace", file),
        ("open", "."),
        ("fsync", "."),
        ("unlink", "1.safetensors"),
    ]


def test_a_run_that_is_thrown_away_waits_for_no_disk(tmp_path: Path) -> None:
    store = OnDisk(tmp_path, durable=False)
    with syscalls() as seen:
        for version in (1, 2, 3):
            store.save(7, version, memory(version), version - 1)
    assert "fsync" not in [c.name for c in seen.log]
    assert [Path(c.to).name for c in seen.log if c.name == "replace"] == [f"{v}.safetensors" for v in (1, 2, 3)]


def test_after_the_loss_of_power_the_old_version_is_there_and_the_new_one_whole_or_absent(tmp_path: Path) -> None:
    rng, path = random.Random(6), tmp_path / "m"
    path.mkdir()
    platter, saved = Platter(path), []
    with syscalls() as seen:
        store = OnDisk(path)
        for version in range(1, 5):
            store.save(7, version, memory(version), version - 1)
            saved.append(len(seen.log))
    for i, call in enumerate(seen.log, 1):
        if not platter.play(call):
            continue
        done = sum(i >= n for n in saved)
        for n in range(5):
            where = tmp_path / f"{i}-{n}"
            where.mkdir()
            platter.crash(where, rng)
            if done < 4:
                _whole(where, done, done + 1)


def test_a_folder_that_a_dead_process_made_is_made_durable_by_the_next(tmp_path: Path) -> None:
    rng = random.Random(7)
    for at in itertools.count():
        path = tmp_path / str(at)
        path.mkdir()
        platter = Platter(path)
        with syscalls(at, "die") as first, suppress(Died):
            OnDisk(path).save(7, 1, memory(1), 0)
        with syscalls() as second:
            OnDisk(path).save(7, 1, memory(1), 0)
        platter.play_all(first.log + second.log)
        for n in range(4):
            where = tmp_path / f"{at}-{n}"
            where.mkdir()
            platter.crash(where, rng)
            assert same(OnDisk(where).load(7, 1), memory(1))
        if not first.hit:
            return


def test_kill_at_any_instant_leaves_whole_memories(tmp_path: Path) -> None:
    rng, last = random.Random(2), 0
    home = tmp_path / "07" / "7"
    for _ in range(10):
        before = set(home.glob("*.safetensors"))
        process = start(remember_forever, tmp_path, last)
        wait(lambda was=before: set(home.glob("*.safetensors")) - was != set())  # type: ignore[misc]
        time.sleep(rng.uniform(0.0, 0.03))
        kill(process)
        there = sorted(int(p.name.split(".")[0]) for p in home.glob("*.safetensors"))
        store = OnDisk(tmp_path, 0)
        assert there[-1] > last
        assert all(same(store.load(7, v), memory(v)) for v in there)
        last = there[-1]
        assert last == 1 or last - 1 in there, "the base is kept"
    store.save(7, last + 1, memory(last + 1), last)
    assert len(list(home.iterdir())) == 2
