"""The laws of normalisation statistics: every policy does what its row of the table says, in real training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedquilt.cover import Axis, Cover, Params, take
from fedquilt.data.shard import Shards
from fedquilt.data.sources import Dataset
from fedquilt.engine import Job, Setup
from fedquilt.engine.serial import Serial
from fedquilt.fit import SGD, Evaluate, Fit, Fitted, Scored
from fedquilt.fleet import Device, Fleet
from fedquilt.key import Key
from fedquilt.method import Method
from fedquilt.model import Model, model
from fedquilt.models import BatchNorm, build
from fedquilt.norm import NORMS, at_width, held, norm, plain, sent, travelling
from fedquilt.parts.local import Train
from fedquilt.parts.send import Ordered, Random
from fedquilt.task import Classification
from fedquilt.types import Client, Handle, Memory, Order, Reply, Send, Served

from .strategies import all_bits, bits

KEY = Key(11)
TASK = Classification(3)
TINY = {"name": "cnn", "input": (1, 4, 4), "classes": 3, "conv": (6, 4), "dense": (5,), "norm": "batch", "bias": False}
RUNNING = [name for name, rule in NORMS.items() if rule.running]


def tiny() -> Model:
    return build(TINY, KEY)


def dense(make: type[nn.Module] = BatchNorm) -> Model:
    """A dense net with batch normalisation: one sample is one value a channel."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), make(6), nn.ReLU())
        net.add_module("head", nn.Linear(6, 3))
    u = Axis("u")
    table = {"1.weight": (u, None), "1.bias": (u,), "head.weight": (None, u)}
    return model(net, table | {f"2.{k}": (u,) for k in ("weight", "bias", "running_mean", "running_var")})


def shards(*sizes: int) -> Shards:
    """Clients with so many training samples each, each from a place of its own; three test samples."""
    x, y, parts, at = [], [], {}, 0
    for client, n in enumerate(sizes):
        g = KEY.at("data", client).torch()
        x.append((1 + client) * torch.randn(n + 3, 1, 4, 4, generator=g) + client + 0.5)
        y.append(torch.randint(3, (n + 3,), generator=g))
        rows = torch.arange(at, at + n + 3)
        parts[client] = {"train": rows[:n], "val": rows[n:], "test": rows[n:]}
        at += n + 3
    return Shards(Dataset("blobs", torch.cat(x), torch.cat(y), TASK, (1, 4, 4), 3), parts)


@dataclass
class World:
    """A run without drivers: orders, work and merges by hand."""

    method: Method
    model: Model
    data: Shards
    fleet: Fleet

    def __post_init__(self) -> None:
        self.engine = Serial(self.data, Setup.resolve(self.model), strict=True)
        self.state = self.method.begin(self.model, self.fleet)
        self.memory: dict[int, Memory] = {}

    def order(self, client: int = 0) -> Order:
        return self.method.order(self.state, client, self.fleet, self.model, KEY)

    def client(self, i: int = 0) -> Client:
        key = KEY.at(self.state.round, "work", i)
        memory, device = self.memory.get(i, Memory()), self.fleet.devices[i]
        return Client(i, self.model, TASK, memory, device, key, self.data.counts(i), self.data.labels(i))

    def asked(self, i: int = 0) -> Fit:
        """The training that a client asks for."""
        request = next(self.method.local(self.order(i), self.client(i)))
        assert isinstance(request, Fit)
        return request

    def work(self, i: int = 0) -> Reply:
        """A client's reply; its memory is kept."""
        (done,) = self.engine.run([Job(self.method.local, self.order(i), self.client(i))])
        reply, self.memory[i] = done.value  # type: ignore[union-attr, misc]
        assert isinstance(reply, Reply)
        return reply

    def round(self, *clients: int) -> None:
        self.state = self.method.step(self.state, self.fleet, [self.work(i) for i in clients])

    def serve(self, i: int = 0) -> Served:
        """The model that a client would use."""
        serving = self.method.local.serve(self.order(i), self.client(i))
        try:
            request = next(serving)
            while True:
                request = serving.send(self.engine.answer(request))
        except StopIteration as end:
            assert isinstance(end.value, Served)
            return end.value

    def score(self, i: int = 0) -> Scored:
        (done,) = self.engine.run([Job(self.method.local, self.order(i), self.client(i), ("test",))])
        return done.value["test"]  # type: ignore[union-attr, index, return-value]


