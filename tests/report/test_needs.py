"""What is missing skips a test on a machine of one's own, with the reason, and fails it where CI=1 is set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .. import needs
from ..cli.world import Call

TINY = ["--clients", "10", "--rounds", "1", "--epochs", "1", "--batch", "64", "--fraction", "0.1"]


@pytest.mark.parametrize("need", [needs.browser, lambda: needs.data("mnist")])
def test_what_is_missing_skips_or_fails(need: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert callable(need)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path / "nowhere"))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"no Chromium|names no folder"):
        need()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="nothing may be missing"):
        need()


def test_a_run_on_real_data_ends_with_its_page(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_DATA", str(needs.data("cifar10")))
    said = call("run", "fedspu", "--data", "cifar10", *TINY, "--model", "cnn:conv=4,8", "--json")
    folder = Path(said.json["folder"])
    held = [json.loads(line) for line in (folder / "holdings.jsonl").read_text().splitlines()]
    assert sum(sum(h["classes"]) for h in held) == 50_000 and "cifar10" in (folder / "report.html").read_text()
