"""Floating point operations of what is really executed: torch's counter with the formulas of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .formulas import FREE, PRODUCTS, REST

RULES: Mapping[Any, Callable[..., Any]] = {**PRODUCTS, **REST}


@dataclass(frozen=True)
class Flops:
    """What was executed on the way to the loss and on the way back; of both, matrix products and convolutions."""

    forward: float = 0.0
    backward: float = 0.0
    products: float = 0.0

    @property
    def total(self) -> float:
        """Both."""
        return self.forward + self.backward


def count(work: Callable[[], object]) -> Flops:
    """The floating point operations that ``work`` executes (it draws nothing from the global generator)."""
    ways, products = [0.0, 0.0], [0.0]

    def told(rule: Callable[..., Any]) -> Callable[..., float]:
        def noted(*args: Any, out_val: Any, **more: Any) -> float:
            if not _floating(args, out_val):
                return 0.0
            said = rule(*args, out_val=out_val, **more)
            if isinstance(said, tuple):
                products[0] += said[0]
                said = sum(said)
            ways[counter.mod_tracker.is_bw] += said
            return float(said)

        noted._get_raw = True  # type: ignore[attr-defined]  # the tensors, not their shapes
        return noted

    counter = FlopCounterMode(display=False, custom_mapping={op: told(rule) for op, rule in RULES.items()})
    with torch.random.fork_rng(devices=[]), counter:
        work()
    return Flops(*ways, *products)


def flops(work: Callable[[], object]) -> float:
    """Forward and backward together."""
    return count(work).total


def _floating(args: Any, out: Any) -> bool:
    some = (out, *args) if isinstance(out, Tensor) else (*(out or ()), *args)
    return any(isinstance(t, Tensor) and t.is_floating_point() for t in some)


class _Unknown(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op = func._overloadpacket
        if op not in RULES and op not in FREE:
            self.names.add(str(op))
        return func(*args, **(kwargs or {}))


def unknown(work: Callable[[], object]) -> set[str]:
    """The operations of ``work`` of which no rule speaks: they would count nothing."""
    seen = _Unknown()
    with torch.random.fork_rng(devices=[]), seen:
        work()
    return seen.names
