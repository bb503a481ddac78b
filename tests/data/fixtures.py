"""Ten rows of every data set that comes from files, made from a key, in the layout that its entry of the table says."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedquilt.data.table import TABLE, Entry
from fedquilt.key import Key

ROWS = 10


def picture(shape: tuple[int, ...], at: Key, kind: str = "PNG") -> bytes:
    """A random picture, encoded."""
    channels, height, width = shape
    values = at.numpy().integers(0, 256, (height, width, channels), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(values if channels == 3 else values[..., 0]).save(held, kind)
    return held.getvalue()


def sound(at: Key, seconds: float = 1.0, rate: int = 16_000, channels: int = 1, width: int = 2) -> bytes:
    """A random sound, as WAV."""
    held = io.BytesIO()
    with wave.open(held, "wb") as f:
        f.setnchannels(channels)
        f.setsampwidth(width)
        f.setframerate(rate)
        f.writeframes(at.numpy().integers(0, 256, int(seconds * rate) * width * channels, dtype=np.uint8).tobytes())
    return held.getvalue()


def files(values: list[bytes]) -> pa.Array:
    """Encoded files as the hub has them: bytes and a path."""
    return pa.array([{"bytes": v, "path": f"{i}.bin"} for i, v in enumerate(values)])


def images(entry: Entry, rows: int, at: Key) -> dict[str, Any]:
    """Columns of pictures."""
    return {entry.x[0]: files([picture(entry.shape, at.at(i)) for i in range(rows)]), **labels(entry, rows)}


def labels(entry: Entry, rows: int) -> dict[str, Any]:
    """The first column that may hold labels, and the last class among them."""
    y = [entry.first + i % entry.classes for i in range(rows - 1)] + [entry.first + entry.classes - 1]
    return {entry.y[0]: pa.array(y, pa.int64())}


def cifar100(entry: Entry, rows: int, at: Key) -> dict[str, Any]:
    """Both kinds of labels."""
    return {**images(entry, rows, at), "coarse_label": pa.array([i % 20 for i in range(rows)])}


def femnist(entry: Entry, rows: int, at: Key) -> dict[str, Any]:
    """The hub's columns, by writer."""
    held = images(entry, rows, at)
    return {"image": held["image"], "writer_id": writers(rows, "f{:04}_14"), "character": held["label"]}


def speech(entry: Entry, rows: int, at: Key) -> dict[str, Any]:
    """MFCC features as half-precision numbers."""
    x = [at.at(i).numpy().normal(-100, 50, 1024).astype(np.float16) for i in range(rows)]
    return {"features": pa.array(x, pa.list_(pa.float16())), **labels(entry, rows), "client_id": numbers(rows)}


def speech_audio(entry: Entry, rows: int, at: Key) -> dict[str, Any]:
    """Sounds of a second; the last one is noise, which is longer and nobody's."""
    values = [sound(at.at(i), 0.8 if i else 1.0) for i in range(rows - 1)] + [sound(at.at("noise"), 1.5)]
    who = [f"{i % 3:08x}" for i in range(rows - 1)] + [None]
    return {"audio": files(values), **labels(entry, rows), "speaker_id": pa.array(who, pa.string())}


def uci_har(entry: Entry, rows: int, at: Key) -> dict[str, Any]:
    """A column for each feature."""
    x = at.numpy().uniform(-1, 1, (rows, 561))
    held = {str(i): pa.array(x[:, i]) for i in range(561)}
    return {**held, **labels(entry, rows), "subject_id": numbers(rows, 1)}


def spar(entry: Entry, rows: int, at: Key) -> dict[str, Any]:
    """Series of 800 moments or more."""
    lengths = [800 + 50 * i for i in range(rows)]
    x = [at.at(i).numpy().normal(size=6 * n).astype(np.float32) for i, n in enumerate(lengths)]
    who = {"subject": numbers(rows, 1), "side": pa.array([i // 3 % 2 for i in range(rows)])}
    return {"series": pa.array(x), "length": pa.array(lengths), **labels(entry, rows), **who}


def numbers(rows: int, first: int = 0) -> pa.Array:
    """Three owners who are numbers."""
    return pa.array([first + i % 3 for i in range(rows)])


def writers(rows: int, form: str) -> pa.Array:
    """Three owners who are names."""
    return pa.array([form.format(i % 3) for i in range(rows)])


COLUMNS: Mapping[str, Callable[[Entry, int, Key], dict[str, Any]]] = {
    "cifar10": images,
    "cifar100": cifar100,
    "mnist": images,
    "fashion-mnist": images,
    "emnist": images,
    "femnist": femnist,
    "speech": speech,
    "speech-audio": speech_audio,
    "tiny-imagenet": images,
    "uci-har": uci_har,
    "spar": spar,
}

PLAY = "\n\n".join(f"{role}:\n{line}" for role in ("FIRST", "SECOND", "THIRD") for line in ("Speak, speak.",) * 40)


def reddit() -> str:
    """Comments of ten users, as LEAF writes them."""
    words = ["the", "a", "cat", "dog", "sat", "ran"]
    data = {}
    for i in range(ROWS):
        said = [[words[(i + j + k) % 6] for k in range(8)] + ["<EOS>", "<PAD>"] for j in range(2)]
        after = [[*line[1:], "<PAD>"] for line in said]
        data[f"user{i}"] = {"x": [said], "y": [{"target_tokens": after, "count_tokens": 9}]}
    return json.dumps({"users": sorted(data), "num_samples": [2] * ROWS, "user_data": data})


def write(name: str, root: Path, at: Key, rows: int = ROWS, first: bool = False, **changed: Any) -> dict[str, Path]:
    """Write the data set into the folder, or its ``first`` split.

    ``changed`` columns take the place of its own, None takes them away.
    """
    entry = TABLE[name]
    folder = root / entry.folder
    folder.mkdir(parents=True, exist_ok=True)
    out = {}
    for split in entry.splits[:1] if first else entry.splits:
        path = out[split] = folder / f"{split}.{entry.ending}"
        if entry.ending != "parquet":
            path.write_text(PLAY if name == "shakespeare" else reddit())
            continue
        held = {**COLUMNS[name](entry, rows, at.at(split)), **changed}
        table = pa.table({k: v for k, v in held.items() if v is not None})
        pq.write_table(table, path, write_page_checksum=True)
    return out
