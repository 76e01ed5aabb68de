"""The generator does what the envelope says, and refuses what contradicts itself or its state."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import msgspec
import pytest
import torch

from millstream.core.controls import SetPrompt
from millstream.core.envelope import Envelope
from millstream.core.errors import EnvelopeRefused
from millstream.core.presets import MODELS
from millstream.models.sampler import Call, FlowModel
from millstream.ops.noise import COMMIT_STEP, gaussian
from millstream.ops.rope import Phases, frame_phases
from millstream.wire.local import LocalTransport
from millstream.wire.parcel import Parcel, digest
from tests.unit.models_for_tests import tiny_engine
from tests.unit.one_chunk import plan_chunk, submit

HEAD_WIDTH = MODELS["wan-tiny"].dit.head_width


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
    for changes, reason in (
        (dict(start_frame=9), "its cache ends at 2"),
        (dict(window=12), "another window"),
    ):
        result = engine.generator.run(
            replace(parcel, envelope=msgspec.structs.replace(parcel.envelope, **changes))
        ).result
        assert not result.ok
        assert reason in result.error
    assert engine.generator.run(parcel).result.ok, "the refused ones changed nothing"


def test_a_result_echoes_its_envelope_and_counts_its_calls() -> None:
    parcel = first_parcel()
    delivery = tiny_engine().generator.run(parcel)
    result = delivery.result
    envelope = parcel.envelope
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
    assert (
        msgspec.json.decode(msgspec.json.encode(encoded | {"from_the_future": 1}), type=Envelope) == envelope
    )


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


def seen_of_phase(phase: str, parcel: Parcel) -> list[tuple[Call, Phases]]:
    """The model calls of one phase that a parcel makes, with the phases that its frames had then."""
    seen = list[tuple[Call, Phases]]()
    answered_by = Call.answered_by

    def note(call: Call, model: FlowModel) -> torch.Tensor | None:
        if call.phase == phase:
            seen.append((call, call.memory.phases))
        return answered_by(call, model)

    with mock.patch.object(Call, "answered_by", note):
        assert tiny_engine().generator.run(parcel).result.ok
    return seen


def test_a_commit_keeps_the_window_at_its_level_with_noise_of_its_own() -> None:
    level = 300.0
    parcel = first_parcel(context_noise=level)
    envelope = parcel.envelope
    with mock.patch.object(tiny_engine().generator, "commits", "at once"):
        ((commit, _),) = seen_of_phase("commit", parcel)
        clean = tiny_engine().generator.run(parcel).latents_out
    assert clean is not None
    noise = gaussian(
        clean.shape,
        seed=envelope.seed,
        epoch=envelope.cache_epoch,
        chunk=envelope.chunk_index,
        step=COMMIT_STEP,
    )
    expected = 0.7 * clean + 0.3 * noise
    assert torch.allclose(commit.latents_BFCYX, expected, atol=1e-6)
    assert commit.level_BF.tolist() == [[level] * envelope.frames]


def test_a_recompute_sees_the_sink_at_its_distance_from_the_chunk_that_follows() -> None:
    """Not from the group of frames that happens to be read: the chunk's own queries meet the keys at that
    distance."""
    session = tiny_engine().session("sea", height=16, width=32, window=9, sink=2, positions="windowed")
    for _ in session.stream(5):
        pass
    session.control(SetPrompt(prompt="storm", mode="recompute"))
    parcel = plan_chunk(session)
    envelope = parcel.envelope
    sink = 2
    window = 9
    calls = seen_of_phase("recompute", parcel)
    frames = list(envelope.context_indices)
    assert frames[:sink] == [0, 1]
    assert frames[sink] > sink, "the sink is far from the rest"
    positions = [envelope.end_frame - window + slot for slot in range(sink)] + frames[sink:]
    for number, (call, phases) in enumerate(calls):
        here = positions[number * envelope.frames : (number + 1) * envelope.frames]
        assert call.latents_BFCYX.shape[1] == len(here)
        assert torch.allclose(phases.cos, frame_phases(torch.tensor(here), (1, 2), HEAD_WIDTH).cos, atol=1e-6)
