"""The laws of covers: taking and putting back, sets, one form a set, bytes."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedquilt.cover import Axis, Cover, Params, Shapes, block, count_units, masked, mean, put, take

from .strategies import (
    all_bits,
    any_bits,
    axes_tables,
    bits,
    covers,
    dense,
    groups,
    law,
    like,
    models,
    models_shapes,
    owned,
    same_places,
    seeds,
    unit_choices,
)


def covers_of(data: st.DataObject, table: Shapes, n: int) -> list[Cover]:
    return [data.draw(covers(table)) for _ in range(n)]


# ---- take and put
@law(200)
@given(st.data(), models())
def test_putting_back_what_was_taken_changes_no_bit(data: st.DataObject, p: Params) -> None:
    c = data.draw(covers(p))
    assert all_bits(put(p, c, take(p, c))) == all_bits(p)


@law(200)
@given(st.data(), models(), seeds)
def test_taking_gives_what_was_put(data: st.DataObject, p: Params, seed: int) -> None:
    c = data.draw(covers(p))
    piece = take(like(p, any_bits, seed), c)
    assert all_bits(take(put(p, c, piece), c)) == all_bits(piece)


@law()
@given(st.data(), models(), seeds)
def test_put_changes_nothing_outside_and_everything_inside(data: st.DataObject, p: Params, seed: int) -> None:
    c = data.draw(covers(p))
    q = like(p, any_bits, seed)
    after, inside = put(p, c, take(q, c)), dense(c, {k: tuple(v.shape) for k, v in p.items()})
    assert list(after) == list(p)
    for k in p:
        assert bits(after[k][inside[k]]) == bits(q[k][inside[k]]), k
        assert bits(after[k][~inside[k]]) == bits(p[k][~inside[k]]), k


@law()
@given(st.data(), models(), seeds)
def test_take_and_put_leave_their_inputs_alone(data: st.DataObject, p: Params, seed: int) -> None:
    c = data.draw(covers(p))
    piece = take(like(p, any_bits, seed), c)
    before, piece_before, code = all_bits(p), all_bits(piece), c.encode()
    take(p, c)
    put(p, c, piece)
    assert (all_bits(p), all_bits(piece)) == (before, piece_before)
    assert Cover({k: c[k] for k in c}).encode() == code


@law()
@given(st.data(), models())
def test_pieces_have_the_shapes_that_the_cover_says(data: st.DataObject, p: Params) -> None:
    c = data.draw(covers(p))
    piece = take(p, c)
    assert {k: tuple(t.shape) for k, t in piece.items()} == c.pieces
    assert all(piece[k].dtype == p[k].dtype and piece[k].is_contiguous() for k in piece)
    assert sum(t.numel() for t in piece.values()) == c.numel


def test_a_piece_is_cut_out_in_the_order_of_its_places() -> None:
    w = torch.arange(24.0).view(4, 6)
    c = Cover.units(
        {"w": (4, 6)}, {"w": (Axis("o"), Axis("i", block=2))}, {"o": torch.tensor([3, 1]), "i": torch.tensor([2, 0])}
    )
    assert take({"w": w}, c)["w"].tolist() == [[6, 7, 10, 11], [18, 19, 22, 23]]
    mask = torch.tensor([[True, False], [True, True]])
    assert take({"w": torch.tensor([[1, 2], [3, 4]])}, Cover.masks({"w": mask}))["w"].tolist() == [1, 3, 4]


def test_what_has_another_shape_than_the_cover_says_is_refused() -> None:
    """Torch would cut a larger tensor, and repeat a smaller piece."""
    p = {"w": torch.zeros(4, 3), "b": torch.zeros(4)}
    for c in (Cover.whole(p), Cover({"w": block((4, 3), (torch.tensor([0, 2]), None)), "b": block((4,), (None,))})):
        piece = take(p, c)
        for bad in (torch.zeros(1), torch.zeros(1, 3), torch.zeros(5, 3), torch.zeros(3)):
            with pytest.raises(ValueError, match="a piece of shape"):
                put(p, c, {**piece, "w": bad})
            with pytest.raises(ValueError, match="a piece of shape"):
                mean(p, [({**piece, "w": bad}, c, 1.0)])
            with pytest.raises(ValueError, match="a tensor of shape"):
                take({**p, "w": bad}, c)
        with pytest.raises(ValueError, match="speaks of w, which there is nothing to sew into"):
            put({"b": p["b"]}, c, piece)


def test_put_keeps_the_dtype_of_the_model() -> None:
    p = {"w": torch.zeros(3, dtype=torch.bfloat16), "b": torch.zeros(2, dtype=torch.float64)}
    c = Cover.masks({"w": torch.tensor([True, False, True])}) | Cover.named(p, "b")
    after = put(p, c, {"w": torch.ones(2), "b": torch.ones(2)})
    assert (after["w"].dtype, after["b"].dtype) == (torch.bfloat16, torch.float64)


def test_what_the_tensor_looks_like_in_memory_does_not_matter() -> None:
    w = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
    c = Cover.units({"w": (4, 2, 3)}, {"w": (Axis("g"), None, None)}, {"g": torch.tensor([0, 3])})
    assert bits(take({"w": w}, c)["w"]) == bits(w[[0, 3]])
    assert bits(put({"w": w}, c, {"w": -w[[0, 3]]})["w"][[0, 3]]) == bits(-w[[0, 3]])
    one = {"w": torch.zeros(1).expand(5)}  # five places in one cell of memory
    half = Cover.masks({"w": torch.tensor([True, False, True, False, False])})
    assert put(one, half, {"w": torch.tensor([1.0, 2.0])})["w"].tolist() == [1, 0, 2, 0, 0]


def test_a_cover_does_not_change_with_the_mask_that_it_was_made_of() -> None:
    mask = torch.eye(3, dtype=torch.bool)
    c = Cover.masks({"w": mask})
    before = c.pieces
    mask[0, 1] = True
    assert Cover(c.spans) == Cover.masks({"w": torch.eye(3, dtype=torch.bool)})
    assert take({"w": torch.ones(3, 3)}, c)["w"].shape == before["w"]


# ---- sets
@law(200)
@given(st.data(), models_shapes)
def test_set_algebra_is_that_of_the_places(data: st.DataObject, table: Shapes) -> None:
    a, b = covers_of(data, table, 2)
    x, y = dense(a, table), dense(b, table)
    assert same_places(dense(a & b, table), {k: x[k] & y[k] for k in table})
    assert same_places(dense(a | b, table), {k: x[k] | y[k] for k in table})
    assert same_places(dense(a - b, table), {k: x[k] & ~y[k] for k in table})
    assert (a <= b) == all(bool((~x[k] | y[k]).all()) for k in table)
    assert (a == b) == same_places(x, y)
    assert (a != b) != (a == b)
    assert (hash(a) == hash(b)) == (a == b)
    assert a.numel == sum(int(m.sum()) for m in x.values())
    assert set(a) == {k for k in table if x[k].any()} and len(a) == len(set(a))


@law(200)
@given(st.data(), models_shapes)
def test_two_ways_to_one_set_are_one_cover(data: st.DataObject, table: Shapes) -> None:
    a, b, c = covers_of(data, table, 3)
    every, nothing = Cover.whole(table), Cover({})
    not_a, not_b = every - a, every - b
    for left, right in (
        (a, Cover.masks(dense(a, table))),  # however it was built
        (every - (a | b), not_a & not_b),
        (every - (a & b), not_a | not_b),
        (every - not_a, a),
        (a - b, a & not_b),
        (a & (b | c), (a & b) | (a & c)),
        (a | (b & c), (a | b) & (a | c)),
        ((a - b) | (a & b), a),
        (a & b, b & a),
        (a | b, b | a),
        (a | (b | c), (a | b) | c),
        ((a & b) & c, a & (b & c)),
        (a | (a & b), a),
        (a & (a | b), a),
        (a - a, nothing),
        (a | nothing, a),
        (a & every, a),
        (a | not_a, every),
        (a & not_a, nothing),
    ):
        assert left == right
        assert left.encode() == right.encode()
        assert hash(left) == hash(right) and left.digest == right.digest
        assert left.kinds == right.kinds and left.pieces == right.pieces


@law()
@given(st.data(), models_shapes)
def test_inside_is_an_order(data: st.DataObject, table: Shapes) -> None:
    a, b, c = covers_of(data, table, 3)
    assert a <= a and Cover({}) <= a <= Cover.whole(table)
    assert a & b <= a <= a | b and a - b <= a
    assert (a <= b and b <= a) == (a == b)
    assert (a <= b) == (a & b == a) == (a | b == b) == (a - b == Cover({}))
    assert not (a <= b and b <= c) or a <= c
    assert (a & b).numel + (a | b).numel == a.numel + b.numel


@law()
@given(st.data(), models_shapes)
def test_the_kind_is_the_simplest_that_says_the_set(data: st.DataObject, table: Shapes) -> None:
    c = data.draw(covers(table))
    for k in c:
        m = c[k].dense()
        rays = [np.asarray(m.movedim(d, 0).reshape(n, -1).any(1)) for d, n in enumerate(m.shape)]
        a_block = m.new_ones(())
        for d, r in enumerate(rays):
            a_block = a_block & torch.from_numpy(r).view([-1 if j == d else 1 for j in range(len(rays))])
        expected = "whole" if m.all() else "block" if torch.equal(m, a_block) else "mask"
        assert c[k].kind == expected
    assert c.kinds == {c[k].kind for k in c}


@law()
@given(st.data(), models_shapes)
def test_only_keeps_the_names_that_pass(data: st.DataObject, table: Shapes) -> None:
    c = data.draw(covers(table))
    kept = c.only(lambda k: "." in k)
    assert list(kept) == [k for k in c if "." in k]
    assert kept | c.only(lambda k: "." not in k) == c


def test_another_order_of_names_is_the_same_cover() -> None:
    assert Cover.whole({"b": (2,), "a": (3,)}) == Cover.whole({"a": (3,), "b": (2,)})
    assert list(Cover.whole({"b": (2,), "a": (3,)})) == ["a", "b"]
    assert Cover.whole({"b": (2,), "a": (3,)}).encode() == Cover.whole({"a": (3,), "b": (2,)}).encode()


def test_a_cover_equals_covers_only() -> None:
    c = Cover.whole({"w": (2,)})
    assert c != "Cover" and c != {"w": (2,)}
    assert c != Cover.whole({"w": (3,)}) and c != Cover.whole({"v": (2,)}) and not c <= Cover.whole({"w": (3,)})
    assert len({c, Cover.whole({"w": (2,)}), Cover({})}) == 2


def test_shapes_that_differ_do_not_meet() -> None:
    a, b = Cover.whole({"w": (2, 3)}), Cover.whole({"w": (3, 2)})
    for op in (a.__and__, a.__or__, a.__sub__):
        with pytest.raises(ValueError, match=r"w: .*\(2, 3\).*\(3, 2\)"):
            op(b)


# ---- ways to make one
@law()
@given(st.data(), models_shapes)
def test_units_own_the_places_that_the_table_says(data: st.DataObject, table: Shapes) -> None:
    axes = data.draw(axes_tables(table))
    units = data.draw(unit_choices(axes, table))
    c = Cover.units(table, axes, units)
    for k, shape in table.items():
        inside, whose = torch.ones(shape, dtype=torch.bool), owned(axes, table, k)
        for place in np.ndindex(shape):
            for row, j in zip(whose, place, strict=True):
                if (own := row[j]) and own[0] in units and own[1] not in units[own[0]]:
                    inside[place] = False
        assert torch.equal(inside, dense(c, table)[k]), k
    rest = {
        g: torch.tensor([u for u in range(n) if u not in units[g]])
        for g, n in groups(axes, table).items()
        if g in units
    }
    if len(units) == 1:  # the units of one group and the others share those tensors out between them
        other = Cover.units(table, axes, rest)
        (group,) = units
        once = [
            k for k in axes if [{own and own[0] for own in row} for row in owned(axes, table, k)].count({group}) == 1
        ]
        split = Cover.whole({k: table[k] for k in once})
        assert (c | other) & split == split and (c & other & split).numel == 0


def test_entries_with_block_and_repeat_by_hand() -> None:
    pick = torch.tensor([2, 0])
    assert Axis("g").entries(pick, 4).tolist() == [2, 0]
    assert Axis("g", block=3).entries(pick, 12).tolist() == [6, 7, 8, 0, 1, 2]
    assert Axis("g", repeat=4).entries(torch.tensor([1]), 12).tolist() == [1, 4, 7, 10]  # LSTM: 4 gates of 3 units
    assert Axis("g", block=2, repeat=2).entries(pick, 12).tolist() == [4, 5, 0, 1, 10, 11, 6, 7]
    assert (Axis("g").units(7), Axis("g", 2).units(8), Axis("g", 2, 3).units(12)) == (7, 4, 2)


CONCAT = {"a": (Axis("a"),), "b": (Axis("b", 2),), "w": ((Axis("b", 1, 2), 2, Axis("a", 2), Axis("b")), None)}


def test_an_axis_of_several_parts_by_hand() -> None:
    table = {"a": (3,), "b": (4,), "w": (14, 1)}  # w: two units of b, twice; two of nobody's; three of a in twos; b
    c = Cover.units(table, CONCAT, {"b": torch.tensor([1]), "a": torch.tensor([2, 0])})
    assert take({"w": torch.arange(14).view(14, 1)}, Cover({"w": c["w"]}))["w"].flatten().tolist() == [
        *(1, 3, 4, 5, 6, 7, 10, 11, 13)
    ]
    assert c.pieces == {"a": (2,), "b": (2,), "w": (9, 1)}
    assert Cover.units(table, CONCAT, {"c": torch.tensor([0])}) == Cover.whole(table)
    for units, said in (({"a": [3]}, "positions 6..7 do not fit an axis of 6"), ({"b": [-1]}, "do not fit")):
        with pytest.raises(ValueError, match=said):
            Cover.units({"w": (14, 1), **table}, CONCAT, {g: torch.tensor(u) for g, u in units.items()})


def test_parts_that_do_not_fill_an_axis_or_are_of_unknown_size_are_refused() -> None:
    units = {"b": torch.tensor([0])}
    with pytest.raises(ValueError, match=r"an axis has 15 entries, its parts .* have 14"):
        Cover.units({"a": (3,), "b": (4,), "w": (15, 1)}, CONCAT, units)
    with pytest.raises(ValueError, match="a stands only beside others, as in w: its number of units is not known"):
        Cover.units({"b": (4,), "w": (14, 1)}, {k: CONCAT[k] for k in "bw"}, units)
    with pytest.raises(ValueError, match="group b has 3 units in b and 4 in c"):
        Cover.units({"a": (3,), "b": (6,), "c": (4,), "w": (14, 1)}, {**CONCAT, "c": (Axis("b"),)}, units)


def test_an_axis_that_does_not_hold_whole_units_is_refused() -> None:
    for axis in (Axis("g", block=4), Axis("g", repeat=4), Axis("g", block=2, repeat=2)):
        with pytest.raises(ValueError, match="axis of 10 entries is no multiple"):
            axis.units(10)
        with pytest.raises(ValueError, match="axis of 10 entries is no multiple"):
            Cover.units({"w": (10,)}, {"w": (axis,)}, {"g": torch.tensor([0])})


@pytest.mark.parametrize("axis", [Axis("g"), Axis("g", block=2), Axis("g", repeat=2), Axis("g", 2, 2)])
@pytest.mark.parametrize("unit", [-1, 1_000])
def test_units_that_do_not_exist_are_refused(axis: Axis, unit: int) -> None:
    for u in (unit, axis.units(8) if unit > 0 else -axis.units(8)):
        with pytest.raises(ValueError, match="do not fit an axis of 8"):
            Cover.units({"w": (8,)}, {"w": (axis,)}, {"g": torch.tensor([0, u])})


def test_a_table_row_and_its_tensor_have_as_many_axes() -> None:
    with pytest.raises(ValueError, match="1 index vectors for a tensor of 2 axes"):
        Cover.units({"w": (4, 4)}, {"w": (Axis("g"),)}, {"g": torch.tensor([0])})
    with pytest.raises(ValueError, match="a mask is boolean"):
        Cover.masks({"w": torch.ones(3)})


def test_groups_not_named_and_axes_of_no_group_stay_whole() -> None:
    table = {"w": (4, 3), "b": (4,), "free": (5,), "s": ()}
    axes = {"w": (Axis("out"), Axis("in")), "b": (Axis("out"),)}
    c = Cover.units(table, axes, {"out": torch.tensor([1, 1, 3])})  # saying a unit twice is saying it once
    assert c.pieces == {"b": (2,), "free": (5,), "s": (), "w": (2, 3)}
    assert Cover.units(table, axes, {"out": torch.tensor([], dtype=torch.int64)}) == Cover.whole(
        {"free": (5,), "s": ()}
    )
    assert Cover.units(table, axes, {"out": torch.arange(4)}) == Cover.whole(table)


def test_names_are_shell_patterns() -> None:
    table = {"head.weight": (2,), "head.bias": (1,), "ahead.bias": (1,), "Head.x": (1,)}
    assert set(Cover.named(table, "head.*")) == {"head.weight", "head.bias"}
    assert set(Cover.named(table, "*.bias", "Head.?")) == {"head.bias", "ahead.bias", "Head.x"}
    assert Cover.named(table) == Cover({}) and Cover.named(table, "*") == Cover.whole(table)


def test_tensors_without_entries_have_no_place_in_a_cover() -> None:
    p = {"none": torch.zeros(3, 0), "one": torch.tensor(1.0)}
    c = Cover.whole(p)
    assert list(c) == ["one"] and c.numel == 1 and all_bits(put(p, c, take(p, c))) == all_bits(p)
    assert Cover.masks({"none": torch.zeros(3, 0, dtype=torch.bool), "one": torch.tensor(False)}) == Cover({})
    assert Cover.masks({"one": torch.tensor(True)}) == c


def test_count_units_rounds_as_people_do() -> None:
    assert count_units(0.6, 5) == 3  # 0.6 * 5 is 3.0, but 0.2 * 15 and the like fall short of it
    assert count_units(0.2, 6) == 1
    assert count_units(0.29, 100) == 29 and math.floor(0.29 * 100) == 28
    assert count_units(0.999, 10) == 9 and count_units(1.0, 7) == 7
    assert count_units(1e-12, 1000) == 1 and count_units(0.0, 3) == 1
    for n in range(1, 300):
        assert all(count_units(k / n, n) == k for k in range(1, n + 1))


def test_repr_says_how_much_in_which_form() -> None:
    c = Cover.whole({"b": (1200,), "s": ()}) | Cover.masks({"w": torch.tensor([[1, 0], [0, 1]]).bool()})
    assert repr(c) == "Cover(2 whole, 1 mask: 1,203 of 1,205 coordinates)"
    assert repr(Cover.masks({"w": torch.tensor([True, False])})) == "Cover(1 block: 1 of 2 coordinates)"
    assert "nothing" in repr(Cover({}))


# ---- bytes
@law(200)
@given(st.data(), models_shapes)
def test_decode_is_the_inverse_of_encode(data: st.DataObject, table: Shapes) -> None:
    c = data.draw(covers(table))
    code = c.encode()
    for back in (Cover.decode(code), Cover.decode(code, table)):
        assert back == c and hash(back) == hash(c) and back.kinds == c.kinds
        assert back.encode() == code and c.nbytes == len(code) and back.digest == c.digest
        assert same_places(dense(back, table), dense(c, table))
    p = {k: torch.arange(float(math.prod(s))).view(s) for k, s in table.items()}
    assert all_bits(take(p, Cover.decode(code))) == all_bits(take(p, c))


@law()
@given(st.data(), models_shapes)
def test_every_prefix_is_refused(data: st.DataObject, table: Shapes) -> None:
    code = data.draw(covers(table)).encode()
    for n in range(len(code)):
        for agreed in (None, table):
            with pytest.raises(ValueError):
                Cover.decode(code[:n], agreed)
    with pytest.raises(ValueError, match="after the end"):
        Cover.decode(code + b"\x00", table)


def _flipped(code: bytes, where: list[int]) -> bytes:
    out = bytearray(code)
    for i in where:
        out[i // 8 % len(out)] ^= 1 << (i % 8)
    return bytes(out)


@law(200)
@given(st.data(), models_shapes)
def test_a_flipped_bit_is_refused_or_says_another_set(data: st.DataObject, table: Shapes) -> None:
    c = data.draw(covers(table))
    code = c.encode()
    for where in ([i] for i in range(8 * len(code))) if len(code) < 60 else data.draw(_flips(code)):
        wrong = _flipped(code, where)
        try:
            back = Cover.decode(wrong, table)
        except ValueError:
            continue
        assert wrong != code and back != c and back.encode() == wrong
        assert all(back[k].shape == table[k] for k in back)


def _flips(code: bytes) -> st.SearchStrategy[list[list[int]]]:
    one = st.lists(st.integers(0, 8 * len(code) - 1), min_size=1, max_size=3, unique=True)
    return st.lists(one, min_size=20, max_size=40)


_AGREED = {"w": (3, 4), "v": (9,), "": ()}


@law(200)
@given(
    st.one_of(
        st.binary(max_size=40),
        st.binary(max_size=40).map(lambda b: b"C1" + b),
        st.lists(
            st.sampled_from(
                (
                    b"\x00",
                    b"\x01",
                    b"\x02",
                    b"\x03",
                    b"\x04",
                    b"\x09",
                    b"w",
                    b"v",
                    b"\x01w\x02\x03\x04",
                    b"\x01v\x01\x09",
                    b"\xff",
                )
            ),
            max_size=12,
        ).map(lambda parts: b"C1" + b"".join(parts)),
    )
)
def test_random_bytes_never_raise_anything_but_a_value_error(code: bytes) -> None:
    try:
        back = Cover.decode(code, _AGREED)
    except ValueError:
        return
    assert back.encode() == code and back <= Cover.whole(_AGREED)


@law()
@given(st.data(), models_shapes)
def test_decode_keeps_to_the_shapes_agreed_on(data: st.DataObject, table: Shapes) -> None:
    c = data.draw(covers(table))
    for k in c:
        for other in (
            {n: s for n, s in table.items() if n != k},
            {**table, k: (*table[k], 1)},
            {**table, k: (*table[k][:-1], 7)},
        ):
            with pytest.raises(ValueError, match=r"agreed on"):
                Cover.decode(c.encode(), other)


def _number(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _peak(code: bytes, agreed: Shapes | None) -> int:
    """Bytes that refusing a message takes at most."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            Cover.decode(code, agreed)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_message_cannot_claim_much() -> None:
    much = _number(2**50)
    all_of_it = b"\x01\x01\x00" + much
    vector = b"C1\x01" + much + all_of_it + b"\x01\x01w\x01" + much + b"\x01\x01"
    mask = b"C1\x00\x01\x01w\x01" + much + b"\x02" + all_of_it
    runs = b"C1\x01\x08\x01" + much + b"\x00"
    too_long = b"C1\x01" + b"\xff" * 12 + b"\x01"
    for code in (vector, mask, runs, too_long, b"C1" + much, b"C1\x00" + much, b"C1\x00\x01" + much):
        assert _peak(code, None) < 1 << 20
        assert _peak(code, {"w": (8,)}) < 1 << 20


