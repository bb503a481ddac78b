"""``run``, ``resume``, ``list`` and ``show``, called in this process."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import rmtree

import pytest

from fedquilt import conduct
from fedquilt.drive import sim
from fedquilt.store import RunFolder

from .world import TINY, Call, sentence


def test_a_run_ends_in_a_table_that_says_whose_figures_they_are(call: Call) -> None:
    said = call("run", "fedspu", *TINY, "--out", "r")
    assert said.code == 0 and not said.err
    for words in ("all 5 clients", "served", "after round 2", "the last round", "validation", "test", "worst tenth"):
        assert words in said.out
    assert {p.name for p in Path("r").iterdir()} >= {"run.json", "result.json", "rounds.jsonl", "scores.jsonl"}


def test_json_is_all_that_json_prints(call: Call) -> None:
    said = call("run", "fedavg", *TINY, "--finetune", "1", "--json")
    assert said.code == 0 and not said.err
    assert said.json["rounds"] == 2 and said.json["settings"]["method"]["finetune"] == 1
    assert said.json["scores"]["test"]["clients"] == 5 and said.json["best"]["picked on"] == "val"
    assert set(said.json["whose"]) == {"population", "model", "moment", "pick", "mean"}
    assert (Path(said.json["folder"]) / "run.json").exists()


def test_quiet_prints_nothing(call: Call) -> None:
    said = call("run", "fedavg", *TINY, "--quiet")
    assert (said.code, said.out, said.err) == (0, "", "")


def test_the_same_command_again_shows_the_finished_run_and_does_not_repeat_it(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = call("run", "fedavg", *TINY, "--json").json
    monkeypatch.setattr(sim.Simulator, "round", None)
    again = call("run", "fedavg", *TINY, "--json")
    assert again.json == first
    assert "--force" in call("run", "fedavg", *TINY).err


def test_force_does_it_anew_and_removes_nothing_but_runs(call: Call) -> None:
    assert call("run", "fedavg", *TINY, "--out", "r").code == 0
    before = Path("r/run.json").stat().st_mtime_ns
    assert call("run", "local", *TINY, "--out", "r", "--force").code == 0
    assert Path("r/run.json").stat().st_mtime_ns > before
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("years of work")
    assert "holds no run" in sentence(call("run", "fedavg", *TINY, "--out", "mine", "--force"))
    assert Path("mine/thesis.tex").exists()
    with RunFolder(Path("r")):
        assert "in use by this process" in sentence(call("run", "local", *TINY, "--out", "r", "--force"))


def test_another_run_in_the_folder_is_refused_by_what_differs(call: Call) -> None:
    assert call("run", "fedavg", *TINY, "--out", "r").code == 0
    assert "seed differ" in sentence(call("run", "fedavg", *TINY, "--seed", "1", "--out", "r"))


def interrupt_after(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sim.Simulator.round
    left = [rounds]

    def round(self: sim.Simulator, now: sim.Now) -> object:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(self, now)

    monkeypatch.setattr(sim.Simulator, "round", round)


def test_ctrl_c_leaves_a_run_that_goes_on_and_says_how(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = call("run", "fedspu", *TINY, "--out", "whole", "--json").json
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(1, patch)
        said = call("run", "fedspu", *TINY, "--out", "r")
    assert said.code == 130 and "Traceback" not in said.err
    assert "stopped after round 1 of 2; go on with: fedquilt resume r" in said.err
    assert "not finished: 1 of 2 rounds" in call("show", "r").out
    rest = call("resume", "r", "--json")
    assert rest.code == 0 and rest.json["scores"] == whole["scores"] and rest.json["down"] == whole["down"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run fedsup --lr 1", "no method is called 'fedsup'; did you mean 'fedspu'"),
        ("run fedspu --lrr 1", "no option is called --lrr; did you mean '--lr'"),
        ("run fedspu --lr fast", "lr is a number, not 'fast'"),
        ("run fedspu --lr nan", "lr is a number, not nan"),
        ("run fedspu --rounds 1.5", "rounds is a whole number, not '1.5'"),
        ("run fedspu --rounds -1", "rounds is at least 0, not -1"),
        ("run fedspu --lr", "--lr requires an argument"),
        ("run heterofl --masked maybe", "too many words: maybe"),
        ("run fedspu --data digit", "no data set is called 'digit'; did you mean 'digits'"),
        ("run fedspu --partition dirichle:1", "no partition is called 'dirichle'; did you mean 'dirichlet"),
        ("run fedspu --stop platau", "no stop is called 'platau'; did you mean 'plateau'"),
        ("compare fedspu --jobs 0", "--jobs is at least 1, not 0"),
        ("run fedspu --batch 0", "batch is at least 1, not 0"),
        ("run fedspu --epochs 0", "epochs is at least 1, not 0"),
        ("run fedavg --finetune -1", "finetune is at least 0, not -1"),
        ("run fedavg --fraction 2", "fraction is a share of the clients, above 0 and at most 1, not 2"),
        ("run fedprox --mu -1", "mu is at least 0, not -1"),
        ("run fedavg --bound -1", "bound is a length above 0, not -1"),
        ("run fedspu --schedule sync:over=0", "over is a number above 0"),
        ("run fedspu --model cnn:conf=3", "did you mean 'conv'"),
        ("run fedspu --model lstm", "does not take the samples of digits"),
        ("run fedspu --clients 5000", "cannot give 5000 clients"),
        ("run fedspu --fleet tiers:0.5,2", "a width is a share of the model"),
        ("run fedspu --norm share", "'share'"),
        ("run fedspu --split 60/60/30", "adds up to 100"),
        ("runn fedspu", "no command is called 'runn'; did you mean 'run'"),
        ("--versio", "no option is called --versio; did you mean '--version'"),
        ("resume nowhere", "nowhere holds no run"),
        ("list method", "did you mean 'methods'"),
        ("show fedsup", "did you mean 'fedspu'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(words: str, told: str, call: Call) -> None:
    assert told in sentence(call(words))
    assert not Path("runs").exists(), "before any work"


def test_flags_may_be_spelt_as_settings_and_switches_may_have_a_value(call: Call) -> None:
    words = ["run", "heterofl", *TINY, "--eval_every=1", "--masked", "false", "--no-scaler", "--json"]
    settings = call(*words).json["settings"]
    assert settings["eval_every"] == 1
    assert (settings["method"]["masked"], settings["method"]["scaler"], settings["method"]["posthoc"]) == (
        False,
        False,
        True,
    )


@pytest.mark.parametrize("text", ["{}", "[]", "x", "{'run': 3}", "{'run': {}, 'id': 'x'}", "{'run': {'seed': 0}}"])
def test_a_run_json_that_no_run_wrote_is_refused_in_one_sentence(text: str, call: Call) -> None:
    assert call("run", "fedavg", *TINY, "--out", "r").code == 0
    Path("r/run.json").write_text(text.replace("'", '"'))
    for command in ("resume", "show"):
        assert "run.json is not" in sentence(call(command, "r"))


def test_a_run_that_has_lost_its_state_says_so_and_begins_anew(call: Call) -> None:
    whole = call("run", "fedavg", *TINY, "--out", "r", "--json").json
    rmtree("r/state")
    again = call("resume", "r")
    assert again.code == 0 and "holds no state any more: the run begins anew" in again.err
    assert call("show", "r", "--json").json["result"]["scores"] == whole["scores"]


def test_the_table_says_what_became_of_replies_that_were_not_accepted(call: Call) -> None:
    assert "Replies: 4 norm_bound." in call("run", "fedavg", *TINY, "--bound", "1e-9", "--out", "r").out
    assert "Replies" not in call("run", "fedavg", *TINY, "--out", "s").out


def test_an_unexpected_error_is_one_sentence_and_a_traceback_only_if_asked(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "prepare", lambda *_: 1 / 0)
    said = call("run", "fedavg")
    assert said.code == 1 and said.err == "fedquilt: ZeroDivisionError: division by zero (--debug shows where)\n"
    with pytest.raises(ZeroDivisionError):
        call("run", "fedavg", "--debug")


def test_list_and_show_speak_json(call: Call) -> None:
    told = call("list", "methods", "--json").json
    assert {"name", "family", "paper", "summary", "sent", "kept", "settings"} <= set(told[0])
    assert "models" in call("list", "--json").json
    shown = call("show", "fedspu", "--json").json
    assert shown["record"].startswith("Method(name='fedspu'") and "arXiv:2403.11464" in shown["paper"]


def test_show_prints_a_method_with_formula_and_a_run_with_its_settings(call: Call) -> None:
    shown = call("show", "fedspu").out
    assert ".. math::" in shown and "momentum" in shown and "Method(name='fedspu'" in shown
    assert "conv" in call("show", "cnn").out
    call("run", "fedspu", *TINY, "--out", "r")
    shown = call("show", "r").out
    assert "Method(name='fedspu'" in shown and "dirichlet:0.3" in shown and "worst tenth" in shown
    assert json.loads(call("show", "r", "--json").out)["result"]["rounds"] == 2
