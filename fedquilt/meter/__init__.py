"""What a run costs: raw counts where they arise, prices from them whenever they are asked for.

Counts stand at the driver's two crossings (bytes are those of the encoded message) and in the
engine (operations and bytes of the executed shapes), so no method can forget or cheat.  The history
keeps counts; :func:`price` turns them into seconds and joules, so an old run can be priced again
(:func:`reprice`).  ``docs/costs.md`` says what each figure means.
"""

from __future__ import annotations

from .counter import Flops, count, flops, unknown
from .memory import Peak, Saved, peak, peak_bytes
from .papers import fedlps_flops
from .probe import Cost, Line, Work, cost, density, nbytes, ran_on, resting, tensors
from .usage import Price, Usage, price, reprice, rounds, together

__all__ = [
    "Cost",
    "Flops",
    "Line",
    "Peak",
    "Price",
    "Saved",
    "Usage",
    "Work",
    "cost",
    "count",
    "density",
    "fedlps_flops",
    "flops",
    "nbytes",
    "peak",
    "peak_bytes",
    "price",
    "ran_on",
    "reprice",
    "resting",
    "rounds",
    "tensors",
    "together",
    "unknown",
]
