"""mpfl: classes, the base model, personal units, halting, and when units are found again; each by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedquilt.cover import count_units
from fedquilt.fit import SGD, Evaluate, Fit
from fedquilt.fitting import fitted
from fedquilt.fleet import Demand, Device, Fleet
from fedquilt.grow import enlarged
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.models import build
from fedquilt.parts.halting import Apart, bound, estimates, halting_epoch
from fedquilt.parts.importance import heard, unit_scores
from fedquilt.parts.local import Train, section
from fedquilt.parts.personalise import Personalised
from fedquilt.parts.resized import Grown, Lessons, Shrunk, surgery
from fedquilt.parts.schedule import Sync
from fedquilt.parts.threefold import Means, Threefold, base_rung, ladder, usual
from fedquilt.prepare import prepare
from fedquilt.run import Run
from fedquilt.run import run as start
from fedquilt.schema import BadSetting
from fedquilt.term import call
from fedquilt.types import Memory, Reply

from ..engine.tiny import KEY, SPECS, client, drive, engine, order, same, task, tiny, weights
from ..laws.strategies import all_bits
from ..world import FAMILIES, play, replace, small, world

CHEAP, DEAR = Demand(sample=10.0, peak=10.0, batch=1), Demand(sample=40.0, peak=100.0, batch=1)


def device(flops: float, memory: float = 1000.0) -> Device:
    return Device(flops=flops, memory=memory, down=1e12, up=1e12)


# ---- Procedure 1, and classes
@pytest.mark.parametrize(
    ("flops", "memory", "rung"),
    [
        ([1, 1, 1, 1, 1], 1000, 0),  # nobody can train any: the first, since there is none below it
        ([10, 10, 10, 1, 1], 1000, 0),
        ([40, 40, 40, 1, 1], 1000, 1),  # three of five
        ([40, 40, 1, 1], 1000, 0),  # half is not more than half
        ([40, 40, 40, 40, 40], 50, 0),  # in time, but not in memory
        ([160, 160, 160, 40, 40], 1000, 2),
    ],
)
def test_the_base_model_is_the_largest_that_more_than_half_can_train(
    flops: list[float], memory: float, rung: int
) -> None:
    fleet = Fleet({i: device(f, memory) for i, f in enumerate(flops)}, dict.fromkeys(range(len(flops)), 2))
    rungs = [CHEAP, DEAR, Demand(sample=160.0, peak=100.0, batch=1)]
    assert base_rung(rungs, fleet, seconds=10.0, epochs=5) == rung


def test_a_ladder_is_left_at_the_first_rung_that_fails() -> None:
    fleet = Fleet({0: device(10.0)}, {0: 1})
    odd = Demand(sample=1.0, peak=1e9, batch=1)  # it does not fit, though the one above would
    assert base_rung([CHEAP, odd, CHEAP], fleet, 10.0, 1) == 0


def test_the_usual_time_is_the_least_in_which_more_than_half_are_done() -> None:
    fleet = Fleet({i: device(f) for i, f in enumerate((1.0, 2.0, 5.0, 10.0))}, dict.fromkeys(range(4), 1))
    seconds = usual(CHEAP, fleet, 1)
    assert seconds == pytest.approx(5.0) and base_rung([CHEAP, CHEAP], fleet, seconds, 1) == 1
    assert base_rung([CHEAP, CHEAP], fleet, 0.99 * seconds, 1) == 0


@pytest.mark.parametrize(
    ("flops", "memory", "samples", "kind"),
    [
        (10, 1000, 10, "sufficient"),
        (9, 1000, 10, "insufficient"),
        (9, 1000, 9, "sufficient"),  # fewer samples take less
        (40, 1000, 10, "colossal"),
        (40, 99, 10, "sufficient"),  # the larger net does not fit
        (40, 9, 10, "insufficient"),
    ],
)
def test_a_class_is_what_time_and_memory_allow(flops: float, memory: float, samples: int, kind: str) -> None:
    means = Means(seconds=10.0, base=CHEAP, larger=DEAR)
    assert means.of(device(flops, memory), samples, 1) == kind


def test_on_an_unknown_fleet_the_class_goes_by_width() -> None:
    widths = {0.2: "insufficient", 0.49: "insufficient", 0.5: "sufficient", 0.99: "sufficient", 1.0: "colossal"}
    assert {w: Means().of(Device(width=w), 10, 1) for w in widths} == widths


def test_a_run_has_the_base_model_and_the_classes_of_its_fleet() -> None:
    """On the data's own net: with more time the base model is larger, and with little it is smaller."""
    given = {"name": "mpfl", "epochs": 1, "fraction": 1.0}
    run = Run(method=given, clients=5, partition="iid", model="mlp:hidden=16,16")
    plain = prepare(run)
    assert plain.sim.model.spec == prepare(replace(run, method="fedavg")).sim.model.spec
    local: Any = plain.sim.method.local
    schedule: Any = plain.sim.method.schedule
    assert 0 < local.seconds < schedule.seconds, "more than half are done before the slowest, who says how long it is"
    of = [local.means.of(d, plain.sim.fleet.sizes[i], 1) for i, d in sorted(plain.sim.fleet.devices.items())]
    assert 2 * sum(k != "insufficient" for k in of) > 5 and len(set(of)) == 3
    counts = [
        prepare(replace(run, method={**given, "seconds": local.seconds * s})).sim.model.count() for s in (0.01, 1, 9)
    ]
    assert counts[0] < plain.sim.model.count() <= counts[1] < counts[2]


