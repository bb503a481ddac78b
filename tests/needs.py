"""What a test needs of the machine: without it the test is skipped, with the reason; where CI=1 is set, it fails."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def lacking(what: str) -> NoReturn:
    """Skip, or fail where everything is meant to be there."""
    if os.environ.get("CI") == "1":
        pytest.fail(f"{what} (CI=1: nothing may be missing)", pytrace=False)
    pytest.skip(what)


def browser() -> str:
    """A Chromium on the path."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    lacking("no Chromium is on the path: make deps-browser installs it")


def data(name: str) -> Path:
    """The folder of data sets, which has this one."""
    said = os.environ.get("FEDQUILT_DATA", "")
    if said and (Path(said) / name).is_dir():
        return Path(said)
    lacking(f"FEDQUILT_DATA, which is {said or 'not set'}, names no folder that holds {name}")
