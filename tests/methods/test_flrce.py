"""FLrce: the paper's pictures by hand, planted clients, stopping, sub-models, and how much a sketch errs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedquilt.codec import codec_of
from fedquilt.cover import Cover, take
from fedquilt.drive.sim import packed, unpacked
from fedquilt.fleet import tiers
from fedquilt.key import Key
from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.model import Model
from fedquilt.models import build
from fedquilt.parts.codecs import Coded
from fedquilt.parts.likeness import sketched
from fedquilt.parts.relation import Related, exploits, importances
from fedquilt.parts.schedule import Sync
from fedquilt.parts.send import Except
from fedquilt.parts.stop import Conflict, stopped_at, thresholds
from fedquilt.store import flatten, restore
from fedquilt.types import Grant, Order, Reply, State

from ..laws.strategies import all_bits
from ..world import play, small, world

PLANE = {"w": torch.zeros(2)}
FLEET = tiers(dict.fromkeys(range(6), 10), (1.0,), Key(0))


def said(client: int, round: int, w: Tensor, update: Sequence[float], cover: Cover | None = None) -> Reply:
    """The reply of a client that was sent ``w`` and moved it by ``update``."""
    cover = cover or Cover.whole({"w": w})
    order = Order("", 0, client, round, take({"w": w}, cover), cover, Grant(cover))
    piece = {
        k: v + t
        for (k, v), t in zip(order.params.items(), take({"w": torch.tensor(update)}, cover).values(), strict=True)
    }
    return Reply(client, round, piece, cover, 10.0, {"loss": 1.0}, order=order)


def mapped(part: Related, *rounds: tuple[Sequence[float], Mapping[int, Sequence[float]]]) -> Any:
    """The map after rounds, each given as the global model and the updates of its clients."""
    note = None
    for t, (w, updates) in enumerate(rounds):
        if updates:
            here = torch.tensor(w, dtype=torch.float32)
            note = part.learn(
                note, State(t, {"w": here}), [said(i, t, here, u) for i, u in sorted(updates.items())], FLEET
            )
    return note


def relations(note: Any, k: int) -> dict[int, float]:
    row = note["rows"][k]
    return dict(zip(row["of"].tolist(), row["value"].tolist(), strict=True))


# ---- the paper's pictures
def test_figure_6_four_updates_of_one_round() -> None:
    """1 agrees with 2 and 3, these two conflict, and 4 is against all."""
    note = mapped(Related(), ([0.0, 0.0], {1: [1, 0], 2: [1, 2], 3: [1, -2], 4: [-1, 0]}))
    r5 = 1 / math.sqrt(5)
    assert relations(note, 1) == pytest.approx({2: r5, 3: r5, 4: -1}, abs=1e-6)
    assert relations(note, 2) == pytest.approx({1: r5, 3: -0.6, 4: -r5}, abs=1e-6)
    assert relations(note, 4) == pytest.approx({1: -1, 2: -r5, 3: -r5}, abs=1e-6)
    assert importances(note) == pytest.approx({1: 2 * r5 - 1, 2: -0.6, 3: -0.6, 4: -1 - 2 * r5}, abs=1e-6)


def late(w: Sequence[float], update: Sequence[float], begun: Sequence[float] = (0, 0), **given: Any) -> float:
    """The relation of client 2's update at ``w`` with client 1's, which went right two rounds before from ``begun``."""
    note = mapped(Related(**given), (begun, {1: [1, 0]}), (w, {}), (w, {2: update}))
    return relations(note, 2)[1]


def test_figures_7_and_8_an_earlier_update_is_a_line() -> None:
    """The model stands two above the line of an earlier update: what brings it nearer is of one mind with it."""
    assert late([1, 2], [0, -1]) == pytest.approx(0.5), "half the way, where the cosine says 0"
    assert late([1, 2], [-1, -1]) == pytest.approx(0.5), "the same, where the cosine says conflict"
    assert late([1, 2], [3, 0]) == pytest.approx(0.0), "along the line is neither nearer nor farther"
    assert late([1, 2], [0, -2]) == pytest.approx(1.0)
    assert late([1, 2], [0, 1]) == pytest.approx(-0.5)
    assert late([1, 2], [0, 5]) == -1.0, "not below -1"
    assert late([5, 0], [1, 0]) == 0.0
    assert late([5, 0], [0, 1]) == -1.0, "on the line one can only leave it"


def test_the_line_runs_through_the_model_that_was_sent() -> None:
    assert late([1, 2], [0, -1], begun=(7, 1)) == pytest.approx(1.0), "the line is at height 1"
    assert late([1, 2], [0, -1], begun=(7, 1), origin="zero") == pytest.approx(0.5), "literally: at 0"


def test_neighbouring_rounds_are_synchronous() -> None:
    note = mapped(Related(), ([0, 0], {1: [1, 0]}), ([1, 2], {2: [1, -1]}))
    assert relations(note, 2) == pytest.approx({1: 1 / math.sqrt(2)})
    assert 1 in note["rows"] and relations(note, 1) == {}, "client 1 was alone when it came: its row is as it was"


def test_figure_9_conflict_of_the_important_ends_the_run() -> None:
    """P = 2: at t1 the two pull the same way, at t2 they conflict: conflicts = 1 = psi."""
    stop = Conflict()
    first = torch.tensor([0.0, 0.0])
    note = stop.learn(None, State(0, {"w": first}), [said(2, 0, first, [0, 9]), said(3, 0, first, [0, -9])], FLEET)
    assert note["degrees"] == [], "the first round explores"
    note = stop.learn(note, State(1, {"w": first}), [said(2, 1, first, [1, 2]), said(3, 1, first, [2, 1])], FLEET)
    assert note == {"degrees": [[2, 0.0, 2]], "reached": None}
    there = torch.tensor([3.0, 3.0])
    note = stop.learn(note, State(2, {"w": there}), [said(2, 2, there, [-1, 2]), said(3, 2, there, [2, -1])], FLEET)
    assert note == {"degrees": [[2, 0.0, 2], [3, 1.0, 2]], "reached": 3}
    after = State(3, {"w": there}, {"stop": note})
    assert stop(after, FLEET, []) == "each of the 2 chosen clients was in conflict with 1 of the others on average"
    assert replace(stop, record_only=True)(after, FLEET, []) is None


def test_a_right_angle_is_a_conflict_only_where_that_is_asked_for() -> None:
    w = torch.zeros(2)
    replies = [said(0, 1, w, [1, 0]), said(1, 1, w, [0, 1]), said(2, 1, w, [-1, 0])]
    assert Conflict().degree(State(1, {"w": w}), replies) == pytest.approx(2 / 3)
    assert Conflict(touching=True).degree(State(1, {"w": w}), replies) == pytest.approx(6 / 3)


def test_what_was_smooths_what_is() -> None:
    twice = (([0.0, 0.0], {1: [1, 0], 2: [1, 0]}), ([0.0, 0.0], {1: [0, 1], 2: [1, 0]}))
    assert relations(mapped(Related(), *twice), 1)[2] == pytest.approx(0.0)
    assert relations(mapped(Related(smooth=0.1), *twice), 1)[2] == pytest.approx(0.1 * 0.9 * 1.0)


# ---- parts of a model
def test_updates_are_compared_where_both_were_there() -> None:
    w = torch.zeros(3)
    left, right = (Cover.masks({"w": torch.tensor(m)}) for m in ([True, True, False], [False, True, True]))
    replies = [
        said(1, 0, w, [9.0, 2.0, 0.0], left),
        said(2, 0, w, [0.0, 3.0, -9.0], right),
        said(3, 0, w, [0.0, -4.0, 3.0]),
    ]
    note = Related().learn(None, State(0, {"w": w}), replies, FLEET)
    assert relations(note, 1) == pytest.approx({2: 1.0, 3: -8 / math.sqrt(85 * 16)}), "with 2 they share the middle"
    assert relations(note, 2)[3] == pytest.approx((-12 - 27) / math.sqrt(90 * 25))
    alone = Cover.masks({"w": torch.tensor([True, False, False])})
    apart = Related().learn(None, State(0, {"w": w}), [said(1, 0, w, [1.0, 0, 0], alone), replies[1]], FLEET)
    assert relations(apart, 1) == {2: 0.0}, "they share nothing: neither says anything about the other"


def test_a_line_is_measured_where_both_were_there() -> None:
    """Client 1 held the first two of three coordinates: what 2 does to the third counts for nothing."""
    part, w = Related(), torch.tensor([0.0, 0.0, 0.0])
    left = Cover.masks({"w": torch.tensor([True, True, False])})
    note = part.learn(None, State(0, {"w": w}), [said(1, 0, w, [1.0, 0.0, 0.0], left)], FLEET)
    now = torch.tensor([1.0, 2.0, 50.0])
    note = part.learn(note, State(5, {"w": now}), [said(2, 5, now, [4.0, -1.0, 30.0])], FLEET)
    assert relations(note, 2) == pytest.approx({1: 0.5})


# ---- choosing
def federation(
    method: Method, optima: Mapping[int, Sequence[float]], rounds: int, state: State | None = None
) -> tuple[list[list[int]], State]:
    """Clients that go a tenth of the way to their own optimum in a plane, under the method's own plan and step."""
    fleet = tiers(dict.fromkeys(optima, 10), (1.0,), Key(0))
    model = build({"name": "mlp", "inputs": 1, "hidden": (), "classes": 2}, Key(0))
    names, state, cohorts = sorted(model.shapes), state or method.begin(model, fleet), []
    for _ in range(rounds):
        if state.stopped:
            break
        orders = method.plan(state, fleet, model, Key(3))
        cohorts.append([o.client for o in orders])
        state = method.step(state, fleet, [_nearer(o, optima[o.client], model, names) for o in orders])
    return cohorts, state


