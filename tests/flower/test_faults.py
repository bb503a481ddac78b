"""What goes wrong between server and nodes costs a reply, is counted, and never reaches the model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Error, Message

from fedquilt import __version__
from fedquilt.drive.flower import client
from fedquilt.drive.flower.carry import Nobody
from fedquilt.drive.flower.letter import Letter
from fedquilt.drive.flower.records import content, letter
from fedquilt.drive.flower.roster import Terms
from fedquilt.drive.flower.server import serve
from fedquilt.run import Run, run
from fedquilt.schema import BadSetting

from ..laws.strategies import all_bits
from .conftest import config_of, grid_of
from .grid import InMemory
from .test_same_bits import by_client, tiny


def played(asked: Run, out: Path, prepare: Callable[[InMemory], None], **more: Any) -> tuple[Any, InMemory]:
    config = config_of(asked, out, **more)
    grid = grid_of(asked, config)
    prepare(grid)
    return serve(grid, config), grid


def client_of(grid: InMemory, message: Message) -> int:
    return int(grid.configs[message.metadata.dst_node_id]["client-id"])


def in_round(message: Message) -> int | None:
    """The round of the order in a message."""
    if message.metadata.message_type != "train":
        return None
    from fedquilt.drive.wire import decode_order

    return decode_order(letter(message).blob).round


@pytest.mark.parametrize(("code", "reason"), [(2, "the app raised"), (5, "node unavailable"), (8, "the app died")])
def test_an_error_of_flower_costs_one_reply(code: int, reason: str, tmp_path: Path) -> None:
    def prepare(grid: InMemory) -> None:
        bad = Error(code, reason)
        grid.trouble = lambda m: bad if (client_of(grid, m), in_round(m)) == (3, 1) else None

    done, _ = played(tiny("fedspu", rounds=3), tmp_path / "r", prepare)
    outcomes = [r["outcomes"] for r in done.history.rounds]
    assert outcomes == [{"accepted": 5}, {"accepted": 4, "failed": 1}, {"accepted": 5}]
    [failed] = [c for c in done.history.clients if c["outcome"] == "failed"]
    assert failed["client"] == 3 and str(code) in failed["reason"] and reason in failed["reason"]
    assert done.history.rounds[1]["merged"] == [0, 1, 2, 4]


def test_a_node_that_never_answers_is_late_and_not_asked_again(tmp_path: Path) -> None:
    def prepare(grid: InMemory) -> None:
        grid.trouble = lambda m: "late" if client_of(grid, m) == 2 and (in_round(m) or 0) >= 1 else None

    asked = tiny("fedspu", rounds=4, schedule="deadline:seconds=1.5", eval_every=0)
    done, grid = played(asked, tmp_path / "r", prepare, patience=3.0)
    told = [(r["asked"], r["merged"], r["outcomes"]) for r in done.history.rounds]
    four = [0, 1, 3, 4]
    assert told[0] == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], {"accepted": 5})
    assert told[1] == ([0, 1, 2, 3, 4], four, {"accepted": 4, "late": 1})
    assert told[2:] == [(four, four, {"accepted": 4})] * 2
    node = next(n for n, c in grid.configs.items() if c["client-id"] == 2)
    assert sum(1 for n, kind, _ in grid.down if n == node and kind == "train") == 2


def test_a_late_reply_is_thrown_away_and_its_node_is_free_again(tmp_path: Path) -> None:
    rounds: list[int] = []

    def prepare(grid: InMemory) -> None:
        def trouble(m: Message) -> str | None:
            rounds.append(in_round(m) if in_round(m) is not None else -1)  # type: ignore[arg-type]
            return "late" if (client_of(grid, m), in_round(m)) == (2, 0) and max(rounds) < 1 else None

        grid.trouble = trouble

    asked = tiny("fedavg", rounds=4, schedule="deadline:seconds=1.5", eval_every=0)
    done, _ = played(asked, tmp_path / "r", prepare)
    outcomes = [r["outcomes"] for r in done.history.rounds]
    assert outcomes[0] == {"accepted": 4, "late": 1} and outcomes[-1] == {"accepted": 5}
    assert sum(o["accepted"] for o in outcomes) == sum(1 for c in done.history.clients if c["outcome"] == "accepted")


def test_over_selection_goes_on_with_the_first(tmp_path: Path) -> None:
    def prepare(grid: InMemory) -> None:
        grid.trouble = lambda m: "late" if client_of(grid, m) == 4 and in_round(m) == 0 else None

    asked = tiny("fedavg", rounds=1, schedule="sync:clients=4:over=1.25", eval_every=0)
    done, _ = played(asked, tmp_path / "r", prepare, patience=2.0)
    [only] = done.history.rounds
    assert (only["asked"], only["merged"]) == ([0, 1, 2, 3, 4], [0, 1, 2, 3])
    assert only["outcomes"] == {"accepted": 4, "late": 1}


def test_a_buffer_is_merged_when_it_is_full(tmp_path: Path) -> None:
    asked = tiny("fedbuff", rounds=4, schedule="buffered:busy=4:k=2", eval_every=0)
    done, grid = played(asked, tmp_path / "r", lambda grid: None)
    assert [r["outcomes"] for r in done.history.rounds] == [{"accepted": 2}] * 4
    trained = [n for n, kind, _ in grid.down if kind == "train"]
    assert len(trained) == 4 + 2 * 3  # the buffer is filled up, and no more
    assert max(c["staleness"] for c in done.history.clients) >= 1


def test_a_method_may_hear_measured_seconds(tmp_path: Path) -> None:
    done, _ = played(tiny("fedavg", rounds=1, eval_every=0), tmp_path / "r", lambda grid: None, seconds="measured")
    assert all(c["seconds"] == c["wall"] > 0 and c["joules"] > 0 for c in done.history.clients)
    assert all(c["inside"].keys() == {"start", "forward", "score", "work"} for c in done.history.clients)
    with pytest.raises(BadSetting, match="seconds is one of priced, measured"):
        played(tiny("fedavg"), tmp_path / "s", lambda grid: None, seconds="guessed")


def test_tampered_replies_are_refused_by_the_guard(tmp_path: Path) -> None:
    def prepare(grid: InMemory) -> None:
        def handle(message: Message, context: Context) -> Message:
            honest = client.app(message, context)
            told = letter(honest)
            who = int(context.node_config["client-id"])
            if message.metadata.message_type == "train" and who in (1, 3):
                cut = told.blob[:-1] if who == 1 else told.blob[:-40] + bytes(40)
                return Message(content(replace(told, blob=cut)), reply_to=message)
            return honest

        grid.handle = handle

    done, _ = played(tiny("fedavg", rounds=2, eval_every=0), tmp_path / "r", prepare)
    assert [r["merged"] for r in done.history.rounds] == [[0, 2, 4]] * 2
    codes = {c["client"]: c["outcome"] for c in done.history.clients if c["outcome"] != "accepted"}
    assert codes == {1: "bad_length", 3: "bad_hash"}


def test_what_is_no_letter_is_a_failure_and_foolish_facts_are_dropped(tmp_path: Path) -> None:
    foolish = {"usage": {"flops": float("inf"), "steps": -3, "peak": "much"}, "scores": {"val": 3}, "seconds": 4}
    vast = {"usage": {"flops": 10**400, "steps": 10**400}, "seconds": {"work": 10**400}, "reason": "a\nb"}
    theirs = {s: {"accuracy": 1.0, "client": 4} for s in ("val", "test")}  # a score in another's name

    def prepare(grid: InMemory) -> None:
        def handle(message: Message, context: Context) -> Message:
            honest = client.app(message, context)
            who = int(context.node_config["client-id"])
            if message.metadata.message_type == "train" and who == 0:
                del honest.content["fedquilt"]
            elif message.metadata.message_type == "train" and who in (1, 2, 3):
                told = letter(honest)
                said = {1: foolish, 2: {**vast, "scores": {"val": {"n": 10**400}, "test": {}}}, 3: {"scores": theirs}}
                return Message(content(Letter({**told.facts, **said[who]}, told.blob)), reply_to=message)
            return honest

        grid.handle = handle

    done, _ = played(tiny("fedavg", rounds=1), tmp_path / "r", prepare)
    by = {c["client"]: c for c in done.history.clients}
    assert by[0]["outcome"] == "failed" and "no letter" in by[0]["reason"]
    assert by[1]["outcome"] == "accepted" and (by[1]["flops"], by[1]["steps"], by[1]["peak"]) == (0, 0, 0)
    first = {r["client"] for r in done.history.scores if r["round"] == 0 and r["model"] == "served"}
    assert first == {4}  # scores that are none are left out; those of client 0 were in no letter
    assert (by[2]["outcome"], by[2]["flops"], by[2]["steps"]) == ("accepted", 0, 0)
    assert by[3]["outcome"] == "accepted" and by[3]["flops"] > 0


DEVICE = {"width": 0.4, "tier": "0.4"}
HELLO = {"client": 1, "version": __version__, "run": "r", "fingerprint": "f", "own": False, "shape": [1, 8, 8],
         "classes": 10, "counts": {"train": 9, "val": 0, "test": 3}, "device": DEVICE}  # fmt: skip
ODD: list[dict[str, Any]] = [
    {"client": True}, {"client": 9}, {"client": [1]}, {"run": None}, {"own": 1, "run": ""}, {"shape": 4},
    {"classes": "10"}, {"counts": 9}, {"counts": {"train": 0, "val": 0, "test": 0}},
    {"counts": {"train": 10**400, "val": 0, "test": 0}},
    {"device": None}, {"device": [1]}, {"device": {**DEVICE, "width": 0}}, {"device": {**DEVICE, "width": "0.4"}},
    {"device": {**DEVICE, "flops": 10**400}}, {"device": {**DEVICE, "tier": ["0.4"]}},
    {"device": {**DEVICE, "width": 0.5}},
]  # fmt: skip


def test_a_foolish_hello_is_refused_with_a_reason_and_nothing_worse() -> None:
    terms = Terms("r", frozenset(range(5)), "f", (1, 8, 8), 10, frozenset({0.2, 0.4}))
    told = terms.read(HELLO)
    assert (told.client, told.device.width, told.device.tier, dict(told.counts)["train"]) == (1, 0.4, "0.4", 9)
    for odd in ODD:
        with pytest.raises(
            ValueError, match=r"it says|it does not say|its settings|its data|it has width|figure|width"
        ):
            terms.read({**HELLO, **odd})
    for name in HELLO:
        less = {k: v for k, v in HELLO.items() if k != name}
        if name == "own":
            assert terms.read(less) == told  # the run's data, then
        else:
            with pytest.raises(ValueError):
                terms.read(less)
    own = {k: v for k, v in HELLO.items() if k not in ("run", "fingerprint")}
    assert terms.read({**own, "own": True}).fingerprint == ""


def test_two_nodes_that_say_that_they_are_one_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def prepare(grid: InMemory) -> None:
        grid.configs[5] = {"client-id": 2}

    asked = tiny("fedavg", rounds=3, eval_every=0)
    done, grid = played(asked, tmp_path / "r", prepare)
    assert all_bits(done.params) == all_bits(run(asked).params)
    assert sum(1 for _, kind, _ in grid.down if kind == "query") == 6  # each is asked once, not in turn for ever
    assert capsys.readouterr().out.count("client 2 is at node") == 1


def test_where_nobody_who_is_there_is_selected_others_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPFL has its participants for good: the run waits for them, and does not end because others alone are there."""
    monkeypatch.setattr("fedquilt.drive.flower.post.LOOK", 0.0)
    looks: list[int] = []

    def prepare(grid: InMemory) -> None:
        def there() -> list[int]:
            worked = {n for n, kind, _ in grid.up if kind == "train"}
            away = len(worked) == 2 and len(looks) < 20
            looks.extend([1] * away)
            return [n for n in grid.configs if not (away and n in worked)]

        monkeypatch.setattr(grid, "get_node_ids", there)

    whole = tiny("mpfl", rounds=3, eval_every=0)
    asked = replace(whole, method={**whole.method, "fraction": 0.4})  # type: ignore[dict-item]
    done, _ = played(asked, tmp_path / "r", prepare)
    assert len(looks) == 20 and not done.stopped
    assert [r["outcomes"] for r in done.history.rounds] == [{"accepted": 2}] * 3
    assert len({tuple(r["asked"]) for r in done.history.rounds}) == 1


