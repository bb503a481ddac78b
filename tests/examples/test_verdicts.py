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