def _nearer(order: Order, optimum: Sequence[float], model: Model, names: Sequence[str]) -> Reply:
    there = {names[0]: torch.tensor(optimum), names[1]: torch.tensor(optimum).view(model.shapes[names[1]])}
    params = {k: v + 0.1 * (there[k] - v) for k, v in order.params.items()}
    return Reply(order.client, order.round, params, order.cover, 10.0, {"loss": 1.0}, order=order)


def test_a_planted_important_client_is_exploited_and_a_harmful_one_avoided() -> None:
    """0 wants what all but 5 want on average, as in the paper's figure 2; 5 wants the opposite."""
    optima = {0: [50.0, 0.0], 1: [50.0, 40.0], 2: [50.0, -40.0], 3: [20.0, 50.0], 4: [20.0, -50.0], 5: [-50.0, 0.0]}
    _, state = federation(METHODS["flrce"](fraction=1.0, psi=math.inf), optima, 1)
    h = importances(state.notes["select"])
    assert max(h, key=lambda i: h[i]) == 0 and min(h, key=lambda i: h[i]) == 5
    few = METHODS["flrce"](fraction=0.5, explore=0.0, psi=math.inf)
    cohorts, _ = federation(few, optima, 1, state)
    assert 0 in cohorts[0] and 5 not in cohorts[0]


