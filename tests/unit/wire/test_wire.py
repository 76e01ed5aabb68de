"""What goes over a wire comes back the same; what was truncated, swapped or flipped is refused and never
believed."""

from __future__ import annotations

import struct
import weakref
import zlib
from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.controls import WeightedPrompt
from millstream.core.envelope import Envelope, Result, instruction
from millstream.core.errors import EnvelopeRefused, WireError
from millstream.wire import framing
from millstream.wire.conditioning import HeldConditionings, KnownConditionings
from millstream.wire.framing import (
    Answers,
    Frame,
    Orders,
    check_memory,
    memory_of,
    on_host,
    pack,
    read_header,
    read_meta,
)
from millstream.wire.packing import (
    pack_deliveries,
    pack_instruction,
    pack_parcels,
    unpack_deliveries,
    unpack_parcels,
)
from millstream.wire.parcel import Delivery, Parcel

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8]


def envelope(**changes: object) -> Envelope:
    fields = dict(
        call_id=7, session_id="s", chunk_index=3, cache_epoch=1, height=32, width=48, start_frame=9, frames=3, init_cache=False,
        reset_kv=False, reset_cross=True, recompute=False, steps=(1000.0, 500.0), commit=True, context_noise=0.0,
        expected_calls=3, window=9, sink=0, positions="absolute", seed=5, noise_scale=1.0, kv_bias=1.0,
        prompts=(WeightedPrompt("sea"),), conditioning_id="c",
    )  # fmt: skip
    return Envelope(**(fields | changes))


def orders(**changes: object) -> Orders:
    return Orders(sequence=1, envelopes=(envelope(**changes),))


def wire(frame: Frame) -> bytes:
    """All its bytes, one after the other."""
    return frame.header + frame.meta + b"".join(memory_of(tensor).tobytes() for tensor in frame.tensors)


def unwire(data: bytes) -> tuple[object, dict[str, torch.Tensor]]:
    """What a receiver makes of them."""
    header = read_header(data[: framing.HEADER_BYTES])
    rest = data[framing.HEADER_BYTES :]
    message, manifest = read_meta(header, rest[: header.meta_bytes])
    rest = rest[header.meta_bytes :]
    tensors = {}
    for entry in manifest:
        raw = rest[: entry.num_bytes]
        rest = rest[entry.num_bytes :]
        if len(raw) != entry.num_bytes:
            raise WireError("the connection ended early")
        buffer = torch.empty(entry.shape, dtype=framing.DTYPES[entry.dtype])
        if raw:
            torch.frombuffer(memory_of(buffer), dtype=torch.uint8).copy_(
                torch.frombuffer(bytearray(raw), dtype=torch.uint8)
            )
        check_memory(entry, memory_of(buffer))
        tensors[entry.name] = buffer
    return message, tensors


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4)), max_size=4),
    st.integers(0, 2**31),
)
def test_a_message_and_its_tensors_arrive_as_they_were(
    shapes: list[tuple[torch.dtype, list[int]]], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"t{number}": torch.randint(0, 100, shape, generator=generator).to(dtype)
        for number, (dtype, shape) in enumerate(shapes)
    }
    found, arrived = unwire(wire(pack(orders(seed=seed), tensors)))
    assert found == orders(seed=seed)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in arrived.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()
    }
    assert all(torch.equal(arrived[name], tensor) for name, tensor in tensors.items())


SAMPLE = wire(
    pack(
        orders(),
        {"latents_in": torch.arange(24.0).view(1, 3, 8), "conditioning": torch.ones(2, 3).bfloat16()},
    )
)


@settings(max_examples=500)
@given(st.integers(0, len(SAMPLE) * 8 - 1))
def test_a_flipped_bit_is_always_noticed(bit: int) -> None:
    damaged = bytearray(SAMPLE)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        unwire(bytes(damaged))


@given(st.integers(0, len(SAMPLE) - 1))
def test_a_truncated_message_is_refused(length: int) -> None:
    with pytest.raises(WireError):
        unwire(SAMPLE[:length])


