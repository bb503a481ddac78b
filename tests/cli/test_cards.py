"""The cards are read from the sources, and say what the imported tables say."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from fedquilt.cli import main
from fedquilt.cli.cards import TABLES, cards, entries
from fedquilt.cli.flags import COMMON
from fedquilt.methods import METHODS
from fedquilt.schema import settings

from ..world import play, small, world

QUIET = """
import sys
from fedquilt.cli import main
for words in (["--help"], ["--version"], ["list"], ["list", "--json"], ["run", "fedspu", "--help"]):
    assert main(words) == 0, words
    assert "torch" not in sys.modules, words
"""


def test_help_version_and_list_do_not_import_torch() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def imported(kind: str) -> dict[str, Callable[..., Any]]:
    if kind == "methods":
        return dict(METHODS)
    module, table, _ = TABLES[kind]
    return dict(getattr(import_module(f"fedquilt.{module}"), table))


@pytest.mark.parametrize("kind", TABLES)
def test_cards_name_what_the_table_names(kind: str) -> None:
    assert list(cards(kind)) == list(imported(kind))


@pytest.mark.parametrize("kind", TABLES)
def test_a_cards_settings_are_those_of_the_signature(kind: str) -> None:
    for name, thing in imported(kind).items():
        if not callable(thing):
            continue
        found = list(inspect.signature(thing).parameters.values())[TABLES[kind][2] :]
        told = cards(kind)[name].settings
        assert [s.name for s in told] == [p.name for p in found]
        for s, p in zip(told, found, strict=True):
            assert (s.default is None) == (p.default is p.empty), (name, s)


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_card_says_what_a_reader_asks(name: str) -> None:
    card = cards("methods")[name]
    for fact in ("title", "family", "paper", "sent", "kept"):
        assert card.facts[fact], fact
    assert card.summary and card.doc and card.settings


@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_what_its_card_says(name: str) -> None:
    sim = world(small(METHODS[name]), "cnn-group", clients=2, widths=(0.5, 1.0), samples=12)
    now, _ = play(sim, 1)
    kept = [sim.site.memories.load(i, v) for i, v in now.state.versions.items()]
    assert any(kept) == (not cards("methods")[name].facts["kept"].startswith("nothing"))


@pytest.mark.parametrize("name", METHODS)
def test_what_travels_beside_the_model_stands_on_the_card(name: str) -> None:
    """Control variates, squared gradients, masks: who sends such things does not say that it sends the model alone."""
    soon = {"every": 1} if "every" in settings(METHODS[name]) else {}
    sim = world(small(METHODS[name], **soon), "cnn-group", clients=2, widths=(0.5, 1.0), samples=12)
    orders = sim.method.plan(sim.begin().state, sim.fleet, sim.model, sim.key)
    beside = any(o.extra or o.grant.extras or "codec" in o.scalars for o in orders)
    assert not beside or " come back" in (said := cards("methods")[name].facts["sent"]) or " comes back" in said


def test_a_tuple_of_builders_is_a_table_by_their_names() -> None:
    assert list(entries("methods", "_BUILDERS")) == list(METHODS)


def test_the_help_says_what_settings_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedspu", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in ("Settings of fedspu", "fedquilt show fedspu", "the share of the clients that a round asks"):
        assert words in told
    assert main(["run", "--help"]) == 0
    assert "KEYWORD" not in capsys.readouterr().out
    assert set(COMMON) <= {s.name for card in cards("methods").values() for s in card.settings}
