"""A formula for every kind of operation: how many floating point operations it takes.

Matrix products and convolutions count two for each multiplication (torch's own rule) and one for each
entry to which a bias is added.  Everything else counts one for each entry and elementary operation:
an activation or its derivative, a gate's product, a comparison of max-pooling, a term of a sum.
Copies, views, look-ups, selections and integers count nothing.  ``docs/costs.md`` has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Rule = Callable[..., float]
Products = Callable[..., tuple[float, float]]  # what the products take, and what comes beside them


# ---- rules: the arguments of an operation and what it gave (``out_val``) -> its FLOPs
def _size(out: Any) -> int:
    if isinstance(out, Tensor):
        return out.numel()
    return next((t.numel() for t in out if isinstance(t, Tensor)), 0)


def each(n: float) -> Rule:
    """``n`` for each entry of the result."""
    return lambda *args, out_val, **more: n * _size(out_val)


def given(n: float, place: int = 0) -> Rule:
    """``n`` for each entry of an argument."""
    return lambda *args, out_val, **more: n * args[place].numel()


def product(left: int, bias: bool = False) -> Products:
    """A product of (batches of) matrices: two for each multiplication, one for each entry with a bias."""

    def rule(*args: Any, out_val: Tensor, **more: Any) -> tuple[float, float]:
        return 2 * out_val.numel() * args[left].shape[-1], out_val.numel() if bias else 0

    return rule


def _multiplications(x: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> int:
    return (x if transposed else out).numel() * prod(weight.shape[1:])


def convolution(*args: Any, out_val: Tensor, **more: Any) -> tuple[float, float]:
    """A convolution: every entry of the result is a sum of products, plus a bias."""
    x, weight, bias, transposed = *args[:3], args[6]
    return 2 * _multiplications(x, weight, out_val, transposed), 0 if bias is None else out_val.numel()


def convolution_backward(*args: Any, out_val: Any, **more: Any) -> tuple[float, float]:
    """As many products as forward, for the gradient of the input and for that of the weight each."""
    (grad, x, weight), transposed, wanted = args[:3], args[7], args[10]
    each_way = 2 * _multiplications(x, weight, grad, transposed)
    return each_way * (wanted[0] + wanted[1]), grad.numel() if wanted[2] else 0


# mean 1, variance 3, subtract and scale 2, weight and bias 2; with running statistics there is no mean and variance
def normalisation(train: Callable[[Any], bool]) -> Rule:
    """Eight an entry with the statistics of the batch, four with running ones; two less without weight and bias."""

    def rule(*args: Any, out_val: Any, **more: Any) -> float:
        affine = any(isinstance(a, Tensor) for a in args[1:3])
        return float(args[0].numel() * ((6 if train(args) else 2) + (2 if affine else 0)))

    return rule


# the normalised input again 2, its product with the gradient and the sum 2, sum of the gradient 1; then the input's
def normalisation_backward(train: Callable[[Any], bool], wanted: int) -> Rule:
    """Five an entry, and for the input's gradient four more (one with running statistics)."""

    def rule(grad: Tensor, *args: Any, out_val: Any, **more: Any) -> float:
        every = (grad, *args)
        return grad.numel() * (5 + (0 if not every[wanted][0] else 4 if train(every) else 1))

    return rule


def pooling(size: int) -> Rule:
    """One for each entry of each window: a comparison or a term of the sum."""
    return lambda *args, out_val, **more: _size(out_val) * prod(_both(args[size]))


def pooling_backward(size: int) -> Rule:
    """An average's gradient goes to each entry of the window."""
    return lambda *args, out_val, **more: args[0].numel() * prod(_both(args[size]))


def _both(size: Any) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size) * (2 if len(size) == 1 else 1)


def attention(backward: bool) -> Products:
    """Two products forward, five backward (the scores again); scale and softmax 6 a score, backward 6 more."""

    def rule(*args: Any, out_val: Any, **more: Any) -> tuple[float, float]:
        q, k, v = args[1:4] if backward else args[:3]
        scores = prod(q.shape[:-1]) * k.shape[-2]
        one, two = 2 * scores * q.shape[-1], 2 * scores * v.shape[-1]
        return (3 * one + 2 * two, 12 * scores) if backward else (one + two, 6 * scores)

    return rule


