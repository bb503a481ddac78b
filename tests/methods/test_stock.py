"""Dense, width and personal methods: reductions to their parents, cases by hand, and what never moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedquilt.cover import Cover, Params, count_units
from fedquilt.drive.score import score, wanted
from fedquilt.drive.sim import Now, Simulator
from fedquilt.drive.wire import decode_reply
from fedquilt.fit import Evaluate, Fit, Gradient
from fedquilt.fleet import Device
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.norm import is_statistic
from fedquilt.parts.control import Dynamic
from fedquilt.parts.local import Length, Train
from fedquilt.parts.merge import CoverMean, Filled, Mixed, ServerAdam
from fedquilt.parts.schedule import Buffered
from fedquilt.parts.send import Random, Rolling
from fedquilt.parts.stop import Plateau
from fedquilt.parts.terms import Proximal
from fedquilt.parts.utility import Utility
from fedquilt.types import EVERYONE, Handle, Order, Reply

from ..laws.strategies import all_bits
from ..world import play, small, world
from .hand import fleet, params, reply, state

SOME = ("cnn", "resnet-group", "lstm-tied", "vit", "mlp-regression")
some = pytest.mark.parametrize("family", SOME)


def sim_of(name: str, family: str = "mlp", widths: tuple[float, ...] = (1.0,), **given: Any) -> Simulator:
    """A world; ``norm`` and ``merge`` replace the method's own."""
    own = {k: given.pop(k) for k in ("norm", "merge") if k in given}
    return world(replace(small(METHODS[name], **given), **own), family, widths=widths)


def end(name: str, family: str, rounds: int = 2, widths: tuple[float, ...] = (1.0,), **given: Any) -> Params:
    return dict(play(sim_of(name, family, widths, **given), rounds)[0].state.params)


def kept(sim: Simulator, now: Now, client: int, section: str) -> Params:
    memory = sim.site.memories.load(client, now.state.versions[client])  # type: ignore[attr-defined]
    return {k.removeprefix(section + "/"): v for k, v in memory.tensors.items() if k.startswith(section + "/")}


def answered(sim: Simulator, now: Now | None = None, at: int = 0) -> tuple[Order, Reply]:
    """What one client is sent, and what it says."""
    begun = (now or sim.begin()).state
    order = sim.method.plan(begun, sim.fleet, sim.model, sim.key, (), sim.run)[at]
    [done] = sim.site.work([order])
    return order, decode_reply(done.reply or b"", order)


def pooled(sim: Simulator) -> tuple[Params, Params]:
    """The initial model, and the gradient there on everybody's data together."""
    start = dict(sim.begin().state.params)
    ask = Gradient(sim.model, sim.site.task, start, Handle(EVERYONE, "train"), Key(0))  # type: ignore[attr-defined]
    return start, sim.site.engine.answer(ask).params  # type: ignore[attr-defined]


def close(a: Params, b: Params, tolerance: float = 1e-5) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(v, b[k], rtol=tolerance, atol=tolerance) for k, v in a.items())


# ---- reductions to the bit
OFF: dict[str, dict[str, Any]] = {  # settings that switch the difference off
    "efd": {"norm": "shared"},
    "feddrop": {"ratio": 1.0},
    "fedrolex": {"masked": False, "scaler": False, "posthoc": False},
    "fedper": {"head": ("none of them",)},
    "fedrep": {"head": ("none of them",), "head_epochs": 2, "body_epochs": 1},
    "ditto": {},
    "apfl": {"alpha": 0.3},
    "fedbuff": {},
    "feddyn": {"alpha": 0.0, "merge": CoverMean("uniform")},
}
NEAR: dict[str, dict[str, Any]] = {
    "efd": {"widths": (0.8,)},
    "feddrop": {"ratio": 0.9},
    "fedrolex": {"masked": False, "scaler": False, "posthoc": False, "widths": (0.8,)},
    "fedper": {},
    "fedrep": {"body_epochs": 1},
    "feddyn": {"alpha": 1e-3, "merge": CoverMean("uniform")},
}
UNIFORM = {"fedrolex", "fedrep", "apfl", "fedbuff", "feddyn"}


@some
@pytest.mark.parametrize("name", OFF)
def test_with_its_difference_off_it_is_fedavg(name: str, family: str) -> None:
    """Ditto's and APFL's shared models always are."""
    parent = all_bits(end("fedavg", family, weight="uniform" if name in UNIFORM else "samples"))
    assert all_bits(end(name, family, **OFF[name])) == parent
    if name in NEAR:
        assert all_bits(end(name, family, **NEAR[name])) != parent


