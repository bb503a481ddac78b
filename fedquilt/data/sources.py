"""Where data come from: by name, one builder each; what each of them gives is in docs/data.md.

A name may say settings: ``cifar100:labels=coarse``, ``spar:window=150``, ``synthetic:samples=1000000``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..key import Key
from ..schema import named
from ..task import Classification, NextToken
from . import decode
from .cache import Raw, kept
from .dataset import DEFAULT, Dataset
from .hub import Place, find
from .own import from_csv, from_npz
from .ready import Prepare, normal
from .table import TABLE, Entry
from .text import LETTERS, comments, plays

__all__ = ["SOURCES", "Dataset", "Place", "digits", "load"]

HALF = (0.5,)


def digits(place: Place | None = None) -> Dataset:
    """1,797 handwritten digits of 8x8 grey values in [0, 1], which come with scikit-learn."""
    from sklearn.datasets import load_digits  # here, because it takes a second to import

    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32).div(16).unsqueeze(1)
    y = torch.tensor(found.target, dtype=torch.int64)
    return Dataset("digits", x, y, Classification(10), (1, 8, 8), 10, model="cnn:conv=16,32")


# ---- images
def cifar10(place: Place, augment: bool = False) -> Dataset:
    """CIFAR-10: 50,000 colour images of 32x32, 10 classes; with ``augment`` shifted by up to 4 pixels and mirrored."""
    more = normal(HALF * 3, HALF * 3, crop=4 if augment else 0, flip=augment)
    return _images("cifar10", place, more, "cifar_cnn")


def cifar100(place: Place, labels: Literal["fine", "coarse"] = "fine", augment: bool = False) -> Dataset:
    """CIFAR-100: 50,000 colour images of 32x32, 100 fine classes or 20 coarse ones."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    more = normal(mean, std, crop=4 if augment else 0, flip=augment)
    entry = replace(TABLE["cifar100"], y=("coarse_label",), classes=20) if labels == "coarse" else TABLE["cifar100"]
    return _images("cifar100", place, more, "cifar100_cnn", entry)


def mnist(place: Place) -> Dataset:
    """MNIST: 60,000 handwritten digits of 28x28, white on black."""
    return _images("mnist", place, normal((0.1307,), (0.3081,)), "mnist_cnn")


def fashion_mnist(place: Place) -> Dataset:
    """Fashion-MNIST: 60,000 pieces of clothing of 28x28, 10 kinds."""
    return _images("fashion-mnist", place, normal((0.2860,), (0.3530,)), "mnist_cnn")


def emnist(place: Place) -> Dataset:
    """EMNIST by class: handwritten digits and letters of 28x28, 62 classes."""
    return _images("emnist", place, normal((0.0,), (1.0,)), "emnist_cnn")


def femnist(place: Place) -> Dataset:
    """FEMNIST: handwritten digits and letters of 28x28, 62 classes, by groups of writers; white paper is 1."""
    return _images("femnist", place, normal((0.0,), (1.0,)), "emnist_cnn")


def tiny_imagenet(place: Place, augment: bool = False) -> Dataset:
    """Tiny-ImageNet: 100,000 colour images of 64x64, 200 classes."""
    more = normal(HALF * 3, HALF * 3, crop=8 if augment else 0, flip=augment)
    return _images("tiny-imagenet", place, more, "vgg16")


# ---- sound and motion
def speech(place: Place, scale: Literal["paper", "coefficient"] = "paper") -> Dataset:
    """Speech Commands: 35 spoken words as 32x32 MFCC features, by groups of speakers.

    ``paper`` is FLrce's (x - 0.5) / 0.5 of raw MFCC values; ``coefficient`` centres and scales each
    of the 32 coefficients by its mean and deviation over all samples.
    """
    data = _entry("speech", place, decode.features, "speech_cnn")
    if scale == "paper":
        return replace(data, prepare=normal(HALF, HALF, white=1.0))
    each = data.x.double().transpose(1, 2).reshape(len(data), 32, -1).transpose(0, 1).flatten(1)
    std, mean = torch.std_mean(each, 1)
    gain = [1 / max(s, 1e-6) for s in std.tolist()]
    return replace(
        data, prepare=Prepare(tuple(gain), tuple(-m * g for m, g in zip(mean.tolist(), gain, strict=True)), axis=2)
    )


def speech_audio(place: Place) -> Dataset:
    """Speech Commands: one-second sounds as 32 frames of 32 log-mel bands, 35 words and silence, by speaker."""
    return replace(
        _entry("speech-audio", place, decode.audio, "speech_cnn"), prepare=normal((-6.0,), (4.0,), white=1.0)
    )


def uci_har(place: Place) -> Dataset:
    """UCI-HAR: 561 features of a phone's motion, 6 activities, by person."""
    return _entry("uci-har", place, decode.features, "motion_cnn")


