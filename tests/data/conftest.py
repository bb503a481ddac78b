"""Each test has a cache and a working folder of its own, and no data folder but the one that it makes."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDQUILT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