def test_a_ladder_holds_the_net_itself_and_leaves_out_what_cannot_be() -> None:
    scales = (0.5, 1.0, 1.25, (1.0, 1), (1.25, 1))
    m = build(FAMILIES["mlp"].model, KEY)
    assert [r.count() for r in ladder(m, scales, KEY)] == sorted(r.count() for r in ladder(m, scales, KEY))
    assert len(ladder(m, scales, KEY)) == 5 and any(r is m for r in ladder(m, scales, KEY))
    tied = build(FAMILIES["lstm-tied"].model, KEY)
    assert [r.count() < tied.count() for r in ladder(tied, scales, KEY)] == [True, False]


# ---- growth
@pytest.mark.parametrize("family", FAMILIES)
def test_growth_preserves_what_the_net_says(family: str) -> None:
    kind = FAMILIES[family]
    m = build(kind.model, KEY)
    p = {k: v + 0.1 * torch.rand(v.shape, generator=KEY.at(k).torch()) if v.is_floating_point() else v
         for k, v in m.params().items()}  # fmt: skip
    large, grown = enlarged(m, p, 1.5, 2, KEY)
    x = kind.data(6, KEY).x
    m.net.eval()
    large.net.eval()
    with torch.no_grad():
        a, b = (call(n.net, {k: v.clone() for k, v in q.items()}, x).logits for n, q in ((m, p), (large, grown)))
    assert torch.allclose(a, b, rtol=1e-4, atol=1e-4 * float(a.abs().max()))
    assert large.count() > m.count() or family in ("lstm-tied", "vgg-cut")
    shared = [k for k in m.trainable if m.stages and k.startswith(m.stages[0] + ".")]
    assert shared and all(large.shapes[k] == m.shapes[k] for k in shared), "the first stage is there for both"


# ---- a client of sufficient means
def worked(local: Any, memory: Memory | None = None, name: str = "cnn", **more: Any) -> tuple[Reply, Memory, list[Any]]:
    m, run = tiny(name), engine(name)
    c = client(m, task(name), memory=memory or Memory())
    reply, after = drive(run, local(more.get("order") or order(weights(m), m.whole), c))
    return reply, after, run.asked


def test_the_personal_units_are_shared_and_the_rest_stays_at_home() -> None:
    local = Personalised(Train(SGD(0.1), epochs=4, batch=5), ratio=0.25)
    reply, memory, asked = worked(local)
    m = tiny("cnn")
    early, late = asked
    assert isinstance(early, Fit) and early.epochs == 1 and early.free is None and late.epochs == 3
    first = engine("cnn").answer(early)
    scores = unit_scores(m, {k: first.params[k] for k in m.trainable}, "l2")  # type: ignore[union-attr]
    units = heard(reply)
    for g, n in m.groups.items():
        kept = scores[g].sort(descending=True).indices[: count_units(0.75, n)].sort().values
        assert torch.equal(units[g], kept) and torch.equal(section(memory, "kept")[g], kept)
    assert reply.cover == m.cover(units) == late.free and reply.metrics["anew"] == 1
    held = section(memory, "model")
    outside = m.whole - reply.cover
    assert outside.only(m.trainable.__contains__).numel > 0
    for k in outside.only(m.trainable.__contains__):
        home = outside[k].take(held[k])
        assert torch.equal(home, outside[k].take(first.params[k])), "what is pruned stops with the early epochs"  # type: ignore[union-attr]
        assert not torch.equal(home, outside[k].take(early.start[k])) or "conv.bias" in k
    assert all(torch.equal(v, reply.cover[k].take(held[k])) for k, v in reply.params.items())


