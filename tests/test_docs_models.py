"""docs/models.md, followed to the letter: its files are written, its commands are given, its Python is run."""

from __future__ import annotations

import io
import json
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from fedquilt.cli import main

DOC = Path(__file__).parents[1] / "docs" / "models.md"
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL)
MODULES = ("mynet", "quilted", "baked", "partly", "changed")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own, in which Python has not looked for modules yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    for name in MODULES:
        sys.modules.pop(name, None)
    return tmp_path


def command(line: str) -> None:
    """A line as a shell would take it: words, and perhaps a file for what is printed."""
    said, _, file = line.partition(" > ")
    name, *words = shlex.split(said)
    assert name == "fedquilt"
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(words) == 0, line
    if file:
        Path(file).write_text(out.getvalue())


def test_the_page_can_be_followed_to_the_letter(here: Path) -> None:
    script: list[str] = []
    assert {kind for kind, _ in BLOCKS} == {"python", "sh"}
    for kind, text in BLOCKS:
        file = re.match(r"# (\w+\.py)\n", text)
        if kind == "sh":
            for line in text.splitlines():
                command(line)
        elif file is None:
            script.append(text)
        elif (here / file[1]).exists():  # what a command has written is what the page shows
            assert (here / file[1]).read_text() == text.partition("\n")[2]
        else:
            (here / file[1]).write_text(text)
    (here / "script.py").write_text("\n".join(script))
    runpy.run_path(str(here / "script.py"))
    for method in ("fedspu", "heterofl", "fedper", "partly"):
        record = json.loads((here / "runs" / method / "run.json").read_text())
        assert (here / "runs" / method / "result.json").exists()
        assert record["model"]["groups"] == ({"hidden": 12} if method == "partly" else {"conv1": 8, "conv2": 16})
        assert record["model"]["spec"] == ({"name": "partly:net"} if method == "partly" else SPEC)
    said = (here / "partly.py").read_text()
    assert "# conv stays whole: the net does not run on fewer of its units" in said and "view(-1, 6 * 64)" in said


SPEC = {"name": "quilted:net", "classes": 10}


def test_the_three_methods_do_with_it_what_they_say(here: Path) -> None:
    """HeteroFL and FedSPU send what a device can take; FedPer sends all but the head."""
    (here / "mynet.py").write_text(BLOCKS[0][1])
    (here / "quilted.py").write_text(BLOCKS[2][1])
    down: dict[str, list[int]] = {}
    for method in METHODS:
        command(
            f"fedquilt run {method} --model quilted:net --clients 5 --rounds 1 --epochs 1 --fraction 1 --out {method}"
        )
        down[method] = [json.loads(line)["down"] for line in (here / method / "clients.jsonl").read_text().splitlines()]
    whole, head = max(down["heterofl"]), 4 * (256 * 10 + 10)
    assert min(down["heterofl"]) < 0.2 * whole  # at a fifth of the width, less than that
    assert all(0 < whole - head - n < 500 or 0 < n - (whole - head) < 500 for n in down["fedper"])
    assert len({*down["fedspu"]}) == 5  # each as many units as its device can take


METHODS = ("fedspu", "heterofl", "fedper")


def test_a_run_of_an_own_net_goes_on_and_is_exported_and_is_the_same_in_processes(here: Path) -> None:
    (here / "mynet.py").write_text(BLOCKS[0][1])
    (here / "quilted.py").write_text(BLOCKS[2][1])
    said = "fedquilt run fedspu --model quilted:net --clients 4 --epochs 1 --fraction 1"
    command(f"{said} --rounds 2 --out a")
    command(f"{said} --rounds 2 --out b --engine processes:2")
    command(f"{said} --rounds 1 --out c")
    command(f"{said} --rounds 2 --out c")
    lines = [(here / out / "clients.jsonl").read_text() for out in "abc"]
    assert lines[0] == lines[1] == lines[2]
    command("fedquilt export a --client 1 --to mine")
    from fedquilt import load

    model, params, net = load("mine")
    assert model.name == "quilted:net" and model.groups == {"conv1": 8, "conv2": 16}
    assert net.fc.out_features == 10 and params.keys() == model.shapes.keys()