def test_a_node_of_another_version_or_other_data_takes_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(grid: InMemory) -> None:
        honest = client.app
        odd = {1: ("version", "9.9"), 2: ("fingerprint", "00"), 3: ("client", 77)}

        def handle(message: Message, context: Context) -> Message:
            reply = honest(message, context)
            who = int(context.node_config["client-id"])
            if message.metadata.message_type == "query" and who in odd:
                told = letter(reply)
                return Message(content(Letter({**told.facts, odd[who][0]: odd[who][1]}, b"")), reply_to=message)
            return reply

        grid.handle = handle

    done, _ = played(tiny("fedavg", rounds=1, eval_every=0), tmp_path / "r", prepare, patience=0.5)
    assert done.history.rounds[0]["asked"] == [0, 4]
    said = capsys.readouterr().out
    assert said.count("takes no part") == 3 and "9.9" in said and "data 00" in said and "client 77" in said


def test_a_client_that_comes_back_at_another_node_is_the_same_client(tmp_path: Path) -> None:
    def prepare(grid: InMemory) -> None:
        def trouble(message: Message) -> None:
            if in_round(message) == 1 and client_of(grid, message) == 0 and 5 not in grid.configs:
                [old] = [n for n, c in grid.configs.items() if c["client-id"] == 2]
                grid.configs[5] = grid.configs[old]  # it answers there once more, and then is gone

        grid.trouble = trouble

    asked = tiny("fedspu", rounds=4, eval_every=0)
    # nobody looks again who is there before half a second has gone
    roster_look = pytest.MonkeyPatch()
    roster_look.setattr("fedquilt.drive.flower.post.LOOK", 0.0)
    try:
        done, grid = played(asked, tmp_path / "r", prepare)
    finally:
        roster_look.undo()
    assert all_bits(done.params) == all_bits(run(asked).params)
    assert any(n == 5 and kind == "train" for n, kind, _ in grid.down)


