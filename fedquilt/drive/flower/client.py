"""The ClientApp.  Flower starts a process for each message, so this one imports little and forwards to a worker."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from .letter import Letter
from .line import ask
from .records import content, letter

app = ClientApp()


def settings_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """The run's settings in the configuration of a Flower app."""
    return {k.removeprefix("run."): v for k, v in config.items() if k.startswith("run.")}


def home_of(node: Mapping[str, Any]) -> Path:
    """Where a node keeps its clients' memories: ``memory`` in its configuration, or in Flower's own folder."""
    flower = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    return Path(str(node.get("memory") or flower / "fedquilt")).expanduser().absolute()


def handle(message: Message, context: Context) -> Message:
    """Have the node's worker answer."""
    began = time.time()
    about = {
        "settings": settings_in(context.run_config),
        "node": dict(context.node_config),
        "home": str(home_of(context.node_config)),
    }
    asked = letter(message)
    told = ask(about, asked, message.metadata.ttl)  # not less what has gone by: this machine's clock is another
    at = {"process": psutil.Process().create_time(), "began": began, "ended": time.time()}
    return Message(content(Letter({**told.facts, "at": at}, told.blob)), reply_to=message)


app.query()(handle)
app.train()(handle)
app.evaluate()(handle)
