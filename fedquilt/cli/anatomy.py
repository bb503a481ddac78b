"""What a method sends and keeps, read from the source of its builder and of the parts that this names.

A builder may say it in its own words, in lines of its docstring such as ``:sent: the newest layer``
(``family``, ``sent``, ``kept``).  A test plays every method and looks whether it keeps what it says.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .cards import Source, doc_of, resolve, sentence

KEEPS = {"rest": "the tensors that do not travel", "whole": "its whole model"}
REMEMBERS = {"own": "a model of its own", "c": "its control variate", "g": "its sum of gradients"}
PERSONAL = ("rest", "whole", "own")


def facts(source: Source) -> dict[str, str]:
    """Title, family, paper, and what is sent and kept."""
    doc = doc_of(source.node)
    cited = re.search(r"\(([^()]*\b(?:19|20)\d\d\b[^()]*)\)", doc)
    said = dict(re.findall(r"^:(family|sent|kept): *(.+)$", doc, re.MULTILINE))
    send, kept = sent(source), keeps(source)
    return {
        "title": re.split(r"[:(.]", doc)[0].strip(),
        "family": said.get("family") or family(send, kept, adapts(source)),
        "paper": " ".join(cited[1].split()) if cited else "",
        "sent": said.get("sent") or sentence(doc_of(send.node)),
        "kept": said.get("kept") or ", ".join({**KEEPS, **REMEMBERS}.get(k, f"its {k}") for k in kept) or "nothing",
    }


def family(send: Source, kept: list[str], adapting: bool) -> str:
    """Where a method stands, by what travels and what stays."""
    said = sentence(doc_of(send.node))
    if said.startswith("No part of the model"):
        return "no federation"
    personal = adapting or any(k in PERSONAL for k in kept)
    if said.startswith("The whole model"):  # or all but some tensors
        return "personal models" if personal else "one global model"
    return "personal sub-models" if personal else "sub-models"


def calls(source: Source) -> Iterator[ast.Call]:
    """All calls in a definition."""
    return (n for n in ast.walk(source.node) if isinstance(n, ast.Call))


def sent(source: Source) -> Source:
    """The part that says what goes down; without one, everything does."""
    for call in calls(source):
        for k in call.keywords:
            made = part(source.module, k.value) if k.arg == "send" else None
            if made:
                return made
    return resolve("method", ast.Name("Everything"))


def part(module: str, value: ast.expr) -> Source | None:
    """The class that a call makes one of."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return None
    found = resolve(module, value.func)
    return found if isinstance(found.node, ast.ClassDef) else None


def locals_of(source: Source) -> Iterator[Source]:
    """The kinds of local work that a builder makes."""
    for call in calls(source):
        made = part(source.module, call)
        if made and verb(made, "serve"):
            yield made


def verb(source: Source, name: str) -> ast.FunctionDef | None:
    """A method of a class."""
    body = getattr(source.node, "body", [])
    return next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def keeps(source: Source) -> list[str]:
    """What stays with a client: what ``keep`` says, and the sections of its memory."""
    said = [
        n.value
        for call in calls(source)
        for k in call.keywords
        if k.arg == "keep"
        for n in ast.walk(k.value)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    sections = [
        k.arg
        for made in locals_of(source)
        for call in calls(made)
        if isinstance(call.func, ast.Name) and call.func.id == "remember"
        for k in call.keywords
        if k.arg and k.arg != "model"  # of which ``keep`` says how much
    ]
    return list(dict.fromkeys(k for k in [*said, *sections] if k != "nothing"))


def adapts(source: Source) -> bool:
    """Does serving take training of its own, whatever the settings?"""
    for made in locals_of(source):
        serve = verb(made, "serve")
        if serve is None or getattr(made.node, "name", "") == "Train":  # which adapts only if it is asked to
            continue
        for n in ast.walk(serve):
            asks = isinstance(n, ast.YieldFrom) and isinstance(n.value, ast.Call) and isinstance(n.value.func, ast.Name)
            if asks or isinstance(n, ast.Yield):
                return True
    return False