@pytest.mark.parametrize("family", ["cnn-none", "lstm", "mlp", "cnn"])
def test_fedbn_without_norm_layers_is_fedavg(family: str) -> None:
    same = all_bits(end("fedbn", family)) == all_bits(end("fedavg", family))
    assert same == (family != "cnn")


@some
def test_scaffold_begins_as_fedavg(family: str) -> None:
    """All variates are zero in the first round, and in the second none is."""
    first, second = (all_bits(end("scaffold", family, n)) for n in (1, 2))
    assert first == all_bits(end("fedavg", family, 1, weight="uniform"))
    assert second != all_bits(end("fedavg", family, 2, weight="uniform"))


@some
def test_fedasync_of_one_client_that_replaces_the_model_is_its_training(family: str) -> None:
    def alone(name: str, **given: Any) -> Any:
        method = replace(small(METHODS[name], **given), schedule=Buffered(1, 1))
        return all_bits(dict(play(world(method, family, clients=1, widths=(1.0,)), 3)[0].state.params))

    assert alone("fedasync", alpha=1.0, mu=0.0) == alone("fedavg") != alone("fedasync", alpha=0.9, mu=0.0)


@some
@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_an_optimiser_that_does_not_adapt_is_fedavg(name: str, family: str) -> None:
    """Without momentum and with a fixed second moment of tau squared, the step is lr / (2 tau) times the change."""
    still = {"server_lr": 2e-3, "beta1": 0.0, "beta2": 1.0, "tau": 1e-3}
    parent = end("fedavg", family, 1)
    assert close(end(name, family, 1, **still), parent)
    assert not close(end(name, family, 1, **(still | {"beta2": 0.99})), parent)


@some
def test_perfedavg_without_an_inner_step_is_gradient_descent(family: str) -> None:
    given = {"batch": 100, "lr": 0.1}
    plain = end("fedavg", family, 1, weight="uniform", **given)
    assert close(end("perfedavg", family, 1, alpha=0.0, steps=1, **given), plain)
    assert not close(end("perfedavg", family, 1, alpha=0.5, steps=1, **given), plain)


@some
def test_pfedme_with_one_inner_step_is_gradient_descent(family: str) -> None:
    """w - eta lam (w - (w - lr g)) = w - eta lam lr g; and without a pull nothing that is trained moves."""
    given = {"steps": 1, "inner": 1, "batch": 100, "lr": 0.2, "eta": 0.1}
    plain = end("fedavg", family, 1, weight="uniform", batch=100, lr=0.2 * 0.1 * 15)
    assert close(end("pfedme", family, 1, lam=15.0, **given), plain)
    sim = sim_of("pfedme", family, lam=0.0, **given)
    still = dict(play(sim, 1)[0].state.params)
    assert all(torch.equal(still[k], sim.model.params()[k]) for k in sim.model.trainable)


# ---- fedavg and fedprox
@pytest.mark.parametrize("family", ["cnn-none", "lstm", "mlp-regression"])
def test_one_full_batch_of_all_is_a_step_on_the_pooled_loss(family: str) -> None:
    sim = sim_of("fedavg", family, batch=1000, lr=0.1)
    start, gradient = pooled(sim)
    now, _ = play(sim, 1)
    assert close(dict(now.state.params), start | {k: start[k] - 0.1 * g for k, g in gradient.items()})


def test_one_clients_mean_is_that_client() -> None:
    sim = world(small(METHODS["fedavg"]), "cnn", clients=1)
    _, got = answered(sim)
    assert all_bits(dict(play(sim, 1)[0].state.params)) == all_bits(dict(got.params))


def test_the_stronger_the_pull_the_nearer_to_what_was_received() -> None:
    far = []
    for mu in (0.0, 5.0, 19.0):
        order, got = answered(sim_of("fedprox", mu=mu))
        far.append(sum(float((v - order.params[k]).square().sum()) for k, v in got.params.items()))
    assert far[0] > far[1] > far[2]


def test_variants_of_the_comparing_papers() -> None:
    """FLrce draws 3 to 5 epochs for FedProx, and keeps three quarters of the units in federated dropout."""
    seed = METHODS["fedprox"](variant="seed").local
    assert isinstance(seed, Train) and seed.epochs == Length(3, 5) and seed.terms == (Proximal(0.05),)
    assert METHODS["feddrop"](variant="seed").send == Random(0.75)
    sim = world(METHODS["fedprox"](variant="seed", fraction=1.0, batch=4), "mlp", clients=12)
    steps = {c["steps"] for c in play(sim, 1)[1][0].clients}
    assert steps == {3 * 4, 4 * 4, 5 * 4}


