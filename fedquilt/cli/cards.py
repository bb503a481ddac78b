"""What there is, read from the sources without importing them: ``list`` and ``--help`` need no torch.

A card is the docstring and the signature of what a table names.  A test compares the cards with the
tables as they are imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

# Each kind of thing: the module and the table that name it, and how many parameters are not settings.
TABLES: dict[str, tuple[str, str, int]] = {
    "methods": ("methods", "_BUILDERS", 0),
    "models": ("models", "MODELS", 0),
    "data": ("data.sources", "SOURCES", 1),
    "partitions": ("data.partition", "PARTITIONS", 3),
    "drifts": ("data.drift", "DRIFTS", 0),
    "stops": ("parts.stop", "STOPS", 0),
    "schedules": ("parts.schedule", "SCHEDULES", 0),
    "norms": ("norm", "NORMS", 0),
    "engines": ("prepare", "ENGINES", 0),
    "fleets": ("fleet", "FLEETS", 0),
    "availability": ("fleet", "AVAILABILITY", 0),
    "stragglers": ("fleet", "STRAGGLERS", 0),
}


@dataclass(frozen=True)
class Setting:
    """A setting as it is written: its type, and its default (None: it needs a value)."""

    name: str
    type: str
    default: str | None


@dataclass(frozen=True)
class Card:
    """What ``list`` and ``show`` say of a thing; ``facts`` are those of its kind."""

    kind: str
    name: str
    summary: str
    doc: str
    settings: tuple[Setting, ...]
    facts: dict[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The card, fit for JSON."""
        said = asdict(self)
        return {"name": said.pop("name"), "kind": said.pop("kind"), **said.pop("facts"), **said}


@dataclass(frozen=True)
class Source:
    """Where something stands: its module and its syntax tree."""

    module: str
    node: ast.expr | ast.FunctionDef | ast.ClassDef


@cache
def cards(kind: str) -> dict[str, Card]:
    """All cards of a kind, by name."""
    module, table, skip = TABLES[kind]
    return {name: _card(kind, name, source, skip) for name, source in entries(module, table).items()}


def find(name: str) -> list[Card]:
    """The cards of this name, of whatever kind."""
    return [cards(kind)[name] for kind in TABLES if name in cards(kind)]


# ---- from a table to what it names
@cache
def tree(module: str) -> ast.Module:
    """The syntax tree of a module of this package."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def entries(module: str, table: str) -> dict[str, Source]:
    """The names in a table and where each is defined; a tuple of builders is a table by their names."""
    value = next(
        node.value
        for node in tree(module).body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value and table in _targets(node)
    )
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return {str(k.value): resolve(module, v) for k, v in pairs if isinstance(k, ast.Constant)}
    assert isinstance(value, (ast.Tuple, ast.List)), f"{module}.{table} is a table or a list of builders"
    return {v.id: resolve(module, v) for v in value.elts if isinstance(v, ast.Name)}


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [t.id for t in targets if isinstance(t, ast.Name)]


def resolve(module: str, value: ast.expr) -> Source:
    """The function or class that an expression names, here or where it is imported from; else the expression."""
    if not isinstance(value, ast.Name):
        return Source(module, value)
    for node in tree(module).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == value.id:
            return Source(module, node)
        if isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == value.id:
                    return resolve(_imported(module, node), ast.Name(alias.name))
    return Source(module, value)


def _imported(module: str, node: ast.ImportFrom) -> str:
    """The module that a relative import names."""
    here = module.split(".") if module else []
    package = here if ROOT.joinpath(*here).is_dir() else here[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *(node.module.split(".") if node.module else [])])


# ---- from a definition to its card
def _card(kind: str, name: str, source: Source, skip: int) -> Card:
    if isinstance(source.node, ast.expr):
        said = {k.arg: ast.unparse(k.value) for k in getattr(source.node, "keywords", []) if k.arg}
        return Card(kind, name, ", ".join(f"{k} {v}" for k, v in said.items()), "", ())
    doc = doc_of(source.node)
    known = tuple(settings(source))[skip:]
    if kind == "models":
        from .weights import facts as weigh

        return Card(kind, name, sentence(doc), doc, known, weigh(name))
    if kind != "methods":
        return Card(kind, name, sentence(doc), doc, known)
    from .anatomy import facts  # which stands on this module

    title = sentence(ast.get_docstring(tree(source.module)) or doc)
    return Card(kind, name, title.partition(": ")[2] or title, doc, known, facts(source))


def settings(source: Source) -> Iterator[Setting]:
    """The parameters of a function, or the fields of a dataclass, those of its bases first."""
    if isinstance(source.node, ast.FunctionDef):
        args = source.node.args
        places = [*args.posonlyargs, *args.args]
        defaults = [None] * (len(places) - len(args.defaults)) + list(args.defaults)
        for arg, value in [*zip(places, defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]:
            yield Setting(arg.arg, _text(arg.annotation), _text(value) if value else None)
        return
    found = _fields(source)
    yield from (setting for setting, late in sorted(found.values(), key=lambda f: f[1]))


def _fields(source: Source) -> dict[str, tuple[Setting, bool]]:
    """The fields of a dataclass and its bases, and which of them are said by name alone and so come last."""
    found: dict[str, tuple[Setting, bool]] = {}
    if not isinstance(source.node, ast.ClassDef):
        return found
    for base in source.node.bases:
        found |= _fields(resolve(source.module, base))
    all_late = any("kw_only=True" in _text(d) for d in source.node.decorator_list)
    for node in source.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_setting(node):
            value, late = node.value, all_late
            if isinstance(value, ast.Call) and _text(value.func) == "field":
                said = {k.arg: k.value for k in value.keywords}
                value, late = said.get("default"), late or "kw_only" in said
            setting = Setting(node.target.id, _text(node.annotation), _text(value) if value else None)
            found[node.target.id] = setting, late
    return found


def _is_setting(node: ast.AnnAssign) -> bool:
    """Is this field of a dataclass one that its maker is given?"""
    return "ClassVar" not in _text(node.annotation) and "init=False" not in _text(node.value)


def _text(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node).replace("'", '"')


def doc_of(node: ast.AST) -> str:
    """The docstring of a function or class, or nothing."""
    return (ast.get_docstring(node) or "") if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ""


def sentence(doc: str) -> str:
    """The first paragraph of a docstring, on one line, without its markup and its last full stop."""
    return unmarked(" ".join(doc.split("\n\n")[0].split())).rstrip(".")


def unmarked(text: str) -> str:
    """A docstring without its markup."""
    return re.sub(r":\w+:`([^`]*)`", r"\1", text).replace("``", "")
