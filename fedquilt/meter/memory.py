"""Peak bytes of a training step: weights, gradients, optimiser state and the activations that backward needs.

Three answers for a step in which only some coordinates may move:

- ``executed``: what the engines hold today.  They compute the gradient of every tensor that may move
  anywhere, and keep all that this takes.
- ``exact``: what the same update needs at least, at the granularity of a unit: gradients of the free
  coordinates; the inputs of free columns; and, wherever the gradient has to pass on its way to an
  earlier layer, all that it passes, through frozen units too.
- ``cut``: as if no gradient passed through a frozen unit.  That is another update (biased), named here
  because papers that say ``the activations of the active neurons`` count it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..cover import Cover, Params
from ..fit import SGD, Fit
from ..key import Key
from ..model import Model
from ..step import begin, objective, training
from ..task import Task
from ..types import Handle

Freezing = Literal["executed", "exact", "cut"]


@dataclass(frozen=True)
class Peak:
    """Bytes of a step at its largest."""

    weights: float
    gradients: float
    activations: float
    state: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradients + self.activations + self.state


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes that are saved for backward: each storage once, and none of the ``known`` tensors."""

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        self.known = {place(t) for t in known}
        self.found: dict[int, torch.UntypedStorage] = {}  # held, so that no place is given away twice
        super().__init__(self._pack, lambda t: t)

    def _pack(self, t: Tensor) -> Tensor:
        if place(t) not in self.known:
            self.found[place(t)] = t.untyped_storage()
        return t

    @property
    def nbytes(self) -> int:
        """All that was saved."""
        return sum(s.nbytes() for s in self.found.values())


def once(some: Iterable[Tensor]) -> int:
    """Bytes of tensors, each once; of a view its own, since a device holds no more than the piece that it was sent."""
    return sum(t.nbytes for t in {(t.data_ptr(), t.numel()): t for t in some}.values())


def place(t: Tensor) -> int:
    """Where a tensor's storage is: views of it are at the same place."""
    return t.untyped_storage().data_ptr()


def peak_bytes(
    model: Model,
    params: Params,
    task: Task,
    x: Tensor,
    y: Tensor,
    free: Cover | None = None,
    optim: SGD | None = None,
    freezing: Freezing = "executed",
) -> Peak:
    """The peak of a plain step on this batch, in which the coordinates of ``free`` may move."""
    fit = Fit(model, task, params, Handle(0, "train"), Key(0), optim or SGD(), batch=len(x), free=free)
    return peak(fit, x, y, freezing)


def peak(fit: Fit, x: Tensor, y: Tensor, freezing: Freezing = "executed") -> Peak:
    """The peak of a step of this training on this batch."""
    moving, held = begin(fit, y.unique())
    still = fit.still if freezing == "executed" else {k for k, m in fit.moves.items() if not m.any()}
    leaves = {k: v.detach().requires_grad_(k not in still) for k, v in moving.items()}
    with training(fit.model.net, fit.key):
        seen = objective(fit, leaves, held, x.clone(), y.clone())  # no views into all the data
    fixed = [*leaves.values(), *held.buffers.values(), *fit.anchor.values(), *seen.buffers.values()]
    fixed += [t for p in held.peers.values() for t in p.values()]
    size = {k: v.element_size() for k, v in leaves.items()}
    if freezing == "executed":
        free = {k: v.numel() for k, v in leaves.items() if k not in still}
        masks: Mapping[str, Tensor] = {}
    else:
        free = {k: int(fit.moves[k].sum()) if k in fit.moves else v.numel() for k, v in leaves.items()}
        masks = fit.moves
    graph = _Graph(leaves, masks, through=freezing != "cut")
    activations = graph.kept(seen.total, {place(t) for t in fixed})
    return Peak(
        weights=once(fixed),
        gradients=sum(size[k] * n for k, n in free.items()),
        activations=activations,
        state=sum(size[k] * v.numel() for k, v in leaves.items()) if fit.optim.momentum else 0.0,
    )


