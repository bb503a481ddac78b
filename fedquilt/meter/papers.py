"""The rules by which papers charge, beside our own counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..cover import Cover, Params, put, take
from ..model import Model
from ..step import mode
from ..term import call


def fedlps_flops(
    model: Model, input: tuple[int, ...], params: Params | None = None, cover: Cover | None = None, samples: float = 1
) -> float:
    r"""FLOPs of training on so many samples, as FedLPS charges them (Xue et al.; what its code counts).

    .. math:: 3 n \Big( \sum_{conv} (2\,|W|_0 + C) H' W' + \sum_{linear} (2\,|W|_0 + |b|_0)
              + \sum_{LSTM} (2\,|W|_0 + |b|_0) \Big)

    with :math:`|W|_0` the entries that are not zero, :math:`C` output channels if there is a bias and
    :math:`H' W'` the output's area.  Backward counts twice forward.  Activations, normalisation, pooling
    and embeddings are free, and an LSTM layer counts once, however long the sequence.  ``params`` (the
    initial ones if there are none) hold zeros where a mask does; those outside of ``cover`` count as zero.
    """
    given = model.params() if params is None else params
    if cover is not None:
        given = put({k: torch.zeros_like(v) for k, v in given.items()}, cover, take(given, cover))
    spent = [0]

    def see(layer: nn.Module, args: object, out: Tensor) -> None:
        named = dict(layer.named_parameters(recurse=False))
        full = 2 * sum(int(t.count_nonzero()) for k, t in named.items() if "weight" in k)
        if isinstance(layer, nn.Conv2d):
            spent[0] += (full + (out.shape[1] if "bias" in named else 0)) * out[0, 0].numel()
        else:
            spent[0] += full + sum(int(t.count_nonzero()) for k, t in named.items() if "bias" in k)

    layers = [m for m in model.net.modules() if isinstance(m, (nn.Conv2d, nn.Linear)) or type(m).__name__ == "LSTM"]
    hooks = [m.register_forward_hook(see) for m in layers]
    words = any(isinstance(m, nn.Embedding) for m in model.net.modules())
    try:
        with torch.no_grad(), mode(model.net, train=False):
            call(model.net, given, torch.zeros(1, *input, dtype=torch.int64 if words else torch.float32))
    finally:
        for h in hooks:
            h.remove()
    return 3.0 * samples * spent[0]