def test_who_never_replied_stands_above_who_did_harm() -> None:
    note = mapped(Related(), ([0, 0], {1: [1, 0], 2: [-1, 0]}))
    chosen = Related(explore=0.0)(State(1, PLANE, {"select": note}), FLEET, 4, Key(0))
    assert set(chosen) == {0, 3, 4, 5}


def test_equals_are_chosen_in_random_order() -> None:
    note = mapped(Related(), ([0, 0], {1: [1, 0], 2: [1, 0]}))
    part, state = Related(explore=0.0), State(1, PLANE, {"select": note})
    seen = {tuple(part(state, FLEET, 3, Key(s).at(1, "select"))) for s in range(30)}
    assert all({1, 2} <= set(c) for c in seen) and {min(set(c) - {1, 2}) for c in seen} == {0, 3, 4, 5}


def test_exploration_decays() -> None:
    share = [sum(not exploits(s, t, 0.98) for s in range(400)) / 400 for t in (0, 35, 140)]
    assert share[0] == 1.0
    assert share[1] == pytest.approx(0.98**35, abs=0.08) and share[2] == pytest.approx(0.98**140, abs=0.06)
    assert not any(exploits(s, 19, 0.0, warmup=20) for s in range(9)) and exploits(0, 20, 0.0, warmup=20)


