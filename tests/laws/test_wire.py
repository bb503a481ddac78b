"""The laws of messages: one spelling a value, the inverse, sizes, hashes, and bytes fixed forever."""

from __future__ import annotations

import ast
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedquilt
from fedquilt.cover import Cover, Params
from fedquilt.drive.packing import (
    DIGEST,
    Reader,
    integer,
    number,
    pack,
    real,
    scalar,
    seal,
    sealed,
    table,
    text,
    unpack,
)
from fedquilt.drive.wire import (
    decode_order,
    decode_reply,
    encode_order,
    encode_reply,
    order_size,
    plan_digest,
    reply_size,
)
from fedquilt.types import Grant, Order, Reply, Scalar

from .messages import HUGE, TRAVELLING, exchanges, integers, order_bits, reply_bits, scalars, worlds
from .strategies import all_bits, any_bits, bits, law, models, seeds

World = tuple[Order, Params, Params]


def again(order: Order) -> Order:
    """The same order, whose digest nobody has computed yet."""
    return replace(order)


# ---- the inverse, sizes
@law(150)
@given(worlds())
def test_an_order_comes_out_as_it_went_in(world: World) -> None:
    order, p, _ = world
    data, shapes = encode_order(order), {k: tuple(v.shape) for k, v in p.items()}
    for back in (decode_order(data), decode_order(data, shapes)):
        assert order_bits(back) == order_bits(order)
        assert encode_order(again(back)) == data
        assert plan_digest(back) == plan_digest(again(order)) == data[-DIGEST:] == sha256(data[:-DIGEST]).digest()
    assert order_size(order) == len(data)


@law(150)
@given(exchanges(any_bits))
def test_a_reply_comes_out_as_it_went_in(pair: tuple[Order, Reply]) -> None:
    order, reply = pair
    data = encode_reply(reply, order)
    for asked in (order, again(order), decode_order(encode_order(order))):
        back = decode_reply(data, asked)
        assert reply_bits(back) == reply_bits(reply)
        assert encode_reply(back, asked) == data
        assert reply_size(reply, asked) == len(data)


@law(60)
@given(st.dictionaries(st.text(max_size=4), st.floats(), max_size=4), st.floats(), worlds())
def test_metrics_and_weights_travel_to_the_bit_even_if_they_are_not_numbers(
    metrics: dict[str, float], weight: float, world: World
) -> None:
    order = world[0]
    reply = Reply(order.client, order.round, order.params, order.cover, weight, metrics)
    assert reply_bits(decode_reply(encode_reply(reply, order), order)) == reply_bits(reply)


def test_a_reply_on_the_orders_own_coordinates_does_not_repeat_them() -> None:
    mask = Cover.masks({"w": torch.arange(800).view(20, 40) % 7 > 2})
    piece = {"w": torch.zeros(mask.pieces["w"])}
    order = Order("r", 0, 0, 0, piece, mask, Grant(mask))
    size = reply_size(Reply(0, 0, piece, mask, 1.0), order)
    assert mask.nbytes > 100 and size < piece["w"].nbytes + 60 + DIGEST


# ---- one spelling
@law()
@given(worlds())
def test_equal_values_give_equal_bytes(world: World) -> None:
    """Whatever the sequence in tables, the way to a cover, and the layout in memory."""
    order = world[0]
    g = order.grant
    turned = {k: torch.stack([v, v], -1)[..., 0] for k, v in reversed(order.params.items())}  # every second cell
    other = replace(
        order,
        params=turned,
        cover=Cover.masks({k: s.dense() for k, s in order.cover.spans.items()}),
        grant=replace(
            g,
            outer=Cover.masks({k: s.dense() for k, s in g.outer.spans.items()}),
            extras=dict(reversed(list(g.extras.items()))),
        ),
        scalars=dict(reversed(list(order.scalars.items()))),
        extra=dict(reversed(order.extra.items())),
    )
    assert encode_order(other) == encode_order(order)


