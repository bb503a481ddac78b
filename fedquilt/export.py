"""A trained model out of a run: the one that a client would use, or the global one, in a folder of its own.

    export("runs/mine", 7, "client7")
    model, params, net = load("client7")          # net(x): an ordinary nn.Module, ready to use

A sub-model is exported at its own shape.  Nothing is pickled: tensors are safetensors, the rest JSON.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as tensors_as_bytes
from torch import Tensor, nn

from .cover import Params
from .drive.rounds import unpacked
from .drive.score import everyone
from .drive.site import Global
from .key import Key
from .model import Model, adopt
from .models import build
from .norm import NORMS
from .prepare import Prepared, prepare
from .run import Run, settings_of
from .schema import BadSetting
from .step import mode
from .store import OnDisk, RunFolder, files
from .types import Client, Local, Order, Served, State

FORMAT = 1
SPEC, TENSORS, ONNX = "spec.json", "model.safetensors", "model.onnx"


def export(run: Path | str, client: int | str = "global", to: Path | str | None = None, onnx: bool = False) -> Path:
    """Write the model of a client (or ``global``) of the run in a folder, as it is after the last round done.

    With ``onnx`` there is ``model.onnx`` beside it, for a batch of any size.
    """
    source = Path(run)
    if onnx:
        onnx_is_here()
    prepared = prepare(Run.of(settings_of(source), f"the run in {source}"), OnDisk(source / "memory"))
    with RunFolder(source) as folder:
        found = folder.load()
        if found is None:
            raise BadSetting(f"{source} has no state yet: no model can be taken from it")
        state = unpacked(found[1]).state
        served = serve(prepared, state, client)
    if not served.model.spec:
        raise BadSetting("a net that was made in Python has no name that builds it again: save its tensors yourself")
    if onnx and not NORMS[served.norm].running:
        raise BadSetting("a net that normalises by the batch at hand has no fixed graph: no ONNX can be made of it")
    who = "global" if client == "global" else f"client-{client}"
    out = source / "export" / who if to is None else Path(to)
    spec = {
        "format": FORMAT,
        "model": {k: list(v) if isinstance(v, tuple) else v for k, v in served.model.spec.items()},
        "norm": served.norm,
        "who": who,
        "round": state.round,
        "run": prepared.sim.run,
        "method": prepared.sim.method.name,
        "data": {"name": prepared.data.data.name, "shape": list(prepared.data.data.shape)},
        "parameters": sum(served.params[k].numel() for k in served.model.trainable),
    }
    files.make_folder(out)
    files.replace(out / TENSORS, tensors_as_bytes({k: v.contiguous() for k, v in served.params.items()}))
    files.replace(out / SPEC, json.dumps(spec, indent=2).encode())
    if onnx:
        data = prepared.data.data
        _write_onnx(out, data.prepare(data.x[:2]))
    return out


def onnx_is_here() -> None:
    """Refuse ONNX where what it needs is not installed."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise BadSetting(f"ONNX needs {' and '.join(missing)}: pip install 'fedquilt[onnx]'", "onnx")


@contextmanager
def quiet() -> Iterator[None]:
    """What the exporter says about itself is not for the person who exports."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _write_onnx(folder: Path, x: Tensor) -> None:
    """The exported model once more, as a graph that other runtimes read; ``x`` are samples of its input."""
    _, _, net = load(folder)
    batch = ({0: torch.export.Dim("batch")},)
    with quiet():
        program = torch.onnx.export(
            net, (x,), input_names=["x"], output_names=["logits"], dynamic_shapes=batch, dynamo=True, verbose=False
        )
    assert program is not None
    program.save(str(folder / ONNX))


def serve(prepared: Prepared, state: State, client: int | str) -> Served:
    """The model that a client would use now, or the global one."""
    sim, here = prepared.sim, prepared.here
    local: Local
    if client == "global":
        order, local = everyone(sim, state), Global()
    elif isinstance(client, int) and client in sim.fleet.devices:
        order = sim.method.order(state, client, sim.fleet, sim.model, sim.key, sim.run, use=True)
        local = sim.method.local
    else:
        raise BadSetting(f"a client of this run is a number from 0 to {len(sim.fleet) - 1}, or global, not {client!r}")
    return _served(prepared, local, order, here.client(order, "serve"))


def _served(prepared: Prepared, local: Local, order: Order, client: Client) -> Served:
    work: Generator[Any, Any, Served] = local.serve(order, client)
    try:
        request = next(work)
        while True:
            request = work.send(prepared.here.engine.answer(request))  # type: ignore[attr-defined]
    except StopIteration as end:
        served: Served = end.value
        return served


# ---- and back
class ByBatch(nn.Module):
    """A net whose normalisation layers go by the batch at hand, in evaluation too."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """The net's output."""
        with mode(self.net, train=self.training, batch=True):
            out: Tensor = self.net(x)
            return out


def load(folder: Path | str) -> tuple[Model, Params, nn.Module]:
    """An exported model: what it was cut from, its tensors, and a module of its own shape, in evaluation mode."""
    path = Path(folder)
    try:
        spec = json.loads((path / SPEC).read_text())
        params = load_file(path / TENSORS)
    except OSError as error:
        raise BadSetting(f"{folder} holds no exported model: {error}") from error
    if spec.get("format") != FORMAT:
        raise BadSetting(f"{folder} has format {spec.get('format')}, and this version of the library reads {FORMAT}")
    model = build(spec["model"], Key(0))
    net = build(spec["model"], Key(0)).net
    for name, tensor in params.items():
        adopt(net, name, tensor.clone())
    if not NORMS[spec["norm"]].running:
        net = ByBatch(net)
    return model, params, net.eval()
