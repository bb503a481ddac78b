"""What is stored is whole after any fault: a run's state, its journals, and the lock of its folder."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import random
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedquilt.cover import Cover
from fedquilt.store import Busy, Corrupt, Journal, RunFolder, StoreError, Unsaved, flatten, restore

from ..laws.strategies import DTYPES, any_bits, bits, covers, law, models_shapes, seeds, shapes
from .failpoints import Call, Died, Platter, syscalls
from .processes import CONTEXT, go_on, hold, hold_with_worker, journals, kill, race, save_forever, start, told, value


@pytest.fixture(autouse=True, scope="module")
def no_power_fails() -> Iterator[None]:
    """The machine stays up: waiting for the disk would only take time (the killed processes do wait)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: os.fstat(fd) and None)
        yield


# ---- values
def canon(v: Any) -> Any:
    """What a value is, to the type and the bit, in a form that ``==`` compares."""
    kind = type(v).__name__
    if isinstance(v, Tensor):
        return kind, bits(v.clone(memory_format=torch.contiguous_format))
    if isinstance(v, float):
        return kind, struct.pack(">d", v)
    if isinstance(v, dict):
        return kind, [(canon(k), canon(x)) for k, x in v.items()]
    if isinstance(v, set | frozenset):
        return kind, sorted(map(canon, v), key=repr)
    if isinstance(v, list | tuple):
        return kind, list(map(canon, v))
    return kind, v.encode() if isinstance(v, Cover) else v