def test_many_claims_of_the_largest_size_are_not_unpacked() -> None:
    n = 100_000  # one tensor of so many entries: one such vector is right, hundreds are an attack
    one = _number(n) + b"\x01\x01\x00" + _number(n)
    assert _peak(b"C1" + _number(300) + one * 300 + b"\x00", {"w": (n,)}) < 20 * n
    rows = _number(n * n // 4) + b"\x01\x01\x00" + _number(n)  # no axis is that long, though a tensor has the entries
    assert _peak(b"C1\x01" + rows + b"\x00", {"w": (n // 100, n // 100)}) < 20 * n


# The format is fixed forever by these: each is made by hand from the description on its right.
GOLDEN = [
    (Cover({}), "4331 00 00"),  # "C1", no index vectors, no tensors
    (
        Cover.whole({"w": (2, 300), "s": ()}),
        "4331 00 02"
        " 01 73 00 00"  # "s", 0 axes, whole
        " 01 77 02 02 ac02 00",  # "w", 2 axes of 2 and 300, whole
    ),
    (Cover.named({"é.w": (1,), "b": (2,)}, "é.*"), "4331 00 01 04 c3a92e77 01 01 00"),  # names are UTF-8
    (
        Cover.units(
            {"w": (4, 40), "b": (40,), "h": (4, 3)},
            {"w": (Axis("o"), Axis("i", 2, 2)), "b": (Axis("i", 4),), "h": (Axis("o"), None)},
            {"o": torch.tensor([3, 0]), "i": torch.arange(2)},
        ),
        "4331 03"
        " 28 01 01 00 08"  # vector 1, of 40: runs, one: skip 0, take 8
        " 04 00 09"  # vector 2, of 4: bitmap 1001
        " 28 00 0f00f00000"  # vector 3, of 40: bitmap of 0..3 and 20..23 (runs would be as long)
        " 03"
        " 01 62 01 28 01 01"  # "b", of 40, a block: vector 1
        " 01 68 02 04 03 01 02 00"  # "h", of 4 and 3, a block: vector 2, the whole axis
        " 01 77 02 04 28 01 02 03",  # "w", of 4 and 40, a block: vectors 2 and 3
    ),
    (
        Cover.masks({"m": torch.tensor([[True, False], [False, True]])}),
        "4331 00 01 01 6d 02 02 02 02 00 09",  # "m", of 2 and 2, a mask: bitmap, lowest bit first
    ),
    (
        Cover.masks({"m": torch.arange(200).view(2, 100) > 48}),
        "4331 00 01 01 6d 02 02 64 02 01 01 31 9701",  # "m", of 2 and 100, a mask: runs, one: skip 49, take 151
    ),
]


@pytest.mark.parametrize(("cover", "code"), GOLDEN)
def test_golden_bytes(cover: Cover, code: str) -> None:
    assert cover.encode().hex() == code.replace(" ", "")
    assert Cover.decode(bytes.fromhex(code)) == cover


def test_golden_digest() -> None:
    assert Cover.whole({"w": (2, 300), "s": ()}).digest == "8667f3c58a27e306"


def _set_code(chosen: np.ndarray) -> bytes:
    """The code of a set of places, written down from the format's description, without its cleverness."""
    edges = [i for i in range(len(chosen) + 1) if (i < len(chosen) and chosen[i]) != (i > 0 and chosen[i - 1])]
    steps = [b - a for a, b in zip([0, *edges], edges, strict=False)]
    runs = b"".join(map(_number, [len(edges) // 2, *steps]))
    padded = [*chosen.tolist(), *[False] * (-len(chosen) % 8)]
    bitmap = bytes(sum(padded[i + b] << b for b in range(8)) for i in range(0, len(padded), 8))
    return b"\x01" + runs if len(runs) < len(bitmap) else b"\x00" + bitmap


@law(200)
@given(st.integers(2, 600), st.sampled_from((0.01, 0.5, 0.99)), st.integers(1, 40), seeds)
def test_runs_or_bitmap_whichever_is_shorter(n: int, share: float, stretch: int, seed: int) -> None:
    chosen = np.random.default_rng(seed).random(-(-n // stretch)) < share
    chosen = np.repeat(chosen, stretch)[:n]
    if chosen.all() or not chosen.any():
        chosen[0] = not chosen[0]
    c = Cover.masks({"v": torch.from_numpy(chosen)})
    head = b"C1\x01" + _number(n)
    assert c.encode() == head + _set_code(chosen) + b"\x01\x01v\x01" + _number(n) + b"\x01\x01"
    both = np.stack([chosen, ~chosen])  # no block: a mask
    mask = Cover.masks({"v": torch.from_numpy(both)}).encode()
    assert mask == b"C1\x00\x01\x01v\x02\x02" + _number(n) + b"\x02" + _set_code(both.flatten())


def test_the_longer_form_of_a_set_is_refused() -> None:
    for code in (
        "4331 00 01 01 6d 02 02 02 02 01 02 00 01 02 01",  # runs where the bitmap is shorter
        "4331 00 01 01 6d 02 02 02 02 00 f9",  # bits after the end of the bitmap
        "4331 00 01 01 6d 02 02 02 02 00 0f",  # a mask that is the whole
        "4331 00 01 01 6d 02 02 02 02 00 00",  # a mask of nothing
        "4331 00 01 01 6d 02 02 02 02 00 03",  # a mask that is a block
        "4331 00 01 01 6d 02 02 02 03 00 09",  # no form is called 3
        "4331 00 01 01 6d 02 8200 02 02 00 09",  # a number longer than it need be
        "4331 01 02 00 01 01 01 6d 01 02 00",  # a vector that nobody uses
        "4331 02 02 00 01 02 00 01 01 01 6d 02 02 02 01 02",  # one vector twice
        "4331 01 02 00 01 01 01 6d 01 02 01 02",  # a vector that is not there
        "4331 01 02 00 01 01 01 6d 01 03 01 01",  # a vector of another axis
        "4331 01 02 00 03 01 01 6d 01 02 01 01",  # a vector of all places
        "4331 01 02 00 00 01 01 6d 01 02 01 01",  # a vector of no place
        "4331 00 02 01 77 00 00 01 73 00 00",  # names out of order
        "4331 00 02 01 73 00 00 01 73 00 00",  # a name twice
        "4331 00 01 01 73 01 00 00",  # a tensor without entries
        "4331 00 01 01 ff 00 00",  # a name that is not UTF-8
        "4332 00 00",  # another version
    ):
        with pytest.raises(ValueError):
            Cover.decode(bytes.fromhex(code))
    assert (
        masked(torch.eye(2, dtype=torch.bool)) is not None
        and block((2,), (torch.tensor([], dtype=torch.int64),)) is None
    )
