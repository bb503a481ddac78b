"""The same search for every method, on validation data alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedquilt.drive import sim
from fedquilt.schema import BadSetting
from fedquilt.tune import space_of

from .world import TINY, Call, sentence

SEARCH = ["tune", "fedspu", *TINY, "--over", "lr=0.01,0.2", "--out", "t"]


def test_every_method_gets_the_same_trials_and_the_search_is_stored(call: Call) -> None:
    said = call(*SEARCH, "--seeds", "2", "--json")
    assert said.code == 0
    record = said.json
    assert record == {"folder": "t", **json.loads(Path("t/tune.json").read_text())}
    assert record["over"] == {"lr": ["0.01", "0.2"]} and record["split"] == "val"
    tried = {label: [t["tried"]["lr"] for t in record["trials"] if t["label"] == label] for label in record["chosen"]}
    assert tried == {n: [0.01, 0.2] for n in ("local", "fedavg finetune=1", "fedspu")}
    for label, made in record["chosen"].items():
        mine = {t["tried"]["lr"]: t["score"] for t in record["trials"] if t["label"] == label}
        assert mine[made["lr"]] == max(mine.values())
    assert all(len(t["by_seed"]) == 2 for t in record["trials"])


def test_a_search_looks_at_validation_data_alone(call: Call) -> None:
    call(*SEARCH, "--quiet")
    record = json.loads(Path("t/tune.json").read_text())
    for t in record["trials"]:
        figures = json.loads((Path("t") / t["folders"][0] / "result.json").read_text())
        assert t["score"] == figures["scores"]["val"]["mean"] != figures["scores"]["test"]["mean"]
    assert '"test"' not in json.dumps(record["trials"])


def test_a_search_on_test_data_is_refused_unless_it_is_asked_for(call: Call) -> None:
    assert "would see the test data" in sentence(call(*SEARCH, "--split", "70/0/30"))
    assert not Path("t").exists()
    told = call(*SEARCH, "--split", "70/0/30", "--on-test", "--no-baselines", "--json")
    assert told.code == 0 and told.json["split"] == "test" and told.json["on_test"]


def test_a_comparison_uses_what_a_search_has_chosen(call: Call) -> None:
    chosen = call(*SEARCH, "--json").json["chosen"]
    said = call("compare", "fedspu", *TINY, "--tuned", "t", "--dry-run", "--json")
    assert {r["label"]: r["settings"]["method"]["lr"] for r in said.json} == {n: m["lr"] for n, m in chosen.items()}
    assert "heterofl is not in the search" in sentence(call("compare", "heterofl", *TINY, "--tuned", "t"))


def test_a_search_that_was_interrupted_goes_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = call(*SEARCH, "--no-baselines", "--json").json
    real, left = sim.Simulator.round, [3]

    def round(self: sim.Simulator, now: sim.Now) -> object:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(self, now)

    with monkeypatch.context() as patch:
        patch.setattr(sim.Simulator, "round", round)
        said = call(*[w if w != "t" else "u" for w in SEARCH], "--no-baselines")
    assert said.code == 130 and "fedquilt resume u" in said.err
    rest = call("resume", "u", "--json").json
    assert {**rest, "folder": "t"} == whole


def test_the_table_shows_what_was_tried_and_chosen(call: Call) -> None:
    said = call(*SEARCH, "--no-baselines")
    assert "judged on validation data alone" in said.out and said.out.count("chosen") == 1 and "--tuned t" in said.out


def test_a_range_goes_up_by_equal_factors() -> None:
    assert space_of({"lr": "0.001..0.1:3"}) == {"lr": [0.001, 0.01, 0.1]}
    assert space_of({}) == {"lr": ["0.01", "0.03", "0.1", "0.3"]}
    for bad in ("0.1..0.01", "0..1", "a..b", "0.1..1:1", "", []):
        with pytest.raises(BadSetting):
            space_of({"lr": bad})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("tune fedspu --over mu=0.1", "local has no setting 'mu'"),
        ("tune fedspu --over lr", "--over is a setting and its values"),
        ("tune fedspu --over lr=fast", "lr is a number, not 'fast'"),
        ("tune fedspu --over lr=1..0", "goes up from a number above 0"),
        ("tune fedspu --over epochs=1.5", "epochs is a whole number"),
        ("tune fedspu --partition dirichle", "did you mean 'dirichlet'"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_sentence(words: str, told: str, call: Call) -> None:
    assert told in sentence(call(words))
    assert not Path("runs").exists()
