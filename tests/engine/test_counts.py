"""What is counted, who fails, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedquilt.cover import take
from fedquilt.engine import Done, Failed, Job
from fedquilt.fit import SGD, Evaluate, Fit, Gradient, Peer, Scored, Slices, call
from fedquilt.meter import flops
from fedquilt.models import build
from fedquilt.parts.local import Train
from fedquilt.step import begin, gradient, mode
from fedquilt.types import Handle, Memory, Reply, Served

from .test_requests import BIG, TRAIN, VAL, Losses, Near, pair
from .tiny import KEY, SPECS, client, engine, fit, order, same, samples, task, tiny, weights


# ---- what is counted
def usage(name: str, ask: Any, n: int = 10) -> Any:
    used: list[Any] = []
    engine(name, n).answer(ask, used)
    return sum(used[1:], used[0])


def products(work: Callable[[], object]) -> int:
    """The FLOPs of matrix products and convolutions, by torch's own counter."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def a_step(f: Fit, n: int = 4) -> Callable[[], object]:
    """One gradient on ``n`` samples."""
    x, y = samples(f.model.name, n)
    moving, held = begin(f, y.unique())
    return lambda: gradient(f, moving, held, x, y, 0 if f.slices else None)


def test_a_step_executes_the_products_of_its_shapes_and_no_others() -> None:
    # 2 m n k a product; forward, gradient of the weights, and of the inputs except for the first layer's
    first, rest = 128 * 7, 7 * 6 + 6 * 5
    assert products(a_step(fit("mlp"))) == 2 * 4 * (2 * first + 3 * rest)
    half = tiny("mlp").prefix(0.5)
    slim = 2 * 4 * (2 * 128 * 3 + 3 * (3 * 3 + 3 * 5))
    assert products(a_step(fit("mlp", start=take(weights(tiny("mlp")), half)))) == slim
    assert products(a_step(fit("mlp", slices=Slices((half, tiny("mlp").whole), KEY)))) == slim
    # convolutions of 3x3 at 8x8 and at 4x4, and what is flattened: 5 channels of 2x2
    conv1, conv2, dense = 8 * 8 * 4 * 2 * 9, 4 * 4 * 5 * 4 * 9, 20 * 6 + 6 * 5
    assert products(a_step(fit("cnn"))) == 2 * 4 * (2 * conv1 + 3 * conv2 + 3 * dense)
    # a tensor that is not free has no gradient, unless somebody watches
    head = tiny("mlp").whole.only(lambda k: k.startswith("head."))
    assert products(a_step(fit("mlp", free=head))) == 2 * 4 * (first + rest + 6 * 5)
    watched = fit("mlp", free=head, watch=(Losses(),))
    assert products(a_step(watched)) == products(a_step(fit("mlp")))
    deep = tiny("mlp").whole.only(lambda k: not k.startswith("dense1"))
    assert products(a_step(fit("mlp", free=deep))) == 2 * 4 * (first + rest + 7 * 6 + 2 * 6 * 5)


def test_the_flops_of_a_request_are_those_of_its_samples() -> None:
    f, model = fit("cnn"), tiny("cnn")
    step = {n: flops(a_step(f, n)) for n in (2, 3, 4)}

    def score(n: int, batch: bool) -> float:  # normalised by what is known, or by the batch
        params, (x, _) = weights(model), samples("cnn", n)
        with torch.no_grad(), mode(model.net, train=False, batch=batch):
            return float(flops(lambda: call(model.net, params, x)))

    counted = usage("cnn", fit("cnn", epochs=2, batch=4))
    assert counted.flops == 2 * (2 * step[4] + step[2])
    assert (counted.samples, counted.steps, counted.requests, counted.fallbacks) == (20, 6, 1, 0)
    post_hoc = usage("cnn", fit("cnn", norm="post-hoc", batch=4))
    assert post_hoc.flops == 2 * step[4] + step[2] + score(10, True)
    assert usage("cnn", Evaluate(model, task("cnn"), weights(model), VAL)).flops == score(5, False)
    ask = Gradient(model, task("cnn"), weights(model), TRAIN, KEY, batch=3)
    assert usage("cnn", ask).flops == step[3]
    assert usage("cnn", replace(ask, along=weights(model))).flops > 2 * usage("cnn", ask).flops


def test_each_form_is_counted_for_itself() -> None:
    run = engine("cnn", 4)

    def spent(ask: Any) -> float:
        used: list[Any] = []
        run.answer(ask, used)
        return float(used[0].flops)

    plain, taught, along = spent(fit("cnn")), spent(pair(train=False)), spent(pair(train=True))
    small = build({**SPECS["cnn"], "conv": (4, 5)}, KEY)
    less = spent(fit("cnn", peers={"big": Peer(small, small.params())}, terms=(Near("big"),)))
    assert plain < less < taught < along  # peers of one name and of different sizes
    head = tiny("cnn").whole.only(lambda k: k.startswith("head."))
    assert spent(fit("cnn", free=head)) < plain <= spent(fit("cnn", free=head, watch=(Losses(),)))
    slim = {r: take(weights(BIG), BIG.prefix(r)) for r in (0.3, 0.9)}
    a, b = (spent(fit("cnn", peers={"big": Peer(BIG, p)}, terms=(Near("big"),))) for p in slim.values())
    assert a < b < taught  # and pieces of one peer
    a, b = (spent(fit("cnn", slices=Slices((tiny("cnn").prefix(r),), KEY))) for r in (0.3, 0.9))
    assert a < b < plain
    ask = Gradient(tiny("cnn"), task("cnn"), weights(tiny("cnn")), TRAIN, KEY)
    assert spent(ask) < spent(replace(ask, along=ask.params))
    again = build(SPECS["cnn"], KEY.at("again"))
    known = len(run._costs)
    assert spent(fit("cnn", model=again)) == plain and len(run._costs) == known  # a model built again is known