# ---- servers by hand
def stepped(merge: Any, *rounds: list[Reply], start: Params, clients: int = 2) -> list[Params]:
    """The model after each of these rounds."""
    note, p, out = None, start, []
    for t, replies in enumerate(rounds):
        note = merge.learn(note, state(p, t), replies, fleet(clients))
        p = merge(state(p, t, merge=note), replies)
        out.append(p)
    return out


@pytest.mark.parametrize("yogi", [False, True])
def test_adaptive_servers_by_hand(yogi: bool) -> None:
    """Two rounds in which the only client changes the first of two numbers by 1, and nobody speaks of the second."""
    start, part = params(0.0, 5.0), Cover.masks({"w": torch.tensor([True, False])})
    merge = ServerAdam(0.1, 0.9, 0.99, 0.01, yogi)
    said = [reply(0, {"w": torch.tensor([1.0])}, start, cover=part)]
    first = stepped(merge, said, start=start)[0]["w"]
    v = 1e-4 + 0.01 if yogi else 0.99 * 1e-4 + 0.01
    assert first[0].item() == pytest.approx(0.1 * 0.1 / (v**0.5 + 0.01), rel=1e-6) and first[1] == 5.0
    again = [reply(0, {"w": first[:1] + 1.0}, {"w": first}, 1, cover=part)]
    second = stepped(merge, said, again, start=start)[1]["w"]
    m, v = 0.9 * 0.1 + 0.1, (v + 0.01 if yogi else 0.99 * v + 0.01)
    assert second[0].item() == pytest.approx(first[0].item() + 0.1 * m / (v**0.5 + 0.01), rel=1e-5) and second[1] == 5.0


def test_feddyns_server_by_hand() -> None:
    """Changes 1 and 3 of two clients of four: the mean is 2, h = -alpha (1 + 3) / 4, and -h / alpha adds 1."""
    zero = params(0.0)
    replies = [reply(0, params(1.0), zero), reply(1, params(3.0), zero)]
    [p] = stepped(Dynamic(0.1), replies, start=zero, clients=4)
    assert p["w"].item() == pytest.approx(3.0)
    back = [reply(i, p, p, 1) for i in (0, 1)]
    assert stepped(Dynamic(0.1), replies, back, start=zero, clients=4)[1]["w"].item() == pytest.approx(4.0), "h stays"


def test_late_replies_by_hand() -> None:
    """FedBuff: 1 + 0.5 x 2 over two; FedAsync: half of the way, then a quarter of what is left."""
    old, now = params(0.0), state(params(10.0), 3)
    fresh, late = reply(0, params(11.0), params(10.0), 3), reply(1, params(2.0), old, 0)
    assert Filled("uniform", 1.0, 0.5)(now, [fresh, late])["w"].tolist() == [10 + (1 + 2 * 0.5) / 2]
    one = Mixed(0.5, 0.5)(now, [fresh])["w"]
    assert one.tolist() == [10.5]
    assert Mixed(0.5, 0.5)(now, [fresh, late])["w"].tolist() == [10.5 + 0.25 * (2 - 10.5)]


# ---- control variates
@pytest.mark.parametrize("family", ["cnn", "mlp-regression"])
def test_scaffolds_variates_are_mean_gradients_and_the_servers_their_mean(family: str) -> None:
    sim = sim_of("scaffold", family)
    order, got = answered(sim)
    steps = 4
    for k in sim.model.trainable:
        moved = (order.params[k] - got.params[k]) / (steps * 0.05)
        assert torch.allclose(got.extra[f"dc/{k}"], moved, atol=1e-6)
    now, _ = play(sim, 3)
    for k, c in now.state.notes["merge"]["c"].items():
        each = torch.stack([kept(sim, now, i, "c")[k] for i in range(5)])
        assert torch.allclose(c, each.mean(0), atol=1e-6), "everybody took part"


