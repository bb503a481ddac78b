"""The nouns that travel, and the verbs that a part may have.  Data are frozen, verbs are pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from .cover import Cover, Params
from .key import Key
from .model import Model
from .task import Task

if TYPE_CHECKING:
    from .fleet import Demand, Device, Fleet

Scalar = bool | int | float | str
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True)
class Grant:
    """What a reply may speak about.  It comes from the server and travels with the order.

    ``kinds`` holds forms of the reply's cover: ``same`` (just the order's), or any of ``whole``,
    ``block``, ``mask`` inside ``outer``.  ``extras`` says name, dtype and shape of each named
    extra that a reply may carry, ``metrics`` the scalars, ``weight`` the largest weight, and
    ``nbytes`` the size of the whole message.
    """

    outer: Cover
    kinds: frozenset[str] = frozenset({"same"})
    extras: Mapping[str, tuple[torch.dtype, tuple[int, ...]]] = field(default_factory=dict)
    metrics: frozenset[str] = frozenset({"loss"})
    weight: float = float("inf")
    nbytes: int = 1 << 32


@dataclass(frozen=True)
class Order:
    """What travels down: work for one client in one round, on one version of its memory."""

    run: str
    seed: int
    client: int
    round: int
    params: Params
    cover: Cover
    grant: Grant
    version: int = 0
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    extra: Params = field(default_factory=dict)

    @property
    def norm(self) -> str:
        """The policy of normalisation statistics in force."""
        return str(self.scalars["norm"])


@dataclass(frozen=True)
class Reply:
    """What travels up.

    ``coded`` is the form in which the floats of ``params`` travel, where the order asks for a codec
    (see :mod:`fedquilt.codec`).  ``seconds``, from order to reply, and the ``order`` itself do not
    travel: the driver that received the reply says them.
    """

    client: int
    round: int
    params: Params
    cover: Cover
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: Params = field(default_factory=dict)
    seconds: float = 0.0
    order: Order | None = field(default=None, repr=False, compare=False)
    coded: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Brief:
    """What a part has an order say beside the model: to all of its local work, in this one round."""

    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    extra: Params = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The server between two rounds: the global model, one note a part, and why it stopped.

    ``versions`` says which version of its memory each client is known to have committed.
    """

    round: int
    params: Params
    notes: Mapping[str, Any] = field(default_factory=dict)
    stopped: str | None = None
    versions: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Memory:
    """What a client keeps for itself: tensors, facts (JSON) and the spec of a model of its own."""

    tensors: Params = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)
    spec: Mapping[str, Json] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tensors or self.facts or self.spec)


EVERYONE = -1  # in place of a client's id: the data of all clients, one after another


@dataclass(frozen=True)
class Handle:
    """Names a client's data without holding them: the engine knows where they live.

    ``round`` is the one since which they are so; 0, unless data change over time.
    """

    client: int
    split: str
    round: int = 0


@dataclass(frozen=True, eq=False)
class Client:
    """All that local work may see.  ``memory`` never leaves it; its data are so since the round ``since``."""

    id: int
    model: Model
    task: Task
    memory: Memory
    device: Device
    key: Key
    counts: Mapping[str, int]
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    since: int = 0

    @property
    def train(self) -> Handle:
        """Its training part."""
        return Handle(self.id, "train", self.since)

    @property
    def val(self) -> Handle:
        """Its validation part."""
        return Handle(self.id, "val", self.since)

    @property
    def test(self) -> Handle:
        """Its test part."""
        return Handle(self.id, "test", self.since)


@dataclass(frozen=True, eq=False)
class Served:
    """The model that a client would use now."""

    model: Model
    params: Params
    norm: str


Work = Generator[Any, Any, tuple[Reply, Memory]]
Serving = Generator[Any, Any, Served]


class Part:
    """Base of every part: a frozen dataclass with one verb.

    ``learn`` is the only writer of the part's own note; ``asks`` names metrics that the part wants
    in every reply (``val_loss``, say), which the local work then measures; ``brief`` is what the part
    tells a client with its order (a ratio, the server's control variate), ``together`` what it tells
    each of a cohort once it is chosen; ``tell`` is what the record of a round says of the part's note.
    """

    asks: ClassVar[tuple[str, ...]] = ()

    def brief(self, state: State, client: int, device: Device, model: Model, cover: Cover, key: Key) -> Brief:
        """What the part tells a client that is sent ``cover`` (``key`` is the one that chose it)."""
        return Brief()

    def together(self, state: State, cohort: Fleet) -> Mapping[int, Brief]:
        """What the part tells those who start together of one another (a common deadline, a rank)."""
        return {}

    def widths(self, width: float) -> tuple[float, ...]:
        """The widths whose own statistics a device of ``width`` is sent (where there is one set a width)."""
        return (width,)

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """The part's next note, from the replies of a round."""
        return note

    def used(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover | None:
        """What is sent to a client that is to use the model, not to train it (None: the same)."""
        return None

    def fitted(self, model: Model, fleet: Fleet, ask: Callable[[Model], Demand]) -> tuple[Any, Model]:
        """The part, and the server's net, as a run's fleet has them; ``ask`` says what training a net takes."""
        return self, model

    def tell(self, note: Any) -> Mapping[str, Json]:
        """What a record of the round should say of the note: a few numbers or words."""
        return {}


class Select(Protocol):
    """Who: ``n`` clients of those in ``fleet``."""

    def __call__(self, state: State, fleet: Fleet, n: int, key: Key) -> list[int]: ...
    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any: ...


class Send(Protocol):
    """Which part of the model goes down to a device."""

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover: ...
    def used(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover | None: ...
    def widths(self, width: float) -> tuple[float, ...]: ...
    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any: ...


class Local(Protocol):
    """The work of a client, the memory it leaves, and the model that the client would use."""

    def __call__(self, order: Order, client: Client) -> Work: ...
    def serve(self, order: Order, client: Client) -> Serving: ...
    def grant(self, cover: Cover, model: Model) -> Grant: ...
    def fitted(self, model: Model, fleet: Fleet, ask: Callable[[Model], Demand]) -> tuple[Any, Model]: ...
    def brief(self, state: State, client: int, device: Device, model: Model, cover: Cover, key: Key) -> Brief: ...


class Merge(Protocol):
    """The next global model."""

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params: ...
    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any: ...


class Stop(Protocol):
    """A reason to end the run, or None; who is not to be selected any more; when its condition was met."""

    def __call__(self, state: State, fleet: Fleet, replies: Sequence[Reply]) -> str | None: ...
    def retired(self, note: Any) -> frozenset[int]: ...
    def reached(self, note: Any) -> int | None: ...
    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any: ...


class Schedule(Protocol):
    """How many clients work at once, and when the server stops waiting for more.

    ``keeps_late`` says whether what has not arrived when a round ends counts in a later one; ``after``,
    once the time is over, until when it still waits if only so many have arrived.
    """

    @property
    def keeps_late(self) -> bool: ...
    def want(self, fleet: int, inflight: int) -> int: ...
    def until(self, start: float) -> float: ...
    def after(self, until: float, arrived: int) -> float: ...
    def enough(self, arrived: int, inflight: int, lost: int = 0) -> bool: ...
    def quorum(self, asked: int) -> int: ...