@given(st.integers(0, len(SAMPLE) - 1), st.integers(0, len(SAMPLE) - 1), st.integers(1, 40))
def test_reordered_bytes_are_refused_or_the_same(one: int, other: int, length: int) -> None:
    swapped = bytearray(SAMPLE)
    swapped[one : one + length], swapped[other : other + length] = (
        SAMPLE[other : other + length],
        SAMPLE[one : one + length],
    )
    if bytes(swapped) != SAMPLE:
        with pytest.raises(WireError):
            unwire(bytes(swapped))


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        unwire(data)


@settings(max_examples=300)
@given(st.binary(max_size=300), st.integers(0, 3), st.integers(0, 2))
def test_metadata_with_a_right_checksum_and_a_wrong_content_is_refused(
    data: bytes, num_tensors: int, kind: int
) -> None:
    head = struct.pack("<4sHHIIQI", b"MLST", 1, kind, len(data), num_tensors, 0, zlib.crc32(data))
    with pytest.raises(WireError):
        unwire(head + struct.pack("<I", zlib.crc32(head)) + data)


def test_an_unknown_field_is_ignored_and_an_unknown_version_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Tomorrow(Orders, frozen=True, kw_only=True):
        mood: str = "hopeful"

    monkeypatch.setitem(framing._NUMBERS, Tomorrow, 1)
    found, _ = unwire(wire(pack(Tomorrow(sequence=1, envelopes=(envelope(),)), {})))
    assert found == orders()
    monkeypatch.setattr(framing, "VERSION", 2)
    later = wire(pack(orders(), {}))
    monkeypatch.setattr(framing, "VERSION", 1)
    with pytest.raises(WireError, match="version 2"):
        unwire(later)


def test_an_unknown_action_is_refused() -> None:
    odd = msgspec.structs.replace(envelope(), action="DANCE")
    with pytest.raises(WireError, match="DANCE"):
        unwire(wire(pack(Orders(sequence=1, envelopes=(odd,)), {})))


def test_what_cannot_be_sent_is_refused_before_the_first_byte() -> None:
    with pytest.raises(WireError, match="complex64"):
        pack(orders(), {"t": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(WireError, match="serialised"):
        pack(orders(seed=2**70), {})
    with pytest.raises(WireError, match="at most 96"):
        pack(orders(), {f"t{number}": torch.zeros(1) for number in range(97)})
    with pytest.raises(WireError, match="metadata of"):
        pack(orders(session_id="s" * 2**20), {})


def test_a_header_that_asks_for_too_much_is_refused_before_anything_is_allocated() -> None:
    head = struct.pack("<4sHHIIQI", b"MLST", 1, 1, 10, 1, 2**60, 0)
    with pytest.raises(WireError, match="past the limits"):
        read_header(head + struct.pack("<I", zlib.crc32(head)))


def test_what_a_device_still_makes_has_its_checksum_when_it_is_on_the_host() -> None:
    """A tensor without memory stands for one of a device."""
    made = torch.arange(6.0).view(2, 3)
    frame = pack(orders(), {"latents_in": torch.empty(2, 3, device="meta")})
    _, (entry,) = read_meta(read_header(frame.header), frame.meta)
    assert entry.checksum is None
    message, arrived = unwire(wire(on_host(frame, [made])))
    assert message == orders()
    assert torch.equal(arrived["latents_in"], made)
    with pytest.raises(AssertionError, match="host memory"):
        on_host(frame, frame.tensors)


def parcel(name: str = "c", *, resets: bool = True, conditioning: torch.Tensor | None = None) -> Parcel:
    return Parcel(
        envelope=envelope(conditioning_id=name, reset_cross=resets),
        latents_in=torch.ones(1, 3, 4),
        conditioning=conditioning,
    )


def test_parcels_and_deliveries_arrive_together_and_in_order() -> None:
    sent = [
        parcel("a", conditioning=torch.ones(1, 2)),
        replace(parcel("b", resets=False), context_frames=torch.zeros(1, 2)),
    ]
    message, tensors = unwire(wire(pack_parcels(sent, sequence=4)))
    one, other = unpack_parcels(message, tensors)
    assert [one.envelope, other.envelope] == [each.envelope for each in sent]
    assert torch.equal(one.conditioning, torch.ones(1, 2))
    assert one.context_frames is None
    assert other.conditioning is None
    assert torch.equal(other.context_frames, torch.zeros(1, 2))
    bad = Delivery(
        result=Result(call_id=1, session_id="s", chunk_index=0, cache_epoch=0, ok=False, error="no")
    )
    good = Delivery(result=msgspec.structs.replace(bad.result, ok=True), latents_out=torch.ones(2))
    message, tensors = unwire(
        wire(pack_deliveries([bad, good], sequence=4, held_bytes=7, phases_ms={"step": 2.0}))
    )
    assert isinstance(message, Answers)
    assert (message.held_bytes, message.phases_ms) == (7, {"step": 2.0})
    first, second = unpack_deliveries(message, tensors)
    assert (first.latents_out, second.result.ok) == (None, True)
    assert torch.equal(second.latents_out, torch.ones(2))


def test_a_chunk_without_latents_or_with_strange_tensors_is_refused() -> None:
    with pytest.raises(WireError, match="without its latents"):
        unpack_parcels(orders(), {})
    with pytest.raises(WireError, match="no tensors"):
        unpack_parcels(orders(), {"0.latents_in": torch.ones(1), "0.surprise": torch.ones(1)})


@pytest.mark.parametrize("action", ["NOOP", "RELEASE", "OFFLOAD", "RESTORE", "CHECK", "SHUTDOWN"])
def test_instructions_travel_without_tensors(action: str) -> None:
    message, tensors = unwire(wire(pack_instruction(instruction(action, 9, "s"), sequence=5)))
    (found,) = message.envelopes
    assert (found.action, found.call_id, found.session_id, tensors) == (action, 9, "s", {})
    found.validate()


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=40), st.integers(1, 6))
def test_a_conditioning_travels_once_and_both_sides_forget_alike(
    uses: list[tuple[str, bool]], capacity: int
) -> None:
    known = KnownConditionings(capacity)
    held = HeldConditionings(capacity)
    travelled: list[str] = []
    for name, resets in uses:
        tensor = torch.full((1, 2), float(ord(name))) if resets else None
        (sent,), known = known.strip([parcel(name, resets=resets, conditioning=tensor)])
        if sent.conditioning is not None:
            travelled.append(name)
        (arrived,) = held.restore([sent])
        assert (arrived.conditioning is None) == (not resets)
        assert tensor is None or torch.equal(arrived.conditioning, tensor)
    if capacity >= 6:
        assert len(travelled) == len(set(travelled))