def test_feddyns_client_by_hand() -> None:
    """One full step: the pull is nothing at the anchor, so g becomes alpha lr times the gradient; then it corrects."""
    sim = sim_of("feddyn", "mlp-regression", alpha=0.5, batch=1000, lr=0.1)
    order, got = answered(sim)
    at = (sim.model, sim.site.task, dict(order.params), Handle(0, "train"), Key(0))  # type: ignore[attr-defined]
    gradient = sim.site.engine.answer(Gradient(*at)).params  # type: ignore[attr-defined]
    now, _ = play(sim, 1)
    g = kept(sim, now, 0, "g")
    assert close(dict(got.params), {k: order.params[k] - 0.1 * v for k, v in gradient.items()})
    assert close(g, {k: 0.5 * 0.1 * v for k, v in gradient.items()})
    order, got = answered(sim, now)
    at = (sim.model, sim.site.task, dict(order.params), Handle(0, "train"), Key(0))  # type: ignore[attr-defined]
    gradient = sim.site.engine.answer(Gradient(*at)).params  # type: ignore[attr-defined]
    assert close(dict(got.params), {k: order.params[k] - 0.1 * (v - g[k]) for k, v in gradient.items()})


# ---- what a client uses
@pytest.mark.parametrize("name", ["feddrop", "fedmp"])
@pytest.mark.parametrize("family", ["cnn", "lstm"])
def test_who_trains_a_part_for_speed_uses_the_whole(name: str, family: str) -> None:
    """The part is drawn for one round of work; nobody is judged by it.  What a device cannot carry it does not use."""
    sim = sim_of(name, family, (0.2, 1.0))
    now, _ = play(sim, 1)
    every = score(sim, now.state, range(5), ("test",))
    for order in wanted(sim, now.state, range(5)):
        assert order.cover == sim.model.whole and all_bits(dict(order.params)) == all_bits(dict(now.state.params))
        ask = Evaluate(sim.model, sim.site.task, dict(now.state.params), Handle(order.client, "test"))  # type: ignore[attr-defined]
        assert every[order.client]["loss"] == sim.site.engine.answer(ask).metrics["loss"]  # type: ignore[attr-defined]
    assert all(o.cover != sim.model.whole for o in sim.method.plan(now.state, sim.fleet, sim.model, sim.key))
    weak = sim_of("efd", family, (0.2,))
    assert all(o.cover != weak.model.whole for o in wanted(weak, weak.begin().state, range(5)))


# ---- windows and random units
NETS = ("cnn", "convnet", "resnet", "lstm", "vit")


def units(part: Any, sim: Simulator, round: int, client: int = 0, width: float = 0.5) -> dict[str, set[int]]:
    key = sim.key.at(round, "send", client)
    cover = part(replace(sim.begin().state, round=round), client, Device(width=width), sim.model, key)
    return {g: set(u.tolist()) for g, u in sim.model.units(cover).items()}


@pytest.mark.parametrize("family", NETS)
def test_a_window_has_been_everywhere_after_so_many_rounds(family: str) -> None:
    sim = sim_of("fedrolex", family)
    for g, n in sim.model.groups.items():
        m = count_units(0.5, n)
        seen = [units(Rolling(), sim, r)[g] for r in range(n)]
        covered = [len(set().union(*seen[: r + 1])) for r in range(n)]
        assert covered.index(n) + 1 == n - m + 1
        assert set(Counter(u for s in seen for u in s).values()) == {m}, "each unit m times in n rounds"
        assert seen[0] == set(range(m)) == units(Rolling(), sim, n)[g], "at 0 and n it is HeteroFL's prefix"
    assert units(Rolling(), sim, 3, 0) == units(Rolling(), sim, 3, 4), "the same for every client"


@pytest.mark.parametrize("family", NETS)
def test_random_units_are_as_many_for_all_and_each_as_likely(family: str) -> None:
    sim = sim_of("feddrop", family)
    drawn = [units(Random(0.5), sim, r, c) for r in range(40) for c in range(5)]
    for g, n in sim.model.groups.items():
        m = count_units(0.5, n)
        assert {len(u[g]) for u in drawn} == {m}
        often = Counter(unit for u in drawn for unit in u[g])
        assert all(abs(often[i] / 200 - m / n) < 0.15 for i in range(n))
    if max(sim.model.groups.values()) > 4:
        assert len({repr(sorted(u.items())) for u in drawn}) > 5, "fresh for each client and round"


