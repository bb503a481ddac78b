"""What is in a column, decoded into compact tensors: images, features, audio and series."""

from __future__ import annotations

import io
import os
import wave
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .cache import Raw
from .columns import Array, Columns, Corrupt, hole, read
from .hub import Files
from .table import Entry

THREADS, CHUNK = 4, 500
PNG = b"\x89PNG\r\n\x1a\n"


def decode(entry: Entry, files: Files, samples: Callable[[Columns, Entry], Tensor]) -> Raw:
    """The samples of all files, the own test part last."""
    parts, counts, xs = [], {}, []
    for split in entry.splits:
        for path in files.get(split, ()):
            columns = read(path, entry)
            if not len(columns.y):
                raise Corrupt(f"{columns.file} has no rows")
            parts.append(columns)
            xs.append(samples(columns, entry))
            counts[columns.file] = len(columns.y)
    own_test = len(entry.splits) > 1 and not entry.pooled
    tests = len(files.get(entry.splits[1], ())) if own_test else 0
    groups, owners = coded([o for c in parts for o in c.owners])
    return Raw(
        x=torch.cat(xs),
        y=torch.cat([c.y for c in parts]),
        groups=groups,
        owners=owners,
        own_test=sum(len(c.y) for c in parts[len(parts) - tests :]),
        files=counts,
    )


def coded(owners: Sequence[str]) -> tuple[Tensor | None, tuple[str, ...]]:
    """Names as numbers, and the names: numbers in their own order, others by the alphabet."""
    if not owners:
        return None, ()
    names = sorted(set(owners), key=lambda o: (not o.isdecimal(), int(o) if o.isdecimal() else 0, o))
    number = {o: i for i, o in enumerate(names)}
    return torch.tensor([number[o] for o in owners]), tuple(names)


# ---- images
def images(columns: Columns, entry: Entry) -> Tensor:
    """Encoded images, as uint8 of the entry's shape."""
    try:
        from PIL import Image  # noqa: F401  # said before the work
    except ImportError:
        raise ValueError(f"the images of {columns.file} need Pillow: pip install 'fedquilt[data]'") from None
    raw = blobs(columns)
    channels, height, width = entry.shape
    out = np.empty((len(raw), height, width, channels), np.uint8)

    def work(begin: int) -> None:
        for row in range(begin, min(begin + CHUNK, len(raw))):
            out[row] = image(raw[row], entry.shape, columns, row)

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as threads:
        list(threads.map(work, range(0, len(raw), CHUNK)))
    return torch.from_numpy(out).permute(0, 3, 1, 2).contiguous()


def blobs(columns: Columns) -> list[Any]:
    """The bytes of each row: the column's own, or those of its field ``bytes``."""
    array = columns.x
    if hasattr(array, "field") and array.null_count == 0:
        try:
            array = array.field("bytes")
        except KeyError:
            raise Corrupt(f"{columns.file}: the column of samples has no field 'bytes'") from None
    if array.null_count:
        raise columns.bad(hole(array), "there is no sample")
    if "binary" not in str(array.type):
        raise Corrupt(f"{columns.file}: the samples are not encoded files, but of the type {array.type}")
    wide = np.int64 if str(array.type).startswith("large") else np.int32
    _, offsets, data = array.buffers()
    at = np.frombuffer(offsets, wide)[array.offset : array.offset + len(array) + 1].tolist() if len(array) else [0]
    view = memoryview(data) if data is not None else memoryview(b"")
    return [view[a:b] for a, b in pairwise(at)]


def image(raw: Any, shape: tuple[int, ...], columns: Columns, row: int) -> Array:
    """One image, height x width x channels."""
    from PIL import Image

    channels, height, width = shape
    try:
        if raw[:8] == PNG:
            _sound(raw)
        with Image.open(io.BytesIO(raw), formats=("PNG", "JPEG")) as opened:
            mode = "RGB" if channels == 3 else "L"
            found = np.asarray(opened if opened.mode == mode else opened.convert(mode))
    except Exception as error:  # a broken image raises anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise columns.bad(row, f"the image cannot be read ({reason[:120]})") from error
    if found.shape[:2] != (height, width):
        raise columns.bad(row, f"an image of {found.shape[1]}x{found.shape[0]} pixels, not {width}x{height}")
    return found.reshape(height, width, channels)


def _sound(raw: Any) -> None:
    """Hold each chunk of a PNG against its checksum, which Pillow does not do for all of them."""
    at = len(PNG)
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "big")
        end = at + 12 + size
        if end > len(raw) or zlib.crc32(raw[at + 4 : end - 4]) != int.from_bytes(raw[end - 4 : end], "big"):
            raise ValueError("a chunk of the PNG is broken")
        if raw[at + 4 : at + 8] == b"IEND":
            return
        at = end
    raise ValueError("the PNG has no end")


