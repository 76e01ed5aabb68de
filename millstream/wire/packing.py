"""Parcels and deliveries as frames, and back. Tensors are named by the place of their chunk:
`0.latents_in`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from millstream.core.envelope import Envelope
from millstream.core.errors import WireError
from millstream.wire.framing import Answers, Frame, Orders, pack
from millstream.wire.parcel import Delivery, Parcel

PARTS = ("latents_in", "conditioning", "context_frames")


def pack_parcels(parcels: Sequence[Parcel], *, sequence: int) -> Frame:
    tensors = {
        f"{place}.{part}": tensor
        for place, parcel in enumerate(parcels)
        for part in PARTS
        if (tensor := getattr(parcel, part)) is not None
    }
    return pack(Orders(sequence=sequence, envelopes=tuple(parcel.envelope for parcel in parcels)), tensors)


def pack_instruction(envelope: Envelope, *, sequence: int) -> Frame:
    assert envelope.action != "INFER", f"call {envelope.call_id} is a chunk, and has tensors"
    return pack(Orders(sequence=sequence, envelopes=(envelope,)), {})


def unpack_parcels(orders: Orders, tensors: Mapping[str, Tensor]) -> list[Parcel]:
    """Return the parcels that were asked for, without a check that they make sense."""
    if any(name.partition(".")[2] not in PARTS for name in tensors):
        raise WireError(f"a chunk has no tensors {', '.join(sorted(tensors))}")
    return [_parcel(envelope, f"{place}.", tensors) for place, envelope in enumerate(orders.envelopes)]


def pack_deliveries(
    deliveries: Sequence[Delivery],
    *,
    sequence: int,
    held_bytes: int = 0,
    phases_ms: Mapping[str, float] | None = None,
) -> Frame:
    tensors = {
        f"{place}.latents_out": delivery.latents_out
        for place, delivery in enumerate(deliveries)
        if delivery.latents_out is not None
    }
    assert held_bytes >= 0, f"sessions hold {held_bytes} bytes"
    results = tuple(delivery.result for delivery in deliveries)
    answers = Answers(
        sequence=sequence, results=results, held_bytes=held_bytes, phases_ms=dict(phases_ms or {})
    )
    return pack(answers, tensors)


def unpack_deliveries(answers: Answers, tensors: Mapping[str, Tensor]) -> list[Delivery]:
    """Each with an equal share of the time that they took together."""
    share = (
        {name: ms / len(answers.results) for name, ms in answers.phases_ms.items()} if answers.results else {}
    )
    return [
        Delivery(result=result, latents_out=tensors.get(f"{place}.latents_out"), phases_ms=share)
        for place, result in enumerate(answers.results)
    ]


def _parcel(envelope: Envelope, prefix: str, tensors: Mapping[str, Tensor]) -> Parcel:
    latents_in = tensors.get(f"{prefix}latents_in")
    if latents_in is None:
        raise WireError(f"chunk {envelope.chunk_index} of {envelope.session_id} came without its latents")
    return Parcel(
        envelope=envelope,
        latents_in=latents_in,
        conditioning=tensors.get(f"{prefix}conditioning"),
        context_frames=tensors.get(f"{prefix}context_frames"),
    )
