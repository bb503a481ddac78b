"""Masks of single weights: how many each tensor keeps, which go, which come back."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..cover import Cover, Shapes
from ..model import Model

Masks = Mapping[str, Tensor]


def prunable(model: Model) -> list[str]:
    """The tensors that a mask may thin out: those that are trained and have two axes or more."""
    return [k for k in sorted(model.trainable) if len(model.shapes[k]) > 1]


def unpruned(model: Model) -> Cover:
    """Biases, norm layers, statistics."""
    names = set(prunable(model))
    return model.whole.only(lambda k: k not in names)


def masked(model: Model, masks: Masks) -> Cover:
    """The whole model, but of these tensors only what their masks say."""
    return Cover(dict(model.whole.spans) | dict.fromkeys(masks)) | Cover.masks(dict(masks))


def complement(cover: Cover, model: Model) -> Cover:
    """The weights that a cover masks out, and all of it that is never pruned; a cover that masks nothing is its own."""
    names = prunable(model)
    if all(k in cover and cover[k].kind == "whole" for k in names):
        return cover
    inside = cover.only(names.__contains__)
    return (model.whole.only(names.__contains__) - inside) | cover.only(lambda k: k not in names)


def largest(t: Tensor, n: int | Tensor, among: Tensor | None = None) -> Tensor:
    """A mask of the ``n`` entries that are the largest in size, among those of a mask; the first of equals."""
    size = t.detach().abs().flatten()
    if among is not None:
        size = torch.where(among.flatten(), size, -1.0)
    out = torch.zeros(size.shape, dtype=torch.bool)
    out[size.argsort(descending=True, stable=True)[: max(int(n), 0)]] = True
    return out.view(t.shape)


def erk(shapes: Shapes, density: float) -> dict[str, int]:
    r"""How many weights each tensor keeps, by Erdos-Renyi-Kernel: :math:`s_l \propto \sum d / \prod d`, at most all.

    Their sum is ``density`` of all weights, but for rounding; a tensor keeps one at least.
    """
    sizes = {k: math.prod(s) for k, s in shapes.items()}
    raw = {k: sum(s) / sizes[k] for k, s in shapes.items()}
    full: set[str] = set()
    while True:
        left = density * sum(sizes.values()) - sum(sizes[k] for k in full)
        scale = left / max(sum(raw[k] * sizes[k] for k in raw if k not in full), 1e-12)
        more = {k for k in raw if k not in full and scale * raw[k] > 1}
        if not more:
            break
        full |= more
    return {k: n if k in full else max(1, round(scale * raw[k] * n)) for k, n in sizes.items()}


def regrown(weight: Tensor, alive: Tensor, wish: Tensor, share: float) -> Tensor:
    """The next mask: a share of the living goes, the smallest first; as many of the dead come, by ``wish``."""
    living, dead = int(alive.sum()), int((~alive).sum())
    n = min(math.ceil(share * living - 1e-9), dead)
    return largest(weight, living - n, alive) | (largest(wish, n, ~alive) & ~alive)


def packed(mask: Tensor) -> Tensor:
    """A mask as bits, eight a byte."""
    bits = torch.nn.functional.pad(mask.flatten().to(torch.uint8), (0, -mask.numel() % 8)).view(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def unpacked(bits: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask that :func:`packed` made them of."""
    flat = (bits[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return flat.flatten()[: math.prod(shape)].bool().view(shape)
