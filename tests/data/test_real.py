"""The real files, where FEDQUILT_DATA names a folder that has them: one command starts a run, and what is known."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from fedquilt.cli import main
from fedquilt.data import SOURCES, load
from fedquilt.data.shard import SPLITS
from fedquilt.data.table import TABLE
from fedquilt.prepare import dealt
from fedquilt.run import Run

HERE = Path(os.environ.get("FEDQUILT_DATA", "nowhere")).absolute()
FIRST = {n: HERE / TABLE[n].folder / f"{TABLE[n].splits[0]}.{TABLE[n].ending}" for n in TABLE}


LARGE = ("femnist", "cifar10", "speech", "shakespeare")


def needs(*names: str) -> pytest.MarkDecorator:
    """A test that reads real files, or says why it does not."""
    missing = [n for n in names if not FIRST[n].is_file()]
    return pytest.mark.skipif(bool(missing), reason=f"FEDQUILT_DATA has no {', '.join(missing)}")


@pytest.fixture(autouse=True)
def _there(_apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_DATA", str(HERE))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        *(pytest.param([n, "--clients", "100"], marks=needs(n), id=n) for n in LARGE),
        pytest.param(["spar"], marks=needs("spar"), id="spar"),
    ],
)
def test_one_command_starts_a_run(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedspu", "--data", *words, "--rounds", "1", "--out", str(tmp_path / "r"), "--quiet"]) == 0
    record = json.loads((tmp_path / "r" / "run.json").read_text())
    assert record["data"]["clients"] == (100 if len(words) > 1 else 20) and record["data"]["fingerprint"]
    scored = [json.loads(line) for line in (tmp_path / "r" / "scores.jsonl").read_text().splitlines()]
    assert len({s["client"] for s in scored} - {None}) == record["data"]["clients"], "all clients, selected or not"


@pytest.mark.slow
@needs("cifar10", "mnist")
def test_whole_data_sets_are_whole() -> None:
    for name, sizes in (("cifar10", (50_000, 10_000)), ("mnist", (60_000, 10_000))):
        data = load(name)
        assert (data.dealt, data.own_test) == sizes and data.x.dtype == torch.uint8
        counts = data.y[: data.dealt].bincount()
        assert len(counts) == 10 and (name != "cifar10" or counts.tolist() == [5000] * 10)
        again = load(name)
        assert again.fingerprint == data.fingerprint, "from the cache"


@needs("speech")
def test_the_speech_data_have_29_repeats() -> None:
    shards = dealt(Run(data="speech", clients=60, partition="natural"))
    assert len(shards.data) == 11_387 and len(shards.data.owners) == 62
    every = dealt(Run(data="speech", clients=62, partition="groups:1000:1")).repeats
    assert every["samples"] == 29
    words = shards.data.prepare(shards.data.x[:100])
    assert torch.allclose(words, (shards.data.x[:100].float() - 0.5) / 0.5), "FLrce's normalisation of raw values"


@needs("femnist")
def test_white_paper_is_one_in_femnist() -> None:
    data = load("femnist")
    assert len(data) == 15_678 and len(data.owners) == 31 and int(data.y.max()) <= 61
    corner = data.prepare(data.x[:, :, 0, 0].view(-1, 1, 1, 1)).mean()
    assert float(corner) > 0.95


@needs("spar")
def test_the_motions_of_a_person_and_side_are_split_in_time_with_a_gap_of_a_window() -> None:
    data = load("spar")
    assert data.series is not None and int(data.series.max()) == 139 and len(data.owners) == 20
    shards = dealt(Run(data="spar", clients=20, partition="natural"))
    assert data.groups is not None
    for client in shards.clients:
        parts = {s: shards.parts.part(client, s) for s in SPLITS}
        assert len(data.groups[torch.cat(list(parts.values()))].unique()) == 1
        for one in data.series[parts["train"]].unique():
            mine = [p[data.series[p] == one] for p in parts.values()]
            ends = [(int(p.min()) * 50, int(p.max()) * 50 + 100) for p in mine if len(p)]  # moments, up to a shift
            for (_, end), (begin, _) in pairwise(ends):
                assert begin - end >= 100, "a window's length lies between"
    with pytest.raises(ValueError, match="20 of 20 natural owners have 10 samples or more, too few for 21 clients"):
        dealt(Run(data="spar", clients=21))


@needs("shakespeare")
def test_roles_speak_in_order() -> None:
    shards = dealt(Run(data="shakespeare", clients=100))
    for client in shards.clients[:10]:
        rows = [shards.parts.part(client, s) for s in SPLITS]
        assert int(rows[0].max()) < int(rows[1].min()) and int(rows[1].max()) < int(rows[2].min())


@needs(*(n for n in TABLE if TABLE[n].seen))
def test_the_table_says_what_was_seen() -> None:
    assert {n for n in SOURCES if n in TABLE and TABLE[n].seen} == {n for n, p in FIRST.items() if p.is_file()}