def test_the_console_script_finds_modules_where_one_is(here: Path) -> None:
    """As its own process, whose path does not name the folder."""
    (here / "mynet.py").write_text(BLOCKS[0][1])
    start = f"import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.insert(0, {str(DOC.parents[1])!r}); "
    words = ["axes", "mynet:Net", "--input", "1,8,8"]
    code = start + f"from fedquilt.cli import main; sys.exit(main({words}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "def net(classes: int = 10)" in done.stdout and not done.stderr


def test_a_table_that_was_changed_is_held_to_the_laws(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mynet.py").write_text(BLOCKS[0][1])
    (here / "quilted.py").write_text(BLOCKS[2][1])
    assert main(["axes", "quilted:net", "--input", "1,8,8"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("The axes table of quilted:net keeps both laws. Groups and their units: conv1 8, conv2 16.")
    forgotten = BLOCKS[2][1].replace('    "norm1.bias": (Axis("conv1"),),\n', "")
    (here / "changed.py").write_text(forgotten)
    assert forgotten != BLOCKS[2][1] and main(["axes", "changed:net", "--input", "1,8,8"]) == 1
    assert capsys.readouterr().out.startswith(
        "conv1 breaks a law: another order of its units changes what the net says"
    )
    assert main(["axes", "changed:net", "--input", "1,8,8", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["broken"].keys() == {"conv1"}
    assert main(["axes", "quilted:net", "--input", "3,8,8"]) == 2
    assert "quilted:net does not run on an input of 3,8,8: " in capsys.readouterr().err


def test_why_a_net_fails_at_some_clients_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mynet.py").write_text(
        BLOCKS[0][1].replace("return", "assert not self.training or len(x) > 4, '[b]four'; return")
    )
    (here / "quilted.py").write_text(BLOCKS[2][1])
    line = "run fedavg --model quilted:net --clients 8 --rounds 1 --epochs 1 --batch 5 --fraction 1 --out runs/some"
    assert main(line.split()) == 0
    told = capsys.readouterr().out
    assert " failed." in told and "The first failure: AssertionError: [b]four" in told


@pytest.mark.parametrize(
    ("line", "say"),
    [
        ("axes mynet --input 1,8,8", "a net of your own is named by its module and its class, such as my.module:Net"),
        ("axes mynet:Nett --input 1,8,8", "mynet has no 'Nett'; did you mean 'Net'? it has: Net"),
        ("axes nowhere:Net --input 1,8,8", "no module is called 'nowhere', neither in"),
        ("axes mynet:Net --input 1,8,no", "--input is a shape such as 3,32,32 or 80:int64, not '1,8,no'"),
        ("axes mynet:Net --input 8:int7", "a type of float32, float64, int64, int32, bool, not '8:int7'"),
        ("axes mynet:Net --input 3,8,8", "cannot be traced on an input of shape (3, 8, 8) and type float32"),
        ("axes mynet:Net:clases=3 --input 1,8,8", "has no setting 'clases'; did you mean 'classes'?"),
        ("axes mynet:F --input 1,8,8", "mynet:F is not a class or a function that makes a net, it is a module"),
        ("run fedspu --model mynet:Net", "`fedquilt axes mynet:Net --input SHAPE` prints the axes table that it lacks"),
        ("run fedspu --model mynett:net", "no module is called 'mynett', neither in"),
        ("run fedspu --model quilted:net:clases=3", "has no setting 'clases'; did you mean 'classes'?"),
        ("run fedspu --model broken:net", "broken cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(
    line: str, say: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mynet.py").write_text(BLOCKS[0][1])
    (here / "quilted.py").write_text(BLOCKS[2][1])
    (here / "broken.py").write_text("1 / 0\n")
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert say in said.err and said.err.count("\n") == 1 and not said.out and not (here / "runs").exists()
