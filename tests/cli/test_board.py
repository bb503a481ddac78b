"""The board: what a folder of runs says, as JSON, as a table, and live on a headless terminal."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from textual.widgets import DataTable, Static

from fedquilt.cli import board
from fedquilt.cli.board import COLUMNS, Seen
from fedquilt.cli.screen import Board
from fedquilt.log.sight import Sight, spark
from fedquilt.store import RunFolder

from .test_run import interrupt_after
from .world import TINY, Call, sentence


@pytest.fixture
def runs(call: Call) -> Path:
    """A finished run, one that was stopped, and a comparison."""
    assert call("run", "fedspu", *TINY, "--eval-every", "1", "--out", "runs/done", "--quiet").code == 0
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(1, patch)
        assert call("run", "fedavg", *TINY, "--eval-every", "1", "--out", "runs/half").code == 130
    assert call("compare", "local", *TINY, "--no-baselines", "--out", "runs/many", "--quiet").code == 0
    Path("runs/notes").mkdir()
    Path("runs/broken").mkdir()
    Path("runs/broken/run.json").write_text("{")
    return Path("runs")


def test_json_says_of_each_run_what_its_folder_says(runs: Path, call: Call) -> None:
    said = {Path(r["folder"]).parts[1]: r for r in call("board", "--json").json}
    assert said.keys() == {"done", "half", "many"}
    assert {k: (r["state"], r["round"], r["rounds"]) for k, r in said.items()} == {
        "done": ("finished", 2, 2),
        "half": ("stopped", 1, 2),
        "many": ("finished", 2, 2),
    }
    result = json.loads(Path("runs/done/result.json").read_text())
    assert said["done"]["test"][-1] == {"round": 2, "mean": pytest.approx(result["scores"]["test"]["mean"])}
    assert [t["round"] for t in said["done"]["test"]] == [0, 1, 2]
    for cost in ("down", "up", "flops", "joules", "seconds"):
        assert said["done"][cost] == pytest.approx(result[cost])


def test_piped_it_is_a_table(runs: Path, call: Call) -> None:
    said = call("board", "runs")
    assert said.code == 0 and not said.err
    for words in (*COLUMNS, "done", "half", "fedspu", "finished", "stopped", "2/2", "1/2"):
        assert words in said.out


def test_what_is_at_work_is_told_by_its_lock(runs: Path) -> None:
    sight = Sight(runs / "half")
    sight.look()
    assert sight.state == "stopped"
    with RunFolder(runs / "half"):
        sight.look()
        assert sight.state == "at work"
    sight.look()
    assert sight.state == "stopped"


def test_journals_that_grow_and_are_cut_back_are_read_again(runs: Path) -> None:
    sight, path = Sight(runs / "done"), runs / "done" / "rounds.jsonl"
    whole = path.read_text()
    first = whole.splitlines(keepends=True)[0]
    path.write_text(first[:20])
    sight.look()
    assert sight.round == 0, "half a line is none"
    path.write_text(whole)
    sight.look()
    assert sight.round == 2
    path.write_text(first)
    sight.look()
    assert sight.round == 1 and [r for r, _ in sight.means()] == [0, 1, 2]


def shown(app: Board) -> dict[str, list[str]]:
    """The table's lines by the run's name."""
    lines = app.query_one(DataTable)
    rows = [[str(c) for c in lines.get_row(key)] for key in lines.rows]
    return {cells[1].split("/")[0]: cells for cells in rows}


def test_it_lives_on_a_headless_terminal(runs: Path, call: Call) -> None:
    async def watch() -> None:
        app = Board(Seen(runs), every=3600)
        async with app.run_test(size=(140, 40)) as pilot:
            await pilot.pause()
            assert shown(app).keys() == {"done", "half", "many"}
            assert shown(app)["half"][0] == "stopped" and app.sub_title == "0 at work, 2 finished, 1 stopped"
            pane = app.query_one("#details", Static)
            assert "runs/done: finished, 2 of 2 rounds" in str(pane.render())
            await pilot.press("down")
            assert "go on with: fedquilt resume runs/half" in str(pane.render())
            assert "Method(name='fedavg'" in str(pane.render())
            with RunFolder(runs / "half"):
                await pilot.press("r")
                assert shown(app)["half"][0] == "at work"
            assert call("resume", "runs/half", "--quiet").code == 0
            await pilot.press("r")
            assert shown(app)["half"][0] == "finished" and shown(app)["half"][3] == "2/2"
            (runs / "done" / "run.json").unlink()
            await pilot.press("r")
            assert shown(app).keys() == {"half", "many"}
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(watch())


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    async def watch() -> None:
        app = Board(Seen(tmp_path), every=3600)
        async with app.run_test() as pilot:
            await pilot.pause()
            assert "There is no run in" in str(app.query_one("#details", Static).render())

    asyncio.run(watch())


def test_what_cannot_be_shown_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is no folder" in sentence(call("board", "nowhere"))
    Path("runs").mkdir()
    assert "above 0" in sentence(call("board", "--every", "0"))
    assert call("board", "--json").json == []
    monkeypatch.setattr(board, "find_spec", lambda name: None)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    said = call("board")
    assert said.code == 2 and "pip install 'fedquilt[board]'" in said.err


def test_the_board_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, fedquilt.cli as c; assert c.main(['board', sys.argv[1]]) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_sparkline_rises_with_its_values() -> None:
    assert spark([0.0, 0.5, 1.0]) == "▁▅█"
    assert spark([]) == "" and spark([0.3]) == "▁" and len(spark([float(i) for i in range(99)])) == 16
