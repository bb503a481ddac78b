"""Data of one's own, in tensors, arrays or a table: five lines of Python, and one sentence where something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedquilt
from fedquilt.cli import main
from fedquilt.data import load, own
from fedquilt.run import Run
from fedquilt.task import Classification, NextToken, Regression
from fedquilt.types import Handle

X = np.random.default_rng(0).normal(size=(120, 4))  # float64, as numpy makes it
Y = np.arange(120) % 3


def test_five_lines_are_enough() -> None:
    person = [f"p{i // 30}" for i in range(120)]
    data = own(X, Y, groups=person)
    done = fedquilt.run(
        Run(data=data, partition="natural", clients=4, rounds=1, method={"name": "fedavg", "epochs": 1})
    )
    assert done.rounds == 1 and data.owners == ("p0", "p1", "p2", "p3")
    assert data.x.dtype == torch.float32 and data.y.dtype == torch.int64 and data.task == Classification(3)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_owners_and_series_come_as_samples_do(kind: Callable[[list[int]], Any]) -> None:
    person = [i // 30 for i in range(120)]
    data = own(X, Y, groups=kind(person), series=kind(person))
    assert data.owners == ("0", "1", "2", "3") and data.partition == "natural"
    assert data.groups is not None and data.series is not None
    assert data.groups.tolist() == person == data.series.tolist()
    dealt = fedquilt.prepare.dealt(Run(data=data, clients=4))
    assert {i: len(data.groups[dealt.parts.part(i, "train")].unique()) for i in range(4)} == dict.fromkeys(range(4), 1)


def test_names_of_owners_may_be_an_array_of_texts() -> None:
    assert own(X, Y, groups=np.array(["ann", "bob", "bob"] * 40)).owners == ("ann", "bob")


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int32, np.uint16, bool, np.uint8, np.float16])
def test_numbers_of_any_type_are_taken(kind: type) -> None:
    data = own((np.abs(X) * 10).astype(kind), Y.astype(np.uint8))
    kept = {np.uint8: torch.uint8, np.float16: torch.float16}
    assert data.x.dtype == kept.get(kind, torch.float32) and data.prepare(data.x).dtype == torch.float32
    done = fedquilt.run(Run(data=data, clients=3, rounds=1, partition="iid", method={"name": "fedavg", "epochs": 1}))
    assert done.rounds == 1


class Frame:
    """Numbers in a form of its own, which numpy understands: as a data frame's."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return X


def test_arrays_of_any_make_are_taken() -> None:
    fixed = X.copy()
    fixed.flags.writeable = False
    wanted = own(X, Y).fingerprint
    for x in (fixed, X[::-1].copy()[::-1], np.asfortranarray(X), X.tolist(), [torch.tensor(row) for row in X], Frame()):
        assert own(x, Y).fingerprint == wanted
    big = X.astype(np.float32)
    assert own(big, Y).x.data_ptr() == big.ctypes.data, "in memory once"


def test_targets_of_a_floating_type_are_predicted() -> None:
    for y, wide in ((X[:, 0], 1), (X[:, :2], 2), (X[:, :1], 1)):
        data = own(X, y)
        assert data.task == Regression() and data.classes == wide and data.y.dtype == torch.float32
        run = Run(data=data, clients=3, rounds=1, partition="iid", method={"name": "fedavg", "epochs": 1})
        assert "test" in fedquilt.run(run).figures()["scores"]


def test_a_column_of_labels_is_labels_and_tokens_stay_whole() -> None:
    assert own(X, Y[:, None]).y.shape == (120,)
    text = torch.arange(60).view(10, 6) % 7
    data = own(text, text, task=NextToken(7), classes=7)
    assert data.prepare(data.x).dtype == torch.int64 and data.classes == 7


def table(folder: Path, name: str, lines: list[str], heading: str = "") -> str:
    (folder / name).write_text("\n".join([heading] * bool(heading) + lines) + "\n")
    return f"csv:{folder / name}"


LINES = [f"{i % 7},{i / 2},{i % 3}" for i in range(60)]


def test_a_table_with_and_without_a_heading(tmp_path: Path) -> None:
    plain = load(table(tmp_path, "a.csv", LINES))
    named = load(table(tmp_path, "b.csv", LINES, "x0,x1,kind") + ":label=kind")
    assert torch.equal(plain.x, named.x) and plain.y.tolist() == [i % 3 for i in range(60)] == named.y.tolist()
    first = load(table(tmp_path, "c.csv", LINES) + ":label=0:shape=1x2")
    assert first.shape == (1, 2) and first.y.tolist() == [i % 7 for i in range(60)]
    assert plain.place(3) == "row 3 (row 3 of a.csv)"


def test_a_column_or_a_file_may_say_whose_a_row_is(tmp_path: Path) -> None:
    lines = [f"{i},p{i % 2},{i % 3}" for i in range(60)]
    data = load(table(tmp_path, "a.csv", lines, "x,who,kind") + ":label=kind:group=who")
    assert data.owners == ("p0", "p1") and data.x.shape == (60, 1)
    folder = tmp_path / "many"
    folder.mkdir()
    for who in ("ann", "bob"):
        table(folder, f"{who}.csv", LINES)
    data = load(f"csv:{folder}")
    assert data.owners == ("ann", "bob") and len(data) == 120 and data.place(61) == "row 61 (row 1 of bob.csv)"


