"""``export``, ``partition`` and ``doctor``."""

from __future__ import annotations

import json
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import fedquilt
from fedquilt.cli import doctor
from fedquilt.data import load
from fedquilt.schema import BadSetting
from fedquilt.types import Handle

from .world import TINY, Call, sentence

SMALL = ["--clients", "5", "--rounds", "2", "--epochs", "1", "--fraction", "1.0", "--model", "cnn:conv=8,8"]


@pytest.mark.parametrize("method", ["fedavg", "fedspu", "heterofl", "local"])
def test_an_exported_model_scores_what_the_run_says(method: str, call: Call) -> None:
    from fedquilt.prepare import prepare
    from fedquilt.run import Run

    said = call("run", method, *SMALL, "--out", "r", "--json").json
    shards = prepare(Run.of(said["settings"])).data
    lines = [json.loads(line) for line in Path("r/scores.jsonl").read_text().splitlines()]
    told = {r["client"]: r["accuracy"] for r in lines if r["round"] == 2 and r["split"] == "test"}
    for client in (*shards.clients, None):
        who = "global" if client is None else str(client)
        spec = call("export", "r", "--client", who, "--to", f"m{who}", "--json").json
        model, params, net = fedquilt.load(f"m{who}")
        x, y = shards.pooled_test if client is None else shards[Handle(client, "test")]
        with torch.no_grad():
            right = (net(x).argmax(1) == y).float().mean().item()
        assert right == pytest.approx(told[client], abs=1e-6)
        assert sum(params[k].numel() for k in model.trainable) == spec["parameters"]


def test_a_sub_model_is_exported_at_its_own_shape(call: Call) -> None:
    call("run", "heterofl", *SMALL, "--out", "r", "--quiet")
    shapes = {}
    for client in range(5):
        assert call("export", "r", "--client", str(client)).code == 0
        model, params, net = fedquilt.load(f"r/export/client-{client}")
        shapes[client] = tuple(params["conv1.conv.weight"].shape)
        assert net.get_parameter("conv1.conv.weight").shape == params["conv1.conv.weight"].shape
        assert str(net.get_submodule("conv1.conv")).startswith(f"Conv2d(1, {shapes[client][0]},")
        assert net(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
        assert model.params()["conv1.conv.weight"].shape == (8, 1, 3, 3)
    assert sorted(s[0] for s in shapes.values()) == [1, 3, 4, 6, 8]


def test_a_net_that_goes_by_the_batch_still_does_when_loaded(call: Call) -> None:
    call("run", "fedavg", *SMALL, "--norm", "batch", "--out", "r", "--quiet")
    call("export", "r")
    _, _, net = fedquilt.load("r/export/global")
    x = load("digits").x[:8]
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with torch.no_grad():
        assert not torch.allclose(net(x)[:4], net(x[:4]), atol=1e-3)
    assert not net.training and before.keys() == net.state_dict().keys()


def test_what_cannot_be_exported_or_loaded_is_refused(call: Call) -> None:
    call("run", "fedavg", *TINY, "--out", "r", "--quiet")
    assert "from 0 to 4, or global, not 9" in sentence(call("export", "r", "--client", "9"))
    assert "a client's number, or global" in sentence(call("export", "r", "--client", "me"))
    assert "holds no run" in sentence(call("export", "nowhere"))
    with pytest.raises(BadSetting, match="holds no exported model"):
        fedquilt.load("nowhere")


def test_without_its_packages_onnx_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("fedquilt.export"), "find_spec", lambda name: None)
    assert "pip install 'fedquilt[onnx]'" in sentence(call("export", "r", "--onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn:conv=8,8", "mlp:hidden=8", "convnet", "resnet18", "vit:patch=2"])
def test_an_onnx_graph_gives_what_the_net_gives(model: str, call: Call) -> None:
    import onnxruntime

    words = ["--clients", "5", "--rounds", "1", "--epochs", "1", "--fraction", "0.4", "--model", model]
    assert call("run", "heterofl", *words, "--out", "r", "--quiet").code == 0
    sizes = set()
    for who in ("global", "0", "1"):
        said = call("export", "r", "--client", who, "--onnx")
        assert said.code == 0 and not said.err, said.err
        folder = Path("r/export") / (who if who == "global" else f"client-{who}")
        _, params, net = fedquilt.load(folder)
        sizes.add(sum(p.numel() for p in params.values()))
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
        for x in (load("digits").x[:5], load("digits").x[:1]):
            (told,) = session.run(None, {"x": x.numpy()})
            assert torch.allclose(torch.from_numpy(told), net(x), atol=1e-5)
    assert len(sizes) > 1, "a client of its own shape"


@pytest.mark.slow
def test_a_net_that_goes_by_the_batch_has_no_onnx_graph(call: Call) -> None:
    call("run", "fedavg", *SMALL, "--norm", "batch", "--out", "r", "--quiet")
    assert "no fixed graph" in sentence(call("export", "r", "--onnx"))