def test_layout_gradients_and_sharing_do_not_travel() -> None:
    x = torch.randn(2, 3, 4, 5)
    for same in (x.to(memory_format=torch.channels_last), x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)):
        assert pack([same])[0].tobytes() == pack([x])[0].tobytes()
    assert pack([torch.nn.Parameter(x)])[0].tobytes() == pack([x])[0].tobytes()
    assert pack([torch.ones(1).expand(3)])[0].tobytes() == pack([torch.ones(3)])[0].tobytes()


@law(40)
@given(worlds())
def test_every_prefix_and_every_flipped_bit_of_an_order_is_refused(world: World) -> None:
    data = encode_order(world[0])
    for n in range(len(data)):
        with pytest.raises(ValueError, match="hash is wrong"):
            decode_order(data[:n])
    with pytest.raises(ValueError, match="hash is wrong"):
        decode_order(data + b"\0")
    for place in range(0, 8 * len(data), 1 if len(data) < 300 else 7):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(ValueError, match="hash is wrong"):
            decode_order(bytes(flipped))


def _resealed(data: bytes, seed: int) -> bytes:
    """One byte changed, added or taken away, and the hash made anew."""
    rng = np.random.default_rng(seed)
    out = bytearray(data[:-DIGEST])
    at = int(rng.integers(len(out)))
    match int(rng.integers(4)):
        case 0:
            out[at:at] = rng.bytes(1)
        case 1:
            del out[at]
        case _:
            out[at] ^= 1 << int(rng.integers(8))
    return seal(bytes(out), [])


@law(80)
@given(exchanges(any_bits), st.lists(seeds, min_size=10, max_size=10))
def test_a_message_with_another_hash_is_refused_or_says_something_else(
    pair: tuple[Order, Reply], at_random: list[int]
) -> None:
    order, reply = pair
    sent = encode_order(order), encode_reply(reply, order)
    for seed in at_random:
        asked, answer = (_resealed(data, seed) for data in sent)
        with suppress(ValueError):
            assert encode_order(again(decode_order(asked))) == asked != sent[0]
        with suppress(ValueError):
            assert encode_reply(decode_reply(answer, order), order) == answer != sent[1]


@law(300)
@given(st.binary(max_size=80), st.sampled_from((b"", b"FQ\x01O", b"FQ\x01R", b"FQ\x01O\0" + b"\1\0" * 4)))
def test_random_bytes_raise_nothing_but_a_value_error(raw: bytes, start: bytes) -> None:
    for data in (start + raw, seal(start + raw, [])):
        with pytest.raises(ValueError):
            decode_order(data)
        with pytest.raises(ValueError):
            decode_reply(data, SMALL)


def test_numbers_have_one_spelling() -> None:
    for wrong in (b"\x02\x01\x00", b"\x00", b"\x02\xff\xff"):  # 1 in two bytes, 0 in none, -1 in two
        good = encode_order(SMALL)
        at = good.index(integer(300))
        changed = seal(good[:at] + wrong + good[at + 3 : -DIGEST], [])
        with pytest.raises(ValueError, match="not spelled"):
            decode_order(changed)


def test_a_reply_answers_its_own_order_only() -> None:
    reply = Reply(3, 300, SMALL.params, SMALL.cover, 1.0)
    data = encode_reply(reply, SMALL)
    for other in (replace(SMALL, seed=8), replace(SMALL, version=2), replace(SMALL, scalars={})):
        with pytest.raises(ValueError, match="another order"):
            decode_reply(data, other)
    with pytest.raises(ValueError, match="hash is wrong"):
        decode_reply(data[:-1], SMALL)
    with pytest.raises(ValueError, match="not an order of format 1"):
        decode_order(data)
    with pytest.raises(ValueError, match="not a reply of format 1"):
        decode_reply(encode_order(SMALL), SMALL)


