"""The pages that are made from the program itself: the reference of commands, and the table of methods.

python -m fedquilt.cli.reference     # writes docs/commands.md and the table in README.md
"""

from __future__ import annotations

import re
from pathlib import Path

from .app import app
from .cards import TABLES, cards

ROOT = Path(__file__).parents[2]
HEAD = """# Commands

Made from the program by `python -m fedquilt.cli.reference`; a test compares.  Every command ends with 0 if it did what
was asked, 1 if something failed, 2 if what was asked cannot be (one sentence says why, before any work), 130 if it
was interrupted.  `--json` prints JSON and nothing else; in a pipe there is no progress.  The settings of a method are
flags too: `fedquilt run METHOD --help` shows them, and `fedquilt show METHOD` its formula.
"""
BEGIN, END = "<!-- methods: made by `python -m fedquilt.cli.reference` -->", "<!-- methods end -->"


def commands() -> str:
    """The page of all commands."""
    said = [HEAD]
    for name in (n for n in app([])[0] if not n.startswith("-")):
        made, _ = app([name])  # a command's flags are there when it is named
        page = made[name].generate_docs(output_format="markdown")
        page = re.sub(r"\A# .*\n", f"## fedquilt {name}\n", page)
        page = re.sub(r"```console\n.*?(?= \[)", f"```text\nfedquilt {name}", page)
        said.append(re.sub(r"(?m)^\* ", "- ", page).strip())
    return "\n\n".join(said) + "\n\n" + names()


def names() -> str:
    """The names that settings take, by kind."""
    said = ["## Names", "What `fedquilt list` shows; a name takes settings after colons, such as `dirichlet:0.1`."]
    for kind in TABLES:
        if kind != "methods":
            said.append(f"- **{kind}**: " + ", ".join(f"`{name}`" for name in cards(kind)))
    return "\n".join([said[0], "", said[1], "", *said[2:]]) + "\n"


def methods() -> str:
    """The table of methods."""
    rows = ["| name | family | goes down | stays with a client | paper |", "| --- | --- | --- | --- | --- |"]
    for name, card in cards("methods").items():
        facts = {k: v.replace("|", "\\|") for k, v in card.facts.items()}
        rows.append(f"| `{name}` | {facts['family']} | {facts['sent']} | {facts['kept']} | {facts['paper']} |")
    return "\n".join(rows)


def with_methods(text: str) -> str:
    """A page whose table of methods is the newest."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{methods()}\n{END}{after}"


def main() -> None:
    """Write the pages."""
    (ROOT / "docs" / "commands.md").write_text(commands())
    readme = ROOT / "README.md"
    readme.write_text(with_methods(readme.read_text()))


if __name__ == "__main__":
    main()