# ---- who fails
@dataclass(frozen=True)
class Work(Train):
    """Trains; as client 1 it raises, at the point that ``where`` says."""

    where: str = "nowhere"
    asked: Any = field(default=None, compare=False)

    def __call__(self, order: Any, client: Any) -> Any:
        if client.id != 1:
            return (yield from super().__call__(order, client))
        if self.where == "before":
            raise RuntimeError("it broke")
        out = yield Fit(client.model, client.task, order.params, client.train, client.key)
        if self.where == "asks":
            yield {"a": "wish"}
        if self.where == "data":
            yield Evaluate(client.model, client.task, out.params, Handle(9, "train"))
        raise RuntimeError("it broke")

    def serve(self, order: Any, client: Any) -> Any:
        if client.id == 1:
            raise RuntimeError("it broke")
        return (yield from super().serve(order, client))


def jobs(local: Any, score: tuple[str, ...] = ()) -> list[Job]:
    model = tiny("cnn")
    out = []
    for i in range(3):
        o = replace(order(weights(model), model.whole), client=i)
        c = replace(client(model, task("cnn")), id=i, memory=Memory(), key=KEY.at(i))
        out.append(Job(local, o, c, score))
    return out


def many(strict: bool = False) -> Any:
    data = {Handle(i, s): samples("cnn", 9, KEY.at(i, s)) for i in range(3) for s in ("train", "val", "test")}
    return engine("cnn", strict=strict, others=data)


@pytest.mark.parametrize("where", ["before", "after", "asks", "data"])
def test_who_fails_fails_alone(where: str) -> None:
    good, bad = many().run(jobs(Work())[::2]), many().run(jobs(Work(where=where)))
    assert isinstance(bad[1], Failed)
    say = {"asks": "TypeError: local work asks for a Fit", "data": "KeyError: Handle"}.get(
        where, "RuntimeError: it broke"
    )
    assert bad[1].reason.startswith(say) and isinstance(bad[1].error, Exception)
    for a, b in zip(good, bad[::2], strict=True):
        assert isinstance(a, Done) and isinstance(b, Done) and a.usage == b.usage
        assert isinstance(b.value[0], Reply) and same(a.value[0].params, b.value[0].params)
    with pytest.raises((RuntimeError, TypeError, KeyError)):
        many(strict=True).run(jobs(Work(where=where)))


def test_who_cannot_serve_fails_alone() -> None:
    done = many().run(jobs(Work(finetune=1), ("val", "test")))
    assert [type(d) for d in done] == [Done, Failed, Done]
    assert isinstance(done[0], Done) and done[0].value.keys() == {"val", "test"} and done[0].usage.requests == 3
    assert isinstance(done[0].value["val"], Scored)


@pytest.mark.parametrize("settings", [{"batch": 0}, {"epochs": -1}, {"steps": -1}, {"norm": "none"}, {"start": {}}])
def test_a_request_that_cannot_be_answered_is_refused_where_it_is_made(settings: Any) -> None:
    with pytest.raises(ValueError):
        fit("mlp", **settings)


@pytest.mark.parametrize("settings", [{"lr": float("nan")}, {"momentum": -1}, {"clip": 0.0}, {"decay": 0.0}])
def test_an_optimiser_that_makes_no_sense_is_refused(settings: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        SGD(**settings)


def test_a_net_does_not_run_on_tensors_of_its_own() -> None:
    model = tiny("cnn")
    some = {k: v for k, v in weights(model).items() if k not in model.statistics}
    for ask in (Evaluate, lambda *a: Gradient(*a, KEY), lambda *a: Fit(*a, KEY)):
        with pytest.raises(ValueError, match=r"the model cnn has 4 tensors without a value: conv1\.norm\.running_mean"):
            ask(model, task("cnn"), some, TRAIN)


def test_data_that_change_under_a_handle_are_read_anew() -> None:
    run, ask = engine("cnn", layout="channels_last"), fit("cnn")
    first = run.answer(ask)
    x, y = run.data[TRAIN]
    run.data[TRAIN] = x.flip(2), y  # type: ignore[index]
    assert not same(run.answer(ask).params, first.params)


def test_served_is_scored_as_it_says() -> None:
    @dataclass(frozen=True)
    class Other(Train):
        def serve(self, order: Any, client: Any) -> Any:
            return Served(BIG, weights(BIG), "batch")
            yield

    (done,) = many().run(jobs(Other(), ("test",))[:1])
    assert isinstance(done, Done)
    expected = many().answer(Evaluate(BIG, task("cnn"), weights(BIG), Handle(0, "test"), "batch"))
    assert done.value["test"].metrics == expected.metrics