def test_what_arrives_replaces_the_personal_units_alone() -> None:
    local = Personalised(Train(SGD(0.0), epochs=2, batch=5))
    reply, memory, _ = worked(local)
    m = tiny("cnn")
    news = {k: v + 1 for k, v in reply.params.items()}
    again = replace(order(weights(m), m.whole), params=news, cover=reply.cover, round=1)
    second, after, _ = worked(local, memory, order=again)
    held = section(after, "model")
    for k in m.trainable:
        assert torch.equal(reply.cover[k].take(held[k]), news[k])
    outside = (m.whole - reply.cover).only(m.trainable.__contains__)
    assert all(torch.equal(outside[k].take(held[k]), outside[k].take(section(memory, "model")[k])) for k in outside)
    assert second.metrics["anew"] == 0 and second.cover == reply.cover


# ---- a client of insufficient means
def test_units_are_pruned_and_spliced_by_hand() -> None:
    scores = {"g": torch.tensor([4.0, 3.0, 2.0, 1.0])}
    held = surgery(scores, {}, 0.5, 0.1)
    assert held["g"].tolist() == [0, 1]
    near = {"g": torch.tensor([4.0, 3.0, 3.2, 1.0])}  # more than what is held, but not by a tenth
    assert surgery(near, held, 0.5, 0.1)["g"].tolist() == [0, 1] and surgery(near, held, 0.5, 0.0)["g"].tolist() == [
        0,
        2,
    ]
    assert surgery({"g": torch.tensor([4.0, 3.0, 3.4, 1.0])}, held, 0.5, 0.1)["g"].tolist() == [0, 2]
    assert surgery(scores, {}, 0.1, 0.1)["g"].tolist() == [0], "one remains"


def test_a_small_net_is_taught_and_teaches() -> None:
    train = Train(SGD(0.1), epochs=4, batch=5)
    local = Shrunk(train, Lessons(until=0.5), 0.5, personal=Personalised(train))
    reply, memory, (own, taught, early, late) = worked(local)
    m = tiny("cnn")
    assert own.start["conv2.conv.weight"].shape == (2, 2, 3, 3) and own.peers["base"].params == taught.start
    assert (own.main, taught.main, taught.epochs, early.epochs, late.epochs) == (0.5, 0.5, 2, 1, 1)
    assert [type(t).__name__ for t in taught.terms] == ["Attention", "Distil"] and not early.terms
    assert same(dict(taught.peers["small"].params), section(memory, "small"))
    assert late.free == reply.cover and reply.metrics["halted"] == 2
    c = client(m, task("cnn"), memory=memory)
    served = drive(engine("cnn"), local.serve(order(weights(m), m.whole), c))
    assert same(served.params, section(memory, "small"))


# ---- halting
def test_the_halting_epoch_is_the_theorem_solved_for_it() -> None:
    given = {"lr": 0.1, "rho": 2.0, "beta": 3.0, "phi": 0.7, "upsilon": 5.0}
    for h in range(1, 20):
        assert halting_epoch(bound(h, **given), 40, **given) == h
        assert halting_epoch(0.999 * bound(h, **given), 40, **given) == h + 1, "less is met only later"
    # by hand: eps^2 v eta (2 - beta eta) / 2 rho phi = 0.01 * 5 * 0.1 * 1.7 / 2.8; its log over ln 0.7, less 1
    assert math.log(0.0085 / 2.8) / math.log(0.7) - 1 == pytest.approx(15.25, abs=0.01)
    assert halting_epoch(0.1, 40, **given) == 16 and halting_epoch(0.1, 10, **given) == 9
    assert halting_epoch(100.0, 40, **given) == 1, "anything goes"


@pytest.mark.parametrize(
    ("more", "epoch"),
    [({"phi": 0.0}, 1), ({"upsilon": math.inf}, 1), ({"beta": 0.0}, 1), ({"beta": 10.0}, 9), ({"beta": 20.0}, 9)],
)
def test_where_the_theorem_says_nothing(more: dict[str, float], epoch: int) -> None:
    given = {"lr": 0.1, "rho": 2.0, "beta": 3.0, "phi": 0.7, "upsilon": 5.0} | more
    assert halting_epoch(0.1, 10, **given) == epoch


