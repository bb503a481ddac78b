"""A real headless Chromium, spoken to by its own protocol over two pipes: no driver, no port, no package."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 60.0  # seconds for an answer, on a machine that may be busy


class Browser:
    """One page, with all that its console said and all that it asked for."""

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self.ours_out = os.pipe()
        self.ours_in, theirs_out = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in (theirs_in, theirs_out)]
        for fd in (theirs_in, theirs_out):
            os.close(fd)
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{high[0]} 4>&{high[1]}', *command],
            pass_fds=high,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": str(profile), "XDG_CONFIG_HOME": str(profile), "XDG_CACHE_HOME": str(profile)},
        )
        for fd in high:
            os.close(fd)
        self.buffer, self.last, self.session = b"", 0, ""
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.loaded = 0
        target = next(t for t in self.tell("Target.getTargets")["targetInfos"] if t["type"] == "page")
        found = self.tell("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")
        self.tell("Emulation.setFocusEmulationEnabled", enabled=True)  # a copy asks for a person before the page

    def tell(self, method: str, **params: Any) -> dict[str, Any]:
        """A command, and its answer."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.ours_out, json.dumps(message).encode() + b"\0")
        while True:
            said = self._hear()
            if said.get("id") == self.last:
                assert "error" not in said, (method, said)
                return dict(said["result"])

    def _hear(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.ours_in], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self.ours_in, 1 << 16)
            assert more, f"the browser has ended with code {self.process.poll()}"
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\0", 1)
        said: dict[str, Any] = json.loads(line)
        self._note(said.get("method", ""), said.get("params", {}))
        return said

    def _note(self, event: str, said: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(said["args"]))
        elif event == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(said["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.asked.append(said["request"]["url"])
        elif event == "Page.loadEventFired":
            self.loaded += 1

    def open(self, page: Path) -> None:
        """Load a file, and hear what comes of it."""
        self.complaints.clear()
        self.asked.clear()
        before = self.loaded
        self.tell("Page.navigate", url=page.as_uri())
        while self.loaded == before:
            self._hear()
        self.js("new Promise(done => setTimeout(done, 200))")  # what a page begins once it is there

    def js(self, text: str) -> Any:
        """The value of an expression in the page."""
        said = self.tell("Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in said, (text, said["exceptionDetails"])
        return said["result"].get("value")

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        os.close(self.ours_in)
        os.close(self.ours_out)