any_text = st.text(max_size=4) | st.sampled_from(("!tensor", "!", "__metadata__", "\ud800", "größe", "a/b", "\0"))
floats = st.integers(0, 2**64 - 1).map(lambda n: struct.unpack(">d", n.to_bytes(8, "big"))[0]) | st.floats()
whole = st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from((2**63, -(2**63), 2**63 - 1, -(2**63) - 1))
scalars = st.none() | st.booleans() | whole | floats | any_text | st.binary(max_size=5)
hashable = st.recursive(
    scalars | models_shapes.flatmap(covers),
    lambda x: st.lists(x, max_size=3).map(tuple) | st.frozensets(x, max_size=3),
    max_leaves=4,
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    t = any_bits(draw(shapes), draw(st.sampled_from(DTYPES)), np.random.default_rng(draw(seeds)))
    form = draw(st.sampled_from(("plain", "transposed", "strided", "expanded", "grad")))
    if form == "grad" and t.is_floating_point():
        return t.clone().requires_grad_()
    if form == "expanded":
        return t.expand(2, *t.shape)
    return t.T if form == "transposed" and t.dim() == 2 else t[::2] if form == "strided" and t.dim() else t


values = st.recursive(
    scalars | tensors() | hashable,
    lambda x: (
        st.lists(x, max_size=4)
        | st.lists(x, max_size=3).map(tuple)
        | st.sets(hashable, max_size=3)
        | st.dictionaries(any_text, x, max_size=4)
        | st.dictionaries(hashable, x, max_size=3)
    ),
    max_leaves=8,
)


@law(300)
@given(values)
def test_a_value_comes_back_equal_in_type_and_bit(v: Any) -> None:
    said, named = flatten(v)
    assert canon(restore(json.loads(json.dumps(said, allow_nan=False)), named)) == canon(v)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    with RunFolder(tmp_path_factory.mktemp("shelf")) as folder:
        yield folder


@law(60)
@given(values)
def test_a_saved_value_comes_back_from_the_disk(shelf: RunFolder, v: Any) -> None:
    shelf.save(3, v)
    found = shelf.load()
    assert found is not None and found[0] == 3 and canon(found[1]) == canon(v)
    assert not shelf.notices


def test_tensors_that_share_memory_come_back_each_with_its_own(shelf: RunFolder) -> None:
    t = torch.arange(12.0).view(3, 4)
    v = {"whole": t, "again": t, "row": t[1], "turned": t.T, "a/b": {"c": t}, "a": {"b/c": t + 1}, "empty": t[:0]}
    shelf.save(1, v)
    _, back = shelf.load() or (0, None)
    assert canon(back) == canon(v)
    back["whole"].zero_()
    assert canon({k: x for k, x in back.items() if k != "whole"}) == canon({k: x for k, x in v.items() if k != "whole"})


def test_a_negative_view_is_stored_as_the_numbers_that_it_shows() -> None:
    t = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert t.is_neg() and restore(*flatten([t]))[0].numpy().tolist() == [-2.0, 4.0]


def test_equal_sets_are_equal_bytes() -> None:
    a, b = {"x", "y", 3, (1, 2)}, {(1, 2), 3, "y", "x"}
    assert json.dumps(flatten(a)[0]) == json.dumps(flatten(b)[0])


def test_a_plain_dict_is_a_plain_object() -> None:
    assert flatten({"a": [1, 2.5, None], "b": {"c": "!"}}) == ({"a": [1, 2.5, None], "b": {"c": "!"}}, {})


class _Odd(dict[str, int]):
    pass


_LOOP: list[Any] = []
_LOOP.append(_LOOP)


@pytest.mark.parametrize(
    ("v", "sentence"),
    [
        ({"notes": [0, {3: object()}]}, r"value\['notes'\]\[1\]\[3\] is a builtins.object, which cannot be stored"),
        ([np.float64(1)], r"value\[0\] is a numpy.float64"),
        ((_Odd(a=1),), r"value\[0\] is a .*_Odd"),
        ({"p": torch.nn.Parameter(torch.ones(1))}, r"value\['p'\] is a .*Parameter.*\(detached\)"),
        ([torch.ones(2).to_sparse()], r"value\[0\] is a tensor of torch.float32, torch.sparse_coo"),
        ([torch.ones(2, dtype=torch.complex128)], r"torch.complex128"),
        ([torch.ones(2, device="meta")], r"on meta"),
        (_LOOP, r"value\[0\]\[0\]\[0\]... is nested more than 64 deep, or holds itself"),
        ({("k", b"" * 2): 1j}, r"is a builtins.complex"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place(v: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=sentence):
        flatten(v)
    with RunFolder(tmp_path) as folder:
        folder.save(1, "before")
        with pytest.raises(TypeError, match=sentence):
            folder.save(2, v)
        assert folder.load() == (1, "before")


def test_a_tag_of_another_version_is_refused() -> None:
    for said in ({"!complex": "1+2j"}, {"!tensor": "w"}):
        with pytest.raises(Corrupt, match="another version"):
            restore(said, {})  # type: ignore[arg-type]


# ---- generations
def check(path: Path, allowed: set[int | None], whole: bool = True) -> int | None:
    """Load as a new process would: one of these rounds, all of it, with its history; then go on."""
    with RunFolder(path) as folder:
        kept = journals(path)
        found = folder.load(kept)
        done = found[0] if found else 0
        assert (found[0] if found else None) in allowed
        assert found is None or canon(found[1]) == canon(value(done))
        assert [r["round"] for r in kept["rounds"].records()] == list(range(1, done + 1))
        assert [r["round"] for r in kept["clients"].records()] == [r for r in range(1, done + 1) for _ in range(3)]
        assert not (whole and folder.notices)
        go_on(folder, kept, done)
        assert (folder.load(kept) or (0,))[0] == done + 1
    return found[0] if found else None


def ran(path: Path, rounds: int) -> Path:
    """A folder after so many rounds."""
    with RunFolder(path) as folder:
        kept = journals(path)
        for done in range(rounds):
            go_on(folder, kept, done)
    return path


def files(path: Path) -> list[str]:
    return sorted(p.name for p in (path / "state").glob("*"))


def generation(path: Path) -> int:
    return max((int(name.split(".")[0]) for name in files(path) if name.endswith("manifest.json")), default=0)


def wait(until: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not until():
        assert time.monotonic() - began < 20
        time.sleep(0.001)


def test_nothing_there_is_none(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "new" / "run") as folder:
        assert folder.load() is None and folder.path == tmp_path / "new" / "run"


def test_two_generations_are_kept(tmp_path: Path) -> None:
    ran(tmp_path, 5)
    assert files(tmp_path) == [f"{n}.{k}" for n in (4, 5) for k in ("json", "manifest.json", "safetensors")]
    assert check(tmp_path, {5}) == 5


def _damaged(raw: bytes, rng: random.Random, flips: int, cuts: int) -> Iterator[bytes]:
    for _ in range(flips):
        bit = rng.randrange(8 * len(raw))
        out = bytearray(raw)
        out[bit // 8] ^= 1 << bit % 8
        yield bytes(out)
    for _ in range(cuts):
        yield raw[: rng.randrange(len(raw))]


@pytest.mark.parametrize("kind", ["safetensors", "json", "manifest.json"])
def test_every_flipped_bit_and_every_cut_is_detected(tmp_path: Path, kind: str) -> None:
    ran(tmp_path, 2)
    file = tmp_path / "state" / f"2.{kind}"
    raw, older = file.read_bytes(), tmp_path / "state" / f"1.{kind}"
    rng = random.Random(kind)
    with RunFolder(tmp_path) as folder:
        for wrong in _damaged(raw, rng, 300, 100):
            file.write_bytes(wrong)
            folder.notices.clear()
            found = folder.load()
            assert found is not None and found[0] == 1 and canon(found[1]) == canon(value(1))
            assert (
                len(folder.notices) == 1 and file.name in folder.notices[0] and "back to round 1" in folder.notices[0]
            )
        for worse in _damaged(older.read_bytes(), rng, 20, 10):
            older.write_bytes(worse)
            with pytest.raises(Corrupt, match=rf"no whole state(?s:.*)2\.{kind}(?s:.*)1\.{kind}(?s:.*)from a copy"):
                folder.load()
        file.write_bytes(raw)
        assert (folder.load() or (0,))[0] == 2


@pytest.mark.parametrize("kind", ["safetensors", "json", "manifest.json"])
def test_a_lost_file_is_a_damaged_generation(tmp_path: Path, kind: str) -> None:
    ran(tmp_path, 3)
    (tmp_path / "state" / f"3.{kind}").unlink()
    assert check(tmp_path, {2}, whole=False) == 2


def test_a_damaged_generation_is_never_the_one_that_is_kept(tmp_path: Path) -> None:
    ran(tmp_path, 3)
    (tmp_path / "state" / "3.json").write_bytes(b"{}")
    with RunFolder(tmp_path) as folder:  # that nobody has loaded does not matter
        folder.save(9, value(9))
    assert {name.split(".")[0] for name in files(tmp_path)} == {"2", "4"}


def test_another_format_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder(tmp_path) as folder:
        folder.save(1, "old")
        monkeypatch.setattr("fedquilt.store.folder.FORMAT", 2)
        folder.save(2, "new")
        monkeypatch.setattr("fedquilt.store.folder.FORMAT", 1)
        with pytest.raises(StoreError, match=r"format 2.* reads format 1.* resume") as e:
            folder.load()
        assert type(e.value) is StoreError


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    ran(tmp_path, 1)
    (tmp_path / "state" / "notes.txt").write_text("mine")
    (tmp_path / "state" / "7.json.tmp").write_text("left over")
    (tmp_path / "state" / "8.safetensors").write_text("left over")
    with syscalls() as seen:
        check(tmp_path, {1})
    first = [c.name for c in seen.log if "/state/" in c.path][:3]
    assert first == ["unlink", "unlink", "open"], "what was left over may fill the disk: it goes first"
    assert (tmp_path / "state" / "notes.txt").read_text() == "mine" and len(files(tmp_path)) == 7


def test_a_closed_folder_saves_and_loads_no_more(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        pass
    folder.close()
    for use in (folder.load, lambda: folder.save(1, 1)):
        with pytest.raises(StoreError, match="not held"):
            use()


# ---- every system call fails once
def _session(path: Path) -> None:
    with RunFolder(path) as folder:
        kept = journals(path)
        found = folder.load(kept)
        go_on(folder, kept, found[0] if found else 0)


@pytest.mark.parametrize("how", ["full", "die"])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_fault_at_any_call_leaves_one_of_two_generations(tmp_path: Path, how: str, before: int) -> None:
    begun = ran(tmp_path / "begun", before)
    for at in itertools.count():
        path = tmp_path / "run"
        shutil.copytree(begun, path)
        try:
            with syscalls(at, how) as seen:
                _session(path)
        except Unsaved as e:
            assert how == "full" and "No space left on device" in str(e) and "free some space" in str(e)
        except Died:
            assert how == "die"
        else:
            # only a folder that is there already and a removal may fail unnoticed
            assert seen.failed[0] in ("", "mkdir", "unlink")
            check(path, {before + 1})
            shutil.rmtree(path)
            if not seen.hit:
                assert at > 15
                return
            continue
        check(path, {before or None, before + 1})
        assert len(files(path)) <= 6, "what was left over is gone"
        shutil.rmtree(path)


def test_a_full_disk_may_be_emptied_and_the_save_repeated(tmp_path: Path) -> None:
    for at in itertools.count():
        path = ran(tmp_path / str(at), 2)
        with RunFolder(path) as folder:
            kept = journals(path)
            folder.load(kept)
            try:
                with syscalls(at) as seen:
                    go_on(folder, kept, 2)
            except Unsaved:
                if seen.failed[0] == "fsync" and seen.failed[1].endswith("jsonl"):
                    # what it had taken of a journal it may have lost: only a resume knows
                    with pytest.raises(Unsaved, match=r"lost records that the disk had taken.*resume"):
                        folder.save(3, value(3), kept)
                    folder.load(kept)
                    go_on(folder, kept, 2)
                else:
                    folder.save(3, value(3), kept)
            assert (folder.load(kept) or (0,))[0] == 3
            if not seen.hit:
                break
        check(path, {3})


def _removals(log: list[Call]) -> Iterator[int]:
    return (i for i, c in enumerate(log) if c.name == "unlink")


def test_nothing_is_removed_before_the_new_generation_is_durable(tmp_path: Path) -> None:
    ran(tmp_path, 3)
    with RunFolder(tmp_path) as folder:
        kept = journals(tmp_path)
        folder.load(kept)
        with syscalls() as seen:
            go_on(folder, kept, 3)
    names = [(c.name, Path(c.path).name) for c in seen.log]
    renamed = names.index(("replace", "4.manifest.json.tmp"))
    durable = names.index(("fsync", "state"), renamed)
    assert {Path(seen.log[i].path).name.split(".")[0] for i in _removals(seen.log)} == {"2"}
    assert all(i > durable for i in _removals(seen.log))
    for before in ("4.safetensors", "4.json", "rounds.jsonl", "clients.jsonl", "4.manifest.json.tmp", "state"):
        assert names.index(("fsync", before)) < renamed


def test_an_old_generation_that_cannot_be_removed_is_a_notice(tmp_path: Path) -> None:
    ran(tmp_path, 2)
    with RunFolder(tmp_path) as folder:
        with syscalls() as seen:
            folder.save(3, value(3))
        with syscalls(next(_removals(seen.log))) as seen:
            folder.save(4, value(4))
        assert seen.hit and "not removed yet: No space left" in folder.notices[0]
        folder.save(5, value(5))
    assert len(files(tmp_path)) == 6


def test_after_the_loss_of_power_one_of_two_generations_is_there(tmp_path: Path) -> None:
    rng = random.Random(5)
    (tmp_path / "run").mkdir()
    platter, saved = Platter(tmp_path / "run"), [0]
    with syscalls() as seen:
        for _ in range(3):
            _session(tmp_path / "run")
            saved.append(len(seen.log))
    for i, call in enumerate(seen.log, 1):
        if not platter.play(call):
            continue
        done = sum(i >= n for n in saved) - 1
        for n in range(4):
            where = tmp_path / f"{i}-{n}"
            where.mkdir()
            platter.crash(where, rng)
            check(where, {done or None, done + 1})
            shutil.rmtree(where)


def test_what_was_loaded_once_outlives_the_loss_of_power(tmp_path: Path) -> None:
    rng = random.Random(8)
    for at in itertools.count():
        path = tmp_path / str(at)
        path.mkdir()
        platter = Platter(path)
        with syscalls() as begun:
            _session(path)
        with syscalls(at, "die") as killed, suppress(Died):
            _session(path)
        with syscalls() as resumed, RunFolder(path) as folder:
            done, _ = folder.load(journals(path)) or (0, None)
        platter.play_all(begun.log + killed.log + resumed.log)
        for n in range(3):
            where = tmp_path / f"{at}-{n}"
            where.mkdir()
            platter.crash(where, rng)
            check(where, {done})
        if not killed.hit:
            return


# ---- processes
def test_kill_at_any_instant_leaves_a_whole_state(tmp_path: Path) -> None:
    rng, last = random.Random(1), 0
    lock = tmp_path / "run.lock"
    for i in range(10):
        newest = generation(tmp_path)
        process = start(save_forever, tmp_path)
        wait(lambda: lock.exists() and lock.stat().st_size > 0)
        if i % 2:  # the others may be killed before they have saved anything
            wait(lambda was=newest: generation(tmp_path) != was)
        time.sleep(rng.uniform(0.0, 0.05))
        kill(process)
        done = check(tmp_path, {None, *range(last, 100_000)}) or 0
        assert done >= last
        last = done + 1
    assert last >= 15


def test_of_two_openers_exactly_one_wins_and_the_other_learns_who(tmp_path: Path) -> None:
    races, barrier = 50, CONTEXT.Barrier(2)
    pipes = [CONTEXT.Pipe() for _ in range(2)]
    racers = [start(race, tmp_path, races, barrier, theirs) for _, theirs in pipes]
    pids = [r.pid for r in racers]
    for _ in range(races):
        (a, pid_a), (b, pid_b) = (told(ours) for ours, _ in pipes)
        assert sorted((a, b)) == ["lost", "won"] and pid_a == pid_b == pids[0 if a == "won" else 1]
    for r in racers:
        r.join(10)
        r.close()


@pytest.mark.parametrize("work", [hold, hold_with_worker])
def test_the_lock_ends_with_its_holder(tmp_path: Path, work: Any) -> None:
    ours, theirs = CONTEXT.Pipe()
    process = start(work, tmp_path, theirs)
    worker, pid = told(ours), process.pid
    try:
        began = time.monotonic()
        with pytest.raises(Busy, match=rf"in use by process {pid} on ") as e:
            RunFolder(tmp_path)
        assert e.value.pid == pid and time.monotonic() - began < 1
        kill(process)
        with RunFolder(tmp_path) as folder:
            folder.save(1, 1)
    finally:
        if worker:
            os.kill(worker, 9)


def test_a_second_opener_in_the_same_process_is_told_so(tmp_path: Path) -> None:
    with RunFolder(tmp_path), pytest.raises(Busy, match="in use by this process") as e:
        RunFolder(tmp_path)
    assert isinstance(e.value, StoreError) and e.value.pid == os.getpid()


def test_a_holder_is_named_though_it_is_slow_to_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.lock"
    file.write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))  # a holder that was killed
    with open(file) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Busy, match="in use by another process") as e:
            RunFolder(tmp_path)
        assert e.value.pid is None
        mine = json.dumps({"pid": 12, "host": "elsewhere"})
        monkeypatch.setattr("fedquilt.store.lock.time.sleep", lambda s: file.write_text(mine))
        with pytest.raises(Busy, match="in use by process 12 on elsewhere"):
            RunFolder(tmp_path)


# ---- journals
def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def test_a_journal_is_valid_json_line_by_line(tmp_path: Path) -> None:
    j = Journal(tmp_path / "j.jsonl")
    j.append({"b": 1, "a": [1.5, float("nan"), {"x": float("-inf")}], "é\n": None, "t": (True, "\ud800")})
    j.append({})
    assert j.records() == [{"b": 1, "a": [1.5, None, {"x": None}], "é\n": None, "t": [True, "\ud800"]}, {}]
    assert _lines(j.path) == [b'{"b":1,"a":[1.5,null,{"x":null}],"\\u00e9\\n":null,"t":[true,"\\ud800"]}', b"{}"]
    assert j.offset == j.path.stat().st_size and Journal(j.path).records() == j.records()


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"a": [torch.ones(1)]}, r"record\['a'\]\[0\] is a Tensor, which no journal takes"),
        ({"a": {1: 2}}, r"record\['a'\] is a mapping with keys that are no strings"),
    ],
)
def test_a_journal_takes_only_json(tmp_path: Path, record: Mapping[str, Any], sentence: str) -> None:
    j = Journal(tmp_path / "j.jsonl")
    with pytest.raises(TypeError, match=sentence):
        j.append(record)
    assert j.offset == 0 and j.records() == []


