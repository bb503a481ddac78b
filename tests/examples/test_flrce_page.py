"""The commands that measure FLrce: each writes its part of the page, and says what follows from the runs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    text = (ROOT / "docs" / "methods" / "flrce.md").read_text().replace("femnist -->", "digits -->")
    (tmp_path / "flrce.md").write_text(text)
    return tmp_path / "flrce.md"


def part(page: Path, name: str) -> list[list[str]]:
    """The rows of the tables of a part of the page."""
    text = page.read_text().partition(f"<!-- measured: {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line[:1] == "|"]


@pytest.mark.parametrize(
    ("differences", "least", "told"),
    [([3.0, 4.0, 5.0], 0, "yes"), ([-1.0, 1.0, 2.0], 0, "not beyond the spread"), ([-3.0, -4.0], 0, "no"),
     ([-3.0, -3.1], -4, "yes"), ([-8.0, -6.0], -4, "no")],
)  # fmt: skip
def test_a_claim_holds_beyond_the_spread(page: Path, differences: list[float], least: float, told: str) -> None:
    assert import_module("flrce").verdict(differences, least) == told


@pytest.mark.slow
def test_the_page_is_measured(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command: ModuleType = import_module("flrce")
    monkeypatch.setattr(command, "DATA", {"digits": 12})
    monkeypatch.setattr(command, "OVER", "digits")
    monkeypatch.setattr(command, "PSIS", (0.1, 9.9))
    words = ["--rounds", "12", "--seeds", "2", "--page", str(page), "--out", str(tmp_path / "runs")]
    command.main(words)
    first, rows = page.read_text(), part(page, "digits")
    assert [r[0] for r in rows if r[0].isdigit()] == [str(n) for n in range(13)]
    early, late = (next(r for r in rows if r[0] == psi) for psi in ("0.1", "9.9"))
    assert late[1] == "never, never" and early[1] != late[1]
    assert {"yes", "no", "not beyond the spread"} >= {r[2] for r in rows[-7:]}
    assert len(part(page, "combinations")) == 2 + 8
    command.main(words)
    assert page.read_text() == first, "no run is done twice"


@pytest.mark.slow
def test_the_cost_of_the_map_is_measured(page: Path) -> None:
    words = [
        "--clients",
        "40",
        "--params",
        "1000",
        "--cohort",
        "4",
        "--rounds",
        "2",
        "--share-rounds",
        "2",
        "--sketch",
        "64",
        "--page",
    ]
    import_module("flrce_cost").main([*words, str(page)])
    assert len(part(page, "share")) == 3
    ram, files, short = part(page, "map")[2:]
    assert ram[3] == files[3] == "0.0000" and 0 < float(short[3]) < 4 * (2 / 64) ** 0.5
    assert ram[4] == files[4] == "4 of 4"
