"""The commands that write figures into the pages: they work, go on where they were, and every method has its page."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.models import build

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "methods"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("methods")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_a_page_with_its_command(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()
    assert f"fedquilt run {name}" in text
    for part in ("idea", "formula", "when to use"):
        assert part in text.lower(), part


def test_a_measured_line_is_written_and_no_run_is_done_twice(command: ModuleType, tmp_path: Path) -> None:
    pages, out = tmp_path / "pages", tmp_path / "runs"
    pages.mkdir()
    for name in ("cs", "README"):
        shutil.copy(PAGES / f"{name}.md", pages)
    (pages / "refl.md").write_text("# refl\n")  # a page without a place for it
    budget = ("--search-rounds", "1", "--rounds", "2", "--core-seconds", "60", "--margin", "-100")
    words = ["cs", "refl", "--data", "digits", "--clients", "8", *budget]
    words += ["--out", str(out), "--pages", str(pages)]
    command.main(words)
    first = {p: p.read_text() for p in (*pages.iterdir(), *out.rglob("core_seconds.json"))}
    assert len(list(out.iterdir())) == 4 * (3 + 1)
    assert all(json.loads(text) > 0 for path, text in first.items() if path.suffix == ".json")
    for name in ("cs", "refl"):
        text = (pages / f"{name}.md").read_text()
        assert "**digits**, 8 clients, 2 rounds" in text and " local: " in text and "fine-tuned fedavg: " in text
    assert "| [cs](cs.md) |" in (pages / "README.md").read_text()
    command.main(words)
    assert first == {p: p.read_text() for p in first}
    command.main([*words, "--margin", "200"])
    assert "**Does not count**" in (pages / "cs.md").read_text()


def test_a_narrower_net_costs_less_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    widths = import_module("widths")
    model = build({"name": "vgg11", "scale": 1 / 8}, Key(0))
    for cost in (lambda w: sum(widths.messages(model, "efd", w)), lambda w: widths.operations(model, w)):
        found = [cost(w) for w in (0.25, 0.5, 1.0)]
        assert found == sorted(found) and 0.03 < found[0] / found[2] < 0.15
