from pathlib import Path

import pytest

from .world import Call, caller


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the command line in a fresh folder."""
    monkeypatch.chdir(tmp_path)
    return caller(capsys)