def test_a_table_of_numbers_to_predict(tmp_path: Path) -> None:
    prices = table(tmp_path, "a.csv", [f"{i},{250_000 + i}" for i in range(60)])
    with pytest.raises(ValueError, match=r"the largest label of a is 250059, of 60 samples: .* predict=true"):
        load(prices)
    assert load(prices + ":predict=true").task == Regression()
    assert load(table(tmp_path, "b.csv", [f"{i},{i / 3}" for i in range(60)])).task == Regression()


@pytest.mark.parametrize(
    ("lines", "more", "say"),
    [
        ([*LINES, "nan,1,2"], "", "a.csv, row 60: holds a number that is not finite"),
        ([*LINES, "1e99,1,2"], "", "a.csv, row 60: holds a number that is not finite, or too large"),
        ([*LINES, ",1,2"], "", "a.csv, row 60, column 0: is empty"),
        ([*LINES, "1,cat,2"], "", "a.csv, row 60, column 1: 'cat' is no number"),
        ([*LINES, "1,2"], "", "a.csv, row 60: 2 columns, not 3"),
        ([*LINES, "1,1,-1"], "", "row 60 (row 60 of a.csv) has a label that is not one of the 3 classes"),
        ([f"{i},{i},dog" for i in range(60)], "", "a.csv, row 0, column 2: 'dog' is no number"),
        (["1", "2"], "", "a.csv has no column of samples beside the label"),
        ([], "", "a.csv has no rows"),
        (LINES, ":label=kind", "a.csv has no column 'kind'; there are 3, without names"),
        (LINES, ":group=9", "a.csv has no column '9'"),
        (LINES, ":shape=3x3", "2 columns of samples are not of the shape 3x3"),
        (LINES, ":classes=2", "has a label that is not one of the 2 classes (0 to 1)"),
        (LINES[:5], "", "client 0 has no val samples; three parts need three samples at least"),
        (LINES[:2], "", "2 samples cannot give 3 clients 1 each: take at most 2 clients"),
    ],
)
def test_what_is_wrong_with_a_table_ends_with_a_sentence_and_the_code_2(
    lines: list[str], more: str, say: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = table(tmp_path, "a.csv", lines) + more
    code = main(["run", "fedavg", "--data", data, "--clients", "3", "--partition", "iid", "--out", str(tmp_path / "r")])
    said = capsys.readouterr().err.strip()
    assert code == 2 and say in said and "\n" not in said and not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("arrays", "say"),
    [
        ({"y": Y}, "is not a file with arrays named x and y"),
        ({"x": X, "y": Y[:9]}, "120 samples with 9 targets"),
        ({"x": np.array(["a"] * 120), "y": Y}, "the samples of a are not numbers"),
        ({"x": X, "y": np.array(["a"] * 120)}, "the targets of a are not numbers"),
        ({"x": X * 1j, "y": Y}, "one real number or array a sample"),
        ({"x": np.float64(3), "y": np.int64(3)}, "one real number or array a sample"),
        ({"x": np.where(np.arange(480).reshape(120, 4) == 33, np.nan, X), "y": Y}, "row 8: holds a number that is not"),
        ({"x": X[:0], "y": Y[:0]}, "0 samples cannot give 3 clients"),
    ],
)
def test_what_is_wrong_with_arrays_is_said(
    arrays: dict[str, np.ndarray], say: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    code = main(["partition", f"npz:{tmp_path / 'a.npz'}", "--clients", "3", "--partition", "iid"])
    said = capsys.readouterr().err.strip()
    assert code == 2 and say in said and "\n" not in said


def test_arrays_of_a_file_are_as_in_python(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, who=Y % 2)
    data = load(f"npz:{tmp_path / 'a.npz'}:group=who")
    assert data.fingerprint == own(X, Y).fingerprint and data.owners == ("0", "1")
    with pytest.raises(ValueError, match="arrays named x and y and nobody"):
        load(f"npz:{tmp_path / 'a.npz'}:group=nobody")
    (tmp_path / "b.npz").write_text("1,2,3")
    with pytest.raises(ValueError, match=r"b\.npz is not a file of numpy\.savez"):
        load(f"npz:{tmp_path / 'b.npz'}")
    with pytest.raises(ValueError, match=r"there is no .*c\.npz"):
        load(f"npz:{tmp_path / 'c.npz'}")


def test_series_of_ones_own_are_split_in_time() -> None:
    series = torch.arange(120) // 30
    data = own(X, Y, series=series, groups=(series // 2).tolist(), gap=1)
    shards = fedquilt.prepare.dealt(Run(data=data, clients=2))
    for client in (0, 1):
        train, test = (shards.parts.part(client, s) for s in ("train", "test"))
        for one in (2 * client, 2 * client + 1):
            assert train[series[train] == one].max() + 1 < test[series[test] == one].min()
    assert shards[Handle(0, "train")][0].dtype == torch.float32


def test_series_whose_samples_are_apart_are_not_dealt_whole() -> None:
    data = own(X, Y, series=np.arange(120) % 4, gap=1)
    with pytest.raises(ValueError, match="the samples of a series do not all stand together: sort them by series"):
        fedquilt.prepare.dealt(Run(data=data, clients=2, partition="iid"))
