"""mpfl: personal models under changing data, and three classes of devices."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.criteria import ByCriteria
from ..parts.delayed import Compensated
from ..parts.local import Train
from ..parts.personalise import Personalised
from ..parts.resized import Grown, Halting, Lessons, Shrunk
from ..parts.schedule import Windows
from ..parts.static import Chosen
from ..parts.threefold import Threefold


def mpfl(
    ratio: float = 0.25,
    early: float = 0.25,
    threshold: float = 0.8,
    relative: bool = True,
    distil: bool = True,
    shares: tuple[float, ...] = (0.5, 0.2, 0.3),
    untrained: float = 0.5,
    temperature: float = 4.0,
    h1: float = 0.5,
    h2: float = 0.625,
    halting: Halting = "given",
    epsilon: float = 0.1,
    wider: float = 1.5,
    deeper: int = 2,
    smaller: float = 0.5,
    seconds: float = 0.0,
    widths: tuple[float, ...] = (0.5, 0.64, 0.8, 1.0, 1.25, 1.5625),
    depths: int = 1,
    window: float = 0.5,
    delta: float = 0.1,
    criteria: bool = True,
    fraction: float = 0.8,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""mpfl (Mishra, Gupta, ACM Transactions on Sensor Networks 20, 2023, doi:10.1145/3629978).

    .. math::
        \lambda_1 L + \lambda_2 L_{attention} + \lambda_3 L_{distillation} \; (+ \lambda_4 L_{untrained}), \qquad
        W \leftarrow W - \eta_i s_i \left( g_i + \delta \, g_i \odot g_i \odot (W - B_i) \right) \text{ averaged}

    The server's net is the largest of a ladder that more than half of the participants can train in the ``seconds`` of
    a round and in their memory.  Who can just train it finds its personal units, the share ``ratio`` stays at home.
    Who can train more holds a grown net and teaches the server's, until epoch h1 beside an untrained one.  Who can
    train less holds a shrunk net, which teaches until epoch h2.  The server merges after each ``window`` of a round,
    what is late with compensation; who has answered trains again.

    The paper leaves much open. h1 and h2 are shares of the epochs (20 and 25 of 40); Theorem 1 is solved for the
    epoch (``halting="theorem"``), each client of these two classes being its own pilot in its first round. The
    loss's shares, the temperature and delta are not given. The gradient in the merge is what a client moved by, a
    step, from what it was sent: a server has no data. Units are personal again when accuracy falls to below
    ``threshold`` times the best since, and by more than chance makes of so few samples (the paper's fixed 93 to 99
    % would strike in every round before it is reached; with ``relative=false`` it strikes only after). Growing is
    by copies, not by search; a window's end is a round of the run, and nobody waits for the slowest. Without
    ``seconds`` the run's net is the base, who trains it in the time that more than half of them need has the means
    for it, and a round is what it takes the slowest. ``distil=false`` leaves out all teaching between nets.

    :family: personal sub-models
    :sent: The units that the client has found personal (which they are comes back); all, if it is new or its net larger
    :kept: its other units; a larger or smaller net of its own
    """
    if len(shares) != 3:
        raise ValueError(f"shares are those of three losses, not {len(shares)}")
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    first, second, third = shares if distil else (1.0, 0.0, 0.0)
    given = {"untrained": untrained if distil else 0.0, "reverse": 0.5 if distil else 0.0, "temperature": temperature}
    grown, shrunk = (
        Lessons((first, second, third), until=h, halting=halting, epsilon=epsilon, **given) for h in (h1, h2)
    )
    personal = Personalised(train, ratio, early, threshold, relative)
    scales = tuple((w, more) if more else w for w in widths for more in range(depths + 1))
    local = Threefold(
        personal,
        Shrunk(train, shrunk, smaller, personal=personal),
        Grown(train, grown, wider, deeper),
        seconds=seconds,
        scales=scales,
    )
    return Method(
        "mpfl",
        select=ByCriteria(fraction, *[criteria] * 5),
        send=Chosen(latest=True),
        local=local,
        merge=Compensated(delta, train.optim),
        schedule=Windows(fraction, share=window, seconds=seconds),
    )
