"""A run becomes a Flower app, and the app says the same run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedquilt.cli import main
from fedquilt.deploy.app import FILE, MINE, flat
from fedquilt.deploy.app import init as write
from fedquilt.deploy.submit import submit
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.models import build
from fedquilt.prepare import resolved
from fedquilt.run import Run
from fedquilt.schema import BadSetting


def plain(run: Run) -> dict[str, Any]:
    return {k: v for k, v in resolved(run).plain().items() if k not in MINE}


@pytest.mark.parametrize("method", METHODS)
def test_an_app_says_the_run_that_it_was_made_of(method: str, tmp_path: Path) -> None:
    run = Run(method=method, model="cnn:conv=4,8", rounds=7, bound=2.5, schedule="deadline:seconds=9", seed=3)
    assert plain(Run.of(flat(run))) == plain(run)
    words = ["deploy", "init", str(tmp_path / "app"), method, "--rounds", "7", "--clients", "4", "--out", "kept"]
    assert main(words) == 0
    said = tomllib.loads((tmp_path / "app" / FILE).read_text())
    config = said["tool"]["flwr"]["app"]["config"]
    assert plain(Run.of(config["run"])) == plain(Run(method=method, rounds=7, clients=4))
    assert Path(config["out"]).is_absolute() and Path(config["out"]).name == "kept"
    assert all(isinstance(v, (bool, int, float, str)) for v in config["run"].values())
    assert said["project"]["dependencies"] == []


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert main(["deploy", "init", str(tmp_path), "fedavg"]) == 2
    assert "is not empty" in capsys.readouterr().err and [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_an_app_is_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "two.toml").write_text('methods = ["fedavg", "fedspu"]\n')
    assert main(["deploy", "init", str(tmp_path / "app"), str(tmp_path / "two.toml")]) == 2
    assert "says 2" in capsys.readouterr().err and not (tmp_path / "app").exists()
    assert main(["deploy", "init", str(tmp_path / "app"), "fedspu", "--lrr", "1"]) == 2
    assert "--lr" in capsys.readouterr().err


def test_what_only_a_simulation_can_say_makes_no_app(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "init", str(tmp_path / "app"), "fedavg", "--dropout", "0.1"]) == 2
    assert "dropout is simulated" in capsys.readouterr().err and not (tmp_path / "app").exists()


def test_texts_stand_in_the_app_as_they_are(tmp_path: Path) -> None:
    text = 'say "\u00fc\U0001f600" \\ 1'
    path = write(tmp_path / text, Run(clients=3), tmp_path / text / "out")
    assert tomllib.loads(path.read_text("utf-8"))["tool"]["flwr"]["app"]["config"]["out"] == str(
        tmp_path / text / "out"
    )


def test_what_python_made_is_not_sent_to_devices() -> None:
    model = build({"name": "mlp", "inputs": 64, "hidden": (4,), "classes": 10}, Key(0))
    assert "mlp:" in flat(Run(model=model))["model"]
    with pytest.raises(BadSetting, match="made in Python"):
        flat(Run(data=_own()))


def _own() -> Any:
    import torch

    from fedquilt.data.own import own

    return own(torch.zeros(8, 4), torch.arange(8) % 2)


def test_a_folder_without_an_app_is_not_submitted(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="holds no Flower app: make one with"):
        submit(tmp_path, "local")