# ---- through the method's own path
def run(rounds: int = 6, **given: Any) -> Any:
    method = replace(small(METHODS["flrce"], **given), schedule=Sync(clients=3))
    return play(world(method, "mlp", widths=(1.0,)), rounds)[0]


def test_with_exploration_only_it_is_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = Related.__call__
    monkeypatch.setattr(Related, "__call__", lambda *args: calls.append(1) or real(*args))
    plain = play(world(replace(small(METHODS["fedavg"]), schedule=Sync(clients=3)), "mlp", widths=(1.0,)), 6)[0]
    assert all_bits(dict(run(explore=1.0, psi=math.inf).state.params)) == all_bits(dict(plain.state.params))
    assert len(calls) == 6
    assert all_bits(dict(run(explore=0.3, psi=math.inf).state.params)) != all_bits(dict(plain.state.params))


def test_one_recorded_run_tells_where_every_threshold_would_have_stopped() -> None:
    told = run(12, explore=0.0, record_only=True)
    assert told.state.round == 12 and told.state.stopped is None
    degrees = told.state.notes["stop"]["degrees"]
    ends = [stopped_at(degrees, psi) or math.inf for psi in (0.5, 1.0, 1.5, 2.0, 2.5, math.inf)]
    assert ends == sorted(ends) and ends[0] < math.inf == ends[-1], "the higher the threshold the later"
    for psi in (0.5, 1.0):
        at = stopped_at(degrees, psi) or 12
        stopped = run(at, explore=0.0, psi=psi)
        assert stopped.state.stopped and not run(at - 1, explore=0.0, psi=psi).state.stopped
    assert run(12, explore=0.0, psi=math.inf).state.stopped is None


def test_the_record_tells_where_each_threshold_would_have_stopped() -> None:
    degrees = [[2, 0.0, 3], [4, 1.0, 3], [5, 0.5, 3], [7, 1.0, 3], [9, 2.0, 3]]
    assert thresholds(degrees) == [[1.0, 4], [2.0, 9]]
    for psi in (0.1, 1.0, 1.1, 2.0, 2.1):
        assert stopped_at(degrees, psi) == next((r for most, r in thresholds(degrees) if psi <= most), None)
    note = {"degrees": degrees, "reached": 9}
    assert Conflict(record_only=True).tell(note) == {"conflict": 2.0, "of round": 9, "ends": [[1.0, 4], [2.0, 9]]}
    assert Conflict().tell(note) == {"conflict": 2.0, "of round": 9}


def test_it_goes_on_with_its_map() -> None:
    method = replace(small(METHODS["flrce"], explore=0.5, psi=math.inf), schedule=Sync(clients=2))
    whole = play(world(method, "cnn"), 6)[0]
    sim = world(method, "cnn")
    json_part, tensors = flatten(dict(packed(play(sim, 3)[0])))
    again = unpacked(restore(json.loads(json.dumps(json_part)), {k: t.clone() for k, t in tensors.items()}))
    then = flatten(dict(packed(play(sim, 3, again)[0])))
    left_alone = flatten(dict(packed(whole)))
    assert then[0] == left_alone[0] and all_bits(then[1]) == all_bits(left_alone[1])


