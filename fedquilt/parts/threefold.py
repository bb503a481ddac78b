"""Three classes of participants in one local, and the base model that suits most of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..cover import Cover
from ..fleet import Demand, Device, Fleet
from ..grow import Scale, climb, enlarged
from ..key import Key
from ..model import Model
from ..types import Client, Grant, Order, Part, Reply, Served, Serving, Work
from .local import Train
from .personalise import Personalised, epochs_of
from .resized import Grown, Shrunk

Class = Literal["insufficient", "sufficient", "colossal"]
CLASSES: tuple[Class, ...] = ("insufficient", "sufficient", "colossal")


def base_rung(rungs: Sequence[Demand], fleet: Fleet, seconds: float, epochs: int) -> int:
    """Mishra and Gupta's Procedure 1: the last rung of a ladder that more than half of a fleet can train.

    That is, in this time and in their memory.  It is climbed from below and left where that fails; the first rung
    is taken in any case, since there is none below it.
    """
    chosen = 0
    for i, wanted in enumerate(rungs):
        able = sum(wanted.fits(d, fleet.sizes.get(c, 1), epochs, seconds) for c, d in fleet.devices.items())
        if 2 * able <= len(fleet):
            break
        chosen = i
    return chosen


def usual(wanted: Demand, fleet: Fleet, epochs: int) -> float:
    """The least time in which more than half of a fleet can train this."""
    times = sorted(wanted.seconds(d, fleet.sizes.get(c, 1), epochs) for c, d in fleet.devices.items())
    return times[len(times) // 2]


@dataclass(frozen=True)
class Means:
    """To which class a client belongs: that of what its device can train within ``seconds`` and its memory.

    ``base`` and ``larger`` are what the server's net and the grown one ask for.  Where these are not known the class
    goes by the width that the device carries: below ``low`` insufficient, from ``high`` on colossal.
    """

    seconds: float = 0.0
    base: Demand | None = None
    larger: Demand | None = None
    low: float = 0.5
    high: float = 1.0

    def of(self, device: Device, samples: int, epochs: int) -> Class:
        """The class of a client with so many samples on this device."""
        if self.base is None or self.larger is None:
            return (
                "insufficient" if device.width < self.low else "colossal" if device.width >= self.high else "sufficient"
            )
        if not self.base.fits(device, samples, epochs, self.seconds):
            return "insufficient"
        return "colossal" if self.larger.fits(device, samples, epochs, self.seconds) else "sufficient"


@dataclass(frozen=True)
class Threefold(Part):
    """Each client works as its means allow: as ``insufficient``, ``sufficient`` or ``colossal``.

    ``seconds`` is what a round may take (0: the least that suffices more than half of the fleet for the run's net),
    ``scales`` those of the server's net among which Procedure 1 chooses, where ``seconds`` are given.
    """

    sufficient: Personalised = Personalised()
    insufficient: Shrunk = Shrunk()
    colossal: Grown = Grown()
    means: Means = Means()
    seconds: float = 0.0
    scales: tuple[Scale, ...] = ()

    @property
    def train(self) -> Train:
        """How all of them train."""
        return self.sufficient.train

    def fitted(self, model: Model, fleet: Fleet, ask: Callable[[Model], Demand]) -> tuple[Threefold, Model]:
        """The local that knows a round's time and both demands, and the base model of Procedure 1."""
        key, epochs = Key(0).at("ladder"), epochs_of(self.train)
        seconds = self.seconds
        if seconds and self.scales and model.spec:
            rungs = ladder(model, self.scales, key)
            model = rungs[base_rung([ask(m) for m in rungs], fleet, seconds, epochs)]
        wanted = ask(model)
        seconds = seconds or usual(wanted, fleet, epochs)
        larger, _ = enlarged(model, model.params(), self.colossal.wider, self.colossal.deeper, key)
        held = replace(ask(larger), message=wanted.message)  # the larger net never travels
        means = replace(self.means, seconds=seconds, base=wanted, larger=held)
        return replace(self, seconds=seconds, means=means), model

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What any of them may speak about, and of which class the client is."""
        some = self.sufficient.grant(cover, model)
        return replace(some, metrics=some.metrics | {"class"})

    def worker(self, client: Client) -> tuple[int, Any]:
        """The class of a client, by number, and its work."""
        kind = self.means.of(client.device, client.counts["train"], epochs_of(self.train))
        return CLASSES.index(kind), getattr(self, kind)

    def __call__(self, order: Order, client: Client) -> Work:
        """The work of the client's class."""
        number, work = self.worker(client)
        reply: Reply
        reply, memory = yield from work(order, client)
        return replace(reply, metrics={**reply.metrics, "class": float(number)}), memory

    def serve(self, order: Order, client: Client) -> Serving:
        """The model that a client of this class uses."""
        served: Served = yield from self.worker(client)[1].serve(order, client)
        return served


def ladder(model: Model, scales: Sequence[Scale], key: Key) -> list[Model]:
    """The net at these scales, the smallest first; scales at which it cannot be are left out, its own is among them."""
    found: dict[Scale, Model] = {1.0: model}
    for scale in scales:
        try:
            found.setdefault(scale, climb(model, model.params(), scale, key)[0])
        except ValueError:  # a table that decodes, a layer norm, no place for a layer
            continue
    return sorted(found.values(), key=lambda m: m.count())