def world(
    policy: str,
    m: Model | None = None,
    send: Send | None = None,
    widths: Mapping[int, float] | None = None,
    **train: object,
) -> World:
    m, widths = m or tiny(), widths or {0: 1.0, 1: 1.0}
    data = shards(*(20 for _ in widths))
    local = Train(SGD(0.1), 2, 10, **train)  # type: ignore[arg-type]
    method = (
        Method("test", local=local, norm=policy)
        if send is None
        else Method("test", send=send, local=local, norm=policy)
    )
    return World(method, m, data, Fleet({i: Device(width=w) for i, w in widths.items()}, {i: 20 for i in widths}))


def of(p: Params | Mapping[str, object], m: Model) -> set[str]:
    """Which of these are statistics, by the net's own names."""
    return {k.partition("@")[0] for k in p} & m.statistics


def answer(m: Model, f: Fit, data: Shards) -> Fitted:
    out = Serial(data, Setup.resolve(m), strict=True).answer(f)
    assert isinstance(out, Fitted)
    return out


def moved(a: Params, b: Params) -> set[str]:
    return {k for k in a if bits(a[k]) != bits(b[k])}


# ---- the table
def test_the_table_is_the_one_that_is_written_down() -> None:
    table = {name: (rule.travel, rule.update, rule.running) for name, rule in NORMS.items()}
    assert table == {
        "shared": (True, True, True),
        "personal": (False, True, True),
        "batch": (False, False, False),
        "post-hoc": (False, False, True),
        "per-width": (True, True, True),
        "frozen": (True, True, True),
    }


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(
        ValueError, match="is called 'shard'; there are shared, personal, batch, post-hoc, per-width, fr"
    ):
        norm("shard")
    with pytest.raises(ValueError, match="no policy"):
        Method("test", norm="")


def test_the_tiny_net_has_statistics() -> None:
    m = tiny()
    assert m.statistics == {f"conv{i}.norm.running_{s}" for i in (1, 2) for s in ("mean", "var")}
    assert dense().statistics == {"2.running_mean", "2.running_var"}


# ---- what travels
@pytest.mark.parametrize("policy", NORMS)
@pytest.mark.parametrize("send", [None, Ordered(), Random()])
def test_statistics_travel_where_the_table_says_so(policy: str, send: Send | None) -> None:
    w = world(policy, send=send, widths={0: 1.0, 1: 0.5})
    for i in (0, 1):
        order, reply = w.order(i), w.work(i)
        travels = w.model.statistics if NORMS[policy].travel else set()
        assert of(order.cover, w.model) == of(order.params, w.model) == of(reply.params, w.model) == travels
        assert {k.partition("@")[0] for k in order.cover} == w.model.trainable | travels
        assert order.params.keys() == set(order.cover) == set(reply.cover) and reply.cover == order.cover
        assert {"@" in k for k in order.cover} == ({False, True} if policy == "per-width" else {False})
        assert order.norm == policy and order.grant.outer == order.cover
    w.round(0, 1)
    after = {k.partition("@")[0] for k in moved(w.state.params, w.method.begin(w.model, w.fleet).params)}
    assert after == w.model.trainable | travels


@pytest.mark.parametrize("policy", ["personal", "batch", "post-hoc"])
def test_what_does_not_travel_stays_as_it_was_on_the_server(policy: str) -> None:
    w = world(policy)
    before = w.state.params
    w.round(0, 1)
    w.round(1)
    assert moved(before, w.state.params) == w.model.trainable


