"""The guard: honest replies pass unchanged, wrong ones are refused with the right code, whatever the bytes are."""

from __future__ import annotations

import ast
import inspect
import math
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedquilt import cover as covers_module
from fedquilt import guard
from fedquilt.cover import Cover, Params, Span, take
from fedquilt.drive.packing import CODES, DIGEST, number, seal
from fedquilt.drive.wire import Head, decode_reply, encode_order, encode_reply, plan_digest
from fedquilt.guard import Code, Rejection, admit
from fedquilt.types import Grant, Order, Reply

from ..laws.messages import exchanges, order_bits, reply_bits
from ..laws.strategies import finite, law, like, ordinary, seeds
from .mutants import mutants

MODEL: Params = {"b": torch.tensor([1.0, 2.0]), "n": torch.tensor(7), "w": torch.arange(12.0).view(3, 4)}
SOME = Cover.masks({"w": torch.arange(12).view(3, 4) % 5 == 1})  # four coordinates, no block


def order_of(cover: Cover | None = None, outer: Cover | None = None, **grant: object) -> Order:
    cover = Cover.whole(MODEL) if cover is None else cover
    settings = {"extras": {"e": (torch.float32, (2,))}, "metrics": frozenset({"loss"}), "weight": 100.0, "nbytes": 2000}
    given = Grant(cover if outer is None else outer, **settings | grant)  # type: ignore[arg-type]
    return Order("run", 1, 3, 5, take(MODEL, cover), cover, given, scalars={"norm": "shared"})


def reply_of(order: Order, cover: Cover | None = None, **changes: object) -> Reply:
    cover = order.cover if cover is None else cover
    honest = Reply(3, 5, take(MODEL, cover), cover, 40.0, {"loss": 0.5}, {"e": torch.ones(2)})
    return replace(honest, **changes)  # type: ignore[arg-type]


def code_of(data: bytes, order: Order, norm: float = math.inf) -> Code | None:
    verdict = admit(data, order, order.client, norm=norm)
    return verdict.code if isinstance(verdict, Rejection) else None


def said(order: Order, norm: float = math.inf, /, **changes: object) -> Code | None:
    """The code for an honest reply with something changed, encoded anew."""
    return code_of(encode_reply(reply_of(order, **changes), order), order, norm)  # type: ignore[arg-type]


def headed(order: Order, reply: Reply | None = None, **changes: object) -> bytes:
    """An honest reply with something changed in its head alone, and the right hash."""
    data = encode_reply(reply_of(order) if reply is None else reply, order)
    head, at = Head.read(data)
    return seal(replace(head, **changes).encode(), [memoryview(data[at:-DIGEST])])  # type: ignore[arg-type]


# ---- honest replies
@law(200)
@given(exchanges(finite))
def test_an_honest_reply_passes_and_no_bit_of_it_changes(pair: tuple[Order, Reply]) -> None:
    order, reply = pair
    data, before = encode_reply(reply, order), order_bits(order)
    for _ in range(2):  # the guard is pure
        verdict = admit(data, order, order.client)
        assert isinstance(verdict, Reply), verdict
        assert reply_bits(verdict) == reply_bits(reply) == reply_bits(decode_reply(data, order))
        assert order_bits(order) == before
        assert encode_reply(verdict, order) == data


@law()
@given(exchanges(ordinary))
def test_an_honest_reply_keeps_to_any_bound_that_it_is_within(pair: tuple[Order, Reply]) -> None:
    order, reply = pair
    data = encode_reply(reply, order)
    assert isinstance(admit(data, order, order.client, norm=1e30), Reply)
    assert isinstance(admit(data, replace(order), order.client), Reply), "an order whose digest is not yet known"


