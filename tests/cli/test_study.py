"""One schema for flags, files and Python; what is wrong with a file is said with its place, before any work."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from fedquilt import prepare
from fedquilt.cli.work import How, do_run
from fedquilt.file import place, read
from fedquilt.key import Key
from fedquilt.methods import METHODS, build
from fedquilt.schema import BadSetting, hint, settings
from fedquilt.study import Study

from .world import Call, sentence


def _number(kind: Any) -> bool:
    return bool({int, float} & {kind, *get_args(kind)})


FULL = """\
# A small study.
methods = ["fedspu", {name = "fedavg", finetune = 1}]
data = ["digits"]
partition = ["iid", "dirichlet:0.3"]
seeds = 2
clients = 5
rounds = 2
fleet = "tiers:0.5,1"
model = "mlp:hidden=8"
stop = "plateau:lam=0.5"
schedule = "sync:quorum_share=0.5"
lr = 0.05
fraction = 0.4
"""

TABLES = """\
seed = 1
clients = 6
split = "70/0/30"
model = "cnn:conv=4"
norm = "shared"
eval_every = 1
bound = 10.0

[methods.wide]
name = "fedspu"
momentum = 0.9

[methods.heterofl]
masked = false
epochs = 1
"""

ARRAY = """\
rounds = 1
engine = "serial"

[[methods]]
name = "fedprox"
mu = 0.1
least_epochs = 1