def recurrent(times: int) -> Products:
    """An opaque LSTM layer of torch's (ours is a loop of counted operations): products, biases, nine a hidden unit."""

    def rule(*args: Any, out_val: Any, **more: Any) -> tuple[float, float]:
        x, inner, outer = args[:3]
        rows, gates = times * prod(x.shape[:-1]), inner.shape[0]
        return rows * 2 * (inner.numel() + outer.numel()), rows * (3 * gates + 9 * gates // 4)

    return rule


# ---- the table
def _ops(names: str) -> Iterable[Any]:
    """The operations of these names that this torch has, and their in-place forms."""
    for name in names.split():
        for form in (name, name + "_"):
            if hasattr(aten, form):
                yield getattr(aten, form)


def _always(args: Any) -> bool:
    return True


def _never(args: Any) -> bool:
    return False


def _legit(args: Any) -> bool:
    return bool(args[5] if len(args) > 7 else args[3])


_PRODUCTS: list[tuple[str, Products]] = [
    ("mm bmm mv dot vdot", product(0)),
    ("addmm baddbmm addmv", product(1, bias=True)),
    ("convolution", convolution),
    ("convolution_backward", convolution_backward),
    ("_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention", attention(False)),
    ("_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention", attention(False)),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", attention(True)),
    ("_scaled_dot_product_flash_attention_backward", attention(True)),
    ("_scaled_dot_product_efficient_attention_backward", attention(True)),
    ("_scaled_dot_product_cudnn_attention_backward", attention(True)),
    ("mkldnn_rnn_layer", recurrent(1)),
    ("mkldnn_rnn_layer_backward", recurrent(2)),
]
_REST: list[tuple[str, Rule]] = [
    ("native_batch_norm cudnn_batch_norm miopen_batch_norm", normalisation(lambda a: bool(a[5]))),
    ("_native_batch_norm_legit", normalisation(_legit)),
    ("_native_batch_norm_legit_no_training _batch_norm_no_update", normalisation(_never)),
    ("_batch_norm_with_update native_group_norm native_layer_norm", normalisation(_always)),
    ("native_batch_norm_backward", normalisation_backward(lambda a: bool(a[7]), 9)),
    ("batch_norm_backward", normalisation_backward(lambda a: bool(a[7]), 9)),
    ("native_group_norm_backward", normalisation_backward(_always, 9)),
    ("native_layer_norm_backward", normalisation_backward(_always, 7)),
    ("cudnn_batch_norm_backward miopen_batch_norm_backward", given(9)),
    ("_softmax _log_softmax", each(5)),  # largest, subtract, exp, sum, divide or subtract
    ("_softmax_backward_data _log_softmax_backward_data", each(4)),
    ("max_pool2d_with_indices avg_pool2d", pooling(1)),
    ("max_pool2d_with_indices_backward", given(1)),
    ("avg_pool2d_backward", pooling_backward(2)),
    ("_adaptive_avg_pool2d _adaptive_avg_pool2d_backward", given(1)),
    ("embedding_dense_backward", given(1)),
    ("index_add", given(1, 3)),  # each entry of the source is added somewhere
    ("nll_loss_forward nll_loss2d_forward", given(1, 1)),
    ("nll_loss_backward nll_loss2d_backward", given(1, 2)),
    ("sum mean amax amin max min cumsum prod", given(1)),
    ("linalg_vector_norm norm", given(2)),
    ("var std var_mean std_mean", given(4)),
    ("mse_loss", given(3)),
    ("addcmul addcdiv lerp mse_loss_backward native_dropout native_dropout_backward", each(2)),
    ("add sub rsub mul div neg abs sign exp exp2 expm1 log log1p log2 sqrt rsqrt reciprocal pow square", each(1)),
    ("sigmoid tanh relu leaky_relu elu gelu silu softplus hardtanh hardsigmoid hardswish sin cos erf", each(1)),
    ("clamp clamp_min clamp_max maximum minimum", each(1)),
    ("sigmoid_backward tanh_backward threshold_backward leaky_relu_backward elu_backward", each(1)),
    ("gelu_backward silu_backward softplus_backward hardtanh_backward", each(1)),
]
PRODUCTS: dict[Any, Products] = {op: rule for names, rule in _PRODUCTS for op in _ops(names)}
REST: dict[Any, Rule] = {op: rule for names, rule in _REST for op in _ops(names)}

FREE: frozenset[Any] = frozenset(
    _ops(
        "view _unsafe_view reshape expand t transpose permute squeeze unsqueeze split split_with_sizes chunk "
        "slice select unbind diagonal as_strided alias detach clone _to_copy copy contiguous cat stack empty "
        "empty_like empty_strided zeros zeros_like ones ones_like full full_like new_zeros new_empty new_ones "
        "new_full new_empty_strided fill zero arange scalar_tensor lift_fresh _local_scalar_dense where "
        "masked_fill index index_select index_put gather scatter embedding eq ne gt ge lt le logical_and "
        "logical_or logical_not bitwise_and bitwise_or bitwise_not any all argmax isnan isinf isfinite bernoulli "
        "rand rand_like randn randn_like randperm bincount triu tril flip roll repeat slice_backward "
        "select_backward topk sort constant_pad_nd one_hot scatter_add _reshape_alias _unsafe_index"
    )
)