# ---- what cannot travel is said before it does
def test_what_does_not_travel_is_refused_by_name() -> None:
    w = Cover.whole({"w": (2,)})
    order = Order("r", 0, 0, 0, {"w": torch.zeros(2)}, w, Grant(w))
    cases: list[tuple[Order, type[Exception], str]] = [
        (replace(order, params={}), ValueError, "params and cover name different tensors: w"),
        (replace(order, params={"w": torch.zeros(3)}), ValueError, r"w has shape \(3,\), its cover says \(2,\)"),
        (replace(order, params={"w": torch.zeros(2, dtype=torch.complex64)}), TypeError, "w is torch.complex64"),
        (replace(order, extra={"e": torch.zeros(2, dtype=torch.complex64)}), TypeError, "e is torch.complex64"),
        (replace(order, scalars={"a": None}), TypeError, "the scalar a is a NoneType"),  # type: ignore[dict-item]
        (replace(order, scalars={"a": HUGE + 1}), ValueError, "256 bytes is too large"),
        (replace(order, seed=-HUGE - 2), ValueError, "256 bytes is too large"),
    ]
    for wrong, error, words in cases:
        for act in (encode_order, order_size):
            with pytest.raises(error, match=words):
                act(wrong)
    for params, words in (({}, "the reply's params"), ({"w": torch.zeros(3)}, "the reply's w has shape")):
        for act_ in (encode_reply, reply_size):
            with pytest.raises(ValueError, match=words):
                act_(Reply(0, 0, params, w, 1.0), order)


# ---- a stranger's order
@law()
@given(worlds())
def test_an_order_keeps_to_the_shapes_of_the_model_at_hand(world: World) -> None:
    order, p, _ = world
    data, shapes = encode_order(order), {k: tuple(v.shape) for k, v in p.items()}
    for k in order.cover | order.grant.outer:
        for other in (
            {n: s for n, s in shapes.items() if n != k},
            {**shapes, k: (*shapes[k], 1)},
            {**shapes, k: (*shapes[k][:-1], 7)},
        ):
            with pytest.raises(ValueError, match="agreed on"):
                decode_order(data, other)


def test_an_order_cannot_claim_more_than_its_bytes() -> None:
    data = encode_order(SMALL)
    cover = SMALL.cover.encode()
    huge = Cover.whole({"n": (), "w": (1 << 40,)}).encode()
    many = table({f"{i}": b"" for i in range(3)})[1:]
    claims = [
        data[:-DIGEST].replace(cover, huge),
        data[:-DIGEST].replace(b"\x01e\x08\x01\x02", b"\x01e\x08\x01" + number(1 << 50)).replace(cover, huge),
        data[:4] + number(1 << 50) + data[5:-DIGEST],
        data[:-DIGEST].replace(b"\x04" + text("k"), number(1 << 50) + text("k")),
        data[:-DIGEST].replace(b"\x02\x04mask", number(1 << 50) + many + b"\x04mask"),
        data[:-DIGEST].replace(b"\x01m\x09\x01\x02", b"\x01m\x09\x02\x00" + number(1 << 62)),
    ]
    for claim in claims:
        assert claim != data[:-DIGEST]
        tracemalloc.start()
        with pytest.raises(ValueError):
            decode_order(seal(claim, []))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


# ---- the small pieces
@law(200)
@given(scalars | integers)
def test_a_scalar_comes_out_as_it_went_in(x: Scalar) -> None:
    code = scalar("x", x)
    r = Reader(code)
    back = r.scalar()
    assert type(back) is type(x) and r.at == len(code) and scalar("x", back) == code
    assert isinstance(x, float) or back == x


def test_an_integer_takes_as_few_bytes_as_it_can() -> None:
    for n, code in (
        (0, "0100"),
        (1, "0101"),
        (-1, "01ff"),
        (127, "017f"),
        (128, "028000"),
        (-128, "0180"),
        (-129, "027fff"),
        (255, "02ff00"),
        (2**63, "09000000000000008000"),
    ):
        assert integer(n).hex() == code and Reader(integer(n)).integer() == n
    assert len(integer(HUGE)) == len(integer(-HUGE - 1)) == 256


def test_a_table_has_at_most_the_names_that_make_sense() -> None:
    code = table({"a": real(1.0), "b": real(2.0)})
    r = Reader(code, 2)
    assert r.table(r.real) == {"a": 1.0, "b": 2.0}
    r = Reader(code, 1)
    with pytest.raises(ValueError, match="2 names, 1 are the most"):
        r.table(r.real)


