"""Two hundred corrupted files: each is refused before any work, in one sentence that names it.

What a file holds is checked as far as it can be known: pages by their checksums, pictures by those of
PNG, numbers by what they may be.  A flipped bit that leaves a valid JPEG or text is another picture or
text; ``SHA256SUMS`` beside the files finds it (``test_sources``).
"""

from __future__ import annotations

import io
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedquilt.cli import main
from fedquilt.data import load
from fedquilt.data.table import TABLE
from fedquilt.data.text import LETTERS
from fedquilt.key import Key

from .fixtures import COLUMNS, ROWS, files, picture, reddit, sound, write

KEY = Key(1)
Break = Callable[[Path], str]  # writes a broken data set into a folder and gives what is to be said of it
IMAGES = ("cifar10", "cifar100", "mnist", "fashion-mnist", "emnist", "femnist", "tiny-imagenet")
PARQUET = tuple(n for n in TABLE if TABLE[n].ending == "parquet")


def columns(name: str) -> dict[str, Any]:
    return COLUMNS[name](TABLE[name], ROWS, KEY.at(TABLE[name].splits[0]))


def with_columns(name: str, say: str, **changed: Any) -> Break:
    def broken(root: Path) -> str:
        write(name, root, KEY, first=True, **changed)
        return say

    return broken


def with_bytes(name: str, say: str, change: Callable[[bytearray], bytes | bytearray]) -> Break:
    def broken(root: Path) -> str:
        path = next(iter(write(name, root, KEY, rows=4, first=True).values()))
        path.write_bytes(change(bytearray(path.read_bytes())))
        return say

    return broken


