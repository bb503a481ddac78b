"""The pages of the documentation and the blocks of code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN, CHECKED = ("python", "console", "toml"), ("sh",)
PLAIN = ("", "text", "json", "bibtex")  # shown, and not code of ours


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, where it stands, and its text."""

    language: str
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    out: list[Block] = []
    opened: tuple[str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.match(r"\s*```(.*)$", line)
        if fence and opened is None:
            opened, inside = (fence[1].strip(), number), []
        elif fence and opened is not None:
            out.append(Block(*opened, "\n".join(inside) + "\n"))
            opened = None
        elif opened is not None:
            inside.append(line)
    assert opened is None, f"{page}: the block at line {opened} has no end"
    return out


def commands(page: Path) -> Iterator[str]:
    """The lines that call fedquilt: in blocks of sh, and in those that are set in by four spaces."""
    fenced = {n for b in blocks(page) for n in range(b.line, b.line + b.text.count("\n") + 2)}
    texts = [b.text for b in blocks(page) if b.language in CHECKED]
    lines = page.read_text().splitlines()
    texts += [line[4:] for n, line in enumerate(lines, 1) if line.startswith("    ") and n not in fenced]
    for text in texts:
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("fedquilt "):
                yield line


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """The sections of a page: title and text."""
    title, inside, fenced = page.name, [], False
    for line in page.read_text().splitlines():
        fenced ^= line.lstrip().startswith("```")
        if line.startswith("#") and not fenced:
            yield title, "\n".join(inside)
            title, inside = line.strip("# "), []
        inside.append(line)
    yield title, "\n".join(inside)
