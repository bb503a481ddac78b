"""The one definition of a training step, against loops written by hand on ``nn.Module`` and ``torch.optim``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedquilt.cover import Cover, Params
from fedquilt.fit import SGD, Fit
from fedquilt.models import BatchNorm
from fedquilt.step import training

from .tiny import HEAVY, KEY, PLAIN, close, engine, every_other, fit, same, samples, scattered, task, tiny, weights

Masks = dict[str, Tensor]


def by_hand(f: Fit, x: Tensor, y: Tensor, frozen: Masks | None = None) -> tuple[Params, float]:
    """Training as everybody writes it: a module, an optimiser, a loop.  ``frozen`` coordinates are put back."""
    net = copy.deepcopy(f.model.net).train()
    net.load_state_dict(f.start)
    named = dict(sorted(net.named_parameters()))
    o = f.optim
    optimiser = torch.optim.SGD(named.values(), o.lr, momentum=o.momentum, weight_decay=o.weight_decay)
    total = seen = 0.0
    for epoch in range(f.epochs):
        for rows in f.key.at("epoch", epoch).permutation(len(x)).split(f.batch):
            optimiser.zero_grad()
            loss = criterion(f)(net(x[rows]), y[rows])
            loss.backward()
            for k, m in (frozen or {}).items():
                named[k].grad[m] = 0
            if o.clip is not None:
                nn.utils.clip_grad_norm_(named.values(), o.clip)
            optimiser.step()
            with torch.no_grad():
                for k, m in (frozen or {}).items():
                    named[k][m] = f.start[k][m]
            total, seen = total + loss.item() * len(rows), seen + len(rows)
    return {k: v.detach().clone() for k, v in net.state_dict().items()}, total / seen


def criterion(f: Fit) -> Callable[[Tensor, Tensor], Tensor]:
    if f.task == task("lstm"):  # tokens 0 and 2 are not scored
        return lambda out, y: F.cross_entropy(out[(y != 0) & (y != 2)], y[(y != 0) & (y != 2)])
    if f.task == task("linear"):
        return lambda out, y: (out - y).pow(2).sum() / 2 / len(y)
    return lambda out, y: F.cross_entropy(out.flatten(0, -2), y.flatten())


# ---- the same numbers as torch
@pytest.mark.parametrize("optim", [PLAIN, HEAVY], ids=["plain", "heavy"])
@pytest.mark.parametrize("name", ["mlp", "linear", "cnn", "cnn-group", "resnet", "lstm", "lstm-tied"])
def test_training_is_that_of_torch(name: str, optim: SGD) -> None:
    f = fit(name, optim=optim, epochs=2)
    out = engine(name).answer(f)
    params, loss = by_hand(f, *samples(name, 10, KEY.at("train")))
    assert out.steps == 6 and out.samples == 20
    assert out.loss == pytest.approx(loss, rel=1e-5)
    if name.startswith("l"):  # a mean over tokens, written otherwise, is rounded otherwise
        assert close(out.params, params, 5)
    else:
        assert same(out.params, params)
    assert all(not torch.equal(out.params[k], f.start[k]) for k in f.start)


@pytest.mark.parametrize("name", ["cnn", "resnet"])
def test_channels_last_is_close_and_its_result_is_contiguous(name: str) -> None:
    f = fit(name, optim=HEAVY)
    out, plain = engine(name, layout="channels_last").answer(f), engine(name).answer(f)
    assert close(out.params, plain.params, 4)
    assert all(v.is_contiguous() for v in out.params.values())


def test_nothing_that_a_request_holds_and_nothing_of_the_net_is_written() -> None:
    for name in ("cnn", "resnet"):
        f = fit(name, optim=HEAVY, anchor=weights(tiny(name), KEY.at("anchor")))
        before = copy.deepcopy(
            (f.start, f.anchor, f.model.net.state_dict(), [m.training for m in f.model.net.modules()])
        )
        engine(name).answer(f)
        after = (f.start, f.anchor, f.model.net.state_dict(), [m.training for m in f.model.net.modules()])
        assert all(same(a, b) for a, b in zip(before[:3], after[:3], strict=True)) and before[3] == after[3]


def test_the_same_request_gives_the_same_bits_whatever_was_run_before() -> None:
    f, run = fit("resnet", optim=HEAVY), engine("resnet")
    first = run.answer(f)
    run.answer(fit("resnet", norm="post-hoc"))
    run.answer(fit("cnn"))
    f.model.net.eval()
    torch.manual_seed(5)
    assert same(run.answer(f).params, first.params)


# ---- statistics
def test_statistics_follow_their_policy() -> None:
    f = fit("cnn", optim=PLAIN, epochs=2)
    x, _ = samples("cnn", 10, KEY.at("train"))
    statistics = f.model.statistics
    moved = engine("cnn").answer(f).params
    for norm in ("personal", "per-width"):
        assert same(engine("cnn").answer(fit("cnn", optim=PLAIN, epochs=2, norm=norm)).params, moved)
    still = engine("cnn").answer(fit("cnn", optim=PLAIN, epochs=2, norm="batch")).params
    later = engine("cnn").answer(fit("cnn", optim=PLAIN, epochs=2, norm="post-hoc")).params
    for k in f.start:
        assert torch.equal(still[k], f.start[k]) == (k in statistics)
        assert torch.equal(later[k], still[k]) == (k not in statistics)
    net = copy.deepcopy(f.model.net)
    net.load_state_dict(still)
    seen: dict[str, Tensor] = {}
    for name, m in net.named_modules():
        if isinstance(m, BatchNorm):
            m.register_forward_hook(lambda m, a, out, name=name: seen.__setitem__(name, a[0]))
            m.train()
    with torch.no_grad():
        net(x)
    for name, a in seen.items():
        assert torch.allclose(later[f"{name}.running_mean"], a.mean((0, 2, 3)), atol=1e-6)
        assert torch.allclose(later[f"{name}.running_var"], a.var((0, 2, 3)), atol=1e-6)


def test_no_epochs_under_post_hoc_is_a_calibration() -> None:
    f = fit("cnn", epochs=0, norm="post-hoc")
    out = engine("cnn").answer(f)
    assert out.steps == 0 and all(
        torch.equal(out.params[k], f.start[k]) == (k not in f.model.statistics) for k in f.start
    )


# ---- what may not move
@pytest.mark.parametrize("cover", [every_other, scattered])
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet", "lstm-tied"])
def test_what_is_not_free_does_not_move_by_one_bit(name: str, cover: Callable[[str], Cover]) -> None:
    free = cover(name)
    f = fit(name, optim=HEAVY, epochs=2, free=free)
    out = engine(name).answer(f).params
    frozen = {k: ~free[k].dense() if k in free else torch.ones(f.start[k].shape).bool() for k in f.model.trainable}
    assert all(torch.equal(out[k][m], f.start[k][m]) for k, m in frozen.items())
    assert all(k not in free or not torch.equal(out[k], f.start[k]) for k in frozen)
    # where it is free, it moves as under a loop that clips over the free coordinates only
    params, _ = by_hand(f, *samples(name, 10, KEY.at("train")), frozen)
    assert close(out, params) and (same(out, params) or cover is scattered or name == "lstm-tied")


def test_the_clip_is_over_what_moves() -> None:
    free = scattered("mlp")
    f = fit("mlp", optim=SGD(1.0, clip=0.01), steps=1, free=free)
    out = engine("mlp").answer(f).params
    step = torch.cat([(out[k] - f.start[k]).flatten() for k in sorted(f.model.trainable)])
    assert float(step.norm()) == pytest.approx(0.01, rel=1e-3)


def test_nothing_free_is_no_training() -> None:
    f = fit("mlp", optim=HEAVY, free=Cover({}))
    assert same(engine("mlp").answer(f).params, f.start)


def test_frozen_statistics_move_with_their_units() -> None:
    free = every_other("cnn")
    f = fit("cnn", free=free, norm="frozen")
    out, loose = engine("cnn").answer(f).params, engine("cnn").answer(fit("cnn", free=free)).params
    for k in f.model.statistics:
        inside = free[k].dense()
        assert torch.equal(out[k][inside], loose[k][inside]) and torch.equal(out[k][~inside], f.start[k][~inside])
        assert not torch.equal(loose[k][~inside], f.start[k][~inside])


def test_a_correction_is_added_to_the_gradient() -> None:
    c = weights(tiny("mlp"), KEY.at("correct"))
    f = fit("mlp", optim=SGD(0.1), steps=1, correct=c)
    out, plain = engine("mlp").answer(f).params, engine("mlp").answer(fit("mlp", optim=SGD(0.1), steps=1)).params
    assert all(torch.allclose(out[k], plain[k] - 0.1 * c[k], atol=1e-6) for k in out)
    held = engine("mlp").answer(fit("mlp", optim=HEAVY, correct=c, free=every_other("mlp"))).params
    assert all(torch.equal(held[k][~s.dense()], f.start[k][~s.dense()]) for k, s in every_other("mlp").spans.items())


# ---- how long
def test_a_ragged_last_batch_counts_as_many_samples_as_it_has() -> None:
    f = fit("mlp", epochs=3, batch=4)
    out = engine("mlp", 10).answer(f)
    assert (out.steps, out.samples) == (9, 30)
    assert [len(b) for b in f.batches(10)] == [4, 4, 2] * 3
    assert same(
        engine("mlp", 10).answer(fit("mlp", batch=64)).params, engine("mlp", 10).answer(fit("mlp", batch=10)).params
    )


@pytest.mark.parametrize(("settings", "steps", "seen"), [
    ({"epochs": 0}, 0, 0),
    ({"steps": 0}, 0, 0),
    ({"steps": 2}, 2, 8),
    ({"steps": 7}, 7, 24),
    ({"steps": 7, "epochs": 1}, 7, 24),
])  # fmt: skip
def test_epochs_or_steps_say_how_long(settings: dict[str, Any], steps: int, seen: int) -> None:
    out = engine("mlp", 10).answer(fit("mlp", **settings))
    assert (out.steps, out.samples) == (steps, seen)
    if steps == 7:
        assert same(out.params, engine("mlp", 10).answer(fit("mlp", epochs=3, steps=7)).params)


def test_steps_are_the_first_of_a_longer_training() -> None:
    short, long = fit("mlp", steps=3), fit("mlp", epochs=1)
    assert same(engine("mlp").answer(short).params, engine("mlp").answer(long).params)


def test_a_budget_of_flops_ends_it_after_one_step_at_least() -> None:
    usage: list[Any] = []
    run = engine("mlp", 12)
    run.answer(fit("mlp", steps=1), usage)
    step = usage[0].flops
    for budget, steps in ((0.0, 1), (0.5 * step, 1), (step, 1), (1.5 * step, 2), (2 * step, 2), (1e18, 6)):
        out = run.answer(fit("mlp", epochs=2, flops=budget), usage)
        assert out.steps == steps and usage[-1].flops == steps * step


def test_there_is_no_training_on_no_data() -> None:
    run = engine("mlp", 0)
    f = fit("mlp")
    out = run.answer(f)
    assert same(out.params, f.start) and (out.steps, out.loss) == (0, 0.0)
    assert run.answer(fit("mlp", steps=5)).steps == 0


# ---- randomness inside a net
class Drop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(128, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(x.flatten(1), 0.5, self.training))


def test_dropout_draws_from_the_requests_key_and_from_nothing_else() -> None:
    from fedquilt.model import Model

    m = Model(Drop(), {})
    out = []
    for seed, key in ((0, KEY), (1, KEY), (1, KEY.at("other"))):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        start = {k: torch.full_like(v, 0.1) for k, v in m.params().items()}
        out.append(engine("cnn").answer(fit("cnn", model=m, start=start, key=key, batch=10)).params)
        assert torch.equal(torch.get_rng_state(), before)
    assert same(out[0], out[1]) and not same(out[1], out[2])


def test_a_mode_ends_when_the_work_in_it_fails() -> None:
    net = tiny("cnn").net.eval()
    with pytest.raises(ZeroDivisionError), training(net, KEY):
        assert net.training
        raise ZeroDivisionError
    assert not net.training