# ---- what training moves
@pytest.mark.parametrize("policy", NORMS)
def test_training_moves_statistics_where_the_table_says_so(policy: str) -> None:
    m, data = tiny(), shards(20)
    start = m.params() | {k: v + 0.25 for k, v in m.params().items() if k in m.statistics}
    out = answer(m, Fit(m, TASK, start, Handle(0, "train"), KEY, epochs=2, batch=10, norm=policy), data)
    calibrated = policy == "post-hoc"  # at the end, for evaluation
    expected = m.statistics if NORMS[policy].update or calibrated else set()
    assert moved(start, out.params) == m.trainable | expected
    shared = answer(m, Fit(m, TASK, start, Handle(0, "train"), KEY, epochs=2, batch=10), data)
    for k in m.trainable:  # training normalises with the batch, whoever owns the statistics
        assert bits(out.params[k]) == bits(shared.params[k]), k
    if NORMS[policy].update:
        assert all(bits(out.params[k]) == bits(shared.params[k]) for k in m.statistics)
    assert all(v.isfinite().all() for v in out.params.values())


def test_training_moves_them_as_torch_does() -> None:
    ours, theirs, data = dense(), dense(nn.BatchNorm1d), shards(20)
    start = ours.params()
    out = answer(ours, Fit(ours, TASK, start, Handle(0, "train"), KEY, SGD(0.1), epochs=3, batch=10), data)
    net = theirs.net.train()
    x, y = data[Handle(0, "train")]
    optim = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(3):
        for b in KEY.at("epoch", epoch).permutation(20).split(10):
            optim.zero_grad()
            nn.functional.cross_entropy(net(x[b]), y[b]).backward()
            optim.step()
    for k, v in net.state_dict().items():
        if k in out.params:
            assert torch.allclose(v, out.params[k], rtol=1e-5, atol=1e-6), k
    assert net.state_dict().keys() - out.params.keys() == {"2.num_batches_tracked"}


# ---- what evaluation normalises with
def skewed(m: Model) -> Params:
    """Parameters whose statistics are far from those of any data."""
    return {
        k: v + torch.rand(v.shape, generator=KEY.at(k).torch()) if k in m.statistics else v
        for k, v in m.params().items()
    }


@pytest.mark.parametrize("policy", NORMS)
def test_evaluation_normalises_with_what_the_table_says(policy: str) -> None:
    m, data = tiny(), shards(20)
    p, (x, y) = skewed(m), data[Handle(0, "train")]
    engine = Serial(data, Setup.resolve(m), strict=True)
    scored = engine.answer(Evaluate(m, TASK, p, Handle(0, "train"), policy))
    assert isinstance(scored, Scored)
    losses = {}
    for running in (True, False):
        with torch.no_grad():
            out = functional_call(m.net.train(not running), {k: v.clone() for k, v in p.items()}, (x,))
        losses[running] = TASK.metrics(TASK.tally(out, y))["loss"]
    assert abs(losses[True] - losses[False]) > 1e-3
    assert scored.metrics["loss"] == pytest.approx(losses[NORMS[policy].running], rel=1e-6)


@pytest.mark.parametrize("policy", NORMS)
def test_evaluation_leaves_parameters_and_net_alone(policy: str) -> None:
    m, data = tiny(), shards(20)
    p = skewed(m)
    before, net = all_bits(p), all_bits(dict(m.net.state_dict()))
    engine = Serial(data, Setup.resolve(m), strict=True)
    figures = []
    for train in (True, False):  # whatever mode the net was left in
        m.net.train(train)
        scored = engine.answer(Evaluate(m, TASK, p, Handle(0, "train"), policy))
        assert isinstance(scored, Scored)
        figures.append(scored.metrics)
    assert figures[0] == figures[1] and all_bits(p) == before and all_bits(dict(m.net.state_dict())) == net