VIEWS = ("T", "Transpose", "View", "UnsafeView", "ReshapeAlias", "Expand", "Permute", "Unsqueeze", "Squeeze")
MATRIX = {  # kind of node: the edges of input, weight and bias, and the saved input
    "ConvolutionBackward0": (0, 1, 2, "_saved_input"),
    "AddmmBackward0": (1, 2, 0, "_saved_mat1"),
    "MmBackward0": (0, 1, None, "_saved_self"),
}


@dataclass(frozen=True)
class _Graph:
    """How large a share of each saved tensor a step needs, whose tensors may move where ``masks`` are true."""

    leaves: Params
    masks: Mapping[str, Tensor]
    through: bool

    def kept(self, total: Tensor, known: set[int]) -> float:
        """Bytes of saved tensors, each storage once and at the largest share that some node needs of it."""
        names = {place(v): k for k, v in self.leaves.items()}
        need: dict[Any, float] = {}
        bytes_of: dict[int, tuple[int, float]] = {}
        for node in _children_first(total.grad_fn):
            need[node] = self._need(node, need, names)
            for name, t in _saved(node):
                if place(t) in known:
                    continue
                share = self._share(node, name, need[node], names)
                size, before = bytes_of.get(place(t), (0, 0.0))
                bytes_of[place(t)] = max(size, t.untyped_storage().nbytes()), max(before, share)
        return sum(size * share for size, share in bytes_of.values())

    def _need(self, node: Any, need: Mapping[Any, float], names: Mapping[int, str]) -> float:
        """The share of the units that a node puts out whose gradient is needed."""
        if hasattr(node, "variable"):
            return self._units(names.get(place(node.variable), ""), 0)
        below = [need[child] if child is not None else 0.0 for child, _ in node.next_functions]
        layer = _layer(node, names)
        if layer is None:
            return max(below, default=0.0)
        edge, name, out, bias = layer
        rows = max(self._units(name, out), self._units(bias, 0) if bias else 0.0)
        return 1.0 if self.through and below[edge] > 0 else rows

    def _share(self, node: Any, saved: str, need: float, names: Mapping[int, str]) -> float:
        """The share of a saved tensor that is needed: of a layer's input, that of its free columns."""
        layer = _layer(node, names)
        if layer is None or saved != MATRIX[type(node).__name__][3]:
            return need
        _, name, out, _ = layer
        return self._units(name, 1 - out)

    def _units(self, name: str, axis: int) -> float:
        """The share of an axis's entries under which something may move."""
        mask = self.masks.get(name)
        if mask is None:
            return 1.0
        if axis >= mask.dim():
            return float(mask.any())
        return float(mask.movedim(axis, 0).flatten(1).any(1).float().mean() if mask.dim() > 1 else mask.float().mean())


def _layer(node: Any, names: Mapping[int, str]) -> tuple[int, str, int, str] | None:
    """Of a node that multiplies by a weight: the input's edge, the weight, which axis is its output, the bias."""
    kind = MATRIX.get(type(node).__name__)
    if kind is None:
        return None
    edge, weight, bias, _ = kind
    child, turned = node.next_functions[weight][0], 0
    while child is not None and type(child).__name__.removesuffix("Backward0") in VIEWS:
        turned += type(child).__name__ in ("TBackward0", "TransposeBackward0")
        child = child.next_functions[0][0]
    if child is None or not hasattr(child, "variable") or place(child.variable) not in names:
        return None
    also = node.next_functions[bias][0] if bias is not None else None
    bias_name = names.get(place(also.variable), "") if also is not None and hasattr(also, "variable") else ""
    out = 0 if turned % 2 or type(node).__name__ == "ConvolutionBackward0" else 1
    return edge, names[place(child.variable)], out, bias_name


def _saved(node: Any) -> Iterator[tuple[str, Tensor]]:
    for name in dir(node):
        if name.startswith("_saved_") and isinstance(value := getattr(node, name), Tensor):
            yield name, value


def _children_first(root: Any) -> Iterator[Any]:
    """Every node of a graph once, after those that it leads to."""
    done, stack = set(), [(root, False)]
    while stack:
        node, ready = stack.pop()
        if node is None or node in done:
            continue
        if ready:
            done.add(node)
            yield node
            continue
        stack.append((node, True))
        stack += [(child, False) for child, _ in node.next_functions if child not in done]
