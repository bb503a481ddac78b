"""Data of one's own: tensors, arrays, or a table in a file.

from fedquilt.data import own
data = own(x, y, groups=person)             # tensors or arrays; groups: whose each sample is
fedquilt.run(fedquilt.Run(data=data, partition="natural", clients=12))
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch
from torch import Tensor

from ..task import Classification, NextToken, Regression, Task
from .columns import Array, Corrupt
from .dataset import DEFAULT, Dataset
from .decode import coded
from .hub import Place
from .ready import AS_IS, Prepare

MANY = 1000  # classes that labels of few samples may have without a word


def own(
    x: Any,
    y: Any,
    name: str = "own",
    groups: Sequence[object] | Tensor | Array | None = None,
    task: Task | None = None,
    classes: int | None = None,
    prepare: Prepare = AS_IS,
    series: Sequence[int] | Tensor | Array | None = None,
    gap: int = 0,
    model: str = "",
) -> Dataset:
    """Tensors or arrays as a data set: targets of a whole type are classes from 0, others are numbers to predict.

    Samples stay uint8 or float16 until they are used; numbers of any other type become float32,
    unless they are tokens: ``prepare`` says so, or the task is the next of them.
    """
    samples, targets = _tensor(x, "samples", name), _tensor(y, "targets", name)
    if isinstance(task, NextToken):
        prepare = replace(prepare, tokens=True)
    if samples.dtype not in (torch.uint8, torch.float16) and not prepare.tokens:
        samples = samples.float()
    if targets.is_floating_point():
        targets = targets.float()
        classes = targets[:1].numel() if len(targets) else 1
        task = task or Regression()
    else:
        targets = targets.long().squeeze(1) if targets.dim() == 2 and targets.shape[1] == 1 else targets.long()
        classes = classes or _classes(targets, name)
        task = task or Classification(classes)
    codes, names = coded([str(g) for g in getattr(groups, "tolist", lambda: groups or ())()])
    moments = None if series is None else _tensor(series, "series", name)
    return Dataset(
        name,
        samples,
        targets,
        task,
        tuple(samples.shape[1:]),
        classes,
        prepare,
        codes,
        names,
        moments,
        gap,
        model=model,
        partition="natural" if moments is not None and names else DEFAULT,
    )


def _tensor(values: Any, what: str, name: str) -> Tensor:
    """Numbers, one entry a sample; copied only where torch cannot have the array as it is."""
    try:
        out = values if isinstance(values, Tensor) else torch.from_numpy(np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).split(". ")[0]
        raise ValueError(f"the {what} of {name} are not numbers in one array ({reason})") from error
    if not out.dim() or out.is_complex():
        raise ValueError(f"the {what} of {name} are one real number or array a sample, not {out.dtype} {out.shape}")
    return out


def _classes(labels: Tensor, name: str) -> int:
    """As many classes as the largest label says; labels that can hardly be any are refused."""
    most = int(labels.max()) + 1 if len(labels) else 1
    if most > max(MANY, labels.numel()):
        raise ValueError(
            f"the largest label of {name} is {most - 1}, of {len(labels)} samples: if these are classes, say how many "
            f"(classes={most}); if they are numbers to predict, they are of a floating type (in a CSV: predict=true)"
        )
    return max(1, most)


def from_csv(
    place: Place,
    path: str,
    label: str = "-1",
    group: str = "",
    shape: tuple[int, ...] = (),
    classes: int = 0,
    predict: bool = False,
) -> Dataset:
    """A CSV file, or a folder of them (then each file is somebody's): one sample a line, one column the label.

    Columns are said by name where the file has a heading, else by number, from 0, or from -1
    backwards.  Labels that are not all whole numbers are targets to predict, and so with ``predict``
    are others.
    """
    root = _there(place, path)
    files = sorted(root.glob("*.csv")) if root.is_dir() else [root]
    if not files:
        raise Corrupt(f"{path} holds no CSV file")
    xs, ys, owners, counts = [], [], [], {}
    for file in files:
        names, lines = _lines(file)
        at = _column(names, len(lines[0]), label, file)
        whose = _column(names, len(lines[0]), group, file) if group else None
        numbers = _numbers(file, names, lines, whose)
        left = [i for i in range(len(lines[0])) if i not in (at, whose)]
        if not left:
            raise Corrupt(f"{file.name} has no column of samples beside the label")
        xs.append(numbers[:, left])
        ys.append(numbers[:, at])
        owners += [line[whose] for line in lines] if whose is not None else [file.stem] * len(lines)
        counts[file.name] = len(lines)
    if len({x.shape[1] for x in xs}) > 1:
        raise Corrupt(f"the files of {path} have not all as many columns")
    x, y = np.concatenate(xs), np.concatenate(ys)
    if shape and np.prod(shape) != x.shape[1]:
        raise ValueError(f"{path}: {x.shape[1]} columns of samples are not of the shape {'x'.join(map(str, shape))}")
    whole = not predict and bool((y == np.round(y)).all())
    made = own(
        torch.from_numpy(x).view(-1, *(shape or (x.shape[1],))),
        torch.from_numpy(y.astype(np.int64) if whole else y.astype(np.float32)),
        root.stem,
        owners if group or len(files) > 1 else None,
        classes=classes or None,
    )
    return replace(made, files=counts)


def from_npz(place: Place, path: str, group: str = "") -> Dataset:
    """Arrays ``x`` and ``y`` in a file of ``numpy.savez``; if ``group`` names one, it says whose each sample is."""
    root = _there(place, path)
    if not is_zipfile(root):
        raise Corrupt(f"{path} is not a file of numpy.savez")
    try:
        with np.load(root, allow_pickle=False) as arrays:
            found = {k: arrays[k] for k in ("x", "y", *([group] if group else []))}
    except Exception as error:  # a broken file raises anything
        raise Corrupt(
            f"{path} is not a file with arrays named x and y{f' and {group}' * bool(group)} "
            f"({' '.join(str(error).split())[:120]})"
        ) from error
    x = found["x"]
    if x.ndim and np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        row = int(np.argmin(np.isfinite(x).reshape(len(x), -1).all(1)))
        raise Corrupt(f"{path}, row {row}: holds a number that is not finite")
    return own(x, found["y"], root.stem, found[group].tolist() if group else None)


# ---- a table
def _there(place: Place, path: str) -> Path:
    """The path as it is, or inside the folder of data sets."""
    for root in (Path(path).expanduser(), *([place.path / path] if place.path else [])):
        if root.exists():
            return root
    raise ValueError(f"there is no {path}")


def _lines(file: Path) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, if there is a heading, and the lines; all are as long as the first."""
    try:
        with file.open(newline="", encoding="utf-8") as f:
            lines = [line for line in csv.reader(f) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise Corrupt(f"{file.name} is not a table in text ({error})") from error
    heading = lines[0] if lines and not any(map(_number, lines[0])) else []
    lines = lines[1:] if heading else lines
    if not lines:
        raise Corrupt(f"{file.name} has no rows")
    for row, line in enumerate(lines):
        if len(line) != len(heading or lines[0]):
            raise Corrupt(f"{file.name}, row {row}: {len(line)} columns, not {len(heading or lines[0])}")
    return heading, lines


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(names: list[str], width: int, said: str, file: Path) -> int:
    """Where the column is that a name or a number says."""
    if said in names:
        return names.index(said)
    try:
        return range(width)[int(said)]
    except (ValueError, IndexError):
        there = f"there are {', '.join(names)}" if names else f"there are {width}, without names"
        raise ValueError(f"{file.name} has no column {said!r}; {there}") from None


def _numbers(file: Path, names: list[str], lines: list[list[str]], text: int | None) -> Any:
    """The lines as numbers; the column ``text`` need not be one."""
    out = np.zeros((len(lines), len(lines[0])), np.float32)
    for row, line in enumerate(lines):
        values = ["0" if i == text else v for i, v in enumerate(line)]
        wrong = next((i for i, v in enumerate(values) if not _number(v)), None)
        if wrong is not None:
            where = f"column {names[wrong] if names else wrong}"
            what = f"{line[wrong]!r} is no number" if line[wrong].strip() else "is empty"
            raise Corrupt(f"{file.name}, row {row}, {where}: {what}")
        with np.errstate(over="ignore"):
            out[row] = [float(v) for v in values]
        if not np.isfinite(out[row]).all():
            raise Corrupt(f"{file.name}, row {row}: holds a number that is not finite, or too large")
    return out
