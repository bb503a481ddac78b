"""A Grid in this process: real messages of Flower between the real apps, without its processes and sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedquilt.drive.flower import client
from fedquilt.drive.flower.letter import Letter
from fedquilt.drive.flower.node import Node

Handle = Callable[[Message, Context], Message]


class InMemory(Grid):
    """Nodes that answer in this process when their reply is asked for; every message goes through its bytes.

    ``configs`` are the nodes' configurations by node id, ``config`` that of the app.  ``trouble`` may say
    of a message, before a node sees it, that it is lost (``None``) or what error it ends in.
    """

    def __init__(self, configs: Mapping[int, Mapping[str, Any]], config: Mapping[str, Any]) -> None:
        self.configs, self.config = dict(configs), dict(config)
        self.waiting: dict[str, Message] = {}
        self.down: list[tuple[int, str, int]] = []  # node, kind and bytes of the order, of all that was pushed
        self.up: list[tuple[int, str, int]] = []
        self.trouble: Callable[[Message], Error | str | None] = lambda message: None
        self.handle: Handle = client.app
        self.count = 0
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def set_run(self, run: Run) -> None:
        raise AssertionError("the run is set")

    @property
    def run(self) -> Run:
        raise AssertionError("nobody asks")

    def create_message(self, *args: Any, **more: Any) -> Message:
        raise AssertionError("deprecated")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.configs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            if message.metadata.dst_node_id not in self.configs:
                ids.append(None)
                continue
            self.count += 1
            arrived = through_bytes(message)
            arrived.metadata.__dict__["_message_id"] = f"m{self.count}"
            self.waiting[f"m{self.count}"] = arrived
            self.down.append((message.metadata.dst_node_id, message.metadata.message_type, packed(message)))
            ids.append(f"m{self.count}")
        return ids  # type: ignore[return-value]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        out = []
        for i in message_ids:
            message = self.waiting.get(i)
            verdict = self.trouble(message) if message is not None else "gone"
            if message is None or isinstance(verdict, str):
                continue
            del self.waiting[i]
            node = message.metadata.dst_node_id
            if isinstance(verdict, Error):
                out.append(Message(verdict, reply_to=message))
                continue
            context = Context(1, node, dict(self.configs[node]), RecordDict(), dict(self.config))
            try:
                reply = through_bytes(self.handle(message, context))
            except Exception as error:  # as Flower does it
                reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
            else:
                self.up.append((node, message.metadata.message_type, packed(reply)))
            out.append(reply)
        return out

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise AssertionError("it sleeps three seconds between two looks")


def through_bytes(message: Message) -> Message:
    """The message as it arrives: taken apart into Flower's objects, and put together from their bytes."""
    objects = get_all_nested_objects(message)
    there = inflate_object_from_contents(
        get_object_tree(message).object_id, {k: o.deflate() for k, o in objects.items()}
    )
    assert isinstance(there, Message)
    return there


def packed(message: Message) -> int:
    """Bytes of the order or the reply in a message."""
    record = message.content.get("packed")
    return len(record["bytes"].data) if record is not None else 0


class Nodes:
    """In place of the line to workers: each node's own object, as a worker holds it."""

    def __init__(self) -> None:
        self.held: dict[str, Node] = {}

    def __call__(self, about: Mapping[str, Any], letter: Letter, patience: float) -> Letter:
        name = json.dumps(about, sort_keys=True)
        self.held.setdefault(name, Node.of(about))
        return self.held[name].answer(letter)


__all__ = ["ConfigRecord", "InMemory", "Nodes"]