def spar(place: Place, window: int = 100, step: int = 50) -> Dataset:
    """SPAR: a watch's acceleration and rotation at 50 Hz, 7 exercises, by person and side, in windows.

    A series is never split but in time, and a window is left out at each cut.
    """
    if window < 1 or not 1 <= step <= window:
        raise ValueError(f"window and step are moments, step at most the window: not {window} and {step}")
    entry = TABLE["spar"]
    files = find("spar", entry, place)
    raw = decode.windows(entry, files, window, step)
    gap = -(-2 * window // step) - 1  # so that no raw value, and a window's length between, is in two parts
    shape = (entry.shape[0], window)
    return _made(
        "spar", entry, raw, Classification(entry.classes), "motion_cnn:means=small", shape, gap=gap, partition="natural"
    )


# ---- text
def shakespeare(place: Place, length: int = 80) -> Dataset:
    """Shakespeare's plays, by role: the next character, in sequences of ``length``."""
    if length < 1:
        raise ValueError(f"length, the characters of a sequence, is at least 1, not {length}")
    entry = TABLE["shakespeare"]
    files = find("shakespeare", entry, place)
    raw = plays(files[entry.splits[0]][0], length)
    task, classes = NextToken(len(LETTERS) + 1, (0,)), len(LETTERS) + 1
    made = _made("shakespeare", entry, raw, task, "lstm", (length,), classes, partition="natural")
    return replace(made, prepare=Prepare(tokens=True))


def reddit(place: Place, length: int = 10, vocabulary: int = 10_000) -> Dataset:
    """Reddit comments in LEAF's form, by user: the next word, in sequences of ``length``."""
    if length < 1 or vocabulary < 3:
        raise ValueError(f"length is at least 1 and vocabulary at least 3, not {length} and {vocabulary}")
    entry = TABLE["reddit"]
    files = find("reddit", entry, place)
    settings = {"length": length, "vocabulary": vocabulary}
    raw = kept("reddit", files, settings, lambda: comments(files[entry.splits[0]], length, vocabulary))
    task = NextToken(vocabulary, (0, 1))
    made = _made("reddit", entry, raw, task, "reddit_lstm", (length,), vocabulary, partition="natural")
    return replace(made, prepare=Prepare(tokens=True))


# ---- made on the spot
def synthetic(
    place: Place,
    samples: int = 100_000,
    shape: tuple[int, ...] = (16,),
    classes: int = 10,
    noise: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """Gaussian blobs around a centre for each class, from a key: for benchmarks with many clients."""
    if samples < 1 or classes < 2 or min(shape, default=0) < 1 or noise < 0:
        raise ValueError("synthetic data have samples, a shape, two classes or more, and noise that is not negative")
    key = Key(seed).at("synthetic")
    y = torch.randint(classes, (samples,), generator=key.at("labels").torch())
    centres = torch.randn(classes, *shape, generator=key.at("centres").torch())
    x = torch.randn(samples, *shape, generator=key.at("noise").torch()).mul_(noise).add_(centres[y])
    return Dataset("synthetic", x, y, Classification(classes), shape, classes)


SOURCES: Mapping[str, Callable[..., Dataset]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "emnist": emnist,
    "femnist": femnist,
    "speech": speech,
    "speech-audio": speech_audio,
    "tiny-imagenet": tiny_imagenet,
    "uci-har": uci_har,
    "spar": spar,
    "shakespeare": shakespeare,
    "reddit": reddit,
    "synthetic": synthetic,
    "csv": from_csv,
    "npz": from_npz,
}


def load(text: str, folder: str = "") -> Dataset:
    """The data set that a text names; ``folder`` has those that come from files (empty: FEDQUILT_DATA says where)."""
    name, given = named(text, SOURCES, "data set", skip=1)
    return SOURCES[name](Place(folder), **given)


# ---- from an entry of the table
def _images(name: str, place: Place, prepare: Prepare, model: str, entry: Entry | None = None) -> Dataset:
    return replace(_entry(name, place, decode.images, model, entry), prepare=prepare)


def _entry(
    name: str, place: Place, samples: Callable[[Any, Entry], Tensor], model: str, entry: Entry | None = None
) -> Dataset:
    """A data set with one label a sample, decoded once."""
    entry = entry or TABLE[name]
    files = find(name, entry, place)
    raw = kept(name, files, {"y": entry.y, "shape": entry.shape}, lambda: decode.decode(entry, files, samples))
    return _made(name, entry, raw, Classification(entry.classes), model)


def _made(
    name: str,
    entry: Entry,
    raw: Raw,
    task: Classification | NextToken,
    model: str,
    shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    gap: int = 0,
    partition: str = DEFAULT,
) -> Dataset:
    return Dataset(
        name,
        raw.x,
        raw.y,
        task,
        shape or entry.shape,
        classes or entry.classes,
        groups=raw.groups,
        owners=raw.owners,
        series=raw.series,
        gap=gap,
        own_test=raw.own_test,
        model=model,
        partition=partition,
        files=raw.files,
    )
