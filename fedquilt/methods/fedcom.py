"""FedCOM: periodic averaging of compressed changes."""

from __future__ import annotations

from typing import Literal

from ..codec import codec_of
from ..fit import SGD
from ..method import Method
from ..parts.codecs import Coded
from ..parts.local import Train
from ..parts.merge import Filled
from ..parts.schedule import Sync


def fedcom(
    codec: str | None = None,
    feedback: bool | None = None,
    server_lr: float = 1.0,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    variant: Literal["paper", "seed"] = "paper",
) -> Method:
    r"""FedCOM (Haddadpour, Kamani, Mokhtari, Mahdavi, AISTATS 2021, arXiv:2007.01154).

    .. math:: \theta^{t+1} = \theta^t + \gamma \tfrac{1}{|S|} \sum_{i \in S} Q(\theta_i - \theta^t)

    ``codec`` is Q: ``uniform:8`` (the default: unbiased, 8 bits), ``qsgd:127`` or ``topk:0.1``; the last is
    biased, so clients then remember what it lost (``feedback``; None: where the codec needs it).  ``variant="seed"``
    is FLrce's (IEEE TMC 2024) baseline of this name: the 60 % greatest changes, and no memory.

    The paper divides the change by the step size before Q and multiplies after it: with these codecs
    that is the same.  Statistics of normalisation layers and integers travel as they are and are averaged
    plainly (FLrce's code cuts the statistics too, and drops changes that equal the least one kept).

    :sent: The whole model; what comes back is encoded
    :kept: nothing; what the code lost, with ``feedback``
    """
    chosen = codec_of(codec or ("topk:0.6" if variant == "seed" else "uniform:8"))
    remember = (variant == "paper" and not chosen.unbiased) if feedback is None else feedback
    local = Coded(Train(SGD(lr, momentum, decay=decay), epochs, batch), chosen, remember)
    return Method("fedcom", local=local, merge=Filled("uniform", server_lr), schedule=Sync(fraction))