@pytest.mark.parametrize("policy", NORMS)
def test_the_served_model_is_scored_by_its_policy(policy: str) -> None:
    w = world(policy)
    w.round(0, 1)
    served, scored = w.serve(0), w.score(0)
    assert served.norm == policy and served.params.keys() == w.model.shapes.keys()
    again = w.engine.answer(Evaluate(w.model, TASK, served.params, Handle(0, "test"), policy))
    assert isinstance(again, Scored) and again.metrics == scored.metrics
    mine = {k: served.params[k] for k in w.model.statistics}
    if policy in ("shared", "frozen"):
        assert all_bits(mine) == all_bits({k: w.state.params[k] for k in mine})
    if policy == "per-width":
        assert all_bits(mine) == all_bits({k: w.state.params[at_width(k, 1.0)] for k in mine})
    if policy == "personal":
        assert all_bits(mine) == all_bits({k: w.memory[0].tensors["model/" + k] for k in mine})
    if policy == "batch":
        assert all_bits(mine) == all_bits({k: w.model.params()[k] for k in mine})


# ---- shared
def test_shared_statistics_are_averaged_like_weights() -> None:
    w = world("shared")
    replies = [w.work(i) for i in (0, 1)]
    before, after = w.state.params, w.method.step(w.state, w.fleet, replies).params
    for k in w.model.statistics:
        assert replies[0].params[k].sub(replies[1].params[k]).abs().min() > 1e-4  # the clients' data differ
        assert torch.allclose(after[k], (replies[0].params[k] + replies[1].params[k]) / 2) and moved(after, before) >= {
            k
        }


# ---- personal
@pytest.mark.parametrize("keep", ["nothing", "rest", "whole"])
def test_personal_statistics_are_the_clients_own(keep: str) -> None:
    w = world("personal", keep=keep)
    first = w.asked(0)
    w.round(0, 1)
    mine = {i: {k: w.memory[i].tensors["model/" + k] for k in w.model.statistics} for i in (0, 1)}
    assert moved(mine[0], mine[1]) == w.model.statistics
    assert all(bits(first.start[k]) == bits(w.model.params()[k]) for k in w.model.statistics)
    second = w.asked(0)
    assert all(bits(second.start[k]) == bits(mine[0][k]) for k in w.model.statistics)
    assert set(w.memory[0].tensors) == {
        "model/" + k for k in (w.model.shapes if keep == "whole" else w.model.statistics)
    }
    w.round(1)  # who does not train keeps what it has
    assert all(bits(w.serve(0).params[k]) == bits(mine[0][k]) for k in w.model.statistics)
    again = {k: w.memory[1].tensors["model/" + k] for k in w.model.statistics}
    assert moved(mine[1], again) == w.model.statistics


def test_personal_statistics_of_a_sub_model_are_those_of_its_units() -> None:
    w = world("personal", send=Ordered(), widths={0: 0.5})
    w.work(0)
    k = "conv1.norm.running_mean"
    mine, initial = w.memory[0].tensors["model/" + k], w.model.params()[k]
    assert mine.shape == (6,) and bits(mine[3:]) == bits(initial[3:]) and (mine[:3] != initial[:3]).all()
    assert bits(w.asked(0).start[k]) == bits(mine[:3]) == bits(w.serve(0).params[k])