def test_efd_trains_the_target_whole_where_it_fits() -> None:
    sim = sim_of("efd", "cnn")
    for target in (0.25, 0.5):
        prefix = {g: set(range(count_units(target, n))) for g, n in sim.model.groups.items()}
        assert units(Random(target=target), sim, 0, width=0.5) == prefix
        part = units(Random(target=target), sim, 0, width=0.2)
        assert all(u < prefix[g] and len(u) == count_units(0.2, sim.model.groups[g]) for g, u in part.items())
    now, _ = play(sim_of("efd", "cnn", (0.2, 1.0), target=0.5), 2)
    inside = sim.model.prefix(0.5)
    for k, v in now.state.params.items():
        out = ~inside[k].dense()
        assert torch.equal(v[out], sim.model.params()[k][out]), "what lies beyond the target is never touched"


# ---- personal parts
@some
@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_heads_stay_at_home(name: str, family: str) -> None:
    sim = world(replace(small(METHODS[name], fraction=0.6)), family, widths=(1.0,))
    head = {k for k in sim.model.shapes if k.startswith(sim.model.head + ".")}
    now, told = play(sim, 2)
    order, got = answered(sim, now)
    assert head and not head & (order.cover.spans.keys() | got.cover.spans.keys())
    assert all(torch.equal(now.state.params[k], sim.model.params()[k]) for k in head), "the server's is never used"
    asked = {i for r in told for i in r.record["asked"]}
    for i in range(5):
        o = sim.method.order(now.state, i, sim.fleet, sim.model, sim.key, sim.run)
        client = sim.site.client(o, "serve")  # type: ignore[attr-defined]
        served = sim.site.engine._drive(sim.method.local.serve(o, client), [])  # type: ignore[attr-defined]
        mine = kept(sim, now, i, "model") if i in asked else sim.model.params()
        assert all(torch.equal(served.params[k], mine[k]) for k in head), "the old head"
        assert all(torch.equal(served.params[k], now.state.params[k]) for k in order.cover), "on the new base"


@some
def test_fedreps_phases_freeze_each_other(family: str) -> None:
    still = sim_of("fedrep", family, body_epochs=0, head_epochs=2, momentum=0.9)
    order, got = answered(still)
    assert all_bits(dict(got.params)) == all_bits(dict(order.params)), "statistics too"
    now, _ = play(still, 1)
    head = {k for k in still.model.shapes if k.startswith(still.model.head + ".")}
    assert all(not torch.equal(kept(still, now, 0, "model")[k], still.model.params()[k]) for k in head)
    other = sim_of("fedrep", family, body_epochs=1, head_epochs=0, momentum=0.9)
    now, _ = play(other, 1)
    assert all(torch.equal(kept(other, now, 0, "model")[k], other.model.params()[k]) for k in head)


def test_norm_layers_stay_at_home_in_fedbn() -> None:
    sim = sim_of("fedbn", "cnn")
    now, _ = play(sim, 2)
    order, got = answered(sim, now)
    assert sim.model.normalising and not sim.model.normalising & (order.cover.spans.keys() | got.cover.spans.keys())
    mine = [kept(sim, now, i, "model") for i in range(5)]
    assert all(m.keys() == sim.model.normalising for m in mine)
    assert any(is_statistic(k) and not torch.equal(mine[0][k], mine[1][k]) for k in mine[0])


def test_dittos_own_model_is_pulled_and_waits_while_others_train() -> None:
    far = []
    for lam in (0.0, 5.0, 19.0):
        sim = sim_of("ditto", lam=lam)
        now, _ = play(sim, 1)
        own, start = kept(sim, now, 0, "own"), sim.model.params()
        far.append(sum(float((v - start[k]).square().sum()) for k, v in own.items()))
    assert far[0] > far[1] > far[2]
    few = sim_of("ditto", fraction=0.4)
    now, _ = play(few, 1)
    after, told = play(few, 1, now)
    for i in set(now.state.versions) - set(told[0].record["asked"]):
        assert all_bits(kept(few, now, i, "own")) == all_bits(kept(few, after, i, "own"))