def test_a_partition_is_told_by_client_and_class(call: Call) -> None:
    told = call("partition", "digits", "--partition", "dirichlet:0.1", "--clients", "6", "--json").json
    assert [r["client"] for r in told["clients"]] == list(range(6))
    assert sum(sum(r["classes"]) for r in told["clients"]) == 1797
    assert all(r["train"] + r["val"] + r["test"] == sum(r["classes"]) for r in told["clients"])
    doubles = call("partition", "digits", "--split", "70/0/30", "--json").json["clients"]
    assert all(r["train"] + r["test"] == sum(r["classes"]) for r in doubles)
    shown = call("partition", "digits", "--clients", "3").out
    assert "digits among 3 clients" in shown and "kinds" in shown


def test_what_a_run_trains_on_is_what_the_partition_showed(call: Call) -> None:
    shown = call("partition", "digits", "--clients", "5", "--seed", "3", "--json").json["clients"]
    call("run", "local", *TINY, "--seed", "3", "--out", "r", "--quiet")
    lines = [json.loads(line) for line in Path("r/scores.jsonl").read_text().splitlines()]
    assert {r["client"]: r["n"] for r in lines if r["split"] == "test" and r["client"] is not None} == {
        r["client"]: r["test"] for r in shown
    }


def test_a_partition_says_who_never_trains_and_what_is_there_twice(call: Call) -> None:
    told = call("partition", "digits", "--clients", "10", "--unseen", "0.2", "--json").json
    assert sum(r["unseen"] for r in told["clients"]) == 2 and told["partition"] == "dirichlet:0.3"
    assert told["repeats"] == {"samples": 0, "across clients": 0, "train in test": 0}
    shown = call("partition", "digits", "--clients", "10", "--unseen", "0.2")
    assert "never trains" in shown.out and "byte for byte" not in shown.out
    Path("a.csv").write_text("".join(f"{i // 2},{i % 3 % 2}\n" for i in range(60)))
    twice = call("partition", "csv:a.csv", "--clients", "3", "--partition", "iid")
    assert "30 samples repeat another byte for byte" in twice.out
    ran = call("run", "local", "--data", "csv:a.csv", "--clients", "3", "--partition", "iid", "--rounds", "1")
    assert "30 samples repeat another byte for byte" in " ".join(ran.out.split())


def test_a_plot_has_a_spot_for_each_client_and_class(call: Call) -> None:
    ask = ("partition", "digits", "--clients", "4", "--unseen", "0.25", "--partition", "dirichlet:0.05:1")
    assert call(*ask, "--plot", "p.svg").code == 0
    held = call(*ask, "--json").json["clients"]
    spots = ElementTree.fromstring(Path("p.svg").read_text()).findall("{*}circle")
    assert [s[0].text for s in spots] == [
        f"client {r['client']}, class {c}: {n}" for r in held for c, n in enumerate(r["classes"]) if n
    ]
    areas = [float(s.attrib["r"]) ** 2 for s in spots]
    sizes = [n for r in held for n in r["classes"] if n]
    assert max(abs(a / max(areas) - n / max(sizes)) for a, n in zip(areas, sizes, strict=True)) < 0.01
    assert {s.attrib["fill"] for s in spots if s[0].text.startswith(f"client {_unseen(held)},")} == {"#D55E00"}
    for words in (("--plot",), ("--plot", "--seed", "0")):
        assert "drawn in partition.svg" in call(*ask, *words).out
        drawn = Path("partition.svg")
        assert drawn.read_text() == Path("p.svg").read_text()
        drawn.unlink()
    assert "named .svg" in sentence(call("partition", "digits", "--clients", "4", "--plot", "p.doc"))
    assert "cannot be written" in sentence(call("partition", "digits", "--clients", "4", "--plot", "no/p.svg"))
    Path("a.csv").write_text("".join(f"{i},{i / 7}\n" for i in range(60)))
    real = call("partition", "csv:a.csv", "--clients", "3", "--partition", "iid", "--plot", "p.svg")
    assert "nothing to draw" in sentence(real)


def _unseen(held: list[dict[str, Any]]) -> int:
    (client,) = (r["client"] for r in held if r["unseen"])
    return int(client)


def test_doctor_examines_and_finds_a_wrong_data_folder(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDQUILT_DATA", raising=False)
    said = call("doctor", "--json")
    assert said.code == 0 and said.json["versions"]["torch"] and not said.json["faults"]
    assert {"flower", "gpu", "disk", "cores", "memory", "data folder"} <= said.json.keys()
    assert "torch" in call("doctor").out
    monkeypatch.setenv("FEDQUILT_DATA", "nowhere")
    said = call("doctor")
    assert said.code == 1 and "nowhere, which is no folder" in said.out


def test_doctor_knows_the_extras_by_the_projects_own_metadata(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [f'{need}; extra == "{extra}"' for extra, needs in told.items() for need in needs]
    monkeypatch.setattr(doctor, "requires", lambda name: lines)
    assert doctor.extras().keys() == told.keys() - {*doctor.OURS, "track"}  # which is made of others
    assert doctor.extras()["board"] == ("textual",) and "sqlalchemy" in doctor.extras()["mlflow"]
    assert call("doctor", "--json").json["extras"]["board"].startswith(f"textual {version('textual')}")
    monkeypatch.setattr(doctor, "requires", lambda name: None)
    assert doctor.extras() == {}
