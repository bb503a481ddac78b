"""A merge for replies that build on an older model: each is brought to the model as it is now, then averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..cover import Params, mean, take
from ..fit import SGD
from ..norm import is_statistic
from ..types import Part, Reply, State
from .merge import Weight, base_of, weight_of


@dataclass(frozen=True)
class Compensated(Part):
    r"""DC-ASGD's compensation of delay (Zheng et al., ICML 2017), each client measured from what it was sent.

    .. math::
        g_i = (B_i - W_i) / (\eta s_i), \qquad
        \tilde W_i = W_i + (W - B_i) + (W_i - B_i) \odot \left[ \delta \, g_i \odot (W - B_i) \right]_{-1}^{1}, \qquad
        W \leftarrow \sum_i n_i \tilde W_i / \sum_i n_i

    B is what client i was sent, s how many steps it made, W the model now: its gradient is taken to change with the
    square of itself.  Where a client builds on the model as it is, both corrections are nothing and this is the mean
    to the bit.  The factor is kept between -1 and 1, so a change is at most doubled.  Statistics of
    normalisation layers are averaged as they come.  ``optim`` is the clients'.
    """

    asks: ClassVar[tuple[str, ...]] = ("steps",)

    delta: float = 0.1
    optim: SGD = SGD()
    weight: Weight = "samples"

    def __post_init__(self) -> None:
        if not 0 <= self.delta <= 1:
            raise ValueError(f"delta is a share from 0 to 1, not {self.delta}")

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model."""
        moved = [(self.moved(state, r), r.cover, weight_of(r, self.weight)) for r in replies]
        return mean(dict(state.params), moved)

    def moved(self, state: State, reply: Reply) -> Params:
        """A reply as if it had begun with the model that there is now."""
        now, base = take(dict(state.params), reply.cover), base_of(reply, state)
        paid = self.optim.at(reply.round).lr * max(reply.metrics.get("steps", 1.0), 1.0)
        return {
            k: v if is_statistic(k) or not v.is_floating_point() else self._brought(v, base[k], now[k], paid)
            for k, v in reply.params.items()
        }

    def _brought(self, came: Tensor, base: Tensor, now: Tensor, paid: float) -> Tensor:
        gap, change = now.double() - base.double(), came.double() - base.double()
        more = (-self.delta * change * gap / paid).clamp(-1, 1) if paid else 0.0
        return came.double() + gap + change * more
