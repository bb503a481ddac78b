from collections.abc import Iterator
from pathlib import Path

import pytest

from fedquilt.compare import compare
from fedquilt.report import report
from fedquilt.study import Study

from .. import needs
from ..cli.world import Call, caller
from .browser import Browser

STUDY = {
    "methods": ["fedspu", "heterofl"],
    "clients": 5,
    "rounds": 3,
    "eval_every": 1,
    "seeds": 2,
    "epochs": 1,
    "fraction": 0.5,
    "model": "mlp:hidden=8",
}


@pytest.fixture(scope="package")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small comparison: four methods, two seeds."""
    folder = tmp_path_factory.mktemp("compared")
    compare(Study.of(STUDY, baselines=True), folder)
    return folder


@pytest.fixture(scope="package")
def page(compared: Path) -> Path:
    """Its report."""
    return report([compared]).page


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with a fresh profile."""
    made = Browser(needs.browser(), tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the command line in a fresh folder."""
    monkeypatch.chdir(tmp_path)
    return caller(capsys)
