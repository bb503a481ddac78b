"""A study in a TOML file: what is wrong with it is said with the line where it stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .schema import BadSetting
from .study import Study

INSTEAD = (("seed", "seeds"), ("method", "methods"))  # who says the one replaces the other


def read(path: Path, over: Mapping[str, Any] | None = None, baselines: bool = False) -> Study:
    """The study in a file, with ``over`` in place of what it says."""
    more = dict(over or {})
    given = load(path)
    for pair in INSTEAD:
        if more.keys() & set(pair):
            given = {k: v for k, v in given.items() if k not in pair}
    with placed(path, more):
        return Study.of(given | more, baselines)


def load(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadSetting(f"{path} cannot be read: it is not text in UTF-8") from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadSetting(f"{path} is not TOML: {reason}") from error


@contextmanager
def placed(path: Path, over: Collection[str] = ()) -> Iterator[None]:
    """Say of what is refused in here where it stands in the file, unless it came from ``over``."""
    try:
        yield
    except BadSetting as error:
        if error.key in over:
            raise
        where = place(path.read_text(encoding="utf-8"), error.key) if error.key else ""
        raise BadSetting(f"{path}{where}: {error}", error.key) from error


def place(text: str, key: str) -> str:
    """Where a key such as ``methods.wide.lr`` stands in a TOML text: its line, or that of what it lies in."""
    path = key.split(".")
    best, found = 0, 0
    table: list[str] = []
    inside: list[str] = []  # the key whose value, on one or more lines, we are in
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\[?\s*([^\[\]=]+?)\s*\]\]?\s*(#.*)?$", line)
        named = re.match(r"""\s*([\w."'-]+)\s*=""", line)
        if header:
            table, inside = _parts(header[1]), []
        elif named:
            inside = _parts(named[1])
        here = [*table, *inside]
        if here == path:
            good = 4
        elif here[:1] == path[:1] and re.search(rf"""(?<![\w-]){re.escape(path[-1])}["']?\s*=""", line):
            good = 3
        else:
            good = 2 if here and here == path[:-1] else 1 if here == path[:1] else 0
        if good > best:
            best, found = good, number
    return f", line {found} ({key})" if found else f" ({key})"


def _parts(dotted: str) -> list[str]:
    return [p.strip(" \"'") for p in dotted.split(".")]