# ---- each rule alone, and in the order of the codes
def broken(*codes: Code) -> tuple[bytes, Order, bool, float]:
    """An honest reply but for these rules, with what else the driver says."""
    order = order_of()
    data = encode_reply(reply_of(order), order)
    head, at = Head.read(data)
    changes: dict[Code, dict[str, object]] = {
        Code.WRONG_SENDER: {"client": 4},
        Code.WRONG_RUN: {"run": "another"},
        Code.STALE_ROUND: {"round": 4},
        Code.PLAN_MISMATCH: {"plan": bytes(DIGEST)},
        Code.BAD_KEYS: {"metrics": dict(head.metrics) | {"another": 0.0}},
        Code.BAD_SHAPE: {"extra": {"e": (CODES[torch.float32], (1, 2))}},
        Code.BAD_DTYPE: {"codes": bytes([CODES[torch.int32], *head.codes[1:]])},
        Code.NON_FINITE: {"metrics": {"loss": math.nan}},
        Code.BAD_WEIGHT: {"weight": 0.0},
    }
    fields: dict[str, object] = {}
    for code in codes:
        for field, value in changes.get(code, {}).items():
            fields[field] = value | fields[field] if field in fields else value  # type: ignore[operator]
    raw = replace(head, **fields).encode()  # type: ignore[arg-type]
    if Code.BAD_HEADER in codes:
        raw = b"X" + raw[1:]
    out = seal(raw, [memoryview(data[at:-DIGEST] + b"\0" * (Code.BAD_LENGTH in codes))])
    if Code.BAD_HASH in codes:
        out = out[:-1] + bytes([out[-1] ^ 1])
    if Code.TOO_LARGE in codes:
        out = out.ljust(order.grant.nbytes + 1, b"\0")
    return out, order, Code.DUPLICATE in codes, -1.0 if Code.NORM_BOUND in codes else math.inf


@pytest.mark.parametrize("code", Code)
def test_each_rule_alone_has_its_own_code(code: Code) -> None:
    data, order, answered, norm = broken(code)
    verdict = admit(data, order, 3, answered, norm)
    assert isinstance(verdict, Rejection) and verdict.code is code
    assert (verdict.client, verdict.round) == (3, 5)
    assert verdict.digest == sha256(data[: order.grant.nbytes]).hexdigest()
    assert verdict.reason and len(verdict.reason) <= 240 and verdict.reason.isprintable()
    assert code == code.name.lower() == str(code)


@pytest.mark.parametrize("n", range(len(Code)))
def test_of_many_rules_the_first_broken_gives_the_code(n: int) -> None:
    data, order, answered, norm = broken(*list(Code)[n:])
    verdict = admit(data, order, 3, answered, norm)
    assert isinstance(verdict, Rejection) and verdict.code is list(Code)[n]


def test_nothing_broken_is_admitted() -> None:
    data, order, answered, norm = broken()
    assert isinstance(admit(data, order, 3, answered, norm), Reply)


# ---- from whom, to what
def test_a_reply_is_from_the_client_that_was_asked_and_that_sent_it() -> None:
    order = order_of()
    for sender, claimed in ((4, 3), (3, 4), (4, 4)):
        verdict = admit(headed(order, client=claimed), order, sender)
        assert isinstance(verdict, Rejection) and verdict.code is Code.WRONG_SENDER and verdict.client == sender


@law(40)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=40), seeds)
def test_each_order_gets_its_first_reply_whatever_else_arrives(strays: list[tuple[int, int]], seed: int) -> None:
    """Repeated, replayed in another round or run, sent by another client, in any sequence."""
    world = [(run, i, t) for run in ("r", "s") for i in (0, 1) for t in (0, 1)]
    orders = [replace(order_of(), run=run, client=i, round=t) for run, i, t in world]
    replies = [replace(reply_of(o), client=o.client, round=o.round, weight=1.0 + n) for n, o in enumerate(orders)]
    data = [encode_reply(r, o) for r, o in zip(replies, orders, strict=True)]
    deliveries = [*strays, *((n, n) for n in range(8))]
    taken: dict[int, Reply] = {}
    for j in np.random.default_rng(seed).permutation(len(deliveries)):
        order, reply = deliveries[j]
        verdict = admit(data[reply], orders[order], orders[reply].client, order in taken)
        if isinstance(verdict, Reply):
            assert order == reply
            taken[order] = verdict
        else:
            same_run, same_client, _ = (a == b for a, b in zip(world[order], world[reply], strict=True))
            right = Code.STALE_ROUND if same_run else Code.WRONG_RUN
            right = right if same_client else Code.WRONG_SENDER
            assert verdict.code is (Code.DUPLICATE if order == reply else right)
    assert {n: reply_bits(r) for n, r in taken.items()} == {n: reply_bits(r) for n, r in enumerate(replies)}


