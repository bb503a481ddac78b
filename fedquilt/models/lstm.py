"""Recurrent language models: embedding, LSTM layers, and a decoder over the vocabulary."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cover import Axis
from ..model import Model
from .base import Exit, Rows, Staged, Stages, assemble, recorded, rows


class LSTM(nn.Module):
    """One LSTM layer with the tensors of ``nn.LSTM(inputs, hidden, batch_first=True)``; returns the outputs alone.

    Torch's own runs as one opaque operation, which neither ``torch.func.vmap`` nor a FLOP counter
    understands and which bakes its sizes in; this is the same function as a loop over time.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_ih_l0 = nn.Parameter(torch.empty(4 * hidden))
        self.bias_hh_l0 = nn.Parameter(torch.empty(4 * hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw them as torch does."""
        bound = self.weight_hh_l0.shape[1] ** -0.5
        for w in self.parameters():
            nn.init.uniform_(w, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, T, H] for inputs [B, T, I]."""
        inputs = F.linear(x, self.weight_ih_l0, self.bias_ih_l0)  # of all steps at once: they need no state
        h = c = inputs.new_zeros(len(x), self.weight_hh_l0.shape[1])
        out = []
        for now in inputs.unbind(1):
            i, f, g, o = (now + F.linear(h, self.weight_hh_l0, self.bias_hh_l0)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            out.append(h)
        return torch.stack(out, 1)

    def rows(self, name: str, into: Axis, out: str) -> Rows:
        """Its rows of the axes table: a hidden unit owns one row in each of the four gates."""
        gates = Axis(out, repeat=4)
        return {
            f"{name}.weight_ih_l0": (gates, into),
            f"{name}.weight_hh_l0": (gates, Axis(out)),
            f"{name}.bias_ih_l0": (gates,),
            f"{name}.bias_hh_l0": (gates,),
        }


class Bias(nn.Module):
    """What a tied decoder has of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return x + self.bias


class Words(nn.Embedding):
    """An embedding that is a decoder too: torch's N(0, 1) would start with wild scores."""

    def reset_parameters(self) -> None:
        """Draw it at a decoder's scale."""
        nn.init.uniform_(self.weight, -0.1, 0.1)


class Tied(Staged):
    """An embedding, layers, and the embedding again as the decoder."""

    embed: Words

    def layer(self, name: str, x: Tensor) -> Tensor:
        """The head's input is a score for each word of the vocabulary."""
        return super().layer(name, F.linear(x, self.embed.weight) if name == "head" else x)


@recorded
def lstm(
    vocabulary: int = 80,
    embed: int = 8,
    hidden: tuple[int, ...] = (256, 256),
    tied: bool = False,
    exits: bool = False,
) -> Model:
    """A next-token model: tokens [B, T] to scores [B, T, vocabulary].

    The defaults are the Shakespeare net of McMahan et al. (AISTATS 2017) and LEAF.  With ``tied`` the
    decoder is the embedding plus a bias, so the embedding's columns and the last layer's hidden units
    are one group, ``embed``.  The vocabulary is never cut.
    """
    if not hidden:
        raise ValueError("hidden is empty: an LSTM has one layer at least")
    if tied and hidden[-1] != embed:
        raise ValueError(f"tied=True needs a last layer as wide as the embedding: {hidden[-1]} is not {embed}")
    layers: dict[str, nn.Module] = {"embed": (Words if tied else nn.Embedding)(vocabulary, embed)}
    axes: Rows = {"embed.weight": (None, Axis("embed"))}
    stages: Stages = {}
    width, into = embed, Axis("embed")
    for i, out in enumerate(hidden, 1):
        name = f"lstm{i}"
        group = Axis("embed" if tied and i == len(hidden) else name)
        layer = LSTM(width, out)
        layers[name] = layer
        axes |= layer.rows(name, into, group.group)
        stages[name] = width, into = out, group
    layers["head"] = Bias(vocabulary) if tied else nn.Linear(width, vocabulary)
    axes |= rows("head", layers["head"], None, None if tied else into)
    return assemble(
        layers, axes, stages, partial(Exit, outputs=vocabulary) if exits else None, Tied if tied else Staged
    )


@recorded
def reddit_lstm(vocabulary: int = 10_000, exits: bool = False) -> Model:
    """The Reddit net of FedLPS (Xue et al.), its decoder tied to the embedding: 2,845,392 parameters."""
    return lstm(vocabulary, 200, (256, 200), tied=True, exits=exits)