def test_estimates_by_hand() -> None:
    found = estimates([Apart(1.0, -0.5, 2.0), Apart(3.0, 0.6, 9.0)])
    assert found == {"rho": 0.5, "beta": 3.0, "phi": 5.5, "upsilon": 1.0}  # distances of 1 and 3 vary by 1
    assert estimates([]) == {"rho": 0.0, "beta": 0.0, "phi": 0.0, "upsilon": math.inf}


def test_a_pilot_compares_help_with_none_and_then_helps_for_as_long_as_that_says() -> None:
    local = Grown(Train(SGD(1e-4), epochs=4, batch=5), Lessons(halting="theorem", epsilon=1e6))
    reply, memory, asked = worked(local)
    fits = [f for f in asked if isinstance(f, Fit)]
    assert [f.epochs for f in fits] == [4, 2, 1, 1, 1, 1] and reply.metrics["halted"] == 4
    assert [("fresh" in f.peers) for f in fits[1:]] == [True, True, False, True, False]
    assert same(dict(fits[2].start), dict(fits[3].start)) and not same(dict(fits[4].start), dict(fits[5].start))
    assert memory.facts["halt"] == 1
    reply, after, asked = worked(local, memory)
    assert [f.epochs for f in asked if isinstance(f, Fit)] == [4, 1, 3] and reply.metrics["halted"] == 1
    assert after.facts["halt"] == 1


def test_operations_that_are_saved_are_counted() -> None:
    def flops(h: float) -> float:
        method = small(METHODS["mpfl"], epochs=4, h1=h)
        _, told = play(world(method, "mlp", widths=(1.0,)), 1)
        assert {c["metrics"]["halted"] for c in told[0].clients} == {math.ceil(4 * h)}
        return float(sum(c["flops"] for c in told[0].clients))

    whole, three, half, one = (flops(h) for h in (1.0, 0.75, 0.5, 0.25))
    assert whole - three == pytest.approx(three - half) == pytest.approx(half - one) and whole - three > 0.02 * whole


# ---- personal again
@pytest.mark.parametrize(
    ("relative", "scores", "fired"),
    [
        (True, [0.5, 0.9, 0.73, 0.7, 0.2, 0.3], [3]),  # 0.7 < 0.8 * 0.9; then it begins anew, from 0.2
        (True, [0.1, 0.2, 0.3], []),
        (False, [0.5, 0.6, 0.79, 0.7], []),  # never reached
        (False, [0.5, 0.85, 0.7, 0.7, 0.9, 0.79], [2, 5]),
    ],
)
def test_a_fall_by_hand(relative: bool, scores: list[float], fired: list[int]) -> None:
    @dataclass(frozen=True)
    class Seen:
        metrics: dict[str, float]

    local, m, best, found = Personalised(threshold=0.8, relative=relative), tiny("cnn"), None, []
    kept = {f"kept/{g}": torch.arange(n) for g, n in m.groups.items()}
    for i, score in enumerate(scores):
        c = client(m, task("cnn"), memory=Memory(kept, {"best": best}))
        work = local.looked(order(weights(m), m.whole), c, weights(m))
        assert isinstance(next(work), Evaluate)
        with pytest.raises(StopIteration) as end:
            work.send(Seen({"accuracy": score}))
        anew, best = end.value.value
        found += [i] if anew else []
    assert found == fired


def test_what_chance_makes_of_few_samples_is_no_fall() -> None:
    """From 0.6 to 0.4: of 20 samples chance makes twice 0.155, of 100 twice 0.069."""
    local = Personalised(threshold=0.8)
    assert not local.fallen(0.4, 0.6, 20) and local.fallen(0.4, 0.6, 100) and local.fallen(0.4, 0.6)
    assert local.fallen(0.2, 0.6, 20) and Personalised(threshold=0.8, sure=1.0).fallen(0.4, 0.6, 20)
    assert not local.fallen(0.55, 0.6, 10**6), "not a fifth less"


def test_where_less_is_better_a_fall_is_a_rise() -> None:
    local = Personalised(threshold=0.8)
    assert local.fallen(-1.3, -1.0) and not local.fallen(-1.2, -1.0) and not local.fallen(-0.5, -1.0)