def test_a_reply_to_the_same_round_under_another_plan_is_refused() -> None:
    order = order_of()
    data = encode_reply(reply_of(order), order)
    for other in (
        order_of(nbytes=2001),
        order_of(kinds=frozenset({"same", "mask"})),
        replace(order, version=1),
        replace(order, params=like(order.params, ordinary, 1)),
    ):
        assert code_of(data, other) is Code.PLAN_MISMATCH


# ---- covers
ROWS = Cover.whole({"w": (3, 4)}) & Cover.masks({"w": torch.tensor([1, 0, 1]).bool()[:, None].expand(3, 4)})
WHOLE = Cover.named(MODEL, "w")


@pytest.mark.parametrize(
    ("kinds", "cover", "code"),
    [
        ("same", SOME, Code.PLAN_MISMATCH),
        ("same", Cover({}), Code.PLAN_MISMATCH),
        ("whole", WHOLE, None),
        ("whole", Cover({}), None),
        ("whole", ROWS, Code.PLAN_MISMATCH),
        ("whole", SOME, Code.PLAN_MISMATCH),
        ("block", ROWS, None),
        ("block", WHOLE, None),  # all rows are a block
        ("block", SOME, Code.PLAN_MISMATCH),
        ("mask", SOME, None),
        ("mask", ROWS, None),  # a mask that happens to be a block
        ("mask", WHOLE | SOME, None),
        ("other", WHOLE, Code.PLAN_MISMATCH),
    ],
)
def test_a_cover_of_its_own_has_a_form_that_is_granted(kinds: str, cover: Cover, code: Code | None) -> None:
    order = order_of(kinds=frozenset({kinds}))
    assert said(order, cover=cover) is code


def test_the_orders_own_cover_is_the_same_also_where_only_its_form_is_granted() -> None:
    for kinds, code in (("mask", None), ("same", None), ("block", Code.PLAN_MISMATCH)):
        assert said(order_of(SOME, kinds=frozenset({kinds}))) is code
        assert said(order_of(SOME, SOME | ROWS, kinds=frozenset({kinds}))) is code
    assert said(order_of(SOME, ROWS, kinds=frozenset({"mask"}))) is Code.PLAN_MISMATCH  # outside of the grant
    assert said(order_of(SOME, ROWS, kinds=frozenset({"mask", "same"}))) is None  # but granted by name


def test_a_cover_lies_inside_the_grant() -> None:
    order = order_of(SOME, ROWS | Cover.named(MODEL, "b"), kinds=frozenset({"mask"}))
    assert said(order, cover=ROWS) is None
    assert said(order, cover=Cover.named(MODEL, "b")) is None
    for cover in (WHOLE, SOME | ROWS, Cover.named(MODEL, "n"), Cover.whole({"b": (3,)}), Cover.whole({"v": (2,)})):
        reply = replace(reply_of(order), cover=cover, params={k: torch.zeros(s) for k, s in cover.pieces.items()})
        assert code_of(encode_reply(reply, order), order) is Code.PLAN_MISMATCH


def test_a_cover_has_one_spelling() -> None:
    order = order_of(SOME, WHOLE, kinds=frozenset({"same", "mask"}))
    forged = headed(order, cover=SOME.encode())
    assert said(order) is None and code_of(forged, order) is Code.PLAN_MISMATCH
    with pytest.raises(ValueError, match="spells out"):
        decode_reply(forged, order)
    every = b"C1\x00\x01\x01w\x02\x03\x04\x02\x00\xff\x0f"  # a mask that is the whole
    for code in (every, WHOLE.encode() + b"\0"):
        assert code_of(headed(order, reply_of(order, WHOLE), cover=code), order) is Code.PLAN_MISMATCH


