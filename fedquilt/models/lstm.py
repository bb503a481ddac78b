"""Recurrent language models: embedding, LSTM layers, and a decoder over the vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cover import Axis
from ..model import Model
from .base import Rows, chain, recorded, rows


class LSTM(nn.Module):
    """One LSTM layer with the tensors of ``nn.LSTM(inputs, hidden, batch_first=True)``; returns the outputs alone.

    Torch's own runs as one opaque operation, which neither ``torch.func.vmap`` nor a FLOP counter
    understands and which bakes its sizes in; this is the same function as a loop over time.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        bound = hidden**-0.5

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.weight_ih_l0 = uniform(4 * hidden, inputs)
        self.weight_hh_l0 = uniform(4 * hidden, hidden)
        self.bias_ih_l0 = uniform(4 * hidden)
        self.bias_hh_l0 = uniform(4 * hidden)

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


class Tied(nn.Module):
    """An embedding, layers, and the embedding again as the decoder."""

    def __init__(self, embed: nn.Embedding, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.embed = embed
        self.layers = tuple(layers)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.head = Bias(embed.num_embeddings)

    def forward(self, x: Tensor) -> Tensor:
        """A score for each word of the vocabulary, at each position."""
        x = self.embed(x)
        for name in self.layers:
            x = self.get_submodule(name)(x)
        return self.head(F.linear(x, self.embed.weight))


@recorded
def lstm(vocabulary: int = 80, embed: int = 8, hidden: tuple[int, ...] = (256, 256), tied: bool = False) -> Model:
    """A next-token model: tokens [B, T] to scores [B, T, vocabulary].

    The defaults are the Shakespeare net of McMahan et al. (AISTATS 2017) and LEAF.  With ``tied`` the
    decoder is the embedding plus a bias, so the embedding's columns and the last layer's hidden units
    are one group, ``embed``.  The vocabulary is never cut.
    """
    if not hidden:
        raise ValueError("hidden is empty: an LSTM has one layer at least")
    if tied and hidden[-1] != embed:
        raise ValueError(f"tied=True needs a last layer as wide as the embedding: {hidden[-1]} is not {embed}")
    table = nn.Embedding(vocabulary, embed)
    stages = tuple(f"lstm{i}" for i in range(1, len(hidden) + 1))
    layers: dict[str, nn.Module] = {}
    axes: Rows = {"embed.weight": (None, Axis("embed"))}
    width, into = embed, Axis("embed")
    for name, out in zip(stages, hidden, strict=True):
        layer = LSTM(width, out)
        group = "embed" if tied and name == stages[-1] else name
        layers[name] = layer
        axes |= layer.rows(name, into, group)
        width, into = out, Axis(group)
    if tied:
        nn.init.uniform_(table.weight, -0.1, 0.1)  # a decoder's scale: torch's N(0, 1) would start with wild scores
        return Model(Tied(table, layers), axes, stages=stages)
    head = nn.Linear(width, vocabulary)
    axes |= rows("head", head, None, into)
    return Model(chain(embed=table, **layers, head=head), axes, stages=stages)
