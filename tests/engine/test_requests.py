"""The rest of what local work may ask for: peers, watches, gradients, scores; what is counted; and who fails."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedquilt.cover import Params
from fedquilt.engine import serial as serial_module
from fedquilt.fit import SGD, Evaluate, Fit, Fitted, Gradient, Peer, Scored, Step, Term, View, Watch
from fedquilt.models import build
from fedquilt.types import Handle

from .tiny import HEAVY, KEY, SPECS, close, engine, fit, same, samples, task, tiny, weights

TRAIN, VAL = Handle(0, "train"), Handle(0, "val")


# ---- peers
@dataclass(frozen=True)
class Near(Term):
    """A pull towards what a peer says; the peer's own loss besides, if it is trained."""

    name: str
    own: bool = False
    twice: bool = False

    def __call__(self, s: Step) -> Tensor:
        said = s.peer(self.name).logits
        if self.twice:
            assert s.peer(self.name).logits is said
        pull = s.mean((s.out.logits - said.detach()).pow(2).sum(1))
        return pull + s.mean(*s.task.loss(said, s.y)) if self.own else pull


BIG = build({**SPECS["cnn"], "conv": (4, 7, 6), "dense": ()}, KEY.at("big"))
SHARED = {k: k for k in tiny("cnn").trainable if k.startswith("conv1.")}


def pair(train: bool, **settings: Any) -> Fit:
    held = weights(BIG, KEY.at("peer"))
    peer = Peer(BIG, held, train, SHARED if train else {})
    return fit("cnn", peers={"big": peer}, terms=(Near("big", own=train),), **settings)


def pair_by_hand(f: Fit, x: Tensor, y: Tensor) -> tuple[Params, Params]:
    """Two modules, of which the second has some of the first's very tensors, in one optimiser."""
    p = f.peers["big"]
    net, other = copy.deepcopy(f.model.net).train(), copy.deepcopy(p.model.net).train(p.train)
    net.load_state_dict(f.start)
    other.load_state_dict(p.params)
    for k in p.share:
        module, _, leaf = k.rpartition(".")
        setattr(other.get_submodule(module), leaf, net.get_parameter(k))
    trained = list(net.parameters())
    if p.train:
        trained += [v for v in other.parameters() if all(v is not q for q in trained)]
    o = f.optim
    optimiser = torch.optim.SGD(trained, o.lr, momentum=o.momentum, weight_decay=o.weight_decay)
    for rows in f.batches(len(x)):
        optimiser.zero_grad()
        out, said = net(x[rows]), other(x[rows])
        loss = f.main * F.cross_entropy(out, y[rows]) + (out - said.detach()).pow(2).sum(1).mean()
        (loss + F.cross_entropy(said, y[rows]) if p.train else loss).backward()
        if o.clip is not None:
            torch.nn.utils.clip_grad_norm_(trained, o.clip)
        optimiser.step()
    return dict(net.state_dict()), dict(other.state_dict())


@pytest.mark.parametrize("train", [False, True], ids=["teacher", "trained along"])
def test_a_peer_is_a_second_module_that_may_have_tensors_of_the_first(train: bool) -> None:
    f = pair(train, optim=HEAVY, epochs=2, main=0.7)
    out: Fitted = engine("cnn").answer(f)
    net, other = pair_by_hand(f, *samples("cnn", 10, KEY.at("train")))
    assert close(out.params, net, 5)
    if train:
        assert close(dict(out.peers["big"]), other, 5)
        assert all(torch.equal(out.peers["big"][k], out.params[m]) for k, m in SHARED.items())
        assert all(not torch.equal(v, f.peers["big"].params[k]) for k, v in out.peers["big"].items())
    else:
        assert not out.peers and close(dict(f.peers["big"].params), other, 9)


def test_a_teacher_is_in_evaluation_mode_whatever_it_was_left_in() -> None:
    out = []
    for before in (True, False):
        BIG.net.train(before)
        out.append(engine("cnn").answer(pair(train=False)).params)
        assert BIG.net.training is before
    assert same(*out)


def test_a_net_may_be_its_own_teacher() -> None:
    f = fit("cnn", steps=1, terms=(Near("self"),))
    teacher = copy.deepcopy(f.model.net).eval()
    teacher.load_state_dict(f.start)
    twin = replace(f, peers={"self": Peer(f.model, f.start)})
    other = replace(f, peers={"self": Peer(replace(f.model, net=teacher), f.start)})
    assert same(engine("cnn").answer(twin).params, engine("cnn").answer(other).params)


