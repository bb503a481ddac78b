"""Distillation inside a step: a narrow slice from the widest, a net from another (what it says, where it looks)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..model import Model
from ..term import Step, Term


@dataclass(frozen=True)
class SelfDistil(Term):
    r"""FjORD: the loss of the widest slice, and a pull of the drawn one towards what the widest says.

    .. math:: L(f_{max}, y) + \alpha \, KL(f_{max} \Vert f_p)

    The widest is not pulled.  Where outputs are no classes, half the squared gap stands for the divergence.
    """

    alpha: float = 1.0

    def __call__(self, s: Step) -> Tensor:
        """What is added to (1 - alpha) times the loss of the drawn slice."""
        if s.beside is None:
            raise ValueError("self-distillation needs a slice that runs beside the drawn one")
        teacher = s.beside.logits
        pull = s.mean(*s.task.divergence(s.out.logits, teacher.detach(), s.y))
        return s.mean(*s.task.loss(teacher, s.y)) + self.alpha * pull


@dataclass(frozen=True)
class Distil(Term):
    r"""Hinton's distillation (arXiv:1503.02531): how far the net is from what a peer says, both softened.

    .. math:: w \, T^2 \, KL(\sigma(f_{peer} / T) \Vert \sigma(f / T))

    Where outputs are no classes, half the squared gap stands for the divergence.
    """

    peer: str
    weight: float = 1.0
    temperature: float = 4.0

    def __call__(self, s: Step) -> Tensor:
        """The weighted divergence; the peer is not moved by it."""
        t = self.temperature
        said, taught = s.out.logits / t, s.peer(self.peer).logits.detach() / t
        return self.weight * t**2 * s.mean(*s.task.divergence(said, taught, s.y))


@dataclass(frozen=True)
class Attention(Term):
    r"""Where the stages of both nets look (Zagoruyko and Komodakis, ICLR 2017): the mean square over the channels.

    .. math:: w \sum_l \left\Vert \frac{A_l}{\lVert A_l \rVert} - \frac{A'_l}{\lVert A'_l \rVert}
        \right\Vert_2^2, \qquad A_l = \tfrac{1}{C} \sum_c F_{l, c}^2

    over the stages of the same name, so the nets may differ in width; ``channel`` is the axis that is averaged.
    Without places (a dense layer) there is nowhere to look, and nothing is added.
    """

    features: ClassVar[bool] = True

    peer: str
    weight: float = 1.0
    channel: int = 1

    @staticmethod
    def of(model: Model, peer: str, weight: float) -> Attention:
        """That of a net: the channels of convolutions come first, those of sequences last."""
        at = tuple(f"{s}." for s in model.stages)
        folded = any(k.startswith(at) and len(model.shapes[k]) > 2 for k in model.trainable)
        return Attention(peer, weight, 1 if folded else -1)

    def looks(self, feature: Tensor) -> Tensor:
        """Of each sample the places, as a vector of length 1."""
        places = feature.pow(2).mean(self.channel).reshape(len(feature), -1)
        return places / (places.pow(2).sum(1, keepdim=True) + 1e-24).sqrt()

    def __call__(self, s: Step) -> Tensor:
        """The weighted squared gaps."""
        mine, theirs = s.out.features, s.peer(self.peer).features
        gaps = [(self.looks(mine[k]) - self.looks(theirs[k].detach())).pow(2).sum(1) for k in mine if k in theirs]
        return self.weight * s.mean(torch.stack(gaps).sum(0) if gaps else s.out.logits.flatten(1).sum(1) * 0)


@dataclass(frozen=True)
class PeerLoss(Term):
    """The task's loss on what a peer says, which trains it, and what it shares with the net."""

    peer: str
    weight: float = 1.0

    def __call__(self, s: Step) -> Tensor:
        """The weighted mean over the batch."""
        return self.weight * s.mean(*s.task.loss(s.peer(self.peer).logits, s.y))


TERMS: Mapping[str, type[Term]] = {t.__name__: t for t in (SelfDistil, Distil, Attention, PeerLoss)}
