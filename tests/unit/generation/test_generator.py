"""The generator does what the envelope says, and refuses what contradicts itself or its state."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch

from millstream.core.envelope import Envelope
from millstream.core.errors import EnvelopeRefused
from millstream.wire.local import LocalTransport
from millstream.wire.parcel import Parcel, digest
from tests.unit.models_for_tests import tiny_engine
from tests.unit.one_chunk import plan_chunk, submit


def first_parcel(**changes: object) -> Parcel:
    parcel = plan_chunk(tiny_engine().session("sea", height=16, width=32))
    return replace(parcel, envelope=msgspec.structs.replace(parcel.envelope, **changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(version=2), "version 2"),
        (dict(expected_calls=7), "expects 7 model calls, its plan has 3"),
        (dict(recompute=True), "recompute and context"),
        (dict(recompute=True, context_indices=(0,), expected_calls=4), "does not fit before frame 0"),
        (dict(steps=(500.0, 900.0)), "steps must decrease"),
        (dict(window=2), "cannot hold a chunk"),
        (dict(height=33), "multiples of 16"),
        (dict(kv_bias=float("nan")), "kv_bias"),
        (dict(frames=2), "carries 3"),
    ],
    ids=lambda value: str(value),
)
def test_a_bad_envelope_is_refused_before_anything_runs(changes: dict, reason: str) -> None:
    parcel = first_parcel(**changes)
    generator = tiny_engine().generator
    with pytest.raises(EnvelopeRefused, match=reason):
        submit(LocalTransport(generator), parcel)
    delivery = generator.run(parcel)
    assert not delivery.result.ok
    assert reason in delivery.result.error
    assert delivery.latents_out is None
    assert parcel.envelope.session_id not in generator.caches


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(init_cache=False), "finds no cache"),
        (dict(reset_cross=False), "without a prompt"),
    ],
)
def test_an_envelope_that_does_not_fit_the_state_gets_an_error_result(changes: dict, reason: str) -> None:
    parcel = first_parcel(**changes)
    result = tiny_engine().generator.run(parcel).result
    assert not result.ok
    assert reason in result.error
    assert (result.call_id, result.chunk_index) == (parcel.envelope.call_id, 0)


def test_a_skipped_chunk_and_another_window_are_noticed() -> None:
    engine = tiny_engine()
    session = engine.session("sea", height=16, width=32)
    next(session.stream(1))
    parcel = plan_chunk(session)
    for changes, reason in ((dict(start_frame=9), "its cache ends at 2"), (dict(window=12), "another window")):
        result = engine.generator.run(replace(parcel, envelope=msgspec.structs.replace(parcel.envelope, **changes))).result
        assert not result.ok
        assert reason in result.error
    assert engine.generator.run(parcel).result.ok, "the refused ones changed nothing"


def test_a_result_echoes_its_envelope_and_counts_its_calls() -> None:
    parcel = first_parcel()
    delivery = tiny_engine().generator.run(parcel)
    result, envelope = delivery.result, parcel.envelope
    assert result.ok
    assert result.observed_calls == envelope.expected_calls == 3
    assert (result.call_id, result.session_id, result.end_frame) == (envelope.call_id, envelope.session_id, 3)
    assert result.digest == digest(delivery.latents_out)
    assert result.stage1_ms > 0


def test_recompute_without_context_is_refused_before_it_is_sent() -> None:
    parcel = first_parcel(start_frame=3, recompute=True, context_indices=(0, 1, 2), expected_calls=4)
    with pytest.raises(EnvelopeRefused, match="context frames must come with it"):
        parcel.validate()


def test_an_envelope_survives_json_and_ignores_unknown_fields() -> None:
    envelope = first_parcel().envelope
    encoded = msgspec.json.decode(msgspec.json.encode(envelope))
    assert msgspec.json.decode(msgspec.json.encode(encoded | {"from_the_future": 1}), type=Envelope) == envelope


def test_digests_tell_bits_shapes_and_dtypes_apart() -> None:
    latents = torch.randn(1, 2, 3)
    nudged = latents.clone()
    nudged[0, 0, 0] = torch.nextafter(nudged[0, 0, 0], torch.tensor(9.0))
    kinds = [latents, nudged, latents.view(1, 3, 2), latents.bfloat16(), latents.bfloat16().view(1, 3, 2)]
    assert len({digest(kind) for kind in kinds}) == len(kinds)
    assert digest(latents) == digest(latents.clone())


def test_latents_that_are_not_finite_are_an_error_and_no_picture() -> None:
    parcel = first_parcel()
    spoilt = replace(parcel, latents_in=torch.full_like(parcel.latents_in, float("nan")))
    delivery = tiny_engine().generator.run(spoilt)
    assert delivery.latents_out is None
    assert delivery.result.error == "chunk 0 came out with latents that are not finite; try --dtype float32"
