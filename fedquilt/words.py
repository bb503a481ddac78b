"""Numbers in words."""

from __future__ import annotations

from collections.abc import Mapping

PREFIXES = ("", "k", "M", "G", "T", "P", "E")
SMALL = ("m", "µ", "n")
DIVISIBLE = ("J", "s")  # half a byte there is not


def amount(value: float, unit: str) -> str:
    """Three digits and a decimal prefix: ``117 kB``, ``1.1 GFLOP``, ``31.4 mJ``."""
    if unit in DIVISIBLE and 0 < abs(value) < 0.95:
        for prefix in SMALL:
            value *= 1000
            if abs(value) >= 0.95 or prefix == SMALL[-1]:
                return amount(value, prefix + unit)
    for prefix in PREFIXES:
        if abs(value) < 999.5 or prefix == PREFIXES[-1]:
            break
        value /= 1000
    digits = f"{value:.0f}" if value >= 99.5 or value == int(value) else f"{value:.1f}"
    return f"{digits} {prefix}{unit}"


def clock(seconds: float) -> str:
    """A time in the two units that matter: ``31 ms``, ``4.4 s``, ``12 min 5 s``, ``3 h 20 min``, ``2 d 4 h``."""
    if seconds < 0.95:
        return amount(seconds, "s")
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, small, subunit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {subunit}"
    return f"{seconds:.1f} s"


def share(value: float | None) -> str:
    """An accuracy: three places, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def repeated(repeats: Mapping[str, int]) -> str:
    """What the counts of equal samples come to."""
    again, trained = repeats["samples"], repeats["train in test"]
    said = f"{count(again, 'sample')} {'repeats' if again == 1 else 'repeat'} another byte for byte"
    said += f" ({repeats['across clients']:,} of them another client's)"
    if not trained:
        return f"{said}; nobody trains on what a test sample says"
    verb = "says" if trained == 1 else "say"
    return f"{said}; what {count(trained, 'test sample')} {verb} is in somebody's training part too"


def count(n: int, thing: str) -> str:
    """``1 client``, ``20 clients``."""
    return f"{n:,} {thing}" + ("" if n == 1 else "s")