@law()
@given(models(), st.integers(0, 9))
def test_tensors_unpack_wherever_they_begin(p: Params, at: int) -> None:
    wanted = [(TRAVELLING.index(t.dtype), tuple(t.shape)) for t in p.values()]
    data = b"x" * at + b"".join(pack(p.values())) + bytes(DIGEST)
    assert list(map(bits, unpack(data, at, wanted))) == list(map(bits, p.values()))


def test_a_boolean_that_is_neither_0_nor_1_is_refused() -> None:
    with pytest.raises(ValueError, match="booleans"):
        unpack(b"\x01\x02" + bytes(DIGEST), 0, [(TRAVELLING.index(torch.bool), (2,))])


def test_a_seal_is_the_hash_of_all_before_it() -> None:
    good = seal(b"head", [memoryview(b"tensors")])
    assert good == b"headtensors" + sha256(b"headtensors").digest() and sealed(good)
    assert not sealed(b"") and not sealed(good[1:]) and not sealed(bytes(DIGEST))


@law(60)
@given(exchanges(any_bits))
def test_decoded_tensors_own_their_memory(pair: tuple[Order, Reply]) -> None:
    order, reply = pair
    asked, answer = encode_order(order), encode_reply(reply, order)
    copies: list[tuple[bytes, Callable[[], Order | Reply]]] = [
        (asked, lambda: decode_order(asked)),
        (answer, lambda: decode_reply(answer, order)),
    ]
    for data, decode in copies:
        back, before = decode(), bytes(bytearray(data))
        tensors = [*back.params.values(), *back.extra.values()]
        assert all(t.untyped_storage().nbytes() == t.nbytes and t.is_contiguous() for t in tensors)
        places = [t.data_ptr() for t in tensors if t.numel()]
        assert len(set(places)) == len(places) and all(p % 16 == 0 for p in places)
        for t in tensors:
            t.zero_()
        assert data == before
        fresh = decode()
        assert all_bits(fresh.params) == all_bits(order.params if data is asked else reply.params)


# ---- the format is fixed forever by these: each is made by hand from the description on its right
PIECE = {"n": torch.tensor(258), "w": torch.tensor([1.0, -2.0])}
WHOLE = Cover.whole(PIECE)
SMALL = Order(
    "r1",
    7,
    3,
    300,
    PIECE,
    WHOLE,
    Grant(WHOLE, frozenset({"same", "mask"}), {"e": (torch.uint8, (2,))}, frozenset({"loss"}), 10.0, 999),
    1,
    {"x": 0.5, "k": -2, "norm": "frozen", "on": True},
    {"m": torch.tensor([True, False])},
)
ORDER = """
    4651 01 4f  02 7231               # "FQ", format 1, "O"; the run "r1"
    01 07  01 03  02 2c01  01 01      # seed, client, round and version: how many bytes, the number
    04                                # four scalars, by name
      01 6b  69 01 fe                 # "k", "i": -2
      04 6e6f726d  73 06 66726f7a656e  # "norm", "s": "frozen"
      02 6f6e  62 01                  # "on", "b": true
      01 78  66 000000000000e03f      # "x", "f": 0.5
    0d 43310002016e000001770102 00    # the cover: so many bytes, see the laws of covers
    00                                # the outer cover is the same
    02  04 6d61736b  04 73616d65      # two kinds, "mask" and "same"
    01  01 65  08 01 02               # an extra, "e": uint8, one axis of 2
    01  04 6c6f7373                   # a metric, "loss"
    0000000000002440  02 e703         # the largest weight, 10.0, and size, 999
    02 01 02                          # two dtypes, int64 and float32
    01  01 6d  09 01 02               # an extra of its own, "m": bool, one axis of 2
    0201000000000000                  # the tensors: n
    0000803f 000000c0                 # w
    01 00                             # m
    972c0195b823fbf0d3c2d94c2be2d725de6453feaa12b93c12796ab8e574d39c  # the hash of all this
"""
REPLY = """
    4651 01 52  02 7231               # "FQ", format 1, "R"; the run "r1"
    01 03  02 2c01                    # client and round
    972c0195b823fbf0d3c2d94c2be2d725de6453feaa12b93c12796ab8e574d39c  # the order's hash
    0000000000001040                  # the weight, 4.0
    01  04 6c6f7373 000000000000f83f  # a metric, "loss": 1.5
    00                                # on the order's own cover
    02 01 02                          # two dtypes, int64 and float32
    01  01 65  08 01 02               # an extra, "e": uint8, one axis of 2
    0301000000000000                  # the tensors: n
    0000803f 000000c0                 # w
    05 06                             # e
    381ef62ebd0d7b19bbe9fdcea82dcaa55c6337d0f087a7da3787225ac9b533d8  # the hash of all this
"""
PART = """
    4651 01 52  02 7231  01 03  02 2c01
    972c0195b823fbf0d3c2d94c2be2d725de6453feaa12b93c12796ab8e574d39c
    0000000000001040
    00                                # no metrics
    0d 43310102000201017701020101     # a cover of its own: the second entry of w
    01 02                             # a dtype, float32
    00                                # no extras
    000000c0                          # the tensors: w
"""


