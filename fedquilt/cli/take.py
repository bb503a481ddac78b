"""``export``: a model out of a run."""

from __future__ import annotations

import json
from pathlib import Path

from ..export import SPEC, export
from ..schema import BadSetting
from ..store import StoreError
from .tables import print_json


def take(folder: Path, client: str, to: Path | None, onnx: bool, as_json: bool) -> int:
    """Export and say where to, and how to load it."""
    if client != "global" and not client.isdecimal():
        raise BadSetting(f"--client is a client's number, or global, not {client!r}", "client")
    try:
        out = export(folder, client if client == "global" else int(client), to, onnx)
    except StoreError as error:
        raise BadSetting(str(error)) from error
    spec = json.loads((out / SPEC).read_text())
    if as_json:
        print_json({"folder": str(out), **spec})
        return 0
    size = f"{spec['model']['name']}, {spec['parameters']:,} parameters"
    print(f"{spec['who']} after round {spec['round']}: {size}, in {out}")
    print(f'load it with: model, params, net = fedquilt.load("{out}")')
    return 0
