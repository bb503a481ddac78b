"""The laws of tasks: the figures are those of scikit-learn, and sums add in any grouping."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, log_loss, mean_absolute_error, mean_squared_error
from torch import Tensor

from fedquilt.task import TASKS, Classification, NextToken, Regression, Tally, Task, add

from .strategies import law, seeds

T = 5  # length of a text
V = 7  # words


def scores(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape) * 2).to(dtype)


def labels(n: int, among: list[int], seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng([seed, 1]).choice(among, n)).to(torch.int64)


def close(a: float, b: float, room: float = 1e-12) -> bool:
    return math.isclose(a, b, rel_tol=room, abs_tol=room)


# ---- classification
some_classes = st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True)


@law()
@given(st.integers(1, 40), some_classes, st.integers(0, 5), seeds)
def test_classification_is_scored_as_scikit_learn_does(n: int, among: list[int], hidden: int, seed: int) -> None:
    task, out, y = Classification(6), scores((n, 6), seed), labels(n, among, seed)
    out[:, hidden] -= 20  # a class that is never said, and may not occur either
    got = task.metrics(task.tally(out, y))
    said, p = out.argmax(1), out.softmax(1)
    assert close(got["accuracy"], accuracy_score(y, said))
    assert close(got["macro_f1"], f1_score(y, said, average="macro"))  # labels that occur as truth or as guess
    assert close(got["loss"], log_loss(y, p, labels=range(6)), 1e-9)
    assert got["n"] == n
    assert got.keys() == {"loss", "accuracy", "macro_f1", "n"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_of_other_types_is_summed_in_float64(dtype: torch.dtype) -> None:
    task, y = Classification(6), labels(5000, list(range(6)), 1)
    out = scores((5000, 6), 1, dtype)
    each, weight = task.loss(out, y)
    assert weight is None and each.shape == y.shape and each.dtype == dtype
    assert close(task.metrics(task.tally(out, y))["loss"], float(each.double().sum() / 5000))


def test_classification_by_hand() -> None:
    task = Classification(4)
    y = torch.tensor([0, 0, 1, 1, 1, 2])
    said = torch.tensor([0, 1, 1, 1, 0, 0])  # class 3 neither occurs nor is said
    tally = task.tally(F.one_hot(said, 4).double(), y)
    assert tally["confusion"].tolist() == [[1, 1, 0, 0], [1, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    got = task.metrics(tally)
    assert got["accuracy"] == 0.5
    assert close(got["macro_f1"], (2 / 5 + 4 / 6 + 0) / 3)
    hit, miss = math.log(math.e + 3) - 1, math.log(math.e + 3)
    assert close(got["loss"], (3 * hit + 3 * miss) / 6)


def test_leave_one_out_by_hand() -> None:
    task = Classification(3)
    y, said = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2]), torch.tensor([0, 0, 0, 1, 1, 2, 0, 1])
    tally = task.tally(F.one_hot(said, 3).double(), y)
    assert task.leave_one_out(tally, 0) == {"left_out_accuracy": 3 / 4, "others_accuracy": 1 / 4}
    assert task.leave_one_out(tally, 1) == {"left_out_accuracy": 1 / 2, "others_accuracy": 3 / 6}
    assert task.leave_one_out(tally, 2) == {"left_out_accuracy": 0.0, "others_accuracy": 4 / 6}
    alone = task.tally(F.one_hot(said[:4], 3).double(), y[:4])  # nobody else is there, or nobody is
    assert task.leave_one_out(alone, 0) == {"left_out_accuracy": 3 / 4, "others_accuracy": 0.0}
    assert task.leave_one_out(alone, 2) == {"left_out_accuracy": 0.0, "others_accuracy": 3 / 4}


# ---- regression
@law()
@given(st.integers(1, 40), st.sampled_from(((), (1,), (3,), (2, 3))), st.booleans(), seeds)
def test_regression_is_scored_as_scikit_learn_does(n: int, targets: tuple[int, ...], row: bool, seed: int) -> None:
    task, y = Regression(), scores((n, *targets), seed)
    out = y + scores((n, *targets), seed + 1)
    got = task.metrics(task.tally(out.reshape(n, -1) if row else out, y))
    truth, said = y.reshape(n, -1), out.reshape(n, -1)
    assert close(got["mse"], mean_squared_error(truth, said))
    assert close(got["mae"], mean_absolute_error(truth, said))
    assert close(got["loss"], mean_squared_error(truth, said) * truth.shape[1] / 2)
    assert got["n"] == n and got.keys() == {"loss", "mse", "mae", "n"}


def test_regression_by_hand() -> None:
    task, y = Regression(), torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    out = torch.tensor([[2.0, 4.0], [0.0, -3.0]])
    each, weight = task.loss(out, y)
    assert each.tolist() == [2.5, 4.5] and weight is None
    assert task.metrics(task.tally(out, y)) == {"loss": 3.5, "mse": 3.5, "mae": 1.5, "n": 2.0}
    whole = task.loss(torch.tensor([[1.5], [2.0]]), torch.tensor([1, 4]))[0]  # whole-numbered targets
    assert whole.tolist() == [0.125, 2.0]


def test_outputs_that_do_not_fit_the_targets_are_refused() -> None:
    for out, y in (((4, 2), (4,)), ((4, 2), (4, 1)), ((4,), (4, 2)), ((4, 1), (4, 4))):
        with pytest.raises(RuntimeError, match="invalid for input of size"):
            Regression().loss(torch.zeros(out), torch.zeros(y))  # not spread silently over the other's axes


# ---- the next token
PAD, UNKNOWN = 0, 3


@law()
@given(st.integers(1, 8), st.sampled_from(((), (PAD,), (PAD, UNKNOWN))), seeds)
def test_ignored_tokens_count_neither_for_the_loss_nor_for_the_metrics(
    n: int, ignore: tuple[int, ...], seed: int
) -> None:
    task, out, y = NextToken(V, ignore), scores((n, T, V), seed), labels(n * T, list(range(V)), seed).view(n, T)
    y[n // 2, 1:] = PAD
    y[0] = ignore[0] if ignore else 1  # a text of which nothing is scored
    flat, words = out.view(-1, V), y.flatten()
    kept = torch.tensor([w not in ignore for w in words.tolist()])
    got = task.metrics(task.tally(out, y))
    each, weight = task.loss(out, y)
    assert weight is not None and weight.tolist() == kept.view(n, T).sum(1).tolist()
    assert got["n"] == int(kept.sum()) and got.keys() == {"loss", "accuracy", "perplexity", "n"}
    if not kept.any():
        assert got == {"loss": 0.0, "accuracy": 0.0, "perplexity": 1.0, "n": 0.0} and not each.any()
        return
    expected = log_loss(words[kept], flat[kept].softmax(1), labels=range(V))
    assert close(got["loss"], expected, 1e-9)
    assert close(got["perplexity"], math.exp(expected), 1e-9)
    assert close(got["accuracy"], accuracy_score(words[kept], flat[kept].argmax(1)))
    assert close(float((each * weight).sum() / weight.sum()), expected, 1e-9)  # what training minimises
    other = out.clone()  # what is said where nothing is scored does not matter
    other.view(-1, V)[~kept] = scores((int((~kept).sum()), V), seed + 1)
    assert {k: float(v) for k, v in task.tally(other, y).items()} == {
        k: float(v) for k, v in task.tally(out, y).items()
    }


def test_a_word_that_a_net_rules_out_may_be_ignored() -> None:
    task = NextToken(3, (PAD,))
    out = torch.zeros(1, 2, 3, dtype=torch.float64)
    out[..., PAD] = -math.inf  # the net never says padding, so its loss there is infinite
    out.requires_grad_()
    y = torch.tensor([[1, PAD]])
    each, weight = task.loss(out, y)
    assert weight is not None and weight.tolist() == [1] and close(each.item(), math.log(2))
    (grad,) = torch.autograd.grad(each.sum(), out)
    assert bool(grad.isfinite().all()) and not grad[0, 1].any()
    assert close(task.metrics(task.tally(out.detach(), y))["perplexity"], 2.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_many_tokens_are_counted_exactly(dtype: torch.dtype) -> None:
    y = torch.ones(2, 1001, dtype=torch.int64)  # more than bfloat16 can count, one by one
    task = NextToken(3, (PAD,))
    tally = task.tally(torch.zeros(2, 1001, 3, dtype=dtype), y)
    assert tally["n"] == 2002 and close(task.metrics(tally)["loss"], math.log(3), 0.01)


def test_no_gradient_comes_from_ignored_tokens() -> None:
    task, out = NextToken(V, (PAD,)), scores((3, T, V), 4).requires_grad_()
    y = labels(3 * T, list(range(V)), 4).view(3, T)
    y[:, -2:] = PAD
    each, weight = task.loss(out, y)
    assert weight is not None
    (grad,) = torch.autograd.grad((each * weight).sum() / weight.sum(), out)
    assert not grad[:, -2:].any() and grad[:, 0].any()


# ---- tallies add
def samples(task: Task, n: int, seed: int) -> tuple[Tensor, Tensor]:
    if isinstance(task, Classification):
        return scores((n, 6), seed), labels(n, [0, 1, 2, 5], seed)
    if isinstance(task, Regression):
        return scores((n, 2), seed), scores((n, 2), seed + 1)
    return scores((n, T, V), seed), labels(n * T, list(range(V)), seed).view(n, T)


EVERY = [Classification(6), Regression(), NextToken(V, (PAD, UNKNOWN))]


@pytest.mark.parametrize("task", EVERY)
@law(60)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.data(), seeds)
def test_tallies_add_in_any_grouping(task: Task, sizes: list[int], data: st.DataObject, seed: int) -> None:
    out, y = samples(task, sum(sizes), seed)
    whole = task.metrics(task.tally(out, y))
    parts = [task.tally(*xy) for xy in zip(out.split(sizes), y.split(sizes), strict=True)]
    parts = data.draw(st.permutations(parts))
    cut = data.draw(st.integers(0, len(parts)))
    one_by_one = reduce(add, parts, {})
    in_groups = add(reduce(add, parts[:cut], {}), reduce(add, parts[cut:], {}))
    for tally in (one_by_one, in_groups):
        got = task.metrics(tally)
        assert got.keys() == whole.keys()
        assert all(close(got[k], whole[k], 1e-11) for k in whole)
        assert int(tally["n"]) == whole["n"]


@pytest.mark.parametrize("task", EVERY)
def test_a_figure_is_not_the_mean_of_the_batches_figures(task: Task) -> None:
    out, y = samples(task, 9, 2)
    parts = [task.tally(out[:8], y[:8]), task.tally(out[8:], y[8:])]
    figures = [task.metrics(p)["loss"] for p in parts]
    assert not close(sum(figures) / 2, task.metrics(add(*parts))["loss"], 1e-3)


@pytest.mark.parametrize("task", EVERY)
def test_adding_leaves_its_inputs_alone(task: Task) -> None:
    a, b = (task.tally(*samples(task, 4, seed)) for seed in (1, 2))
    before = [{k: v.clone() for k, v in t.items()} for t in (a, b)]
    total = add(a, b)
    assert all(torch.equal(t[k], was[k]) for t, was in zip((a, b), before, strict=True) for k in t)
    nothing: Tally = {}
    assert add(nothing, a) == a == add(a, nothing) and add(nothing, nothing) == {}
    assert total.keys() == a.keys() and total is not a


@pytest.mark.parametrize("task", EVERY)
def test_no_sample_at_all_is_defined(task: Task) -> None:
    out, y = samples(task, 0, 1)
    each, _ = task.loss(out, y)
    tally = task.tally(out, y)
    got = task.metrics(tally)
    assert each.shape == (0,) and got["n"] == 0 and got["loss"] == 0
    assert all(math.isfinite(v) for v in got.values())
    more = task.tally(*samples(task, 5, 3))
    assert task.metrics(add(tally, more)) == task.metrics(more)


@pytest.mark.parametrize("task", EVERY)
def test_the_loss_is_one_number_a_sample(task: Task) -> None:
    out, y = samples(task, 6, 5)
    each, weight = task.loss(out, y)
    assert each.shape == (6,) and (weight is None or weight.shape == (6,))
    for i in range(6):
        one, _ = task.loss(out[i : i + 1], y[i : i + 1])
        assert close(one.item(), each[i].item())


def test_every_task_is_tested() -> None:
    assert {type(t) for t in EVERY} == set(TASKS.values())
    assert all(t == type(t)(**vars(t)) and hash(t) == hash(type(t)(**vars(t))) for t in EVERY)