# ---- numbers
def features(columns: Columns, entry: Entry) -> Tensor:
    """Vectors of numbers as the file has them (float16 stays so), in the entry's shape."""
    size = int(np.prod(entry.shape))
    if isinstance(columns.x, np.ndarray):
        found = columns.x.astype(np.float32)
    else:
        found = lists(columns, size).reshape(-1, size)
    finite(columns, np.asarray(np.isfinite(found).all(1)))
    kind = np.float16 if found.dtype == np.float16 else np.float32
    return torch.from_numpy(np.ascontiguousarray(found.astype(kind))).view(-1, *entry.shape)


def lists(columns: Columns, size: int | None = None) -> Array:
    """The numbers of a column of lists, one after another; each list has ``size`` of them, if that is said."""
    array = columns.x
    if not hasattr(array, "flatten") or "list" not in str(array.type):
        raise Corrupt(f"{columns.file}: the samples are lists of numbers, not of the type {array.type}")
    if array.null_count:
        raise columns.bad(hole(array), "there is no sample")
    if size is not None:
        fixed = getattr(array.type, "list_size", None)
        lengths = np.diff(np.asarray(array.offsets)) if fixed is None else np.full(len(array), fixed)
        wrong = np.flatnonzero(lengths != size)
        if len(wrong):
            raise columns.bad(int(wrong[0]), f"{int(lengths[wrong[0]])} numbers, not {size}")
    flat = array.flatten()
    if flat.null_count or not str(flat.type).lower().startswith(("half", "float", "double", "int", "uint")):
        raise Corrupt(f"{columns.file}: the samples are lists of numbers without holes, not of {flat.type}")
    out: Array = np.asarray(flat)
    return out


def finite(columns: Columns, sound: Array) -> None:
    """Refuse the first row that is not sound."""
    if not sound.all():
        raise columns.bad(int(np.argmin(sound)), "holds a number that is not finite")


# ---- audio
RATE, MELS, HOP, WINDOW = 16_000, 32, 512, 1024


def audio(columns: Columns, entry: Entry) -> Tensor:
    """One second of 16 kHz sound a row (WAV), as log-mel features: 32 bands x 32 frames, float16."""
    bank = torch.from_numpy(mel_bank(MELS, WINDOW, RATE))
    shape = torch.hann_window(WINDOW)
    out = []
    for row, raw in enumerate(blobs(columns)):
        try:
            with wave.open(io.BytesIO(raw)) as opened:
                if (opened.getframerate(), opened.getnchannels(), opened.getsampwidth()) != (RATE, 1, 2):
                    raise ValueError("not 16 kHz, one channel, 16 bits")
                frames = opened.readframes(opened.getnframes())
                if len(frames) != 2 * opened.getnframes():
                    raise ValueError("it ends too early")
                sound = np.frombuffer(frames, "<i2")
        except Exception as error:  # a broken file raises anything
            raise columns.bad(row, f"the sound cannot be read ({error})") from error
        x = torch.zeros(RATE)
        x[: min(RATE, len(sound))] = torch.from_numpy(sound[:RATE].astype(np.float32) / 32768)
        power = torch.stft(x, WINDOW, HOP, window=shape, return_complex=True).abs().square()
        out.append((bank @ power + 1e-6).log().half()[None])
    return torch.stack(out)


def mel_bank(bands: int, window: int, rate: int) -> Array:
    """Triangles that are even on the mel scale, over the bins of a Fourier transform."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    bins = np.linspace(0, rate / 2, window // 2 + 1)
    rise = (bins - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    fall = (corners[2:, None] - bins) / (corners[2:] - corners[1:-1])[:, None]
    out: Array = np.clip(np.minimum(rise, fall), 0, None).astype(np.float32)
    return out


# ---- series
def windows(entry: Entry, files: Files, window: int, step: int) -> Raw:
    """Each series cut in windows of ``window`` moments, ``step`` apart; a window is channels x moments."""
    channels, counts = entry.shape[0], Counter[str]()
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    series: list[Tensor] = []
    groups: list[str] = []
    for path in files[entry.splits[0]]:
        columns = read(path, entry)
        flat = lists(columns)
        ends = np.asarray(columns.x.offsets).astype(np.int64)
        for row in range(len(columns.y)):
            values = flat[ends[row] - ends[0] : ends[row + 1] - ends[0]]
            if columns.lengths and len(values) != channels * columns.lengths[row]:
                said = f"{columns.lengths[row]} moments of {channels} channels"
                raise columns.bad(row, f"{len(values)} numbers, where there should be {said}")
            if len(values) % channels or len(values) < window * channels:
                raise columns.bad(row, f"{len(values)} numbers are not {window} moments of {channels} channels or more")
            if not np.isfinite(values).all():
                raise columns.bad(row, "holds a number that is not finite")
            one = torch.from_numpy(values.astype(np.float32)).view(-1, channels).unfold(0, window, step).contiguous()
            xs.append(one)
            ys.append(columns.y[row].expand(len(one)))
            groups += [columns.owners[row]] * len(one)
            series.append(torch.full((len(one),), len(series)))
            counts[columns.file] += len(one)
    if not xs:
        first = files[entry.splits[0]][0]
        raise Corrupt(f"{first.parent.name}/{first.name} has no rows")
    codes, owners = coded(groups)
    return Raw(torch.cat(xs), torch.cat(ys), codes, torch.cat(series), owners, files=counts)