[[methods]]
name = "local"
"""

ONE = """\
method = "fedavg"
lr = 0.1
weight = "uniform"
"""


def test_flags_files_and_python_say_the_same_study(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(FULL)
    written = read(tmp_path / "s.toml")
    said = Study.of(
        {
            "methods": ["fedspu", {"name": "fedavg", "finetune": "1"}],
            "partition": ["iid", "dirichlet:0.3"],
            "seeds": "0,1",
            "clients": "5",
            "rounds": "2",
            "fleet": "tiers:0.5,1",
            "model": "mlp:hidden=8",
            "stop": "plateau:lam=0.5",
            "schedule": "sync:quorum_share=0.5",
            "lr": "0.05",
            "fraction": "0.4",
        }
    )
    assert written == said == Study.of(said.plain())
    assert written.digest == said.digest
    assert [(e.label, e.partition, e.seed) for e in said.entries()][:5] == [
        ("fedspu", "iid", 0),
        ("fedavg finetune=1", "iid", 0),
        ("fedspu", "dirichlet:0.3", 0),
        ("fedavg finetune=1", "dirichlet:0.3", 0),
        ("fedspu", "iid", 1),
    ]
    assert all(e.run.clients == 5 and e.run.fleet == "tiers:0.5,1" for e in said.entries())


def test_a_setting_of_a_method_stands_for_all_that_have_it_and_a_methods_own_goes_first() -> None:
    study = Study.of({"methods": ["heterofl", {"name": "fedprox", "lr": 0.3}], "lr": 0.2, "mu": 0.5})
    assert study.methods["heterofl"]["lr"] == 0.2 and "mu" not in study.methods["heterofl"]
    assert study.methods["fedprox lr=0.3"]["lr"] == 0.3 and study.methods["fedprox lr=0.3"]["mu"] == 0.5


def test_local_and_finetuned_fedavg_stand_beside_where_they_are_not_there_already() -> None:
    beside = Study.of({"methods": ["fedspu"], "epochs": 3}, baselines=True)
    assert list(beside.methods) == ["local", "fedavg finetune=3", "fedspu"]
    there = Study.of({"methods": ["local", {"name": "fedavg", "finetune": 1}]}, baselines=True)
    assert list(there.methods) == ["local", "fedavg finetune=1"]
    assert list(Study.of({"methods": ["fedspu"], "baselines": False}, baselines=True).methods) == ["fedspu"]


def test_unequal_budgets_are_told() -> None:
    assert not Study.of({"methods": ["fedspu", "local"]}).notices
    (told,) = Study.of({"methods": ["fedspu", {"name": "local", "epochs": 1}]}).notices
    assert "differ in epochs" in told


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (FULL.replace("lr =", "lrr ="), "line 12 (lrr)", "did you mean 'lr'"),
        (FULL.replace("finetune = 1", "finetun = 1"), "line 2 (methods.finetun)", "did you mean 'finetune'"),
        (FULL.replace('"fedspu"', '"fedsup"'), "line 2 (methods.name)", "did you mean 'fedspu'"),
        (FULL.replace("rounds = 2", 'rounds = "two"'), "line 7 (rounds)", "rounds is a whole number, not 'two'"),
        (FULL.replace("rounds = 2", "rounds = -2"), "line 7 (rounds)", "rounds is at least 0"),
        (FULL.replace('0.5,1"', '0.5,2"'), "line 8 (fleet)", "a width is a share"),
        (FULL.replace("dirichlet:0.3", "dirichlet:x"), "line 4 (partition)", "alpha is a number"),
        (FULL.replace("dirichlet:0.3", "dirichlet:-1"), "line 4 (partition)", "a number above 0"),
        (FULL.replace("dirichlet:0.3", "natural"), "line 4 (partition)", "there are no groups"),
        (FULL.replace("plateau:lam=0.5", "plateau:lam=2"), "line 10 (stop)", "lam is a share between 0 and 1"),
        (FULL.replace("sync:quorum", "sync:quorun"), "line 11 (schedule)", "did you mean 'quorum_share'"),
        (FULL.replace("mlp:hidden", "lstm:hidden"), "line 9 (model)", "does not take the samples of digits"),
        (FULL.replace("clients = 5", "clients = 5000"), "line 6 (clients)", "cannot give 5000 clients"),
        (FULL.replace('["digits"]', "3"), "line 3 (data)", "data is a text"),
        (FULL.replace('["digits"]', '["digit"]'), "line 3 (data)", "did you mean 'digits'"),
        (FULL.replace("seeds = 2", "seeds = 0"), "line 5 (seeds)", "how many"),
        (FULL + "seed = 1\n", "line 14 (seed)", "seed or seeds, not both"),
        (
            TABLES.replace("momentum = 0.9", "momentum = true"),
            "line 11 (methods.wide.momentum)",
            "momentum is a number",
        ),
        (
            TABLES.replace("masked = false", "maskd = false"),
            "line 14 (methods.heterofl.maskd)",
            "did you mean 'masked'",
        ),
        (
            TABLES.replace('name = "fedspu"', "name = 3"),
            "line 10 (methods.wide.name)",
            "the name of a method is a text",
        ),
        (TABLES.replace("70/0/30", "70/30"), "line 3 (split)", "a split is train/val/test"),
        (ARRAY.replace("mu = 0.1", 'mu = "much"'), "line 6 (methods.mu)", "mu is a number or none, not 'much'"),
        (
            ARRAY.replace('"serial"', '"cereal"'),
            "line 2 (engine)",
            "no engine is called 'cereal'; did you mean 'serial'",
        ),
        (ONE.replace("uniform", "unifrom"), "line 3 (weight)", "one of samples, uniform"),
        (ONE + "x = [1\n", "not TOML", "Unclosed array"),
        (ONE.replace("0.1", "-0.1"), "line 2 (lr)", "lr is at least 0, not -0.1"),
        (ONE + "batch = 0\n", "line 4 (batch)", "batch is at least 1"),
        (ONE + "fraction = 7\n", "line 4 (fraction)", "fraction is a share of the clients"),
        (ONE + "bound = -1\n", "line 4 (bound)", "above 0"),
        (ONE + 'schedule = "deadline:seconds=0"\n', "line 4 (schedule)", "seconds is a number above 0"),
        (ONE + 'engine = "processes:workers=-3"\n', "line 4 (engine)", "workers is how many"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(text: str, line: str, told: str, call: Call) -> None:
    Path("s.toml").write_text(text)
    for command in ("run", "compare"):
        said = sentence(call(command, "s.toml"))
        assert "s.toml" in said and line in said and told in said, said
    assert not Path("runs").exists(), "before any work"


def test_flags_go_over_a_file_and_are_blamed_for_their_own_faults(call: Call) -> None:
    Path("s.toml").write_text(FULL)
    told = call("run", "s.toml", "--dry-run", "--json", "--rounds", "7", "--seed", "5").json
    assert {r["seed"] for r in told} == {5} and {r["settings"]["rounds"] for r in told} == {7}
    assert "s.toml" not in sentence(call("run", "s.toml", "--rounds", "x"))
    assert "stands alone" in sentence(call("compare", "s.toml", "fedspu"))
    assert "cannot be read" in sentence(call("run", "nowhere.toml"))


def test_a_place_is_the_line_of_the_key_or_of_what_it_lies_in() -> None:
    assert place(TABLES, "methods.wide.momentum").startswith(", line 11")
    assert place(TABLES, "methods.wide.nothing").startswith(", line 9")
    assert place(FULL, "methods.finetune").startswith(", line 2")
    assert place(FULL, "nothing") == " (nothing)"


# ---- five hundred broken files
WORDS = (
    '"x"',
    "true",
    "-1",
    "0",
    "3.5",
    "nan",
    "inf",
    "[]",
    "{}",
    "[1, 2]",
    "1979-05-27",
    '""',
    '"none"',
    "{name = 1}",
)


HEADERS = ("[nested]", "[[methods]]", "[methods]", "[methods.fedspu]", "[data]", "[run]", "[a.b.c]")

IMPOSSIBLE = (  # each is well formed, and cannot be with what stands beside it
    'model = "lstm"',
    "clients = 5000",
    'split = "60/60/30"',
    'schedule = "deadline:seconds=-1"',
    'data = "femnist-of-nowhere"',
    'partition = "natural"',
    'fleet = "tiers:0"',
    'norm = "per-widht"',
    'stop = "plateau:window=none"',
    "unseen = 1.0",
    'drift = "repartition:every=0"',
    'availability = "trace:nowhere.csv"',
    "dropout = 2",
    "methods = []",
    'methods = ["fedavg", "fedavg"]',
    "fraction = 7",
    "lr = -0.1",
    "epochs = -1",
    "batch = 0",
)


def mutant(text: str, key: Key) -> str:
    """A study file with one to three things wrong with it, or at least other than they were."""
    for i in range(1 + int(key.at("n").uniform() * 3)):
        k = key.at(i)
        lines = text.splitlines() or [""]
        at = int(k.at("line").uniform() * len(lines))
        spot = int(k.at("spot").uniform() * (len(text) + 1))
        kind = int(k.at("kind").uniform() * 11)
        if kind == 0:
            text = text[:spot] + text[spot + 1 :]
        elif kind == 1:
            text = text[:spot] + 'ae"=[]{}.,:#1\n \\\x00é'[int(k.at("char").uniform() * 17)] + text[spot:]
        elif kind in (2, 3) and "=" in lines[at]:
            name, value = lines[at].split("=", 1)
            word = WORDS[int(k.at("word").uniform() * len(WORDS))]
            lines[at] = f"{name}= {word}" if kind == 2 else f"{name.strip()[::-1]} ={value}"
            text = "\n".join(lines)
        elif kind == 4:
            text = "\n".join([*lines[:at], *lines[at : at + 1] * 2, *lines[at + 1 :]])
        elif kind == 5:
            text = "\n".join([*lines[:at], *lines[at + 1 :]])
        elif kind == 6:
            other = int(k.at("other").uniform() * len(lines))
            lines[at], lines[other] = lines[other], lines[at]
            text = "\n".join(lines)
        elif kind == 7:
            text = "\n".join([*lines[:at], HEADERS[int(k.at("header").uniform() * len(HEADERS))], *lines[at:]])
        elif kind == 8:
            text = "\n".join([IMPOSSIBLE[int(k.at("what").uniform() * len(IMPOSSIBLE))], *lines])
        elif kind == 9:
            text = text[:spot] + "".join(map(chr, k.at("junk").permutation(256)[:9].tolist())) + text[spot:]
        else:
            text = text[:spot]
    return text


def test_five_hundred_broken_files_end_in_one_clear_sentence_or_in_a_plan(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare.sources, "load", cache(prepare.sources.load))
    path, refused = Path("s.toml"), 0
    for i in range(500):
        text = mutant((FULL, TABLES, ARRAY, ONE)[i % 4], Key(0).at("mutant", i))
        path.write_bytes(text.encode("latin-1" if i % 5 else "utf-8"))
        if i < 20:  # the whole way; the parser of flags is not what is tried here
            said = call("run", "s.toml", "--dry-run", "--json")
            told = sentence(said) if said.code else ""
        else:
            try:
                assert do_run(["s.toml"], {}, How(dry=True, json=True)) == 0
                told = ""
            except BadSetting as error:
                told = str(error)
        refused += bool(told)
        assert not told or (len(told) < 600 and "\n" not in told and "s.toml" in told), (told, text)
    assert 250 < refused < 500


def test_only_texts_are_read_as_data_models_and_partitions() -> None:
    for key in ("data", "partition", "model"):
        with pytest.raises(BadSetting) as error:
            Study.of({"method": "fedavg", key: {"a": 1}}).entries()
        assert error.value.key == key


NUMBERS = [(name, key) for name, make in METHODS.items() for key in settings(make) if _number(hint(make, key))]


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_no_number_of_a_method_may_be_negative(name: str, key: str) -> None:
    with pytest.raises(BadSetting, match=key) as error:
        build({"name": name, key: -1})
    assert error.value.key == key
