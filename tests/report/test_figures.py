"""What a report says is what stands in the run folders: of interrupted runs too."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from fedquilt.data import own
from fedquilt.drive.sim import Simulator
from fedquilt.report import book, drawn, report
from fedquilt.report.chart import Axis, Figure, Lines
from fedquilt.report.draw import COLOURS, DASHES, style, thinned
from fedquilt.report.sums import Sums
from fedquilt.report.table import Column, Table
from fedquilt.report.ticks import scale
from fedquilt.run import Run, run

from ..cli.world import TINY, Call, sentence

pytestmark = pytest.mark.xdist_group("report")  # one comparison for all


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def figures(folder: Path) -> dict[str, Figure]:
    found = book([folder])
    return {f.name: f for section in found.sections for f in drawn(Sums(section, found.split), found, None)}


def column(table: Table, name: str) -> Iterator[Any]:
    at = [c.name for c in table.columns].index(name)
    return (row[at] for row in table.rows)


def test_curves_are_the_sums_of_the_records(compared: Path) -> None:
    record = json.loads((compared / "comparison.json").read_text())
    made = figures(compared)["curves"]
    for label in ("local", "fedspu"):
        folders = [compared / r["folder"] for r in record["runs"] if r["label"] == label]
        rounds = [lines(f / "rounds.jsonl") for f in folders]
        scores = [lines(f / "scores.jsonl") for f in folders]
        row = [r for r in made.table.rows if r[0] == label][-1]
        last = dict(zip([c.name for c in made.table.columns], row, strict=True))
        assert last["rounds"] == 3 and last["seeds"] == len(folders) == 2
        assert last["bytes"] == pytest.approx(fmean(sum(r["down"] + r["up"] for r in of) for of in rounds))
        assert last["joules"] == pytest.approx(fmean(sum(r["joules"] for r in of) for of in rounds))
        assert last["virtual seconds"] == pytest.approx(fmean(of[-1]["clock"] for of in rounds))
        ends = [fmean(r["accuracy"] for r in of if which(r) == (3, "served", "test")) for of in scores]
        assert last["mean"] == pytest.approx(fmean(ends))
        chart = made.views["bytes", "mean"]
        assert isinstance(chart, Lines)
        line = next(x for x in chart.lines if made.series[x.series] == label)
        assert (line.y[-1], line.low[-1], line.high[-1]) == pytest.approx((last["mean"], min(ends), max(ends)))


def which(score: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(score[k] for k in ("round", "model", "split"))


def test_final_figures_are_those_of_the_comparison(compared: Path) -> None:
    (cell,) = json.loads((compared / "comparison.json").read_text())["cells"]
    table = figures(compared)["final"].table
    assert list(column(table, "mean")) == [r["mean"] for r in cell["rows"]]
    assert list(column(table, "worst tenth")) == [r["worst_decile"] for r in cell["rows"]]
    better = {p["b"]: p["worse"] for p in cell["pairs"] if p["a"] == "local"}
    assert list(column(table, "better than local for"))[1:] == list(better.values())


def test_the_cost_of_a_target_is_that_of_the_first_round_that_reaches_it(compared: Path) -> None:
    found = book([compared])
    sums = Sums(found.sections[0], "test")
    made = next(f for f in drawn(sums, found, 0.15) if f.name == "target")
    for label, by_seed in sums.curves.items():
        row = next(r for r in made.table.rows if r[:2] == [0.15, label])
        first = []
        for c in by_seed.values():
            there = [r for r, v in zip(c.rounds, c.scores, strict=True) if v["mean"] >= 0.15]
            first.append(there[0] if there else None)
        assert row[2] == f"{sum(r is not None for r in first)} of 2"
        assert row[3] == (None if None in first else fmean(r for r in first if r is not None))


def test_every_figure_says_population_model_moment_split_and_pick(compared: Path, page: Path) -> None:
    told = unescape(page.read_text())
    made = figures(compared)
    assert len(made) == 10
    for figure in made.values():
        said = figure.caption.said
        assert list(said) == ["Population", "Model", "Moment", "Split", "Pick"] and all(said.values())
        assert all(f"<b>{k}:</b> {v}." in told for k, v in said.items())
        assert figure.table.rows and figure.table.plain() in told


def test_what_clients_hold_and_spend_is_what_the_run_says(compared: Path) -> None:
    record = json.loads((compared / "comparison.json").read_text())
    folder = next(compared / r["folder"] for r in record["runs"] if (r["label"], r["seed"]) == ("fedspu", 0))
    made = figures(compared)
    held = lines(folder / "holdings.jsonl")
    assert [list(r) for r in made["holdings"].table.rows] == [
        [h["client"], h["train"], h["val"], h["test"], *h["classes"]] for h in held
    ]
    assert sum(sum(h["classes"]) for h in held) == 1797
    assert all(h["train"] + h["val"] + h["test"] == sum(h["classes"]) for h in held)
    mine = [r for r in made["spent"].table.rows if r[0] == "fedspu"]
    clients = lines(folder / "clients.jsonl")
    assert [r[4] for r in mine] == [sum(c["down"] for c in clients if c["client"] == h["client"]) for h in held]


def test_a_page_holds_all_it_needs_and_lets_nothing_in(compared: Path, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    copy = tmp_path / "copy"
    shutil.copytree(compared, copy)
    record = json.loads((copy / "comparison.json").read_text())
    for r in record["runs"]:
        r["label"] = evil if r["label"] == "fedspu" else r["label"]
    for row in record["cells"][0]["rows"]:
        row["label"] = evil if row["label"] == "fedspu" else row["label"]
    (copy / "comparison.json").write_text(json.dumps(record))
    text = report([copy]).page.read_text()
    assert evil not in text and "&lt;script&gt;alert(1)" in text
    assert "default-src 'none'" in text and text.count("<script>") == 1
    assert set(re.findall(r"""(?:src|href)=["']([^#][^"']*)""", text)) == {"data:,"}
    assert not re.search(r"@import|url\(", text)


def test_an_interrupted_comparison_is_told_as_far_as_it_is(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = Simulator.round, [3]

    def round(self: Simulator, now: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(self, now)

    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "round", round)
        assert call("compare", "fedspu", *TINY, "--out", "c").code == 130
    said = call("report", "c", "--json")
    assert said.code == 0 and said.json["report"] == "c/report.html"
    text = Path("c/report.html").read_text()
    assert "1 finished, 2 not" in text and "not finished: 1 of 2 rounds" in text
    made = figures(Path("c"))
    assert list(column(made["final"].table, "method")) == ["local"]
    assert {row[0] for row in made["curves"].table.rows} == {"local", "fedavg finetune=1"}
    torn = next(p for p in Path("c").glob("runs/*/rounds.jsonl"))
    torn.write_bytes(torn.read_bytes() + b'{"round": 9, "cl')
    assert call("report", "c").code == 0, "the last line of a run at work may be half there"


def test_run_compare_and_tune_end_with_their_page_and_a_folder_of_them_has_one_too(call: Call) -> None:
    assert "report: runs/r/report.html" in call("run", "fedavg", *TINY, "--out", "runs/r").out
    assert "report: runs/c/report.html" in call("compare", "fedavg", *TINY, "--out", "runs/c").out
    search = call("tune", "fedavg", *TINY, "--no-baselines", "--over", "lr=0.01,0.2", "--out", "runs/t")
    assert "report: runs/t/report.html" in search.out
    for folder in ("r", "c", "t"):
        assert Path(f"runs/{folder}/report.html").stat().st_size > 20_000
    assert set(figures(Path("runs/t"))) == {"trials", "curves", "loss", "holdings"}
    told = figures(Path("runs/t"))
    assert all("validation" in told[name].caption.split for name in ("trials", "curves"))
    assert not any("test part" in str(told[name].caption.split) for name in ("trials", "curves"))
    assert call("report", "runs", "--out", "all.html").code == 0
    section = book([Path("runs")]).sections[0]
    assert len(section.all) == 3 and "Search" not in Path("all.html").read_text(), "a run twice there is told once"
    assert len({t.record["id"] for t in section.all}) == 3


@pytest.mark.parametrize(
    "more", [[], ["--unseen", "0.4"], ["--split", "70/0/30"], ["--schedule", "deadline:seconds=0.01"]]
)
def test_a_run_of_any_kind_has_its_page(more: list[str], call: Call) -> None:
    words = ["run", "fedspu", "--clients", "5", "--rounds", "2" if more else "0", "--model", "mlp:hidden=8", *more]
    assert call(*words, "--out", "r").code == 0
    told = figures(Path("r"))
    assert {"final", "curves", "clients", "tiers", "holdings"} <= set(told)
    new = json.loads(Path("r/result.json").read_text())["scores"]["test"].get("unseen")
    note = told["final"].caption.note
    assert f"fedspu {new['before']:.3f} and {new['after']:.3f}" in note if new else "never train" not in note
    assert ("doubles as validation" in told["final"].caption.split) == ("70/0/30" in more)


def test_a_page_of_numbers_to_predict_speaks_of_loss(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 1200).reshape(200, 6)
    settings = {"clients": 4, "rounds": 1, "partition": "iid", "eval_every": 1}
    run(Run(method={"name": "fedavg", "epochs": 1}, data=own(x, x.sum(1, keepdim=True)), **settings), tmp_path)  # type: ignore[arg-type]
    told = figures(tmp_path)
    assert {"efficiency", "target"}.isdisjoint(told), "which are about accuracy"
    assert "loss" in told["curves"].title.lower() and report([tmp_path]).page.exists()


def test_figures_for_papers_and_records_as_parquet(call: Call, compared: Path) -> None:
    import pyarrow.parquet

    folder = next(p.parent for p in compared.glob("runs/fedspu*/run.json"))
    said = call("report", str(folder), "--figures", "--parquet", "--out", "paper/x.html", "--json").json
    made = [Path(f) for f in said["figures"]]
    assert {f.suffix for f in made} == {".svg", ".pdf"} and len(made) == 2 * len({f.stem for f in made}) > 50
    text = Path("paper/figures/curves-mean-joules.svg").read_text()
    assert text.startswith("<svg ") and "http://www.w3.org/2000/svg" in text and "energy" in text and COLOURS[0] in text
    data = Path("paper/figures/curves-mean-joules.pdf").read_bytes()
    assert data.startswith(b"%PDF") and b"/FontFile" not in data and b"/Type3" not in data, "its letters are outlines"
    table = pyarrow.parquet.read_table("paper/clients.parquet")
    each = lines(folder / "clients.jsonl")
    assert table.num_rows == len(each) and sum(table["up"].to_pylist()) == sum(r["up"] for r in each)
    assert {"method", "seed", "metrics.loss"} <= set(table.column_names)
    kinds = ("rounds", "clients", "scores", "holdings")
    assert {Path(p).name for p in said["records"]} == {f"{k}.parquet" for k in kinds}


QUIET = """
import sys
from fedquilt.cli import main
assert main(["report", sys.argv[1], "--out", sys.argv[2], "--json"]) == 0
assert not {"torch", "matplotlib", "pyarrow"} & set(sys.modules)
"""


def test_the_page_of_a_finished_comparison_needs_nothing_heavy(compared: Path, page: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", QUIET, str(compared), str(tmp_path / "x.html")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.html").read_text() == page.read_text(), "and is the same again"


def test_what_cannot_be_reported_is_refused_in_one_sentence(call: Call) -> None:
    Path("empty").mkdir()
    assert "holds no run" in sentence(call("report", "empty"))
    assert "there is no folder nowhere" in sentence(call("report", "nowhere"))
    assert "report needs a folder" in sentence(call("report"))
    assert "--target is an accuracy" in sentence(call("report", "empty", "--target", "80"))
    assert "--out is the page" in sentence(call("report", "empty", "--out", "there"))
    Path("bad").mkdir()
    Path("bad/run.json").write_text("{")
    assert "not readable as JSON" in sentence(call("report", "bad"))


def test_series_differ_in_more_than_colour() -> None:
    styles = [style(i) for i in range(42)]
    assert len({(c, tuple(d)) for c, d, _ in styles}) == len(COLOURS) * len(DASHES)
    assert len({(c, s) for c, _, s in styles}) == 42, "of dots, which have no dash"
    assert len({(s, tuple(d)) for _, d, s in styles[:36]}) == 36, "in black and white"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("kind", ["count", "share", "B", "s", "rate"])
@pytest.mark.parametrize("values", [(1, 20), (0.9533, 0.9571), (3e5, 8e6), (40, 2e5), (5, 5), (1e-6, 1e6)])
def test_an_axis_has_marks_inside_it_and_each_is_another(values: tuple[float, float], kind: str, log: bool) -> None:
    made = scale(Axis("x", kind, log), values, 0, 100)
    ticks = made.ticks(7)
    assert 0 <= made.at(values[0]) <= made.at(values[1]) <= 100
    assert ticks and all(-1e-6 <= made.at(v) <= 100 + 1e-6 for v, _ in ticks)
    assert len({said for _, said in ticks}) == len(ticks) <= 15


def test_thinning_keeps_the_ends() -> None:
    assert thinned(range(1000), 5) == [0, 250, 500, 749, 999]
    assert thinned([1, 2], 5) == [1, 2]


def test_a_table_in_plain_text_keeps_its_digits_and_its_columns() -> None:
    table = Table([Column("a"), Column("b", "share")], [["x\ty", 0.123456789], ["z", None]])
    assert table.plain() == "a\tb\nx y\t0.123456789\nz\t\n"
