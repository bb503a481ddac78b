"""Every block of code in the documentation runs, every command is one that there is, every figure names its own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import pytest

from fedquilt.cli import main, reference
from fedquilt.cli.app import app
from fedquilt.cli.cards import cards
from fedquilt.file import read

from .pages import CHECKED, PAGES, PLAIN, ROOT, RUN, blocks, commands, sections

NAMES = [str(p.relative_to(ROOT)) for p in PAGES]
MADE = ("docs/commands.md",)  # made from the program, whose texts are not pages


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python in one namespace a page, commands and studies in the same folder, in the order in which they stand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    world: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        file = re.match(r"# (\w+)\.py\n", block.text)
        if block.language == "python" and file:  # a module of one's own, which later blocks may import
            Path(f"{file[1]}.py").write_text(block.text)
            monkeypatch.delitem(sys.modules, file[1], raising=False)
            monkeypatch.setitem(sys.modules, file[1], import_module(file[1]))
        elif block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), world)
        elif block.language == "console":
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    words = shlex.split(line[2:], comments=True)
                    assert words[0] == "fedquilt", f"{where}: only fedquilt is called here: {line}"
                    assert main(words[1:]) == 0, f"{where}: {line}"
        elif block.language == "toml":
            title = re.match(r"# (\S+\.toml)", block.text)
            path = Path(title[1] if title else "study.toml")
            path.write_text(block.text)
            read(path)
        else:
            assert block.language in (*CHECKED, *PLAIN), f"{where}: is {block.language!r} run, checked, or plain text?"
    assert set(RUN).isdisjoint(PLAIN)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_of_a_page_is_one_that_there_is(page: Path) -> None:
    for line in commands(page):
        words = list(takewhile(lambda w: w not in ("|", ">"), shlex.split(line, comments=True)[1:]))
        words = [w for w in words if w != "..."]
        made, tokens = app(words)
        _, bound, _ = made.parse_args(tokens, exit_on_error=False, print_error=False)
        if words[0] in ("run", "compare", "tune"):
            for name in bound.args:
                assert name in cards("methods") or name.isupper() or name.endswith(".toml"), f"{line}: {name}"


SAYS = re.compile(r"(?m)^(\s*|\$ |>>> )?(fedquilt|python|make) |`(\.venv/bin/)?(fedquilt|python|make) [^`]+`")
FIGURE = re.compile(r"\d\.\d|±|\d ?(%|s|ms|MB|GB|GFLOP|min)\b")
SOURCED = re.compile(r"assumed|paper|arXiv|source|default|formula|settings?\b|licen[cs]e", re.IGNORECASE)


@pytest.mark.parametrize("page", [p for p, n in zip(PAGES, NAMES, strict=True) if n not in MADE], ids=str)
def test_a_table_of_figures_stands_with_the_command_that_makes_it(page: Path) -> None:
    """In its section, or at the head of a page of measurements; or says that they are from elsewhere, or assumed."""
    every = list(sections(page))
    head = next((text for _, text in every if text.startswith("# ")), "")
    for title, text in every:
        rows = [line for line in text.splitlines() if line.lstrip().startswith("|")]
        if sum(bool(FIGURE.search(row)) for row in rows) >= 2:
            assert SAYS.search(text) or SAYS.search(head) or SOURCED.search(text), (
                f"{page.name}: {title}: which command makes these figures?"
            )


def test_what_is_made_from_the_program_is_as_the_program_is() -> None:
    say = "run `python -m fedquilt.cli.reference`"
    assert (ROOT / "docs" / "commands.md").read_text() == reference.commands(), say
    readme = (ROOT / "README.md").read_text()
    assert readme == reference.with_methods(readme), say


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", re.sub(r"(?s)```.*?```", "", page.read_text())):
        if not re.match(r"https?:|mailto:", target):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """`make docs`; the packages that it needs are those of the extra docs."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert "fedquilt.run" in (tmp_path / "site" / "api" / "index.html").read_text()
    assert not [p for p in (tmp_path / "site").rglob("*.html") if "fonts.googleapis" in p.read_text()]
