"""From samples as they are kept to samples as a net takes them, a batch at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..key import Key


@dataclass(frozen=True)
class Prepare:
    """``x * gain + bias`` in float32, one gain and bias for all or one for each place on ``axis``.

    With ``tokens`` the samples are whole numbers and stay so.  ``crop`` (as many pixels of black
    border, then a window of the old size) and ``flip`` are drawn afresh for each sample, where a
    key is given: in training, never in scoring.
    """

    gain: tuple[float, ...] = ()
    bias: tuple[float, ...] = ()
    axis: int = 1
    tokens: bool = False
    crop: int = 0
    flip: bool = False

    def __call__(self, x: Tensor, key: Key | None = None) -> Tensor:
        """A batch, ready; what is ready as it is is given back as it is."""
        if key is not None and (self.crop or self.flip):
            x = self.augmented(x, key)
        if self.tokens:
            return x.long()
        if not x.is_floating_point() or x.dtype == torch.float16:
            x = x.float()
        if not self.gain:
            return x
        return x * self.on(self.gain, x) + self.on(self.bias, x)

    def on(self, values: tuple[float, ...], x: Tensor) -> Tensor:
        """Values, in the shape in which they meet the samples."""
        if len(values) == 1:
            return torch.tensor(values[0], dtype=x.dtype)
        return torch.tensor(values, dtype=x.dtype).view(-1, *[1] * (x.dim() - self.axis - 1))

    def augmented(self, x: Tensor, key: Key) -> Tensor:
        """Each image in a random window of its bordered self, and every other one mirrored."""
        n, _, h, w = x.shape
        g = key.torch()
        rows = torch.arange(h).expand(n, h)
        columns = torch.arange(w).expand(n, w)
        if self.crop:
            x = F.pad(x, (self.crop,) * 4)
            rows = rows + torch.randint(2 * self.crop + 1, (n, 1), generator=g)
            columns = columns + torch.randint(2 * self.crop + 1, (n, 1), generator=g)
        if self.flip:
            mirrored = torch.rand(n, 1, generator=g) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        each = torch.arange(n)
        return x.transpose(0, 1)[:, each[:, None, None], rows[:, :, None], columns[:, None, :]].transpose(0, 1)


AS_IS = Prepare()


def normal(
    mean: tuple[float, ...], std: tuple[float, ...], white: float = 255.0, crop: int = 0, flip: bool = False
) -> Prepare:
    """``(x / white - mean) / std`` by channel, as the papers write it."""
    gain = tuple(1 / (white * s) for s in std)
    return Prepare(gain, tuple(-m / s for m, s in zip(mean, std, strict=True)), crop=crop, flip=flip)