def test_a_peer_runs_once_a_step_and_its_statistics_move_once() -> None:
    once, twice = pair(train=True), replace(pair(train=True), terms=(Near("big", own=True, twice=True),))
    a, b = engine("cnn").answer(once), engine("cnn").answer(twice)
    assert same(a.peers["big"], b.peers["big"])
    still = engine("cnn").answer(replace(once, norm="batch")).peers["big"]
    assert all(torch.equal(still[k], once.peers["big"].params[k]) for k in BIG.statistics)
    assert not torch.equal(still["head.bias"], once.peers["big"].params["head.bias"])


def test_peers_that_do_not_fit_are_refused() -> None:
    held = weights(BIG)
    with pytest.raises(ValueError, match=r"1 tensors without a value: head\.bias"):
        fit("cnn", peers={"big": Peer(BIG, {k: v for k, v in held.items() if k != "head.bias"})})
    with pytest.raises(ValueError, match="only trainable tensors are shared"):
        fit("cnn", peers={"big": Peer(BIG, held, True, {"conv1.norm.running_mean": "conv1.norm.running_mean"})})


# ---- watches, views, given
@dataclass(frozen=True)
class Losses(Watch):
    """The sum of squared losses of samples (Oort), and of gradients."""

    name: str = "squares"

    def start(self, fit: Fit) -> Params:
        return {self.name: torch.zeros(()), "gradient": torch.zeros_like(fit.start["head.bias"])}

    def see(self, s: Step) -> Params:
        return {"each": s.mean(s.task.loss(s.out.logits, s.y)[0].pow(2)) * len(s.y)}

    def add(self, so_far: Params, seen: Params, grads: Params) -> Params:
        assert not any(v.requires_grad for v in (*seen.values(), *grads.values()))
        return {self.name: so_far[self.name] + seen["each"], "gradient": so_far["gradient"] + grads["head.bias"]}


def test_a_watch_sees_every_step_and_the_gradient_as_it_is() -> None:
    c = {"head.bias": torch.ones(5)}
    f = fit("cnn", optim=SGD(0.0, clip=1e-3), norm="batch", watch=(Losses(),), correct=c, batch=4)
    out = engine("cnn").answer(f)
    x, y = samples("cnn", 10, KEY.at("train"))
    net = copy.deepcopy(f.model.net).train()
    net.load_state_dict(f.start)
    squares, gradient = 0.0, torch.zeros(5)
    for rows in f.batches(10):
        each = F.cross_entropy(net(x[rows]), y[rows], reduction="none")
        squares += float(each.detach().pow(2).sum())
        gradient += torch.autograd.grad(each.mean(), net.head.bias)[0]
    assert float(out.watched["squares"]) == pytest.approx(squares, rel=1e-5)
    assert torch.allclose(out.watched["gradient"], gradient, atol=1e-6)
    with pytest.raises(ValueError, match="two watches give results of the same name"):
        engine("cnn").answer(replace(f, watch=(Losses(), Losses("other"))))


@dataclass(frozen=True)
class Halved(View):
    """Runs on half of each weight; of the head only the first row may move."""

    def given(self, fit: Fit, labels: Tensor) -> Params:
        return {"half": torch.tensor(0.5)}

    def __call__(self, params: Params, extra: Params, given: Params) -> tuple[Params, Params]:
        first = torch.zeros(5, dtype=torch.bool).index_fill(0, torch.tensor([0]), True)
        return {k: v * given["half"] + extra["shift"] for k, v in params.items()}, {"head.bias": first}


def test_a_view_is_what_the_net_runs_on_and_says_what_may_move() -> None:
    extra = {"shift": torch.tensor(0.1)}
    f = fit("mlp", steps=1, optim=HEAVY, view=Halved(), extra=extra)
    out = engine("mlp").answer(f)
    assert torch.equal(out.params["head.bias"][1:], f.start["head.bias"][1:])
    assert not torch.equal(out.params["head.bias"][:1], f.start["head.bias"][:1])
    leaves = {k: v.clone().requires_grad_() for k, v in (f.start | extra).items()}
    x, y = samples("mlp", 10, KEY.at("train"))
    rows = next(f.batches(10))
    used = {k: leaves[k] / 2 + leaves["shift"] for k in f.start}
    loss = F.cross_entropy(torch.func.functional_call(f.model.net, used, (x[rows],)), y[rows])
    grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    grads["head.bias"][1:] = 0
    size = torch.cat([g.flatten() for g in grads.values()]).norm()
    g = grads["shift"] * (0.5 / (size + 1e-6)).clamp(max=1) + 0.01 * extra["shift"]
    assert torch.allclose(out.extra["shift"], extra["shift"] - 0.1 * g, atol=1e-6)


@dataclass(frozen=True)
class Constant(Term):
    """A constant of the client, under a name that other terms use too."""

    value: float

    def given(self, fit: Fit, labels: Tensor) -> Params:
        return {"value": torch.tensor(self.value)}

    def __call__(self, s: Step) -> Tensor:
        return s.given["value"] * s.params["head.bias"].sum()