def over(parent: str) -> Method:
    """Another method, or one that sends in fewer bits, or of which a layer is frozen."""
    if parent == "eight bits":
        plain = small(METHODS["fedavg"])
        return replace(plain, local=Coded(plain.local, codec_of("uniform:8"), False))
    return (
        replace(small(METHODS["fedspu"]), send=Except(("conv1.*",))) if parent == "frozen" else small(METHODS[parent])
    )


@pytest.mark.parametrize("parent", ["fedspu", "heterofl", "fedprox", "eight bits", "frozen"])
def test_its_selection_and_stop_serve_other_methods(parent: str) -> None:
    method = replace(over(parent), select=Related(0.0), stop=Conflict(record_only=True), schedule=Sync(clients=3))
    sim = world(method, "cnn")
    now, told = play(sim, 5)
    note = now.state.notes["select"]
    assert len(note["rows"]) >= 3 and all(v["moved"].any() for v in note["last"].values())
    assert len(now.state.notes["stop"]["degrees"]) == 4
    assert told[-1].record["told"]["conflict"] == now.state.notes["stop"]["degrees"][-1][1]
    if parent == "frozen":
        kept = [k for k in sim.model.trainable if k.startswith("conv1.")]
        for i, version in now.state.versions.items():
            mine = sim.site.memories.load(i, version).tensors  # type: ignore[attr-defined]
            assert kept and all(torch.equal(mine[f"model/{k}"], sim.model.params()[k]) for k in kept)


# ---- where vectors live
def test_vectors_in_files_give_the_same_bits(tmp_path: Any) -> None:
    given = {"explore": 0.3, "psi": math.inf}
    ram, disk = run(**given), run(**given, spill=str(tmp_path))
    assert all_bits(dict(ram.state.params)) == all_bits(dict(disk.state.params))
    moved = next(iter(disk.state.notes["select"]["last"].values()))["moved"]
    assert str(moved.untyped_storage().filename).startswith(str(tmp_path))
    assert not list(tmp_path.iterdir()), "the files end with the tensors"
    again = restore(*flatten(dict(ram.state.notes["select"])))  # as a run that goes on has it
    w = torch.zeros_like(moved)
    note = Related(spill=str(tmp_path)).learn(again, State(9, {"w": w}), [said(0, 9, w, moved.tolist())], FLEET)
    assert all(v["moved"].untyped_storage().filename for v in note["last"].values())


def test_a_sketch_errs_as_little_as_it_says() -> None:
    g = Key(1).torch()
    a, b = torch.randn(2, 20_000, generator=g)
    b = b + 0.5 * a
    true = torch.cosine_similarity(a, b, 0)
    for short in (256, 4096):
        error = torch.cosine_similarity(sketched(a, short), sketched(b, short), 0) - true
        assert abs(float(error)) < 4 * math.sqrt(2 / short)
    assert torch.allclose(sketched(a, 64) + sketched(b, 64), sketched(a + b, 64), atol=1e-3), "it is linear"


def test_a_map_of_sketches_is_near_the_map() -> None:
    exact, short = (run(explore=1.0, psi=math.inf, sketch=n).state.notes["select"] for n in (0, 1024))
    for k in exact["rows"]:
        assert relations(short, k) == pytest.approx(relations(exact, k), abs=0.15)
    assert exact["last"][0]["moved"].numel() > short["last"][0]["moved"].numel() == 1024


@pytest.mark.parametrize(
    ("name", "bad"), [("explore", 1.5), ("sketch", -1), ("smooth", 2.0), ("spill", "/no/such/folder"), ("psi", 0.0)]
)
def test_settings_that_cannot_be_are_refused(name: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=name):
        METHODS["flrce"](**{name: bad})