def _spelled(golden: str) -> str:
    """The hexadecimal digits before each comment."""
    return "".join(line.split("#")[0] for line in golden.splitlines()).replace(" ", "")


def test_golden_bytes() -> None:
    reply = Reply(
        3, 300, {**PIECE, "n": torch.tensor(259)}, WHOLE, 4.0, {"loss": 1.5}, {"e": torch.tensor([5, 6]).byte()}
    )
    second = Cover.masks({"w": torch.tensor([False, True])})
    part = Reply(3, 300, {"w": torch.tensor([-2.0])}, second, 4.0)
    assert encode_order(again(SMALL)).hex() == _spelled(ORDER)
    assert encode_reply(reply, SMALL).hex() == _spelled(REPLY)
    assert encode_reply(part, SMALL)[:-DIGEST].hex() == _spelled(PART)
    assert order_bits(decode_order(bytes.fromhex(_spelled(ORDER)))) == order_bits(SMALL)
    assert reply_bits(decode_reply(bytes.fromhex(_spelled(REPLY)), SMALL)) == reply_bits(reply)


def test_the_codes_of_dtypes_are_fixed() -> None:
    order = ["float64", "int64", "float32", "int32", "float16", "bfloat16", "int16", "int8", "uint8", "bool"]
    assert [str(d) for d in TRAVELLING] == [f"torch.{d}" for d in order]


# ---- no message, file or memory may run code
FORBIDDEN = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def _dangers(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [n.name for n in names if n.name.split(".")[0] in FORBIDDEN]
            case ast.ImportFrom(module=str(module), level=0):
                found += [module] if module.split(".")[0] in FORBIDDEN else []
                found += [n.name for n in node.names if (module, n.name) in {("torch", "load"), ("torch", "save")}]
            case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save" as attr):
                found.append(f"torch.{attr}")
            case ast.Attribute(attr="pickle"):
                found.append("pickle")
            case ast.keyword(arg="allow_pickle", value=value) if ast.unparse(value) != "False":
                found.append("allow_pickle")
            case ast.Call(func=ast.Name(id="eval" | "exec" | "__import__" as name)):
                found.append(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="load")):
                found += [] if any(k.arg == "allow_pickle" for k in node.keywords) else ["np.load without allow_pickle"]
    return found


def test_nothing_in_the_program_unpickles() -> None:
    for path in sorted(Path(fedquilt.__file__).parent.rglob("*.py")):
        assert _dangers(ast.parse(path.read_text())) == [], path.name


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from cloudpickle import loads",
        "import os, joblib.numpy_pickle",
        "from torch import load",
        "torch.load(f, weights_only=True)",
        "x = torch.save",
        "np.load(f, allow_pickle=True)",
        "np.load(f)",
        "np.load(f, allow_pickle=flag)",
        "np.lib.format.read_array(f, allow_pickle=True)",
        "eval(text)",
        "pd.io.pickle.read",
    ],
)
def test_the_test_for_pickles_finds_them(text: str) -> None:
    assert _dangers(ast.parse(text))
    assert not _dangers(ast.parse("np.load(f, allow_pickle=False); net.eval(); state.load(1); m.load_state_dict(x)"))