@law(150)
@given(st.data(), exchanges(finite))
def test_a_flipped_bit_of_a_cover_says_another_plan_or_other_tensors(
    data: st.DataObject, pair: tuple[Order, Reply]
) -> None:
    """A cover that is within the grant may be another client's honest choice: then its tensors must fill the bytes."""
    order, reply = pair
    cover = Head.read(encode_reply(reply, order))[0].cover
    for place in data.draw(st.lists(st.integers(0, 8 * len(cover or b"") - 1), max_size=8)) if cover else []:
        flipped = bytearray(cover or b"")
        flipped[place // 8] ^= 1 << place % 8
        verdict = admit(headed(order, reply, cover=bytes(flipped)), order, order.client)
        if isinstance(verdict, Reply):
            assert verdict.cover <= order.grant.outer and verdict.cover != reply.cover
        else:
            assert verdict.code in (Code.PLAN_MISMATCH, Code.BAD_LENGTH, Code.BAD_DTYPE, Code.BAD_KEYS, Code.NON_FINITE)


# ---- names, shapes, dtypes
def test_extras_and_metrics_are_those_of_the_grant() -> None:
    order = order_of()
    assert said(order, extra={}) is None  # an extra may be missing
    assert said(order, metrics={}) is Code.BAD_KEYS  # a metric may not: the server reads it
    assert said(order, metrics={"loss": 1.0, "more": 1.0}) is Code.BAD_KEYS
    assert said(order, extra={"e": torch.ones(2), "f": torch.ones(2)}) is Code.BAD_KEYS
    assert code_of(headed(order, codes=b""), order) is Code.BAD_KEYS
    assert said(order, extra={"e": torch.ones(3)}) is Code.BAD_SHAPE
    assert said(order, extra={"e": torch.ones(2, 1)}) is Code.BAD_SHAPE
    for dtype in CODES:
        code = None if dtype == torch.float32 else Code.BAD_DTYPE
        assert said(order, extra={"e": torch.ones(2, dtype=dtype)}) is code
        assert said(order, params={**MODEL, "w": MODEL["w"].to(dtype)}) is code
        assert said(order, params={**MODEL, "n": MODEL["n"].to(dtype)}) is (
            None if dtype == torch.int64 else Code.BAD_DTYPE
        )


def test_all_that_is_granted_may_come_however_much_it_is() -> None:
    many = {f"m{i}": 1.0 for i in range(100)}
    extras = {k: torch.ones(1) for k in many}
    schema = {k: (torch.float32, (1,)) for k in many}
    assert said(order_of(metrics=frozenset(many), nbytes=9000), metrics=many) is None
    assert said(order_of(extras=schema, nbytes=9000), extra=extras) is None
    assert said(order_of(extras=schema, nbytes=9000), extra=extras, metrics=dict(many, loss=1.0)) is Code.BAD_KEYS
    assert said(order_of(nbytes=9000), metrics=many) is Code.BAD_HEADER  # nobody reads so many to say so


@pytest.mark.parametrize("sent", [torch.float64, torch.bfloat16, torch.int32, None])
def test_a_tensor_that_was_not_sent_has_a_dtype_of_those_that_were(sent: torch.dtype | None) -> None:
    known = {torch.int64, torch.float32} if sent is None else {torch.int64, sent}
    if sent == torch.int32:
        known = {torch.int32, torch.float32}
    part = Cover({}) if sent is None else Cover.named(MODEL, "b")
    order = order_of(part, Cover.whole(MODEL), kinds=frozenset({"whole"}))
    order = replace(order, params={k: v.to(sent) for k, v in order.params.items()})
    for dtype in CODES:
        params = {"w": MODEL["w"].to(dtype)}
        code = None if dtype in known else Code.BAD_DTYPE
        assert said(order, cover=WHOLE, params=params) is code


def test_a_boolean_is_0_or_1() -> None:
    order = order_of(extras={"e": (torch.bool, (2,))})
    data = encode_reply(reply_of(order, extra={"e": torch.tensor([True, False])}), order)
    assert code_of(data, order) is None
    assert code_of(seal(data[: -DIGEST - 1], [memoryview(b"\x02")]), order) is Code.BAD_DTYPE


# ---- values
@pytest.mark.parametrize("x", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [d for d in CODES if d.is_floating_point])
def test_no_float_is_nan_or_infinite(x: float, dtype: torch.dtype) -> None:
    order = order_of(extras={"e": (dtype, (2,))})
    w = MODEL["w"].to(dtype)
    order = replace(order, params={**MODEL, "w": w})
    honest: dict[str, object] = {"params": {**MODEL, "w": w}, "extra": {"e": torch.ones(2, dtype=dtype)}}
    one = w.clone()
    one[2, 1] = x
    assert said(order, **honest) is None
    assert said(order, **honest | {"params": {**MODEL, "w": one}}) is Code.NON_FINITE
    assert said(order, **honest | {"extra": {"e": torch.tensor([1.0, x], dtype=dtype)}}) is Code.NON_FINITE
    assert said(order, **honest | {"metrics": {"loss": x}}) is Code.NON_FINITE


@pytest.mark.parametrize("weight", [0.0, -0.0, -1.0, math.nan, math.inf, 1e18, 100.0000001])
def test_a_weight_is_above_0_and_at_most_what_was_declared(weight: float) -> None:
    assert said(order_of(), weight=weight) is Code.BAD_WEIGHT
    free = None if 0 < weight < math.inf else Code.BAD_WEIGHT
    assert said(order_of(weight=math.inf), weight=weight) is free
    assert said(order_of(), weight=100.0) is None and said(order_of(), weight=5e-324) is None


def test_the_bound_is_on_the_distance_from_what_was_sent() -> None:
    order = order_of()
    moved = {"b": MODEL["b"] + torch.tensor([3.0, 0.0]), "n": torch.tensor(1 << 40), "w": MODEL["w"].clone()}
    moved["w"][1, 2] -= 4
    assert said(order, 5.0, params=moved) is None  # the square root of 9 + 16; integers do not count
    assert said(order, math.nextafter(5, 0), params=moved) is Code.NORM_BOUND
    assert said(order, 0.0) is None  # nothing has moved
    assert said(order, 0.0, extra={"e": torch.full((2,), 1e30)}) is None  # nor do extras
    assert said(order, 1e30, params={**MODEL, "b": torch.full((2,), 3e38)}) is Code.NORM_BOUND


def test_what_was_not_sent_counts_with_its_full_value() -> None:
    order = order_of(SOME, WHOLE | Cover.named(MODEL, "b"), kinds=frozenset({"mask"}))
    b = Cover.named(MODEL, "b")
    outside = take(MODEL, WHOLE - SOME)["w"].double().norm().item()  # rows and masks meet in what was sent
    for cover, length in ((b, math.sqrt(5)), (WHOLE, outside), (WHOLE - SOME, outside), (SOME, 0.0)):
        assert said(order, length + 1e-9, cover=cover) is None
        if length:
            assert said(order, length - 1e-9, cover=cover) is Code.NORM_BOUND
    part = order_of(ROWS, WHOLE, kinds=frozenset({"mask"}))
    rest = take(MODEL, SOME - ROWS)["w"].double().norm().item()
    assert said(part, rest + 1e-9, cover=SOME) is None and said(part, rest - 1e-9, cover=SOME) is Code.NORM_BOUND


# ---- whatever the bytes are
def test_every_mutant_is_refused_with_the_right_code() -> None:
    seen: Counter[Code] = Counter()

    @law(50)
    @given(exchanges(ordinary), seeds)
    def check(pair: tuple[Order, Reply], seed: int) -> None:
        order, reply = pair
        data = encode_reply(reply, order)
        names = []
        for name, bad, codes in mutants(data, reply, order, np.random.default_rng(seed)):
            verdict = admit(bad, order, order.client)
            assert isinstance(verdict, Rejection), f"{name}: admitted"
            assert verdict.code in codes, f"{name}: {verdict} instead of {sorted(codes)}"
            assert verdict.reason.isprintable() and 0 < len(verdict.reason) <= 240
            seen[verdict.code] += 1
            names.append(name)
        assert len(names) > 60

    check()
    assert seen.total() > 3000
    assert set(seen) == set(Code) - {Code.DUPLICATE, Code.NORM_BOUND}  # what bytes alone can break


def test_a_reply_without_tensors_has_mutants_too() -> None:
    order = Order("", 0, 0, 0, {}, Cover({}), Grant(Cover({}), weight=9.0, nbytes=5000), scalars={"norm": "shared"})
    reply = Reply(0, 0, {}, Cover({}), 9.0, {"loss": 0.1})
    data = encode_reply(reply, order)
    assert isinstance(admit(data, order, 0), Reply)
    every = list(mutants(data, reply, order, np.random.default_rng(0)))
    assert len(every) > 60 and len({codes for _, _, codes in every}) > 8
    assert all(code_of(bad, order) in codes for _, bad, codes in every)
    again = list(mutants(data, reply, order, np.random.default_rng(0)))
    assert again == every


def _starts(order: Order) -> Iterable[bytes]:
    data = encode_reply(reply_of(order), order)
    return [data[:n] for n in (0, 4, 5, 8, 9, 12, 44, 52, 53, 60, 70, len(data) - DIGEST)]


@law(300)
@given(st.data(), st.booleans())
def test_random_bytes_never_raise(data: st.DataObject, sealed: bool) -> None:
    order = order_of(kinds=frozenset({"same", "mask"}))
    start = data.draw(st.sampled_from(list(_starts(order))))
    numbers = st.sampled_from((b"\0", b"\1", b"\2", b"\xff" * 9, number(1 << 62), b"C1", b"w", plan_digest(order)))
    raw = start + data.draw(st.binary(max_size=60) | st.lists(numbers, max_size=8).map(b"".join))
    verdict = admit(seal(raw, []) if sealed else raw, order, 3)
    assert isinstance(verdict, (Reply, Rejection))
    if isinstance(verdict, Reply):
        assert sealed and reply_bits(verdict) == reply_bits(reply_of(order))


def test_a_bomb_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reply claims is not made: neither terabytes nor what takes a hundred times its bytes to read."""
    big = {"w": torch.zeros(400, 500)}
    c = Cover.whole(big)
    order = replace(order_of(), params=big, cover=c, grant=replace(order_of().grant, outer=c, nbytes=10**6))
    order = replace(order, grant=replace(order.grant, kinds=frozenset({"same", "mask"})))
    reply = replace(reply_of(order_of()), params=big, cover=c)
    data = encode_reply(reply, order)
    head, at = Head.read(data)
    masks = b"C1\0" + number(9000) + 9000 * (b"\x01w\x02" + number(400) + number(500) + b"\x02\x01\x01\x05\x05")
    names = {f"{i:05}": 0.0 for i in range(60_000)}
    forged = [
        replace(head, cover=masks).encode(),
        replace(head, metrics=names).encode(),
        replace(head, extra=dict.fromkeys(names, (0, ()))).encode(),
    ]
    bombs = [seal(raw, [memoryview(data[at:-DIGEST])[: order.grant.nbytes - len(raw) - DIGEST]]) for raw in forged]
    wanted = [Code.PLAN_MISMATCH, Code.BAD_HEADER, Code.BAD_HEADER]
    small = mutants(data, reply, order, np.random.default_rng(0))
    bombs += [bad for _, bad, codes in small if codes <= {Code.PLAN_MISMATCH, Code.BAD_HEADER, Code.BAD_SHAPE}]
    looked: list[Tensor] = []
    unpacked: list[object] = []
    look = covers_module.masked

    def seen(mask: Tensor) -> Span | None:
        looked.append(mask)
        return look(mask)

    monkeypatch.setattr(covers_module, "masked", seen)
    monkeypatch.setattr(guard, "unpack", lambda *a: unpacked.append(a))
    for n, bad in enumerate(bombs):
        looked.clear()
        tracemalloc.start()
        verdict = admit(bad, order, 3)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(verdict, Rejection) and verdict.code is (wanted[n] if n < len(wanted) else verdict.code)
        assert len(looked) <= 1, "a tensor of the cover is unpacked more than once"
        assert peak < 4 << 20, verdict
    assert not unpacked


def test_words_of_a_stranger_are_shortened_and_made_harmless() -> None:
    order = order_of(nbytes=10**6)
    name = "\n\x1b[31m\u202e" + "x" * 10_000
    for verdict in (
        admit(encode_reply(reply_of(order, metrics={name: 1.0, "loss": 1.0}), order), order, 3),
        admit(encode_reply(reply_of(order), replace(order, run=name)), order, 3),
    ):
        assert isinstance(verdict, Rejection) and verdict.code in (Code.BAD_KEYS, Code.WRONG_RUN)
        assert len(verdict.reason) == 240 and verdict.reason.isprintable() and "x" * 10 in verdict.reason


def test_the_digest_of_what_is_too_large_takes_no_longer_than_of_what_is_allowed() -> None:
    order = order_of()
    data = bytes(10**6)
    verdict = admit(data, order, 3)
    assert isinstance(verdict, Rejection) and verdict.digest == sha256(data[:2000]).hexdigest()


# ---- the house
def test_the_guard_knows_messages_and_nothing_else() -> None:
    tree = ast.parse(inspect.getsource(guard))
    ours = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level}
    assert ours == {"codec", "cover", "drive.packing", "drive.wire", "types"}
    assert encode_order(order_of())[:3] == b"FQ\x01"
