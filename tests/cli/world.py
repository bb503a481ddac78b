"""The command line, called in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fedquilt.cli import main

TINY = ["--clients", "5", "--rounds", "2", "--epochs", "1", "--fraction", "0.4", "--model", "mlp:hidden=8"]


@dataclass(frozen=True)
class Said:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Said]


def caller(capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls the command line with words (a text is split at spaces)."""

    def call(*words: str) -> Said:
        capsys.readouterr()
        code = main([w for word in words for w in (word.split() if " " in word else [word])])
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return call


def sentence(said: Said) -> str:
    """The one sentence on standard error of a command that was refused."""
    assert said.code == 2 and not said.out
    assert said.err.startswith("fedquilt: ") and said.err.count("\n") == 1 and "Traceback" not in said.err
    return said.err.removeprefix("fedquilt: ").strip()