# ---- post-hoc
def averages(m: Model, p: Params, x: Tensor, batch: int) -> Params:
    """By hand: the plain average over the batches of each layer's mean and variance, at these weights."""
    seen: dict[str, list[Tensor]] = {}

    def look(name: str):  # type: ignore[no-untyped-def]
        def hook(layer: nn.Module, args: tuple[Tensor]) -> None:
            rows = args[0].transpose(0, 1).flatten(1).double()
            if rows.shape[1] > 1:
                seen.setdefault(f"{name}.running_mean", []).append(rows.mean(1))
                seen.setdefault(f"{name}.running_var", []).append(rows.var(1, unbiased=True))

        return hook

    layers = {name: layer for name, layer in m.net.named_modules() if isinstance(layer, BatchNorm)}
    hooks = [layer.register_forward_pre_hook(look(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            for xb in x.split(batch):
                functional_call(m.net.train(), {k: v.clone() for k, v in p.items()}, (xb,))
    finally:
        for h in hooks:
            h.remove()
    return {k: torch.stack(v).mean(0) for k, v in seen.items()}


@pytest.mark.parametrize("n", [20, 512, 513, 700, 1200])
def test_post_hoc_statistics_are_the_average_over_the_batches(n: int) -> None:
    for m in (tiny(), dense()):
        data = shards(n)
        out = answer(m, Fit(m, TASK, skewed(m), Handle(0, "train"), KEY, SGD(0.1), batch=400, norm="post-hoc"), data)
        by_hand = averages(m, out.params, data[Handle(0, "train")][0], 512)
        assert by_hand.keys() == m.statistics
        for k, v in by_hand.items():
            assert torch.allclose(out.params[k].double(), v, rtol=1e-4, atol=1e-5), (n, k)


def test_what_is_served_post_hoc_has_the_statistics_of_the_clients_data_at_the_servers_weights() -> None:
    w = world("post-hoc")
    w.round(0, 1)
    for i in (0, 1):
        served = w.serve(i)
        assert all(bits(served.params[k]) == bits(w.state.params[k]) for k in w.model.trainable)
        for k, v in averages(w.model, served.params, w.data[Handle(i, "train")][0], 512).items():
            assert torch.allclose(served.params[k].double(), v, rtol=1e-4, atol=1e-5), (i, k)
    a, b = w.serve(0).params, w.serve(1).params
    assert moved(a, b) == w.model.statistics
    assert w.model.statistics & set(w.memory[0].tensors) == set() and not w.memory[0]


def test_post_hoc_of_a_sub_model_is_taken_on_that_sub_model() -> None:
    w = world("post-hoc", send=Ordered(), widths={0: 0.5})
    w.round(0)
    served = w.serve(0)
    assert served.params["conv1.norm.running_mean"].shape == (3,)
    for k, v in averages(w.model, served.params, w.data[Handle(0, "train")][0], 512).items():
        assert torch.allclose(served.params[k].double(), v, rtol=1e-4, atol=1e-5), k


def test_a_calibration_does_not_change_the_layers() -> None:
    w = world("post-hoc")
    layers = [layer for layer in w.model.net.modules() if isinstance(layer, BatchNorm)]
    net = all_bits(dict(w.model.net.state_dict()))
    w.round(0)
    w.serve(0)
    assert [layer.momentum for layer in layers] == [0.1, 0.1]
    assert all_bits(dict(w.model.net.state_dict())) == net


# ---- per width
def test_there_is_one_set_of_statistics_a_width() -> None:
    w = world("per-width", send=Ordered(), widths={0: 1.0, 1: 0.5, 2: 0.5, 3: 0.2})
    names = {at_width(k, r) for k in w.model.statistics for r in (1.0, 0.5, 0.2)}
    assert set(w.state.params) == w.model.trainable | names
    assert list(w.state.params) == sorted(w.state.params)
    assert {k for k in w.order(1).cover if "@" in k} == {at_width(k, 0.5) for k in w.model.statistics}
    assert w.order(1).params["conv1.norm.running_mean@0.5"].shape == (3,)


def test_the_sets_of_the_widths_are_kept_apart() -> None:
    w = world("per-width", send=Ordered(), widths={0: 1.0, 1: 0.5, 2: 0.5, 3: 0.2})
    for cohort, widths in (((1,), (0.5,)), ((0,), (1.0,)), ((3, 2), (0.5, 0.2))):
        before = w.state.params
        w.round(*cohort)
        changed = {k for k in moved(before, w.state.params) if "@" in k}
        assert changed == {at_width(k, r) for k in w.model.statistics for r in widths}
    half = w.state.params["conv1.norm.running_mean@0.5"]  # as long as the full one: only the width's units moved
    assert half.shape == (6,) and (half[:3] != 0).all() and not half[3:].any()


def test_a_client_works_with_the_set_of_its_width() -> None:
    w = world("per-width", send=Ordered(), widths={0: 1.0, 1: 0.5})
    k = "conv1.norm.running_mean"
    planted = {at_width(k, 1.0): torch.full((6,), 5.0), at_width(k, 0.5): torch.full((6,), -7.0)}
    w.state = replace(w.state, params=dict(w.state.params) | planted)
    assert (w.asked(0).start[k].tolist(), w.asked(1).start[k].tolist()) == ([5.0] * 6, [-7.0] * 3)
    assert (w.serve(0).params[k].tolist(), w.serve(1).params[k].tolist()) == ([5.0] * 6, [-7.0] * 3)
    assert w.asked(1).start.keys() == w.model.shapes.keys()
    reply = w.work(1)
    assert {at_width(k, 0.5)} == {name for name in reply.params if name.startswith(k)}
    assert (reply.params[at_width(k, 0.5)] > -7).all()


def test_names_of_sets() -> None:
    m = tiny()
    k = "conv1.norm.running_mean"
    assert (at_width(k, 1.0), at_width(k, 0.25), at_width(k, 1 / 3)) == (f"{k}@1", f"{k}@0.25", f"{k}@0.333333")
    spans = travelling(m.prefix(0.5), m, "per-width", [0.5, 0.05])
    assert {name for name in spans if "@" in name} == {at_width(s, r) for s in m.statistics for r in (0.5, 0.05)}
    assert plain({"w": 1, f"{k}@0.5": 2, f"{k}@0.05": 3, f"{k}@1.5": 4}, 0.5) == {"w": 1, k: 2}
    assert plain({"w": 1, k: 2}, 0.5) == {"w": 1, k: 2}
    cover = Cover({name: spans[name] for name in spans if name.endswith("@0.5")})
    whole = {name: i for i, name in enumerate(m.shapes)}
    assert {name: v for name, v in sent(whole, cover, 0.5).items() if "@" in name} == {
        at_width(s, 0.5): whole[s] for s in m.statistics
    }
    assert sent(whole, m.whole, 0.5) == whole
    p = m.params()
    assert held(p, m, "shared", [0.5]) == p
    twice = held(p, m, "per-width", [0.5, 0.5])
    assert all(bits(twice[at_width(s, r)]) == bits(p[s]) for s in m.statistics for r in (1.0, 0.5))


# ---- frozen
def test_statistics_of_units_that_do_not_move_are_frozen_to_the_bit() -> None:
    w = world("frozen", send=Random(), widths={0: 0.5, 1: 0.4}, keep="whole", freeze=True)
    mine = dict(w.model.params())
    stayed = 0
    for _ in range(4):
        order = w.order(0)
        units = w.model.units(order.cover)
        # what it owns, with what arrived sewn in
        start = {k: order.cover[k].put(v, order.params[k]) if k in order.cover else v for k, v in mine.items()}
        w.round(0, 1)
        after = {k.removeprefix("model/"): v for k, v in w.memory[0].tensors.items()}
        for i in (1, 2):
            active = torch.zeros(w.model.groups[f"conv{i}"], dtype=torch.bool)
            active[units[f"conv{i}"]] = True
            assert 0 < active.sum() < len(active)
            for s in ("mean", "var"):
                k = f"conv{i}.norm.running_{s}"
                assert bits(after[k][~active]) == bits(start[k][~active]), k
                assert (after[k][active] != start[k][active]).all(), k
                stayed += int((~active).sum())
        rest = w.model.whole - order.cover
        assert all_bits(take(after, rest)) == all_bits(take(start, rest))
        mine = after
    assert stayed > 20


def test_under_shared_the_statistics_of_frozen_units_drift() -> None:
    w = world("shared", send=Random(), widths={0: 0.5}, keep="whole", freeze=True)
    w.work(0)
    k = "conv1.norm.running_mean"
    assert (w.memory[0].tensors["model/" + k] != w.model.params()[k]).all()
    frozen = (w.model.whole - w.order(0).cover).only(lambda name: name == "conv1.conv.weight")
    after = {name.removeprefix("model/"): v for name, v in w.memory[0].tensors.items()}
    assert frozen.numel and all_bits(take(after, frozen)) == all_bits(take(w.model.params(), frozen))


def test_frozen_without_frozen_units_is_shared() -> None:
    a, b = world("frozen"), world("shared")
    for w in (a, b):
        w.round(0, 1)
    assert all_bits(dict(a.state.params)) == all_bits(dict(b.state.params))


# ---- a last batch of one sample
@pytest.mark.parametrize("policy", NORMS)
def test_a_last_batch_of_one_sample_trains_and_does_not_move_the_statistics(policy: str) -> None:
    m, data = dense(), shards(21)
    f = Fit(m, TASK, m.params(), Handle(0, "train"), KEY, SGD(0.1), batch=10, norm=policy)
    assert f.length(21) == (1, 3)
    whole, before = answer(m, f, data), answer(m, replace(f, steps=2), data)
    assert whole.steps == 3 and whole.samples == 21 and before.samples == 20
    assert all(v.isfinite().all() for v in whole.params.values())
    # every weight moved in the last step; its layer's own ones as well
    assert moved(before.params, whole.params) >= m.trainable
    if policy != "post-hoc":  # there they are taken at the end, of other weights
        assert all(bits(whole.params[k]) == bits(before.params[k]) for k in m.statistics)
    if NORMS[policy].update:
        assert moved(m.params(), whole.params) >= m.statistics


def test_a_lone_sample_is_normalised_with_the_running_statistics() -> None:
    m, data = dense(), shards(1)
    p = skewed(m)
    out = answer(m, Fit(m, TASK, p, Handle(0, "train"), KEY, SGD(0.0), batch=10), data)
    x, y = data[Handle(0, "train")]
    with torch.no_grad():
        loss = TASK.metrics(TASK.tally(functional_call(m.net.eval(), p, (x,)), y))["loss"]
    assert out.loss == pytest.approx(loss, rel=1e-6)
    assert moved(p, out.params) == set()
    calibrated = answer(m, Fit(m, TASK, p, Handle(0, "train"), KEY, epochs=0, norm="post-hoc"), data)
    assert moved(p, calibrated.params) == set()  # nor is there anything to take a variance of


def test_a_lone_sample_meets_the_statistics_of_frozen_units_as_they_were() -> None:
    """Not as the batches before it would have left them: of a unit that is frozen nothing moves, at no time."""
    m, data = dense(), shards(21)
    free = m.cover({"u": torch.tensor([0, 2, 5])})
    f = Fit(m, TASK, skewed(m), Handle(0, "train"), KEY, SGD(0.0), batch=10, norm="frozen", free=free)
    whole, before = answer(m, f, data), answer(m, replace(f, steps=2), data)
    x, y = data[Handle(0, "train")]
    *_, last = f.batches(21)
    assert len(last) == 1
    with torch.no_grad():
        loss = TASK.metrics(TASK.tally(functional_call(m.net.eval(), before.params, (x[last],)), y[last]))["loss"]
    assert 21 * whole.loss - 20 * before.loss == pytest.approx(loss, rel=1e-5)
    for k in m.statistics:
        inside = free[k].dense()
        assert (bits(whole.params[k][~inside]), (whole.params[k] != f.start[k])[inside].all()) == (
            bits(f.start[k][~inside]),
            True,
        )


def test_a_batch_of_one_image_has_statistics() -> None:
    m, data = tiny(), shards(11)
    f = Fit(m, TASK, m.params(), Handle(0, "train"), KEY, SGD(0.1), batch=10)
    assert moved(answer(m, replace(f, steps=1), data).params, answer(m, f, data).params) >= m.statistics
