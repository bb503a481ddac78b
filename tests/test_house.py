"""The house rules: arrows point one way, files and functions stay small, builders cite and explain."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import fedquilt
from fedquilt.methods import METHODS
from fedquilt.models import MODELS

ROOT = Path(fedquilt.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# What a module may import at its top, besides what stands above it on the same line of the list.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("schema", "words"),
    ("cover", "key"),
    ("task",),
    ("supple",),
    ("model", "fleet"),
    ("norm",),
    ("term",),
    ("types",),
    ("fit", "store", "codec"),
    ("step",),
    ("models", "grow"),
    ("parts",),
    ("method",),
    ("meter", "data"),
    ("trace",),
    ("methods", "engine"),
    ("drive.packing", "drive.wire"),
    ("guard",),
    ("drive",),
    ("history",),
    ("run", "fitting", "prepare", "record", "conduct"),
    ("stats", "jobs", "export"),
    ("file", "study"),
    ("cells",),
    ("compare", "tune"),
    ("report",),
    ("log", "deploy", "drive.flower"),
    ("cli", "__main__"),
)
METHOD_BLIND = ("engine", "drive", "meter", "guard", "store", "parts", "data", "models", "fleet")


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


def layer(module: str) -> int:
    """The floor of a module: that of the longest entry that it lies in."""
    found = [
        (len(entry), floor)
        for floor, entries in enumerate(LAYERS)
        for entry in entries
        if module == entry or module.startswith(entry + ".")
    ]
    assert found, f"fedquilt/{module} has no place in the list of layers"
    return max(found)[1]


def imports(path: Path) -> Iterator[str]:
    """The modules of this package that a file imports, wherever it does so, but for types alone."""
    tree = ast.parse(path.read_text())
    here = name_of(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    package = [p for p in package if p]
    for node in walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            target = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                longer = [*target, alias.name]
                inside = ROOT.joinpath(*longer)
                module = longer if inside.with_suffix(".py").exists() or (inside / "__init__.py").exists() else target
                if module:
                    yield ".".join(module)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            yield from (n.removeprefix("fedquilt.") for n in names if n.startswith("fedquilt."))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from walk(child)


@pytest.mark.parametrize("path", [p for p in FILES if p.parent != ROOT or p.name != "__init__.py"], ids=name_of)
def test_arrows_point_one_way(path: Path) -> None:
    mine = name_of(path)
    for other in imports(path):
        if other == "__init__":
            continue
        assert layer(other) <= layer(mine), f"{mine} imports {other}, which stands above it"
        if mine.split(".")[0] in METHOD_BLIND:
            assert other.split(".")[0] != "methods", f"{mine} must not know a method"


def test_the_page_of_the_architecture_lists_the_same_floors() -> None:
    text = (ROOT.parent / "docs" / "architecture.md").read_text()
    _, _, after = text.partition("## The floors of the house")
    block = re.search(r"(?:^    .*\n)+", after, re.MULTILINE)
    assert block
    names = [re.split(r"\s{2,}", line.strip())[0] for line in block[0].splitlines()]
    floors = tuple(tuple(floor.split(", ")) for floor in "\n".join(names).replace(",\n", ", ").split("\n"))
    assert floors == tuple(tuple(m for m in floor if m != "__main__") for floor in LAYERS)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_one_module_imports_flower(path: Path) -> None:
    text = path.read_text()
    if not name_of(path).startswith("drive.flower"):
        assert not re.search(r"^\s*(import|from) flwr", text, re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            assert not body or (node.end_lineno or 0) - body[0].lineno < 60, node.name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_randomness_comes_from_keys_alone(path: Path) -> None:
    """No generator of torch, numpy or Python but what key.py makes; seeds are set where a stock layer draws."""
    if path.name == "key.py":
        return
    text = path.read_text()
    assert not re.search(r"^\s*(import random|from random|import secrets)", text, re.MULTILINE)
    assert not re.search(r"np\.random\.(?!Generator)|torch\.Generator\(|default_rng", text)


def builders() -> Mapping[str, Callable[..., Any]]:
    return METHODS


@pytest.mark.parametrize("name", METHODS)
def test_a_method_cites_its_paper_and_gives_its_formula(name: str) -> None:
    text = inspect.getdoc(METHODS[name]) or ""
    assert re.search(r"\b(19|20)\d\d\b", text), "a year"
    assert "arXiv:" in text or "doi:" in text or "pp." in text or "code" in text, "where to find it"
    assert ".. math::" in text


@pytest.mark.parametrize("table", [METHODS, MODELS])
def test_a_table_is_in_order_of_its_builders_names(table: Mapping[str, Callable[..., Any]]) -> None:
    assert all(builder.__name__ == name for name, builder in table.items())


def test_no_public_function_is_without_types_or_words() -> None:
    """ruff asks for docstrings and mypy for types; this checks that neither is switched off anywhere."""
    for path in FILES:
        for line in path.read_text().splitlines():
            assert "# mypy: ignore-errors" not in line and "ruff: noqa" not in line, path