# ---- what can be wrong
def of_bytes(name: str) -> Iterator[tuple[str, Break]]:
    """The file itself: cut off, empty, something else, or with a page that is not what it was."""
    for part in (0.0, 0.3, 0.9, 0.999):
        yield f"cut at {part}", with_bytes(name, "not readable as parquet", lambda b, p=part: b[: int(len(b) * p)])
    yield "text", with_bytes(name, "not readable as parquet", lambda b: b"PAR1 but not really")
    yield "zeros", with_bytes(name, "not readable as parquet", lambda b: bytes(len(b)))

    def page(b: bytearray) -> bytearray:
        b[len(b) // 8] ^= 16  # inside of the first column's first page
        return b

    yield "page", with_bytes(name, "", page)


def of_columns(name: str) -> Iterator[tuple[str, Break]]:
    """Columns that are missing, of another kind, or with a hole."""
    held = columns(name)
    first, label = next(iter(held)), next(y for y in TABLE[name].y if y in held)
    group = next((g for g in TABLE[name].group[-1:] if g in held), None)
    y = held[label].to_pylist()
    for column in (c for c in (first, label, group) if c):
        yield f"no {column}", with_columns(name, "has no column", **{column: None})
    yield "samples of text", with_columns(name, "", **{first: pa.array(["no sample"] * ROWS)})
    yield "labels of text", with_columns(name, "not a column of numbers", **{label: pa.array(["two"] * ROWS)})
    yield "labels of floats", with_columns(name, "whole numbers", **{label: pa.array([float(v) for v in y])})
    yield "hole", with_columns(name, f"row 4: {label} is empty", **{label: pa.array([*y[:4], None, *y[5:]])})
    for bad in (TABLE[name].first - 1, TABLE[name].first + TABLE[name].classes, 2**40):
        at = {label: pa.array([*y[:7], bad, *y[8:]], pa.int64())}
        yield f"label {bad}", with_columns(name, f"label {bad} is not one of", **at)


def of_images(name: str) -> Iterator[tuple[str, Break]]:
    """Pictures that are cut, of another size, no pictures, or missing."""
    entry = TABLE[name]
    column = next(iter(columns(name)))
    good = [picture(entry.shape, KEY.at(i)) for i in range(ROWS)]
    channels, height, width = entry.shape

    def one(bad: bytes | None) -> dict[str, Any]:
        held: list[Any] = [{"bytes": g, "path": ""} for g in good]
        held[6]["bytes"] = bad
        return {column: pa.array(held)}

    flipped = bytearray(good[6])
    flipped[len(flipped) // 2] ^= 1
    yield "flipped", with_columns(name, "row 6", **one(bytes(flipped)))
    yield "cut", with_columns(name, "row 6", **one(good[6][: len(good[6]) // 2]))
    yield "size", with_columns(name, f"{width}x{height + 1} pixels", **one(picture((channels, height + 1, width), KEY)))
    yield "none", with_columns(name, "row 6", **one(None))
    yield "jpeg", with_columns(name, "row 6", **one(picture(entry.shape, KEY, "JPEG")[:300]))
    yield "gif", with_columns(name, "row 6", **one(picture(entry.shape, KEY, "GIF")))


def of_numbers(name: str) -> Iterator[tuple[str, Break]]:
    """Vectors and series with what is no number, or too few of them."""
    held = columns(name)
    column = next(iter(held))
    if column == "0":
        for bad in (np.nan, np.inf):
            values = np.zeros(ROWS)
            values[3] = bad
            yield f"{bad}", with_columns(name, "row 3", **{column: pa.array(values)})
        return
    rows = held[column].to_pylist()
    for at, bad in ((2, np.nan), (9, np.inf), (0, -np.inf)):
        changed = [list(r) for r in rows]
        changed[at][17] = bad
        yield f"{bad}", with_columns(name, f"row {at}", **{column: pa.array(changed, held[column].type)})
    yield "short", with_columns(name, "row 5", **{column: pa.array([*rows[:5], rows[5][:-1], *rows[6:]])})
    yield "empty", with_columns(name, "row 5", **{column: pa.array([*rows[:5], [], *rows[6:]])})
    yield "missing", with_columns(name, "row 5", **{column: pa.array([*rows[:5], None, *rows[6:]])})


def of_sounds(name: str) -> Iterator[tuple[str, Break]]:
    """Sounds that are cut, of another rate, in stereo, of another width, no sounds."""
    good = sound(KEY)
    held = io.BytesIO()
    with wave.open(held, "wb") as f:
        f.setparams((1, 2, 16_000, 0, "NONE", ""))
    bad = {"cut": good[:9000], "rate": sound(KEY, rate=8000), "stereo": sound(KEY, channels=2)}
    bad |= {"width": sound(KEY, width=1), "text": b"RIFF, she said", "empty": b""}
    for what, one in bad.items():
        who = {"audio": files([good, one]), "label": pa.array([0, 1]), "speaker_id": pa.array(["a", "b"])}
        yield what, with_columns(name, "row 1 (of b): the sound cannot be read", **who)


def of_texts() -> Iterator[tuple[str, str, Break]]:
    """Plays and comments."""

    def text(name: str, say: str, content: str | bytes) -> tuple[str, str, Break]:
        def broken(root: Path) -> str:
            path = next(iter(write(name, root, KEY).values()))
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            return say

        return name, say or "empty", broken

    yield text("shakespeare", "holds no speech", "")
    yield text("shakespeare", "line 4: a speech begins with a role and a colon", "A:\nHa.\n\nHa, without a role.")
    yield text("shakespeare", "line 2: 'é' is none of the", f"A:\nH{LETTERS[20]}é")
    yield text("shakespeare", "line 3: it is not text", b"A:\nHa.\n\xff\xfe")
    good = reddit()
    yield text("reddit", "is not LEAF's JSON", "")
    yield text("reddit", "is not LEAF's JSON", good[:-9])
    yield text("reddit", "is not LEAF's JSON", "[1, 2]")
    yield text("reddit", "is not LEAF's JSON", good.replace('"user3":', '"user33":', 1))
    yield text("reddit", "the comments of user user0", good.replace('"target_tokens"', '"tokens"', 1))
    yield text("reddit", "has a sequence of 11 words", good.replace('["the", "a"', '["the", "the", "a"', 1))
    yield text("reddit", "holds no comment", '{"users": [], "user_data": {}}')
    yield text("reddit", "has no comment", '{"users": ["u"], "user_data": {"u": {"x": [], "y": []}}}')


def every() -> Iterator[tuple[str, str, Break]]:
    for name in PARQUET:
        small = name not in ("tiny-imagenet", "fashion-mnist")  # they differ from others in the entry alone
        if small:
            yield from ((name, what, broken) for what, broken in of_bytes(name))
        yield from ((name, what, broken) for what, broken in of_columns(name))
        if name in IMAGES and small:
            yield from ((name, what, broken) for what, broken in of_images(name))
    for name in ("speech", "uci-har", "spar"):
        yield from ((name, what, broken) for what, broken in of_numbers(name))
    yield from (("speech-audio", what, broken) for what, broken in of_sounds("speech-audio"))
    yield from of_texts()
    owners = pa.array([None, *["a"] * (ROWS - 1)])
    yield "femnist", "nobody's", with_columns("femnist", "row 0: writer_id is empty", writer_id=owners)
    nothing = {"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}
    yield "mnist", "no rows", with_columns("mnist", "has no rows", **nothing)
    yield "spar", "length", with_columns("spar", "where there should be", length=pa.array([9] * ROWS))
    yield "spar", "no length", with_columns("spar", "has no column length", length=None)
    yield "spar", "no side", with_columns("spar", "has no column", side=None)


EVERY = list(every())


def test_there_are_two_hundred() -> None:
    assert len(EVERY) >= 200 and {name for name, _, _ in EVERY} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_every_corrupted_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    for number, (_, what, broken) in enumerate(e for e in EVERY if e[0] == name):
        root = tmp_path / str(number)
        say = broken(root)
        with pytest.raises(ValueError) as caught:
            load(name, str(root))
        said = str(caught.value)
        entry = TABLE[name]
        assert f"{entry.folder}/{entry.splits[0]}.{entry.ending}" in said and say in said, (what, said)
        assert "\n" not in said and len(said) < 400, (what, said)
    assert not list((tmp_path / "cache").glob("*")), "nothing corrupted is kept"


@pytest.mark.parametrize(("name", "what"), [("mnist", "flipped"), ("speech", "nan"), ("spar", "cut at 0.9")])
def test_a_run_on_one_ends_with_a_sentence_and_the_code_2(
    name: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = next(b for n, w, b in EVERY if (n, w) == (name, what))
    broken(tmp_path)
    out = tmp_path / "run"
    code = main(["run", "fedspu", "--data", name, "--data-dir", str(tmp_path), "--out", str(out), "--rounds", "1"])
    said = capsys.readouterr().err.strip()
    assert code == 2 and said.startswith("fedquilt: ") and TABLE[name].folder in said and "\n" not in said
    assert not out.exists()
