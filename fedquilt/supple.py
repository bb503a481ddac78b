"""Torch's own layers that keep their sizes beside their tensors, taught to read them off the tensors.

A piece of a net runs as the net itself, on smaller tensors.  Most of torch's layers do not mind; those
here would insist on the sizes that they were built with.  :func:`supple` gives them, in place, a class
of the same name with ``Supple`` before it.  Their tensors, names and results stay what they are; where
torch refuses a batch of one, they go on.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["supple"]


def supple(net: nn.Module) -> nn.Module:
    """The net, of whose layers those of torch's own read their sizes off their tensors; classes of others stay."""
    for layer in net.modules():
        kind = SUPPLE.get(type(layer))
        if kind is None or (isinstance(layer, nn.modules.conv._ConvNd) and layer.groups == 1):
            continue
        if isinstance(layer, nn.modules.conv._ConvNd):
            vars(layer)["each"] = (layer.in_channels if layer.transposed else layer.out_channels) // layer.groups
        if isinstance(layer, nn.GroupNorm):
            vars(layer)["each"] = layer.num_channels // layer.num_groups
        layer.__class__ = kind
    return net


class _Grouped:
    """A convolution of groups, each of ``each`` channels along the first axis of its weight."""

    weight: Tensor
    each: int

    @property
    def groups(self) -> int:
        """As many as the weight has."""
        return len(self.weight) // self.each


class SuppleConv1d(_Grouped, nn.Conv1d):  # type: ignore[override]
    """A convolution of groups."""


class SuppleConv2d(_Grouped, nn.Conv2d):  # type: ignore[override]
    """A convolution of groups."""


class SuppleConv3d(_Grouped, nn.Conv3d):  # type: ignore[override]
    """A convolution of groups."""


class SuppleConvTranspose1d(_Grouped, nn.ConvTranspose1d):  # type: ignore[override]
    """A transposed convolution of groups."""


class SuppleConvTranspose2d(_Grouped, nn.ConvTranspose2d):  # type: ignore[override]
    """A transposed convolution of groups."""


class SuppleConvTranspose3d(_Grouped, nn.ConvTranspose3d):  # type: ignore[override]
    """A transposed convolution of groups."""


class SuppleGroupNorm(nn.GroupNorm):
    """Group normalisation with groups of as many channels as it was built with: fewer channels are fewer groups."""

    each: int

    def forward(self, input: Tensor) -> Tensor:
        """The normalised input."""
        # not F.group_norm, which refuses a batch of one value a group
        return torch.group_norm(input, input.shape[1] // self.each, self.weight, self.bias, self.eps)


class _Batch:
    """Batch normalisation that takes a last batch of one sample, as the zoo's own does.

    Torch's refuses to train on one value a channel, which has no variance: a client whose samples leave one
    over would fail.  It is normalised with the running statistics here, and does not move them.
    """

    def forward(self: Any, input: Tensor) -> Tensor:
        """The normalised input."""
        self._check_input_dim(input)
        if not self.training or self.running_mean is None or input.numel() != input.shape[1]:
            out: Tensor = super().forward(input)  # type: ignore[misc]
            return out
        held = (self.running_mean, self.running_var, self.weight, self.bias)
        return F.batch_norm(input, *held, training=False, eps=self.eps)


class SuppleBatchNorm1d(_Batch, nn.BatchNorm1d):
    """Batch normalisation."""


class SuppleBatchNorm2d(_Batch, nn.BatchNorm2d):
    """Batch normalisation."""


class SuppleBatchNorm3d(_Batch, nn.BatchNorm3d):
    """Batch normalisation."""


class SuppleLayerNorm(nn.LayerNorm):
    """Layer normalisation over as much of the last axes as the input has."""

    def forward(self, input: Tensor) -> Tensor:
        """The normalised input."""
        return F.layer_norm(input, input.shape[-len(self.normalized_shape) :], self.weight, self.bias, self.eps)


class SuppleRMSNorm(nn.RMSNorm):
    """Normalisation by the root of the mean square, over as much of the last axes as the input has."""

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input."""
        return F.rms_norm(x, x.shape[-len(self.normalized_shape) :], self.weight, self.eps)


class _Instance:
    """Instance normalisation of as many channels as the input has."""

    def forward(self: Any, input: Tensor) -> Tensor:
        """The normalised input."""
        self._check_input_dim(input)
        alone = input.dim() == self._get_no_batch_dim()
        out: Tensor = self._handle_no_batch_input(input) if alone else self._apply_instance_norm(input)
        return out


class SuppleInstanceNorm1d(_Instance, nn.InstanceNorm1d):
    """Instance normalisation."""


class SuppleInstanceNorm2d(_Instance, nn.InstanceNorm2d):
    """Instance normalisation."""


class SuppleInstanceNorm3d(_Instance, nn.InstanceNorm3d):
    """Instance normalisation."""


class _Recurrent:
    """A recurrent layer that is as wide as its tensors."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor

    @property
    def _flat_weights(self: Any) -> list[Tensor | None]:
        """The tensors at hand: torch keeps a list of those that it was built with."""
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, value: object) -> None:
        """Torch sets its list; it is not needed."""

    @property
    def input_size(self) -> int:
        """The width of what comes in."""
        return self.weight_ih_l0.shape[1]

    @property
    def hidden_size(self: Any) -> int:
        """The width of the state."""
        gates: int = {"LSTM": 4, "GRU": 3}.get(self.mode, 1)
        return len(self.weight_hh_l0) // gates


