"""Paired statistics, on numbers that are known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import wilcoxon

from fedquilt.key import Key
from fedquilt.stats import holm, interval, paired, signed_rank, worst_decile

KEY = Key(0).at("test")


def test_a_difference_is_paired_by_client_and_seed_and_averaged_over_seeds() -> None:
    a = {(0, 0): 0.5, (0, 1): 0.7, (1, 0): 0.9, (1, 5): 0.1}
    b = {(0, 0): 0.4, (0, 1): 0.8, (1, 0): 0.4, (2, 0): 0.0}
    said = paired(a, b, KEY)
    assert said["pairs"] == 3 and said["by_seed"] == pytest.approx([0.0, 0.5])
    assert said["difference"] == pytest.approx(0.25)
    assert (said["better"], said["worse"], said["equal"]) == pytest.approx((2 / 3, 1 / 3, 0))
    turned = paired(b, a, KEY)
    assert turned["difference"] == pytest.approx(-0.25) and turned["better"] == said["worse"]


def test_where_less_is_better_the_shares_say_so() -> None:
    said = paired({(0, 0): 1.0, (0, 1): 1.0}, {(0, 0): 2.0, (0, 1): 2.0}, KEY, lower_is_better=True)
    assert said["difference"] == -1 and said["better"] == 1


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    held = 0
    for i in range(200):
        x = KEY.at("sample", i).numpy().normal(size=40)
        low, high = interval({(0, c): float(v) for c, v in enumerate(x)}, KEY.at(i))
        held += low <= 0 <= high
    assert 180 <= held <= 198  # 0.95 of 200, less the percentile bootstrap's shortfall at 40


def test_an_interval_depends_on_the_key_alone() -> None:
    values = {(s, c): float(c % 7) for s in range(2) for c in range(30)}
    assert interval(values, KEY) == interval(dict(reversed(values.items())), KEY)
    assert interval(values, KEY) != interval(values, KEY.at("other"))


def test_the_signed_rank_test_is_scipys_and_nothing_moved_is_no_difference() -> None:
    d = np.array([0.1, -0.2, 0.3, 0.4, 0.0, 0.5, 0.0])
    assert signed_rank(d) == wilcoxon(d[d != 0]).pvalue
    assert signed_rank(np.zeros(9)) == 1.0


def test_holms_correction_on_a_hand_computed_case() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_worst_tenth_is_rounded_up() -> None:
    x = np.arange(11.0)
    assert worst_decile(x) == 0.5 and worst_decile(x, lower_is_better=True) == 9.5