def test_what_is_given_to_one_term_is_not_given_to_another() -> None:
    f = fit("mlp", steps=1, optim=SGD(0.1))
    two, one = replace(f, terms=(Constant(1.0), Constant(2.0))), replace(f, terms=(Constant(3.0),))
    a, b, c = (engine("mlp").answer(g).params["head.bias"] for g in (two, one, f))
    assert torch.allclose(a, b) and torch.allclose(a, c - 0.3)


# ---- gradients
def test_a_gradient_is_autograds_and_along_is_its_product_with_the_hessian() -> None:
    for name in ("mlp", "cnn-none"):
        model = tiny(name)
        params = {k: v.double() for k, v in weights(model).items()}
        along = weights(model, KEY.at("along"), torch.float64)
        x, y = samples(name, 10, KEY.at("train"), torch.float64)
        run = engine(name)
        run.data[TRAIN] = x, y  # type: ignore[index]
        got = run.answer(Gradient(model, task(name), params, TRAIN, KEY, along=along))

        def loss(*values: Tensor, model: Any = model, names: Any = tuple(params), x: Any = x, y: Any = y) -> Tensor:
            out = torch.func.functional_call(model.net, dict(zip(names, values, strict=True)), (x,))
            return F.cross_entropy(out, y)

        values = tuple(v.clone().requires_grad_() for v in params.values())
        grads = torch.autograd.grad(loss(*values), values)
        _, twice = torch.autograd.functional.hvp(loss, tuple(params.values()), tuple(along[k] for k in params))
        assert close(got.params, dict(zip(params, grads, strict=True)), 12)
        assert close(got.along, dict(zip(params, twice, strict=True)), 12)
        assert got.loss == pytest.approx(float(loss(*values).detach()))
        some = {k: v for k, v in along.items() if k.startswith("head")}
        rest = {k: torch.zeros_like(v) for k, v in along.items() if k not in some}
        a, b = (run.answer(Gradient(model, task(name), params, TRAIN, KEY, along=v)) for v in (some, some | rest))
        assert close(a.along, b.along, 12)


def test_a_gradient_is_on_a_batch_of_its_own_key_and_tells_the_statistics() -> None:
    run, model = engine("cnn"), tiny("cnn")
    ask = Gradient(model, task("cnn"), weights(model), TRAIN, KEY.at("a"), batch=4)
    one, again = run.answer(ask), run.answer(ask)
    other, larger = run.answer(replace(ask, key=KEY.at("b"))), run.answer(replace(ask, batch=99))
    assert same(one.params, again.params) and not same(one.params, other.params)
    assert close(larger.params, run.answer(replace(ask, batch=None)).params)
    assert one.params.keys() == model.trainable and one.statistics.keys() == model.statistics
    step = run.answer(Fit(model, task("cnn"), weights(model), TRAIN, KEY, SGD(0.0), batch=10))
    assert close(run.answer(replace(ask, batch=None)).statistics, {k: step.params[k] for k in model.statistics})
    assert same(run.answer(replace(ask, norm="batch")).statistics, {k: ask.params[k] for k in model.statistics})


# ---- scores
def test_a_score_in_batches_is_that_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cnn", "lstm", "linear"):
        run, model = engine(name, 25), tiny(name)
        ask = Evaluate(model, task(name), weights(model), TRAIN)
        whole: Scored = run.answer(ask)
        with monkeypatch.context() as m:
            m.setattr(serial_module, "SCORE_BATCH", 7)
            parts: Scored = run.answer(ask)
        assert parts.metrics == pytest.approx(whole.metrics, rel=1e-6)
        net = copy.deepcopy(model.net).eval()
        net.load_state_dict(ask.params)
        x, y = samples(name, 25, KEY.at("train"))
        with torch.no_grad():
            out = net(x)
        assert task(name).metrics(task(name).tally(out, y)) == pytest.approx(whole.metrics, rel=1e-6)


def test_a_score_under_batch_statistics_uses_the_batch_and_changes_nothing() -> None:
    run, model = engine("cnn"), tiny("cnn")
    params = weights(model)
    kept = {k: v.clone() for k, v in params.items()}
    ask = Evaluate(model, task("cnn"), params, TRAIN, "batch")
    scored = run.answer(ask)
    assert same(params, kept)
    other = params | {k: v + 1 for k, v in params.items() if k in model.statistics}
    assert run.answer(replace(ask, params=other)).metrics == scored.metrics
    assert run.answer(replace(ask, params=other, norm="shared")).metrics != scored.metrics


def test_a_score_on_no_data_has_no_figures() -> None:
    model = tiny("cnn")
    scored = engine("cnn", 0).answer(Evaluate(model, task("cnn"), weights(model), TRAIN))
    assert scored.tally == {} and scored.metrics == {}