def test_units_are_found_again_after_a_drift_and_not_before() -> None:
    """In round 5 everybody's digits are drowned in noise: accuracy falls then, and before it does not."""
    method = {"name": "mpfl", "fraction": 1.0, "epochs": 2, "batch": 16, "lr": 0.1, "threshold": 0.7}
    settings = {"model": "mlp:hidden=32", "fleet": "tiers:1", "schedule": "sync", "rounds": 7, "eval_every": 0}
    run = Run(method=method, clients=4, partition="iid", **settings)
    still, moved = start(run), start(replace(run, drift="noise:2:at=5"))
    for done, expected in ((still, set()), (moved, {6})):
        anew = [(c["round"], c["client"]) for c in done.history.clients if c["metrics"]["anew"]]
        assert {i for r, i in anew if r == 1} == {0, 1, 2, 3}, "in its first round each finds them"
        assert {r for r, _ in anew if r > 1} == expected
    assert {i for r, i in anew if r == 6} == {0, 1, 2, 3}


# ---- the whole
@pytest.mark.parametrize("family", ["cnn", "resnet-group", "lstm"])
def test_with_nothing_to_resize_and_nothing_pruned_it_is_fedavg(family: str) -> None:
    def end(**given: Any) -> Any:
        method = replace(small(METHODS["mpfl"], **given), schedule=Sync(1.0))
        return all_bits(dict(play(world(method, family, widths=(0.7,)), 3)[0].state.params))

    plain = all_bits(dict(play(world(small(METHODS["fedavg"]), family, widths=(0.7,)), 3)[0].state.params))
    assert end(ratio=0.0, early=1.0) == plain != end(ratio=0.25, early=1.0)


def test_all_three_classes_work_side_by_side_and_everybody_is_served_its_own() -> None:
    sim = world(small(METHODS["mpfl"], epochs=2))
    now, told = play(sim, 2)
    kinds = {c["client"]: c["metrics"]["class"] for c in told[-1].clients}
    assert set(kinds.values()) == {0.0, 1.0, 2.0}
    orders = {o.client: o for o in sim.method.plan(now.state, sim.fleet, sim.model, sim.key)}
    for i, kind in kinds.items():
        memory = sim.site.memories.load(i, now.state.versions[i])
        assert any(k.startswith({0: "small/", 1: "kept/", 2: "large/"}[int(kind)]) for k in memory.tensors)
        assert (orders[i].cover == sim.model.whole) == (kind == 2), "who holds a larger net is sent all"


def test_without_distillation_no_net_looks_at_another() -> None:
    for kind, width in (("colossal", 1.0), ("insufficient", 0.2)):
        method = small(METHODS["mpfl"], epochs=2, distil=False)
        local: Any = method.local
        _, _, asked = worked(getattr(local, kind))
        assert not any(f.terms for f in asked if isinstance(f, Fit)) and method.local.means.of(
            Device(width=width), 9, 1
        )
        assert all(f.main == 1 for f in asked if isinstance(f, Fit))


def test_it_runs_by_its_name_in_windows() -> None:
    settings = {"model": "mlp:hidden=16,16", "fleet": "phones128", "rounds": 4, "eval_every": 0}
    done = start(Run(method={"name": "mpfl", "epochs": 2}, clients=10, **settings))
    assert done.figures()["outcomes"].keys() == {"accepted"}
    assert len(done.history.rounds[0]["asked"]) == 8, "eight of ten, chosen once"
    assert {c["client"] for c in done.history.clients} <= set(done.history.rounds[0]["asked"])
    assert any(c["staleness"] for c in done.history.clients)


@pytest.mark.parametrize(
    "given", [{"shares": "0.5,0.5"}, {"shares": "0.5,0.2,0.2"}, {"ratio": 1.5}, {"wider": 0.5}, {"smaller": 0.0},
              {"halting": "never"}, {"h1": 2.0}, {"window": 0.0}, {"delta": 3.0}, {"fraction": 0.0}],
)  # fmt: skip
def test_what_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadSetting):
        prepare(Run.of({"method": "mpfl", **given}))


def test_a_local_that_takes_shares_of_its_epochs_needs_their_number() -> None:
    from fedquilt.parts.local import Length

    with pytest.raises(ValueError, match="epochs is a number here"):
        worked(Personalised(Train(epochs=Length(1, 2))))


def test_the_spec_of_a_base_model_is_drawn_from_the_runs_key() -> None:
    given = {"name": "mpfl", "epochs": 1, "seconds": 1e9}
    a, b = (prepare(Run(method=given, clients=5, seed=s)).sim.model for s in (0, 1))
    assert a.spec == b.spec and not same(a.params(), b.params())
    local = Threefold(seconds=1.0)
    fleet = Fleet({0: device(1.0)}, {0: 1})
    m = build(SPECS["mlp"], Key(0))
    assert local.fitted(m, fleet, lambda m: CHEAP)[1] is m and fitted.__module__ == "fedquilt.fitting"
