"""Frozen weights without gradients: of a layer's weight only the block that may move has its gradient computed.

The net runs whole, and gradients pass through frozen units to the layers before: it is the same update
as when whole gradients are masked, but for rounding.  What is saved is the product that gives a
weight's gradient.  Its two factors are gathered first, which costs time; so a layer is trimmed where
that product loses ``WORTH`` multiplications or more for each channel gathered.  This is a fixed rule
(a probe would change bits between runs); ``benchmarks/performance.py`` measures both of its sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..cover import Params
from ..fit import Fit

WORTH = 1000


def gathered(t: Tensor, axis: int, which: Tensor | None) -> Tensor:
    """What of a factor of the product is needed."""
    return t if which is None else t.index_select(axis, which)


class Block(NamedTuple):
    """The rows (outputs) and columns (inputs) of a weight that may move; None: all."""

    rows: Tensor | None
    columns: Tensor | None

    @property
    def size(self) -> tuple[int | None, ...]:
        """How many rows and columns."""
        return tuple(None if a is None else len(a) for a in self)

    def placed(self, grad: Tensor, shape: torch.Size) -> Tensor:
        """The gradient of the block as that of the whole weight."""
        whole = grad.new_zeros(shape)
        if self.rows is None or self.columns is None:
            return whole.index_copy_(*((1, self.columns) if self.rows is None else (0, self.rows)), grad)  # type: ignore[arg-type]
        whole[self.rows[:, None], self.columns] = grad
        return whole


def blocks(fit: Fit) -> Mapping[str, Block]:
    """The weights of which a block alone is trained, and of which it is worth it."""
    if fit.free is None or fit.watch or fit.slices is not None or fit.view is not None:
        return {}
    found = {}
    for name, span in fit.free.spans.items():
        shape = tuple(fit.start[name].shape) if name in fit.model.trainable else ()
        if len(shape) < 2 or span.axes is None or any(a is not None for a in span.axes[2:]):
            continue
        block = Block(*span.axes[:2])
        left = [len(a) if a is not None else n for a, n in zip(block, shape, strict=False)]
        copied = sum(len(a) for a in block if a is not None)
        saved = (shape[0] * shape[1] - left[0] * left[1]) * prod(shape[2:])
        if copied and saved >= WORTH * copied:
            found[name] = block
    return found


def trimmed(found: Mapping[str, Block], moving: Params) -> AbstractContextManager[object]:
    """While it is open, the layers of these weights take the gradients of their blocks alone."""
    return _Trimmed(found, moving) if found else nullcontext()


class _Trimmed(TorchFunctionMode):
    def __init__(self, found: Mapping[str, Block], moving: Params) -> None:
        super().__init__()
        self.at = {moving[k].data_ptr(): block for k, block in found.items()}  # a step's leaves are views of these

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LAYERS and len(args) > 1 and (block := self.at.get(args[1].data_ptr())) is not None:
            layer, signature = LAYERS[func]
            if (known := signature(*args, **kwargs)) is not None:
                return layer.apply(block, *known)
        return func(*args, **kwargs)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: Block, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(gathered(x, x.dim() - 1, block.columns), weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        block, wanted = ctx.block, ctx.needs_input_grad
        flat = grad.flatten(0, -2)
        back = grad @ weight if wanted[1] else None
        some = gathered(flat, 1, block.rows).t() @ x.flatten(0, -2)
        return None, back, block.placed(some, weight.shape), flat.sum(0) if wanted[3] else None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: Block, x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
        ctx.block, ctx.how, ctx.shape = block, how, x.shape
        ctx.save_for_backward(gathered(x, 1, block.columns), weight)
        return F.conv2d(x, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        block, wanted = ctx.block, ctx.needs_input_grad

        def back(g: Tensor, x: Tensor, w: Tensor, which: list[bool]) -> tuple[Tensor, ...]:
            how = (*ctx.how, False, [0, 0], 1, which)
            return torch.ops.aten.convolution_backward(g, x, w, None, *how)  # type: ignore[no-any-return]

        whole = None
        if wanted[1]:
            whole = back(grad, grad.new_empty(1).expand(ctx.shape), weight, [True, False, False])[0]
        rows = gathered(grad, 1, block.rows)
        part = weight[: rows.shape[1], : x.shape[1]]  # of the right shape; its values have no part in it
        some = back(rows, x, part, [False, True, False])[1]
        bias = grad.sum((0, 2, 3)) if wanted[3] else None
        return None, whole, block.placed(some, weight.shape), bias, *(None for _ in ctx.how)


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Any, ...] | None:
    return (x, weight, bias) if x.dim() > 1 else None


def _pair(n: Any) -> list[int]:
    return [n, n] if isinstance(n, int) else list(n)


def _grid(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Any, ...] | None:
    if groups != 1 or isinstance(padding, str) or x.dim() != 4:
        return None
    return x, weight, bias, _pair(stride), _pair(padding), _pair(dilation)


LAYERS: Mapping[Any, tuple[Any, Callable[..., tuple[Any, ...] | None]]] = {
    F.linear: (_Linear, _plain),
    F.conv2d: (_Convolution, _grid),
}
