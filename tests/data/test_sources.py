"""Every schema of the table is read from ten rows of it; what is missing is said; what was decoded is kept."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedquilt.data import SOURCES, cache, decode, hub, load
from fedquilt.data.columns import Corrupt
from fedquilt.data.hub import Missing, Place, find
from fedquilt.data.table import TABLE
from fedquilt.data.text import LETTERS
from fedquilt.key import Key
from fedquilt.prepare import prepare
from fedquilt.run import Run

from .fixtures import ROWS, files, picture, sound, write

KEY = Key(0)
DOCS = Path(__file__).parents[2] / "docs" / "data.md"
KINDS = {"speech": torch.float16, "speech-audio": torch.float16, "uci-har": torch.float32, "spar": torch.float32}
OWNERS = {
    "femnist": ("f0000_14", "f0001_14", "f0002_14"),
    "speech": ("0", "1", "2"),
    "speech-audio": ("00000000", "00000001", "00000002", "noise"),
    "uci-har": ("1", "2", "3"),
    "spar": ("1+0", "1+1", "2+0", "2+1", "3+0", "3+1"),
    "shakespeare": ("FIRST", "SECOND", "THIRD"),
    "reddit": tuple(f"user{i}" for i in range(ROWS)),
}


# ---- each schema
@pytest.mark.parametrize("name", TABLE)
def test_ten_rows_of_every_schema_are_read_and_a_model_takes_them(name: str, tmp_path: Path) -> None:
    entry = TABLE[name]
    write(name, tmp_path, KEY)
    data = load(name, str(tmp_path))
    assert data.owners == OWNERS.get(name, ()) and data.classes == entry.classes
    if name not in ("spar", "shakespeare", "reddit"):
        assert len(data) == ROWS * len(entry.splits) and data.x.dtype == KINDS.get(name, torch.uint8)
        assert data.own_test == (0 if entry.pooled or len(entry.splits) == 1 else ROWS)
        assert data.y[:ROWS].tolist() == [i % entry.classes for i in range(ROWS - 1)] + [entry.classes - 1]
        assert data.place(ROWS - 1) == f"row 9 (row 9 of {entry.folder}/{entry.splits[0]}.parquet)"
    sharing = "natural:3" if name in ("spar", "shakespeare") else "iid"
    made = prepare(Run(method="fedavg", data=name, data_dir=str(tmp_path), clients=2, partition=sharing))
    assert made.sim.model.count() > 0 and len(made.data) == 2
    again = load(name, str(tmp_path))
    assert (
        again.fingerprint == data.fingerprint and again.owners == data.owners and dict(again.files) == dict(data.files)
    )


def test_pixels_are_those_of_the_file(tmp_path: Path) -> None:
    write("cifar10", tmp_path, KEY)
    data = load("cifar10", str(tmp_path))
    for row, at in ((3, KEY.at("train", 3)), (ROWS + 4, KEY.at("test", 4))):
        wanted = at.numpy().integers(0, 256, (32, 32, 3), dtype=np.uint8)
        assert torch.equal(data.x[row], torch.from_numpy(wanted).permute(2, 0, 1))
    ready = data.prepare(data.x[:2])
    assert ready.dtype == torch.float32 and torch.allclose(ready, data.x[:2].float() / 127.5 - 1, atol=1e-6)


def test_a_jpeg_and_a_palette_are_read_in_the_colours_that_the_data_have(tmp_path: Path) -> None:
    grey = picture((1, 32, 32), KEY.at("grey"))  # Tiny-ImageNet and CIFAR have some of one channel
    jpeg = picture((3, 32, 32), KEY.at("jpeg"), "JPEG")
    write("cifar10", tmp_path, KEY, rows=2, img=files([grey, jpeg]), label=pa.array([0, 9]))
    x = load("cifar10", str(tmp_path)).x
    assert torch.equal(x[0, 0], x[0, 1]) and torch.equal(x[0, 1], x[0, 2]) and not torch.equal(x[1, 0], x[1, 2])


def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    write("cifar100", tmp_path, KEY)
    fine, coarse = load("cifar100", str(tmp_path)), load("cifar100:labels=coarse", str(tmp_path))
    assert (fine.classes, coarse.classes) == (100, 20)
    assert fine.y[:ROWS].tolist() == [*range(9), 99] and coarse.y[:ROWS].tolist() == [*range(10)]
    assert torch.equal(fine.x, coarse.x)


def test_femnist_is_read_in_its_own_columns_and_in_the_hubs(tmp_path: Path) -> None:
    write("femnist", tmp_path / "hub", KEY)
    renamed = {"label": pa.array([0] * 10), "client_id": pa.array([5] * 9 + [40])}
    write("femnist", tmp_path / "own", KEY, writer_id=None, character=None, **renamed)
    assert load("femnist", str(tmp_path / "own")).owners == ("5", "40")
    assert load("femnist", str(tmp_path / "hub")).owners == OWNERS["femnist"]


def test_audio_becomes_log_mel_bands_of_its_first_second(tmp_path: Path) -> None:
    write("speech-audio", tmp_path, KEY)
    data = load("speech-audio", str(tmp_path))
    assert data.x.shape == (2 * ROWS, 1, 32, 32) and bool(data.x.isfinite().all())
    tone = np.round(8000 * np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)).astype("<i2")
    quiet = sound(KEY)[:44] + tone.tobytes()
    write("speech-audio", tmp_path / "tone", KEY, rows=1, audio=files([quiet]), label=pa.array([0]))
    bands = load("speech-audio", str(tmp_path / "tone")).x[0, 0].float().mean(1)
    bank = decode.mel_bank(32, 1024, 16_000)
    assert int(bands.argmax()) == int(bank[:, 64].argmax())  # 1 kHz is bin 64 of 1024 at 16 kHz
    assert bool((bank >= 0).all()) and bool((bank.sum(1) > 0).all())


def test_a_series_is_cut_in_windows_and_no_value_is_in_two_parts(tmp_path: Path) -> None:
    write("spar", tmp_path, KEY)
    data = load("spar:window=100:step=50", str(tmp_path))
    lengths = [800 + 50 * i for i in range(ROWS)]
    assert len(data) == sum((n - 100) // 50 + 1 for n in lengths) and data.gap == 3 and data.series is not None
    raw = KEY.at("train", 0).numpy().normal(size=4800).astype(np.float32).reshape(800, 6)
    assert np.array_equal(data.x[2].numpy(), raw[100:200].T)
    assert data.series.bincount().tolist() == [(n - 100) // 50 + 1 for n in lengths]


def test_plays_are_the_next_character_of_what_a_role_says(tmp_path: Path) -> None:
    write("shakespeare", tmp_path, KEY)
    data = load("shakespeare:length=20", str(tmp_path))
    said = "\n".join(["Speak, speak."] * 40)
    first = [(LETTERS + "\0")[i - 1] for i in data.x[0].tolist()]
    assert "".join(first) == said[:20] and torch.equal(data.x[0][1:].long(), data.y[0][:-1])
    assert data.groups is not None and data.groups.unique().tolist() == [0, 1, 2]


def test_comments_are_the_next_word_and_rare_words_are_unknown(tmp_path: Path) -> None:
    write("reddit", tmp_path, KEY)
    data = load("reddit:vocabulary=6", str(tmp_path))  # padding, unknown and the four most frequent of seven
    assert int(data.x.max()) == 5 and bool((data.x == 1).any()) and data.task.ignore == (0, 1)  # type: ignore[attr-defined]


def test_the_table_in_the_docs_is_the_table() -> None:
    text = DOCS.read_text()
    for name, entry in TABLE.items():
        (line,) = re.findall(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
        columns = (*entry.x, *entry.y, *entry.group) if entry.ending == "parquet" else ()
        for word in (entry.folder, entry.hub, str(entry.classes), "x".join(map(str, entry.shape)), *columns):
            assert word in line, (name, word)
        assert ("never loaded from the hub here" in line) == (not entry.seen), name
        assert entry.revision[:7] in line or not entry.hub
    assert {n for n in SOURCES if n not in TABLE} == {"digits", "synthetic", "csv", "npz"}


# ---- where files are
@pytest.mark.parametrize(
    "paths",
    [
        ["train.parquet"],
        ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
        ["train/0000.parquet", "train/0001.parquet"],
        ["plain/train/0000.parquet"],
    ],
)
def test_the_hubs_layouts_are_known(paths: list[str], tmp_path: Path) -> None:
    entry = TABLE["mnist"]
    folder = tmp_path / entry.folder
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        at = write("mnist", tmp_path / "made", KEY.at(path))["train"]
        at.rename(folder / path)
    found = find("mnist", entry, Place(str(tmp_path)))
    assert [p.relative_to(folder).as_posix() for p in found["train"]] == paths and "test" not in found
    assert len(load("mnist", str(tmp_path))) == ROWS * len(paths)


def test_a_configuration_is_a_folder(tmp_path: Path) -> None:
    entry = TABLE["speech-audio"]
    for config in ("v0.01", entry.config):
        made = write("speech-audio", tmp_path / "made", KEY, rows=1)["train"]
        (tmp_path / entry.folder / config / "train").mkdir(parents=True)
        made.rename(tmp_path / entry.folder / config / "train" / "0000.parquet")
    (only,) = find("speech-audio", entry, Place(str(tmp_path)))["train"]
    assert entry.config in only.parts


@pytest.mark.parametrize("name", TABLE)
def test_missing_data_are_one_sentence_that_says_how_to_get_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_download", lambda name, entry: tmp_path)  # a hub that has nothing
    entry = TABLE[name]
    with pytest.raises(Missing) as caught:
        load(name, str(tmp_path))
    said = str(caught.value)
    assert "\n" not in said and f"put {entry.splits[0]}.{entry.ending}" in said and entry.folder in said
    assert entry.hub in said if entry.hub else entry.get in said


def test_a_folder_that_is_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Missing, match=r"there is no folder .*nowhere, which data-dir names"):
        load("mnist", str(tmp_path / "nowhere"))
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(Missing, match=r"speech is not here \(FEDQUILT_DATA names .*nowhere, which is no folder\); put"):
        load("speech")
    assert len(load("digits", str(tmp_path / "nowhere"))) == 1797
    (tmp_path / "mnist").mkdir()
    with pytest.raises(Missing, match=r"mnist has no train\.parquet; put"):
        load("mnist", str(tmp_path))


def test_a_failing_download_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        @staticmethod
        def snapshot_download(*args: object, **more: object) -> str:
            raise OSError("Connection\nrefused")

    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", Hub)
    with pytest.raises(Missing, match=r"could not be taken from the hub \(Connection refused\); put"):
        load("mnist", str(tmp_path))


def test_files_are_held_against_their_sums(tmp_path: Path) -> None:
    paths = write("mnist", tmp_path, KEY)
    sums = [f"{hub.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in paths.values()]
    (tmp_path / "mnist" / hub.SUMS).write_text("\n".join(sums))
    assert len(load("mnist", str(tmp_path))) == 2 * ROWS
    write("mnist", tmp_path, KEY.at("other"))
    with pytest.raises(ValueError, match=r"mnist/train\.parquet is not what SHA256SUMS says that it is: get it again"):
        load("mnist", str(tmp_path))


# ---- the cache
def test_files_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("mnist", tmp_path, KEY)
    first = load("mnist", str(tmp_path))
    (kept,) = cache.folder().iterdir()
    with monkeypatch.context() as patched:
        patched.setattr(decode, "decode", None)  # it would be an error to decode again
        assert load("mnist", str(tmp_path)).fingerprint == first.fingerprint
    raw = bytearray(kept.read_bytes())
    raw[-100] ^= 1  # what is not as it was written is not used
    kept.write_bytes(raw)
    assert load("mnist", str(tmp_path)).fingerprint == first.fingerprint
    kept.write_bytes(b"")
    assert load("mnist", str(tmp_path)).fingerprint == first.fingerprint
    write("mnist", tmp_path, KEY.at("other"))
    assert load("mnist", str(tmp_path)).fingerprint != first.fingerprint, "other files of the same name"


def test_a_cache_that_cannot_be_written_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("mnist", tmp_path, KEY)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDQUILT_CACHE", str(tmp_path / "file" / "cache"))
    assert len(load("mnist", str(tmp_path))) == 2 * ROWS


def test_other_settings_are_other_data(tmp_path: Path) -> None:
    write("reddit", tmp_path, KEY)
    assert load("reddit:vocabulary=6", str(tmp_path)).fingerprint != load("reddit", str(tmp_path)).fingerprint


# ---- preparing
def test_augmentation_is_drawn_in_training_only_and_from_the_key(tmp_path: Path) -> None:
    write("cifar10", tmp_path, KEY)
    data = load("cifar10:augment=true", str(tmp_path))
    plain = data.prepare(data.x)
    assert torch.equal(plain, load("cifar10", str(tmp_path)).prepare(data.x))
    one, other = data.prepare(data.x, KEY.at(1)), data.prepare(data.x, KEY.at(2))
    assert torch.equal(one, data.prepare(data.x, KEY.at(1))) and not torch.equal(one, other)
    assert one.shape == plain.shape and not torch.equal(one, plain)
    shifted = replace(data.prepare, flip=False)(data.x, KEY)
    inside = shifted[:, :, 4:-4, 4:-4]
    for n in range(len(data)):  # every window is one of the bordered image
        places = [
            torch.equal(inside[n], torch.nn.functional.pad(plain[n], (4,) * 4)[:, a + 4 : a + 28, b + 4 : b + 28])
            for a in range(9)
            for b in range(9)
        ]
        assert sum(places) == 1


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    big = Image.new("RGB", (64, 64))
    path = tmp_path / "big.png"
    big.save(path)
    write("cifar10", tmp_path, KEY, rows=2, img=files([path.read_bytes()] * 2), label=pa.array([0, 1]))
    with pytest.raises(Corrupt, match=r"cifar10/train\.parquet, row 0: an image of 64x64 pixels, not 32x32"):
        load("cifar10", str(tmp_path))


def test_a_column_may_be_plain_bytes_and_in_several_chunks(tmp_path: Path) -> None:
    shots = [picture((1, 28, 28), KEY.at(i)) for i in range(ROWS)]
    (tmp_path / "mnist").mkdir()
    table = pa.table({"image": pa.chunked_array([shots[:4], shots[4:]]), "label": pa.array([1] * ROWS)})
    pq.write_table(table, tmp_path / "mnist" / "train.parquet", row_group_size=3)
    data = load("mnist", str(tmp_path))
    wanted = KEY.at(7).numpy().integers(0, 256, (28, 28, 1), dtype=np.uint8)[..., 0]
    assert np.array_equal(data.x[7, 0].numpy(), wanted)
