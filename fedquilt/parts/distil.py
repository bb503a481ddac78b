"""Distillation inside a step: a narrow slice from the widest, the stages of a net from each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

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


TERMS: Mapping[str, type[Term]] = {t.__name__: t for t in (SelfDistil,)}