def test_a_journal_goes_back_with_its_run(tmp_path: Path) -> None:
    alone = {k: _lines(j.path) for k, j in journals(ran(tmp_path / "alone", 4)).items()}
    path = ran(tmp_path / "run", 3)
    kept = journals(path)
    kept["rounds"].append({"round": 4, "of": "a run that was killed"})
    kept["rounds"].flush()
    with open(kept["clients"].path, "ab") as f:
        f.write(b'{"round": 4, "cli')
    assert [r["round"] for r in journals(path)["clients"].records()][-1] == 3  # a torn line is no record
    check(path, {3})
    assert {k: _lines(j.path) for k, j in kept.items()} == alone


def test_a_journal_begins_anew_where_nothing_was_saved(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        j = Journal(tmp_path / "j.jsonl")
        j.append({"a": 1})
        j.flush()
        j.append({"a": 2})
        assert folder.load({"j": j}) is None and j.records() == [] and j.offset == 0
        folder.save(1, 1)
        j.append({"a": 3})
        j.flush()
        folder.load({"j": j})  # unknown to the generation
        assert j.records() == []


def test_a_journal_that_was_shortened_is_damage(tmp_path: Path) -> None:
    path = ran(tmp_path, 2)
    kept = journals(path)
    first = len(_lines(kept["rounds"].path)[0]) + 1
    os.truncate(kept["rounds"].path, first)
    with RunFolder(path) as folder:
        assert (folder.load(kept) or (0,))[0] == 1 and "rounds.jsonl holds" in folder.notices[0]
        kept["clients"].path.unlink()
        with pytest.raises(Corrupt, match=r"clients.jsonl holds 0 bytes of the \d+ that were written"):
            folder.load(kept)


def test_a_journal_that_others_write_to_is_refused(tmp_path: Path) -> None:
    j = Journal(tmp_path / "j.jsonl")
    j.append({"a": 1})
    j.sync()
    j.path.write_bytes(j.path.read_bytes() + b"x\n{}\n")
    j.append({"a": 2})
    with pytest.raises(StoreError, match="another program has changed it"):
        j.sync()
    with pytest.raises(Corrupt, match=r"line 2 is not JSON"):
        Journal(j.path).records()