def test_nobody_there_ends_the_run_and_it_can_go_on(tmp_path: Path) -> None:
    asked = tiny("fedspu", rounds=2)
    config = config_of(asked, tmp_path / "r", patience=0.2)
    with pytest.raises(Nobody, match="goes on when it is submitted again"):
        serve(InMemory({}, config), config)
    again = serve(grid_of(asked, config), config)
    assert all_bits(again.params) == all_bits(run(asked).params)


@pytest.mark.parametrize(
    "wrong", [{"availability": "random:0.5"}, {"dropout": 0.1}, {"stragglers": "random:0.1:5"}, {"unseen": 0.2}]
)
def test_what_only_a_simulation_can_say_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    asked = tiny("fedavg", **wrong)
    config = config_of(asked, tmp_path / "r")
    with pytest.raises(BadSetting, match=f"{next(iter(wrong))} is simulated"):
        serve(grid_of(asked, config), config)


# ---- kill -9
VICTIM = """
import sys
from pathlib import Path
from fedquilt.drive.flower import client
from fedquilt.drive.flower.server import serve
from tests.flower.conftest import config_of, grid_of
from tests.flower.grid import Nodes
from tests.flower.test_same_bits import tiny
from tests.victim import die_after

die_after(3, int(sys.argv[2]))  # committed, and the reply has not left
client.ask = Nodes()
asked = tiny("fedspu")
config = config_of(asked, Path(sys.argv[1]))
serve(grid_of(asked, config), config)
"""


@pytest.mark.parametrize("commits", [1, 4])
def test_killed_after_the_commit_and_before_the_reply_the_run_ends_as_if_left_alone(
    commits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, out, root = tiny("fedspu"), tmp_path / "r", Path(__file__).parents[2]
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "alone"))
    whole, _ = played(asked, tmp_path / "whole", lambda grid: None)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "killed"))
    dead = subprocess.run(
        [sys.executable, "-c", VICTIM, str(out), str(commits)],
        cwd=root, env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}, timeout=120, check=False,
    )  # fmt: skip
    assert dead.returncode == -signal.SIGKILL
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 2
    again, grid = played(asked, out, lambda grid: None)
    assert all_bits(again.params) == all_bits(whole.params)
    assert sum(1 for _, kind, _ in grid.down if kind == "train") == 5 * 3  # rounds 3, 4 and 5: one is done again
    assert by_client(again.history.clients) == by_client(whole.history.clients)
    memories = [
        {p.relative_to(tmp_path / home): p.read_bytes() for p in (tmp_path / home).rglob("*.safetensors")}
        for home in ("alone", "killed")
    ]
    assert memories[0] == memories[1] and len(memories[0]) >= 5