def test_without_a_pull_ditto_trains_alone() -> None:
    """Its own model is what the same training without the term gives, whatever the federation does."""
    sim = sim_of("ditto", lam=0.0)
    now, _ = play(sim, 2)
    order = sim.method.plan(sim.begin().state, sim.fleet, sim.model, sim.key, (), sim.run)[0]
    p = dict(sim.model.params())
    for r in range(2):
        client = sim.site.client(replace(order, round=r), "work")  # type: ignore[attr-defined]
        key, optim = client.key.at("own"), METHODS["fedavg"](lr=0.05).local.optim  # type: ignore[attr-defined]
        ask = Fit(sim.model, client.task, p, client.train, key, optim, epochs=1, batch=4)
        p = dict(sim.site.engine.answer(ask).params)  # type: ignore[attr-defined]
    assert all_bits(kept(sim, now, 0, "own")) == all_bits(p)


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_serves_the_mixture(adaptive: bool) -> None:
    sim = sim_of("apfl", alpha=0.25, adaptive=adaptive)
    now, _ = play(sim, 2)
    order = sim.method.order(now.state, 0, sim.fleet, sim.model, sim.key, sim.run)
    client = sim.site.client(order, "serve")  # type: ignore[attr-defined]
    served = sim.site.engine._drive(sim.method.local.serve(order, client), [])  # type: ignore[attr-defined]
    alpha = float(client.memory.tensors["alpha"])
    assert (alpha != 0.25) == adaptive and 0 <= alpha <= 1
    own = kept(sim, now, 0, "own")
    for k, v in own.items():
        assert torch.allclose(served.params[k], alpha * v + (1 - alpha) * now.state.params[k], atol=1e-6)


def test_perfedavg_serves_what_one_step_makes_of_it() -> None:
    sim = sim_of("perfedavg", "mlp", alpha=0.3, batch=100)
    now, _ = play(sim, 1)
    order = sim.method.order(now.state, 0, sim.fleet, sim.model, sim.key, sim.run)
    client = sim.site.client(order, "serve")  # type: ignore[attr-defined]
    served = sim.site.engine._drive(sim.method.local.serve(order, client), [])  # type: ignore[attr-defined]
    at = (sim.model, client.task, dict(order.params), client.train, Key(0))
    gradient = sim.site.engine.answer(Gradient(*at)).params  # type: ignore[attr-defined]
    assert close(served.params, {k: order.params[k] - 0.3 * v for k, v in gradient.items()})


@pytest.mark.parametrize("name", ["perfedavg", "pfedme", "pyramidfl", "lotteryfl", "fedspa", "cs"])
def test_every_local_answers_what_parts_ask(name: str) -> None:
    """So that any stop and any selection goes with it."""
    method = replace(small(METHODS[name]), stop=Plateau(), select=Utility())
    _, told = play(world(method, "mlp"), 1)
    assert all(c["metrics"].keys() == {"loss", "val_loss", "rms_loss"} for c in told[0].clients)


def test_evaluating_is_of_the_task(family: str = "mlp") -> None:
    """What ``local`` reaches is its own model's score, not the global one's."""
    sim = sim_of("local", family)
    now, _ = play(sim, 1)
    ask = Evaluate(sim.model, sim.site.task, kept(sim, now, 0, "model"), Handle(0, "test"))  # type: ignore[attr-defined]
    mine = sim.site.engine.answer(ask).metrics  # type: ignore[attr-defined]
    told = next(r for r in score(sim, now.state, [0], ("test",)) if r["client"] == 0)
    assert told["loss"] == mine["loss"]


# ---- HeteroFL's aids
def test_a_client_speaks_of_its_classes_alone_and_rows_of_no_one_stay() -> None:
    """Clients 0 and 1 hold two classes each: the rows of all others are as they were, to the bit."""
    sim = sim_of("heterofl", "cnn", posthoc=False)
    begun = sim.begin().state
    orders = sim.method.plan(begun, sim.fleet, sim.model, sim.key, (), sim.run)[:2]
    replies = []
    for order, labels in zip(orders, ([0, 1], [1, 2]), strict=True):
        client = replace(sim.site.client(order, "work"), labels=torch.tensor(labels))  # type: ignore[attr-defined]
        got, _ = sim.site.engine._drive(sim.method.local(order, client), [])  # type: ignore[attr-defined]
        rows = got.cover[f"{sim.model.head}.weight"].axes
        assert rows is not None and rows[0].tolist() == labels
        replies.append(replace(got, order=order))
    after = sim.method.step(begun, sim.fleet, replies).params
    weight, first = (p[f"{sim.model.head}.weight"] for p in (after, begun.params))
    assert torch.equal(weight[3], first[3]) and all(not torch.equal(weight[i], first[i]) for i in range(3))
    assert torch.equal(weight[0], replies[0].params[f"{sim.model.head}.weight"][0]), "of the one who holds class 0"


@some
def test_the_scaler_is_nothing_at_full_width(family: str) -> None:
    on, off = (all_bits(end("heterofl", family, scaler=s)) for s in (True, False))
    assert on == off
    on, off = (all_bits(end("heterofl", family, 1, (0.6,), scaler=s)) for s in (True, False))
    assert on != off