class SuppleRNN(_Recurrent, nn.RNN):  # type: ignore[override]
    """A recurrent layer."""


class SuppleGRU(_Recurrent, nn.GRU):  # type: ignore[override]
    """A recurrent layer."""


class SuppleLSTM(_Recurrent, nn.LSTM):  # type: ignore[override]
    """A recurrent layer."""

    @property
    def proj_size(self) -> int:  # type: ignore[override]
        """The width of the output, where it is not that of the state."""
        down: Any = getattr(self, "weight_hr_l0", ())
        return len(down)


class SuppleMultiheadAttention(nn.MultiheadAttention):
    """Attention of as many heads as its tensors have, each as wide as it was built with."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What the queries gather, and with what weights."""
        if query.dim() == 2 or self.bias_k is not None or self.add_zero_attn:  # rare: as it was built, or not at all
            masks = key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            return super().forward(query, key, value, *masks)
        inputs = (query, key, value)
        if not self.batch_first:
            inputs = (query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1))
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = apart if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, w, b).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for x, w, b in zip(inputs, weights, biases, strict=True)
        )
        scores = q @ k.mT * self.head_dim**-0.5
        for mask, shape in ((attn_mask, scores.shape), (key_padding_mask, (len(q), 1, 1, -1))):
            if mask is not None:
                mask = mask.view(shape) if mask.dim() != 2 or mask is key_padding_mask else mask
                scores = scores.masked_fill(mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        shares = F.dropout(scores.softmax(-1), self.dropout, self.training)
        out = self.out_proj((shares @ v).transpose(1, 2).flatten(2))
        out = out if self.batch_first else out.transpose(0, 1)
        return out, (shares.mean(1) if average_attn_weights else shares) if need_weights else None


class SuppleTransformerEncoderLayer(nn.TransformerEncoderLayer):
    """A layer that never takes torch's short cut, which goes by the sizes that were built."""

    @property
    def activation_relu_or_gelu(self) -> int:  # type: ignore[override]
        """Torch's word for: no short cut."""
        return 0


SUPPLE: dict[type[nn.Module], type[nn.Module]] = {
    next(c for c in kind.__mro__ if c.__module__.startswith("torch.")): kind
    for kind in (
        SuppleConv1d,
        SuppleConv2d,
        SuppleConv3d,
        SuppleConvTranspose1d,
        SuppleConvTranspose2d,
        SuppleConvTranspose3d,
        SuppleBatchNorm1d,
        SuppleBatchNorm2d,
        SuppleBatchNorm3d,
        SuppleGroupNorm,
        SuppleLayerNorm,
        SuppleRMSNorm,
        SuppleInstanceNorm1d,
        SuppleInstanceNorm2d,
        SuppleInstanceNorm3d,
        SuppleRNN,
        SuppleGRU,
        SuppleLSTM,
        SuppleMultiheadAttention,
        SuppleTransformerEncoderLayer,
    )
}
