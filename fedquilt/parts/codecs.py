"""Local work whose upload travels in a code, and the memory of what the code lost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..codec import Codec, Uniform, coded_part, compress, forms_of
from ..cover import Cover, put, take
from ..fleet import Device
from ..key import Key
from ..model import Model
from ..types import Brief, Client, Grant, Local, Order, Part, Serving, State, Work
from .local import Train, section


@dataclass(frozen=True)
class Coded(Part):
    r"""Any local work, whose upload travels in a code.

    With ``feedback`` a client remembers what the code lost and adds it to its next change (error
    feedback: Seide et al., Interspeech 2014; Stich, Cordonnier, Jaggi, NeurIPS 2018, arXiv:1809.07599):

    .. math:: q = Q(\theta_i - \theta^t + e_i), \qquad e_i \leftarrow \theta_i - \theta^t + e_i - q
    """

    train: Local = Train()
    codec: Codec = Uniform()
    feedback: bool = False

    def grant(self, cover: Cover, model: Model) -> Grant:
        """As the work itself has it."""
        return self.train.grant(cover, model)

    def brief(self, state: State, client: int, device: Device, model: Model, cover: Cover, key: Key) -> Brief:
        """The name of the codec."""
        inner = self.train.brief(state, client, device, model, cover, key)
        return Brief({**inner.scalars, "codec": self.codec.text}, inner.extra)

    def __call__(self, order: Order, client: Client) -> Work:
        """Work, then encode."""
        reply, memory = yield from self.train(order, without(client, "lost"))
        if not self.feedback:
            return compress(reply, order, client.key.at("codec"))[0], memory
        floats = reply.cover.only(coded_part(forms_of(reply)).__contains__)
        zero = {k: torch.zeros(s.shape, dtype=reply.params[k].dtype) for k, s in floats.spans.items()}
        kept = zero | section(client.memory, "lost")
        reply, lost = compress(reply, order, client.key.at("codec"), take(kept, floats))
        after = {f"lost/{k}": v for k, v in put(kept, floats, lost).items()}
        return reply, replace(memory, tensors={**memory.tensors, **after})

    def serve(self, order: Order, client: Client) -> Serving:
        """As the work itself has it."""
        return (yield from self.train.serve(order, without(client, "lost")))


def without(client: Client, name: str) -> Client:
    """The client, without what its memory keeps under ``name/``."""
    tensors = {k: v for k, v in client.memory.tensors.items() if not k.startswith(name + "/")}
    return replace(client, memory=replace(client.memory, tensors=tensors))