def test_a_conditioning_that_is_not_held_is_refused() -> None:
    (arrived,) = HeldConditionings().restore([parcel("gone")])
    with pytest.raises(EnvelopeRefused, match="without a conditioning"):
        arrived.validate()


def test_an_envelope_that_says_nothing_of_chunks_under_way_has_one() -> None:
    said = msgspec.to_builtins(envelope(under_way=2))
    assert said.pop("under_way") == 2
    assert msgspec.convert(said, Envelope).under_way == 1


@pytest.mark.parametrize(("chunks", "sink"), [(0, 0), (4, 0), (3, 1)])
def test_more_chunks_under_way_than_a_window_holds_are_refused_before_they_are_sent(
    chunks: int, sink: int
) -> None:
    envelope(under_way=3).validate()
    with pytest.raises(EnvelopeRefused, match="chunk 3 of s: "):
        envelope(under_way=chunks, sink=sink).validate()


def test_a_flush_travels_without_tensors() -> None:
    message, tensors = unwire(wire(pack_instruction(instruction("FLUSH", 7, "s"), sequence=1)))
    assert (message.envelopes[0].action, message.envelopes[0].session_id, tensors) == ("FLUSH", "s", {})


def test_a_tensors_memory_is_its_own_and_outlives_whoever_made_it() -> None:
    tensor = torch.tensor([1, 2, 3], dtype=torch.uint8)
    memory = memory_of(tensor)
    tensor += 1
    assert bytes(memory) == b"\x02\x03\x04", "not a copy"
    held = weakref.ref(tensor)
    del tensor
    assert held() is not None, "the bytes hold it"
    del memory
    assert held() is None
    assert len(memory_of(torch.empty(2, 0))) == 0
    with pytest.raises(AssertionError, match="not one run of memory"):
        memory_of(torch.ones(2, 3).T)
