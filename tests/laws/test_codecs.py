"""Upload codecs: unbiased where they say so, of the form that they promise, exact where they are exact."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedquilt import codec
from fedquilt.codec import CODECS, QSGD, Codec, TopK, Uniform, codec_of, packed, unpacked
from fedquilt.cover import Params
from fedquilt.drive.sim import Simulator
from fedquilt.drive.wire import decode_reply, encode_reply
from fedquilt.fit import SGD
from fedquilt.guard import Code, Rejection, admit
from fedquilt.key import Key
from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.parts.codecs import Coded
from fedquilt.parts.local import Train
from fedquilt.parts.send import Ordered
from fedquilt.types import Order, Reply

from ..world import play, small, world

KEY = Key(7)
ALL = (Uniform(8), Uniform(4), Uniform(2), Uniform(1), QSGD(1), QSGD(127), QSGD(500), TopK(0.1), TopK(0.01), TopK(1.0))
every = pytest.mark.parametrize("code", ALL, ids=lambda c: c.text)


def pieces() -> Params:
    """Tensors of every size and dtype; scalars, constants, zeros and nothing among them."""
    g = KEY.torch()
    return {
        "a": torch.randn(7, 3, generator=g),
        "b": torch.randn(5, generator=g, dtype=torch.float64) * 1e-3,
        "c": torch.zeros(4),
        "d": torch.full((3,), 2.5),
        "e": torch.randn((), generator=g),
        "f": torch.zeros(0, 3),
        "g": torch.randn(100, generator=g) * 1e3,
    }


def there_and_back(code: Codec, piece: Params, key: Key = KEY) -> Params:
    forms = {k: (v.dtype, tuple(v.shape)) for k, v in piece.items()}
    coded = code.encode(piece, key)
    assert [(t.dtype, tuple(t.shape)) for t in coded] == code.forms(forms)
    out = code.decode(coded, forms)
    assert {k: (v.dtype, tuple(v.shape)) for k, v in out.items()} == forms
    return out


@every
def test_a_code_has_the_form_that_it_promises_and_zero_stays_zero(code: Codec) -> None:
    out = there_and_back(code, pieces())
    assert not out["c"].any() and all(v.isfinite().all() for v in out.values())
    assert there_and_back(code, {}) == {}
    nothing = {"x": torch.zeros(9), "y": torch.zeros(2, 2)}
    assert not any(v.any() for v in there_and_back(code, nothing).values())
    assert codec_of(code.text) == code and codec_of(code.text.split(":")[0]) == type(code)()


@pytest.mark.parametrize("code", [c for c in ALL if c.unbiased], ids=lambda c: c.text)
def test_its_expectation_is_what_went_in(code: Codec) -> None:
    """The mean of n draws is near the value: within 5 standard deviations of a draw that is off by at most a step."""
    piece = {"a": torch.tensor([0.3, -1.2, 0.011, 0.0, 2.0]), "b": torch.tensor([0.5, 0.1, -0.1])}
    n = 3000
    sums = {k: torch.zeros_like(v) for k, v in piece.items()}
    for i in range(n):
        out = there_and_back(code, piece, KEY.at(i))
        sums = {k: s + out[k] for k, s in sums.items()}
    for k, v in piece.items():
        step = (v.max() - v.min()) / (2**code.bits - 1) if isinstance(code, Uniform) else v.norm() / code.levels  # type: ignore[attr-defined]
        assert ((sums[k] / n - v).abs() <= 5 * step / 2 / math.sqrt(n) + 1e-5).all(), (k, sums[k] / n)
    assert len({tuple(there_and_back(code, piece, KEY.at(i))["a"].tolist()) for i in range(20)}) > 1


def test_rounding_down_would_be_seen() -> None:
    """The test above fails for a rounding that is not drawn."""
    v = torch.tensor([0.0, 0.3, 1.0])
    scale = 1 / 3
    assert ((v / scale).floor() * scale - v).abs().max() > 5 * scale / 2 / math.sqrt(3000) + 1e-5


def test_by_hand() -> None:
    """Ends of the range are exact; the points between are a step apart; QSGD's levels are shares of the length."""
    v = {"x": torch.tensor([-1.0, 0.0, 0.1, 2.0])}
    out = there_and_back(Uniform(2), v)["x"]
    assert out[0] == -1 and out[3] == 2 and out[1] == 0 and out[2] in (0.0, 1.0)
    [codes, ends] = Uniform(2).encode(v, KEY)
    assert ends.tolist() == [-1, 2] and codes.numel() == 1 and unpacked(codes, 2, 4)[[0, 1, 3]].tolist() == [0, 1, 3]
    out = there_and_back(QSGD(5), {"x": torch.tensor([3.0, -4.0])})["x"]
    assert out.tolist() == [3, -4]
    top = there_and_back(TopK(0.5), {"x": torch.tensor([1.0, -3.0]), "y": torch.tensor([[3.0], [-0.5]])})
    assert top["x"].tolist() == [0, -3] and top["y"].tolist() == [[3], [0]]
    tied = there_and_back(TopK(0.5), {"x": torch.full((5,), 2.0)})["x"]
    assert tied.tolist() == [2, 2, 0, 0, 0], "as many as promised: the first of equal ones"


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_bits_are_packed_without_loss(bits: int) -> None:
    for n in range(20):
        codes = torch.randint(2**bits, (n,), generator=KEY.at(n).torch()).to(torch.uint8)
        raw = packed(codes, bits)
        assert len(raw) == -(-n * bits // 8) and torch.equal(unpacked(raw, bits, n), codes)


def test_settings_that_cannot_be_are_refused() -> None:
    for bad, told in (
        ("zip", "no upload codec is called 'zip'; there are: uniform, qsgd, topk"),
        ("uniform:3", "bits are 1, 2, 4 or 8"),
        ("qsgd:0", "levels are 1 to 32767"),
        ("topk:1.5", "share is above 0"),
        ("uniform:many", "takes a number, as in uniform:8"),
    ):
        with pytest.raises(ValueError, match=told):
            codec_of(bad)
    assert set(CODECS) == {c.text.split(":")[0] for c in ALL}
    for missing in (lambda c: c.forms({}), lambda c: c.encode({}, KEY), lambda c: c.decode([], {})):
        with pytest.raises(TypeError, match="does not say"):
            missing(Codec())


# ---- on the wire
def one(code: Codec, **more: object) -> tuple[Simulator, Order, bytes]:
    """An order of a sub-model and the bytes of its reply."""
    local = Coded(Train(SGD(0.05), 1, 4), code, **more)  # type: ignore[arg-type]
    sim = world(Method("coded", send=Ordered(), local=local), "cnn", clients=1, widths=(0.5,))
    [order] = sim.method.plan(sim.begin().state, sim.fleet, sim.model, sim.key, (), sim.run)
    [done] = sim.site.work([order])
    assert done.reply, done.reason
    return sim, order, done.reply


@every
def test_a_reply_is_decoded_where_it_is_read_and_costs_what_its_code_does(code: Codec) -> None:
    sim, order, raw = one(code)
    reply = admit(raw, order, order.client)
    assert isinstance(reply, Reply) and reply.cover == order.cover
    assert encode_reply(reply, order) == encode_reply(decode_reply(raw, order), order) == raw
    plain = Train(SGD(0.05), 1, 4)
    whole = world(Method("plain", send=Ordered(), local=plain), "cnn", clients=1, widths=(0.5,))
    [first] = whole.method.plan(whole.begin().state, whole.fleet, whole.model, whole.key, (), whole.run)
    [done] = whole.site.work([first])
    dense = decode_reply(done.reply or b"", first)
    forms = {k: (v.dtype, tuple(v.shape)) for k, v in dense.params.items()}
    inside = codec.coded_part(forms)
    assert inside.keys() == {k for k in sim.model.trainable if k in order.cover}
    for k in forms.keys() - inside.keys():
        assert torch.equal(reply.params[k], dense.params[k]), "statistics and integers travel as they are"
    saved = sum(dense.params[k].nbytes for k in inside) - sum(t.nbytes for t in reply.coded)
    assert len(done.reply or b"") - len(raw) == saved
    bits = 8 * sum(t.nbytes for t in reply.coded) / sum(dense.params[k].numel() for k in inside)
    if isinstance(code, Uniform):
        assert code.bits < bits < code.bits + 3
    change = {k: (dense.params[k] - order.params[k]) for k in inside}
    seen = {k: reply.params[k] - order.params[k] for k in inside}
    assert any(not torch.equal(change[k], seen[k]) for k in inside) or code == TopK(1.0)
    if code == TopK(1.0):
        assert all(torch.allclose(change[k], seen[k], atol=1e-6) for k in inside)


def test_the_guard_bounds_what_the_code_says() -> None:
    """A code of few bytes that says a huge change is as long as that change."""
    _, order, raw = one(Uniform(8))
    reply = decode_reply(raw, order)
    honest = sum(float((reply.params[k].double() - order.params[k].double()).square().sum()) for k in order.params)
    assert isinstance(admit(raw, order, order.client, norm=math.sqrt(honest) * 1.001 + 1e3), Reply)
    huge = tuple(t * 1e6 if t.is_floating_point() else t for t in reply.coded)
    bad = encode_reply(replace(reply, coded=huge), order)
    verdict = admit(bad, order, order.client, norm=1e3)
    assert isinstance(verdict, Rejection) and verdict.code is Code.NORM_BOUND


@pytest.mark.parametrize("code", [TopK(0.3), TopK(0.01), Uniform(1)], ids=lambda c: c.text)
def test_a_code_that_stands_for_nothing_is_refused(code: Codec) -> None:
    _, order, raw = one(code)
    reply = decode_reply(raw, order)
    first, *rest = reply.coded
    odd = first.clone()
    if isinstance(code, Uniform):
        assert "head.bias" in reply.params and reply.params["head.bias"].numel() == 4, "half a byte of filling"
        at = 2 * sorted(codec.coded_part(codec.forms_of(reply))).index("head.bias")
        odd, rest = reply.coded[0], list(reply.coded[1:])
        rest[at - 1] = rest[at - 1] | 240
    else:
        odd[-1] = odd[0] if odd.dtype == torch.int32 else odd[-1] ^ 1
    verdict = admit(encode_reply(replace(reply, coded=(odd, *rest)), order), order, order.client)
    assert isinstance(verdict, Rejection) and verdict.code is Code.BAD_DTYPE, verdict
    with pytest.raises(ValueError, match="not in the code"):
        encode_reply(replace(reply, coded=()), order)


# ---- what the code lost
def test_the_error_memory_holds_just_what_was_lost() -> None:
    """Over the rounds, what the server saw and what the client still remembers add up to what the client did."""
    local = Coded(Train(SGD(0.05), 1, 4), TopK(0.05), feedback=True)
    sim = world(Method("coded", local=local), "cnn-group", clients=1)
    plain = Train(SGD(0.05), 1, 4)
    now, lost = sim.begin(), {}
    for _ in range(4):
        before = now.state
        [order] = sim.method.plan(before, sim.fleet, sim.model, sim.key, (), sim.run)
        alone = world(Method("plain", local=plain), "cnn-group", clients=1)
        bare = alone.method.order(replace(before, versions={}), 0, alone.fleet, alone.model, alone.key, sim.run)
        [made] = alone.site.work([bare])
        dense = decode_reply(made.reply or b"", bare).params
        now, _ = play(sim, 1, now)
        memory = sim.site.memories.load(0, now.state.versions[0]).tensors
        for k in sim.model.trainable:
            did = dense[k].double() - order.params[k]
            seen = now.state.params[k].double() - order.params[k]
            assert torch.allclose(seen + memory[f"lost/{k}"], did + lost.get(k, 0.0), atol=1e-6), k
        lost = {k: memory[f"lost/{k}"] for k in sim.model.trainable}
        assert any(v.any() for v in lost.values())


def test_with_memory_a_small_share_learns_what_it_would_forget() -> None:
    """Without memory a coordinate that is never among the greatest never moves; with it each does in time."""
    moved = []
    for feedback in (False, True):
        sim = world(small(METHODS["fedcom"], codec="topk:0.01", feedback=feedback), "cnn-group")
        start = sim.begin().state.params
        now, _ = play(sim, 6)
        moved.append(sum(int((now.state.params[k] != start[k]).sum()) for k in sim.model.trainable))
    assert moved[1] > 1.2 * moved[0]
