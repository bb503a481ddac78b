"""What a problem asks of a model: a loss to train on and metrics to be judged by.

Metrics are sums (:class:`Tally`) until the very end, so that batches, clients and processes can be
added in any grouping and give the same figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Tally = dict[str, Tensor]


class Task(Protocol):
    """The loss and the metrics of a problem; a frozen dataclass."""

    def loss(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """One loss a sample, and what each sample weighs (None: all the same)."""

    def divergence(self, out: Tensor, teacher: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """How far an output is from a teacher's: one number a sample, and what each weighs."""

    def tally(self, out: Tensor, y: Tensor) -> Tally:
        """Sums over a batch; adding two gives that of both batches."""

    def metrics(self, tally: Tally) -> dict[str, float]:
        """The figures that the sums say."""


def add(a: Tally, b: Tally) -> Tally:
    """The tally of both."""
    return {k: a[k] + b[k] for k in a} if a and b else dict(a or b)


def _mean_loss(tally: Tally) -> float:
    return float(tally["loss"] / tally["n"].clamp(min=1))


def _kl(out: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher, out) over the last axis, by hand: aten's has no batching rule."""
    return (teacher.softmax(-1) * (teacher.log_softmax(-1) - out.log_softmax(-1))).sum(-1)


@dataclass(frozen=True)
class Classification:
    """One of ``classes``: cross-entropy; accuracy, macro-F1, and accuracy of each class."""

    classes: int

    def loss(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Cross-entropy of each sample."""
        return F.cross_entropy(out, y, reduction="none"), None

    def divergence(self, out: Tensor, teacher: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The Kullback-Leibler divergence of each sample."""
        return _kl(out, teacher), None

    def tally(self, out: Tensor, y: Tensor) -> Tally:
        """Loss, count and confusion (true class by predicted class)."""
        c = self.classes
        confusion = torch.bincount(y * c + out.argmax(1), minlength=c * c).view(c, c)
        return {"loss": self.loss(out, y)[0].double().sum(), "n": torch.tensor(len(y)), "confusion": confusion}

    def metrics(self, tally: Tally) -> dict[str, float]:
        """loss, accuracy, macro_f1 (over the classes that occur, as truth or as guess), n."""
        m = tally["confusion"].double()
        hit, true, said = m.diagonal(), m.sum(1), m.sum(0)
        seen = true + said > 0
        f1 = 2 * hit / (true + said).clamp(min=1)
        n = tally["n"]
        return {
            "loss": _mean_loss(tally),
            "accuracy": float(hit.sum() / n.clamp(min=1)),
            "macro_f1": float(f1[seen].mean()) if bool(seen.any()) else 0.0,
            "n": float(n),
        }

    def leave_one_out(self, tally: Tally, left: int) -> dict[str, float]:
        """For a model that never saw class ``left``: its accuracy on that class and on all the others."""
        m = tally["confusion"].double()
        hit, true = m.diagonal(), m.sum(1)
        rest = true.sum() - true[left]
        return {
            "left_out_accuracy": float(hit[left] / true[left].clamp(min=1)),
            "others_accuracy": float((hit.sum() - hit[left]) / rest.clamp(min=1)),
        }


def _gap(out: Tensor, y: Tensor) -> Tensor:
    """Output less target, one row a sample; a net may leave out, or add, axes of one entry."""
    return (out.reshape(y.shape) - y).unsqueeze(-1).flatten(1)


@dataclass(frozen=True)
class Regression:
    """Real targets: half the squared error; mean squared and mean absolute error."""

    def loss(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Half the squared error of each sample, summed over its targets."""
        return _gap(out, y).pow(2).sum(1) / 2, None

    def divergence(self, out: Tensor, teacher: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Half the squared distance of each sample."""
        return self.loss(out, teacher.reshape(y.shape))

    def tally(self, out: Tensor, y: Tensor) -> Tally:
        """Sums of loss, squared and absolute error."""
        gap = _gap(out.double(), y.double())
        return {
            "loss": self.loss(out, y)[0].double().sum(),
            "n": torch.tensor(len(y)),
            "squared": gap.pow(2).mean(1).sum(),
            "absolute": gap.abs().mean(1).sum(),
        }

    def metrics(self, tally: Tally) -> dict[str, float]:
        """loss, mse, mae, n."""
        n = tally["n"].clamp(min=1)
        return {
            "loss": _mean_loss(tally),
            "mse": float(tally["squared"] / n),
            "mae": float(tally["absolute"] / n),
            "n": float(tally["n"]),
        }


@dataclass(frozen=True)
class NextToken:
    """The next token at every position; ``ignore`` (padding, unknown) is neither trained on nor scored."""

    vocabulary: int
    ignore: tuple[int, ...] = ()

    def _scored(self, y: Tensor) -> Tensor:
        out = torch.ones_like(y, dtype=torch.bool)
        for token in self.ignore:
            out = out & (y != token)
        return out

    def loss(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The mean over the scored tokens of each sample, and how many those are."""
        scored = self._scored(y)
        each = F.cross_entropy(out.transpose(1, 2), y, reduction="none")
        weight = scored.sum(1).to(out.dtype)
        return torch.where(scored, each, 0.0).sum(1) / weight.clamp(min=1), weight

    def divergence(self, out: Tensor, teacher: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The mean Kullback-Leibler divergence over the scored tokens of each sample, and how many those are."""
        scored = self._scored(y)
        weight = scored.sum(1).to(out.dtype)
        return torch.where(scored, _kl(out, teacher), 0.0).sum(1) / weight.clamp(min=1), weight

    def tally(self, out: Tensor, y: Tensor) -> Tally:
        """Loss, hits and count over the scored tokens."""
        scored = self._scored(y)
        each = self.loss(out, y)[0].double()
        return {
            "loss": (each * scored.sum(1)).sum(),
            "n": scored.sum(),
            "hit": ((out.argmax(2) == y) & scored).sum(),
        }

    def metrics(self, tally: Tally) -> dict[str, float]:
        """loss, accuracy and perplexity of a token, n tokens."""
        n = tally["n"].clamp(min=1)
        loss = _mean_loss(tally)
        return {
            "loss": loss,
            "accuracy": float(tally["hit"].double() / n),
            "perplexity": float(torch.tensor(loss, dtype=torch.float64).exp()),
            "n": float(tally["n"]),
        }


TASKS: Mapping[str, type] = {"classification": Classification, "regression": Regression, "next-token": NextToken}
