"""Numbers in words."""

from __future__ import annotations

import pytest

from fedquilt.words import amount, clock, repeated


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0, "J", "0 J"),
        (0.0314, "J", "31.4 mJ"),
        (-0.5, "J", "-500 mJ"),
        (0.9996, "J", "1.0 J"),
        (2.45e-5, "J", "24.5 µJ"),
        (1e-15, "J", "0.0 nJ"),
        (0.5, "B", "0.5 B"),
        (117_400, "B", "117 kB"),
        (1.1e9, "FLOP", "1.1 GFLOP"),
    ],
)
def test_an_amount_has_three_digits_and_a_prefix(value: float, unit: str, said: str) -> None:
    assert amount(value, unit) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.0069, "6.9 ms"),
        (0.96, "1.0 s"),
        (4.4, "4.4 s"),
        (725, "12 min 5 s"),
        (12_000, "3 h 20 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_a_time_has_the_units_that_matter(seconds: float, said: str) -> None:
    assert clock(seconds) == said


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (
            (1, 1, 0),
            "1 sample repeats another byte for byte (1 of them another client's); "
            "nobody trains on what a test sample says",
        ),
        (
            (29, 2, 1),
            "29 samples repeat another byte for byte (2 of them another client's); "
            "what 1 test sample says is in somebody's training part too",
        ),
        (
            (29, 29, 6),
            "29 samples repeat another byte for byte (29 of them another client's); "
            "what 6 test samples say is in somebody's training part too",
        ),
    ],
)
def test_equal_samples_are_counted_in_a_sentence(counts: tuple[int, int, int], said: str) -> None:
    assert repeated(dict(zip(("samples", "across clients", "train in test"), counts, strict=True))) == said
