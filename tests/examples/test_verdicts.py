"""What measured pages say of their figures: which is better, and what a run had come to when it had cost so much."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedquilt.history import History, Result


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return import_module("pages")


def ran(scores: dict[int, float], costs: list[float]) -> Result:
    """A run of so many rounds, scored after some."""
    rounds = [{"flops": c} for c in costs]
    said = [
        {"round": r, "split": "test", "model": "served", "client": 0, "n": 1, "tier": "", "accuracy": a}
        for r, a in scores.items()
    ]
    return Result({}, {}, len(costs), None, History(rounds=rounds, scores=said))


def test_a_verdict_goes_by_what_differs_seed_by_seed(pages: Any) -> None:
    a, b = [0.50, 0.60, 0.70], [0.44, 0.55, 0.63]  # 6, 5 and 7 points, whatever the seeds differ by
    assert pages.told("a", a, "b", b) == "a is better than b by 6.0 ± 1.0 points over 3 seeds."
    assert pages.told("b", b, "a", a) == "b is worse than a by 6.0 ± 1.0 points over 3 seeds."
    assert "not to be told apart (+1.0 ± 1.0 points" in pages.told("a", [0.50, 0.51, 0.52], "b", [0.5, 0.5, 0.5])
    assert "not to be told apart (+0.0 ± 0.0" in pages.told("a", a, "a", a)
    assert "too few" in pages.told("a", a[:1], "b", b[:1])
    with pytest.raises(ValueError, match="shorter"):
        pages.told("a", a, "b", b[:2])


def test_accuracy_against_a_cost_is_read_between_scorings(pages: Any) -> None:
    run = ran({0: 0.1, 2: 0.3, 3: 0.5}, [1.0, 3.0, 2.0])
    wanted = {0.0: 0.1, 2.0: 0.2, 4.0: 0.3, 5.0: 0.4}
    assert {c: pages.reached(run, "flops", c) for c in wanted} == {
        c: (pytest.approx(a), True) for c, a in wanted.items()
    }
    assert pages.reached(run, "flops", 6.0) == (0.5, True) and pages.reached(run, "flops", 7.0) == (0.5, False)
    assert pages.spent(run, "flops") == 6.0
    dear = ran({0: 0.1, 1: 0.3}, [20.0])
    text = pages.curves({"cheap": [run, run], "dear": [dear, dear]}, "flops", 1.0, "FLOP")
    cheap, costly = (text.splitlines()[i].strip("| ").split(" | ") for i in (2, 3))
    assert text.splitlines()[0].strip("| ").split(" | ")[1:] == [f"at {c} FLOP" for c in ("1.5", "3", "6", "12", "24")]
    assert cheap[3:] == ["50.0 ± 0.0", "(50.0 ± 0.0)", "(50.0 ± 0.0)"] and costly[1] == "11.5 ± 0.0"
    assert costly[5].startswith("(30.0")


# ---- the commands as a whole, on digits
def page(folder: Path, parts: list[str]) -> Path:
    """A page with a place for each of these."""
    path = folder / "page.md"
    path.write_text("\n".join(f"<!-- measured: {p} -->\n<!-- end of {p} -->" for p in parts))
    return path


@pytest.mark.slow
def test_fedlps_s_command_writes_every_part_with_its_verdicts(pages: Any, tmp_path: Path) -> None:
    command = import_module("fedlps")
    command.DATA["digits"] = {"clients": 3, "rounds": 1, "model": "mlp:hidden=8"}
    command.EPOCHS["digits"] = 1
    text = page(tmp_path, [f"{p} digits" for p in command.PARTS])
    words = ["--rounds", "1", "--seeds", "2", "--out", str(tmp_path / "runs"), "--page", str(text), "--data", "digits"]
    command.main(words)
    said = text.read_text()
    assert said.count("Verdict:") == 3 and "Against operations:" in said and "Against virtual time:" in said
    assert sum(f"s = {s:g} |" in said for s in command.SHARES) == 4 and "pucbv, redrawn each round |" in said
    assert "TFLOP" in said and "nan" not in said and "over 2 seeds" in said
    command.main(words)
    assert text.read_text() == said, "nothing is run or said anew"


@pytest.mark.slow
def test_mpfl_s_command_writes_every_part_with_its_verdicts(pages: Any, tmp_path: Path) -> None:
    command = import_module("mpfl")
    same = {"digits": "mlp:hidden=16"}
    command.WHOLE["digits"] = same["digits"]
    command.SIZES["smoke"] = command.Size(5, 2, 1, same, {"digits": "iid"}, 1)
    three, command.three = command.three, lambda b: [f"mlp:hidden={n}" for n in (8, 16, 24)]
    text = page(tmp_path, list(command.PARTS))
    words = f"--size smoke --seeds 2 --out {tmp_path / 'runs'} --page {text} --data digits".split()
    try:
        command.main(words)
    finally:
        command.three = three
    said = text.read_text()
    assert said.count("Verdict:") == len(command.PARTS) == 7 and "nan" not in said
    for word in (
        "windows of 0.3",
        "without",
        "Theorem 1, epsilon = 1",
        "ratio 0.75, never",
        "V6",
        "T8",
        "one left out",
    ):
        assert word in said
