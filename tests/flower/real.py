"""A real SuperLink with SuperNodes on loopback: TLS, registered keys, a process each; all end with the test."""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()
PKCS8, SSH = serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.OpenSSH


def free_port() -> int:
    """One that nobody has, below those that systems give to outgoing connections: it stays free until it is used."""
    while True:
        port = 10240 + secrets.randbelow(32768 - 10240)
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def certificates(folder: Path) -> None:
    """An authority of our own (ca.crt) and the server's certificate for localhost (server.pem, server.key)."""
    keys = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in ("fedquilt test", "localhost")]
    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(names[0]).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        return made.not_valid_after(now + datetime.timedelta(days=2))

    ca = builder(names[0], keys[0]).add_extension(x509.BasicConstraints(True, None), critical=True)
    hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    server = builder(names[1], keys[1]).add_extension(hosts, critical=False)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    (folder / "ca.crt").write_bytes(ca.sign(keys[0], hashes.SHA256()).public_bytes(PEM))
    (folder / "server.pem").write_bytes(server.sign(keys[0], hashes.SHA256()).public_bytes(PEM))
    (folder / "server.key").write_bytes(keys[1].private_bytes(PEM, PKCS8, PLAIN))


def node_key(folder: Path, name: str) -> None:
    """A node's key pair, as ssh-keygen would make it."""
    key = ec.generate_private_key(ec.SECP384R1())
    (folder / name).write_bytes(key.private_bytes(PEM, SSH, PLAIN))
    (folder / name).chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + b" test\n")


class Federation:
    """``folder`` holds keys, logs, each process's FLWR_HOME; ``nodes`` are the SuperNodes by client."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.link: subprocess.Popen[bytes] | None = None
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.every: list[subprocess.Popen[bytes]] = []
        self.short = tempfile.mkdtemp(prefix="fq")  # a socket's name is not to be long
        certificates(folder)
        home = self.home("user")
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "tls"\n[superlink.tls]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "ca.crt"}"\n'
        )

    def home(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def env(self, name: str, **more: str) -> dict[str, str]:
        said = {
            "FLWR_HOME": str(self.home(name)),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": self.short,
            "NO_COLOR": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",  # Flower looks for its other commands there
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "PYTEST_"))}
        return inherited | said | more

    def start(self, name: str, *words: str, **more: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [str(BIN / words[0]), *words[1:]],
                env=self.env(name, **more),
                cwd=self.home(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.every.append(process)
        return process

    def start_link(self) -> None:
        tls = ["--ssl-ca-certfile", str(self.folder / "ca.crt"), "--ssl-certfile", str(self.folder / "server.pem")]
        tls += ["--ssl-keyfile", str(self.folder / "server.key")]
        self.link = self.start(
            "link", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), *tls,
            "--enable-supernode-auth", "--database", str(self.folder / "state.db"),
        )  # fmt: skip
        self.wait(self.listens, 300, "the SuperLink does not listen")

    def listens(self) -> bool:
        assert self.link is not None and self.link.poll() is None, self.log("link")
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def register(self, client: int) -> None:
        node_key(self.folder, f"key{client}")
        done = self.flwr("supernode", "register", str(self.folder / f"key{client}.pub"), "tls")
        assert done.returncode == 0, done.stdout + done.stderr

    def start_node(self, client: int, config: str = "", authority: str = "ca.crt", **more: str) -> None:
        self.nodes[client] = self.start(
            f"node{client}", "flower-supernode", "--root-certificates", str(self.folder / authority),
            "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()),
            "--auth-supernode-private-key", str(self.folder / f"key{client}"),
            "--node-config", f"client-id={client} {config}".strip(), **more,
        )  # fmt: skip

    def flwr(self, *words: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        return self.told([str(BIN / "flwr"), *words], timeout)

    def fedquilt(self, *words: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
        return self.told([sys.executable, "-m", "fedquilt", *words], timeout)

    def told(self, command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.env("user"), cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
        )

    def wait(self, for_it: Any, seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not for_it():
            assert time.monotonic() < end, f"{what} after {seconds} s"
            time.sleep(0.05)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def kill(self, process: subprocess.Popen[bytes], sign: int = signal.SIGKILL) -> None:
        """End a process with those that it has started (Flower's are in sessions of their own)."""
        if process.poll() is None:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for p in family:
                with suppress(psutil.NoSuchProcess):
                    p.send_signal(sign)
            process.wait(120)

    def processes(self, word: str, name: str = "") -> list[psutil.Process]:
        """Those of this federation (of the node, or the like, of this name) whose command holds a word."""
        out, home = [], str(self.folder / name)
        for p in psutil.process_iter():
            with suppress(psutil.Error):
                said = p.environ().get("FLWR_HOME", "")
                if f"{said}/".startswith(f"{home}/") and any(word in w for w in p.cmdline()):
                    out.append(p)
        return out

    def end(self) -> None:
        for process in reversed(self.every):
            self.kill(process)

    def sweep(self) -> None:
        """Whatever is left when a test has failed half-way."""
        for p in self.processes(""):
            with suppress(psutil.Error):
                p.kill()
        shutil.rmtree(self.short, ignore_errors=True)


@contextmanager
def federation(folder: Path, clients: int = 3, configs: Mapping[int, str] | None = None) -> Iterator[Federation]:
    """A SuperLink and a SuperNode for each client."""
    made = Federation(folder)
    try:
        made.start_link()
        for i in range(clients):
            made.register(i)
        for i in range(clients):
            made.start_node(i, (configs or {}).get(i, ""))
        yield made
    finally:
        made.end()
        made.sweep()
