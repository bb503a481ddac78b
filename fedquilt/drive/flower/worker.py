"""A node's worker: holds net, data and memories of one run from message to message, and dies with its node.

``python -m fedquilt.drive.flower.worker SOCKET PID BORN`` reads on standard input what it is about, listens, and
answers one letter after another.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import psutil

from .letter import Broken, Letter, receive, send
from .node import Node

IDLE = 900.0  # seconds without a letter after which a worker ends; the next message starts another
LINE = 300.0  # seconds that whoever asks may take to send a letter, or to take the answer
LOOK = 0.5  # seconds between two looks whether the node lives


def main(place: Path, pid: int, born: float) -> None:
    """Listen until the node dies or nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    about = json.loads(sys.stdin.read())
    threading.Thread(target=_die_with, args=(pid, born, place), daemon=True).start()
    with socket.socket(socket.AF_UNIX) as door:
        half = place.with_suffix(".new")
        half.unlink(missing_ok=True)
        door.bind(str(half))
        door.listen(8)
        door.settimeout(IDLE)
        os.replace(half, place)  # whoever finds the socket finds it listening
        node: Node | None = None
        while True:
            try:
                line, _ = door.accept()
            except TimeoutError:
                place.unlink(missing_ok=True)
                return
            with line, suppress(Broken, OSError):  # who asked has gone: the next one asks again
                line.settimeout(LINE)
                asked = receive(line)
                try:
                    node = node or Node.of(about)
                    told = node.answer(asked)
                except Exception as error:
                    traceback.print_exc()
                    told = Letter({"error": f"{type(error).__name__}: {error}"})
                send(line, told)


def _die_with(pid: int, born: float, place: Path) -> None:
    while _lives(pid, born):
        time.sleep(LOOK)
    place.unlink(missing_ok=True)
    os._exit(0)


def _lives(pid: int, born: float) -> bool:
    try:
        node = psutil.Process(pid)
        return bool(abs(node.create_time() - born) < 1 and node.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
