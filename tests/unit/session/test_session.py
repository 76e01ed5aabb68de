"""Whole streams of a tiny model: what controls do to them, and what no chunk may do to another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch

from millstream.core.controls import Cut, Pause, Resume, SetPrompt, SetSeed, SetSteps, SetWindow, Stop
from millstream.core.errors import ConfigError, EnvelopeRefused, PromptError
from millstream.session.chunk import Chunk
from millstream.session.session import Session
from tests.unit.models_for_tests import tiny_engine
from tests.unit.one_chunk import accept, plan_chunk, submit

pytestmark = pytest.mark.slow

SMALL = dict(height=16, width=32)


def run(session: Session, chunks: int) -> list[Chunk]:
    return list(session.stream(chunks))


def digests(chunks: list[Chunk]) -> list[str]:
    return [chunk.digest for chunk in chunks]


def moving_square(count: int, speed: int = 1) -> Iterator[np.ndarray]:
    for number in range(count):
        frame = np.zeros((16, 32, 3), np.uint8)
        left = (number * speed) % 24
        frame[4:12, left : left + 8] = (255, 120, 30)
        yield frame


def test_frames_are_pictures_of_the_size_asked_for() -> None:
    first, second = run(tiny_engine().session("sea", **SMALL), 2)
    assert (first.frames.shape, second.frames.shape) == ((9, 16, 32, 3), (12, 16, 32, 3))
    assert first.frames.dtype == np.uint8
    assert first.frames.std() > 1
    assert set(first.timing.phases_ms) == {"text", "noise", "prompt", "step", "decode", "convert"}
    assert set(second.timing.phases_ms) == {"noise", "commit", "step", "decode", "convert"}, (
        "the commit of the first"
    )
    assert 0 < sum(first.timing.phases_ms.values()) <= first.timing.total_ms * 1.001


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    engine = tiny_engine()
    one, two, other = (digests(run(engine.session("sea", seed=seed, **SMALL), 4)) for seed in (5, 5, 6))
    assert one == two
    assert not set(one) & set(other)


def test_a_later_control_changes_no_earlier_bit() -> None:
    engine = tiny_engine()
    plain = run(engine.session("sea", **SMALL), 6)
    for control in (
        SetPrompt(prompt="storm"),
        Cut(),
        SetSeed(seed=3),
        SetSteps(steps=(900,)),
        SetWindow(window=6),
    ):
        session = engine.session("sea", **SMALL)
        session.control(control, at_chunk=3)
        changed = run(session, 6)
        assert digests(changed)[:3] == digests(plain)[:3]
        assert digests(changed)[3] != digests(plain)[3]
        for before, after in zip(plain[:3], changed[:3], strict=True):
            assert np.array_equal(before.frames, after.frames)
        assert [(r.state, r.chunk_index) for r in changed[3].receipts] == [("applied", 3)]


def test_interleaved_sessions_never_touch_each_other() -> None:
    engine = tiny_engine()
    alone = [
        digests(run(engine.session(prompt, seed=seed, **SMALL), 5))
        for prompt, seed in (("sea", 1), ("sand", 2))
    ]
    one = engine.session("sea", seed=1, **SMALL)
    two = engine.session("sand", seed=2, **SMALL)
    together: tuple[list[Chunk], list[Chunk]] = ([], [])
    for _ in range(5):
        together[0].extend(run(one, 1))
        together[1].extend(run(two, 1))
    assert [digests(chunks) for chunks in together] == alone


def test_closing_a_session_gives_its_memory_back() -> None:
    engine = tiny_engine()
    before = set(engine.generator.caches)
    session = engine.session("sea", **SMALL)
    run(session, 1)
    assert session.id in engine.generator.caches
    session.close()
    assert set(engine.generator.caches) == before
    assert run(session, 1) == []


@pytest.mark.parametrize("asked", [{"chunks": -1}, {"num_frames": -5}])
def test_fewer_chunks_than_none_are_refused_before_one_is_made(asked: dict[str, int]) -> None:
    engine = tiny_engine()
    with pytest.raises(ConfigError, match=f"0 chunks or frames or more, got {min(asked.values())}"):
        engine.stream(engine.session("sea", **SMALL)).stream(**asked)


def test_a_session_that_is_dropped_gives_its_memory_back_too() -> None:
    engine = tiny_engine()
    before = set(engine.generator.caches)
    for _ in range(3):
        run(engine.session("sea", **SMALL), 1)
    assert set(engine.generator.caches) == before


def test_prompt_modes_differ_from_each_other() -> None:
    engine = tiny_engine()
    results = {}
    for mode in ("cut", "recompute", "keep", "blend"):
        session = engine.session("sea", **SMALL)
        session.control(SetPrompt(prompt="a storm in the night", mode=mode, chunks=3), at_chunk=2)
        results[mode] = run(session, 6)
    assert len({chunks[2].digest for chunks in results.values()}) == 4
    assert [chunk.epoch for chunk in results["cut"]] == [0, 0, 1, 1, 1, 1]
    assert [len(chunk.frames) for chunk in results["cut"]] == [9, 12, 9, 12, 12, 12]
    assert len(results["blend"][2].prompts) == 2
    assert [prompt.text for prompt in results["blend"][5].prompts] == ["a storm in the night"]


@pytest.mark.parametrize("changes", [dict(window=12), dict(window=12, sink=2, positions="windowed")], ids=str)
def test_recompute_under_the_same_prompt_changes_nothing_while_the_window_has_not_overflowed(
    changes: dict,
) -> None:
    """The rebuilt keys are those the commits left, so only a window that has lost frames can tell the
    difference."""
    engine = tiny_engine()
    plain = run(engine.session("sea", **changes, **SMALL), 4)
    session = engine.session("sea", **changes, **SMALL)
    session.control(SetPrompt(prompt="sea", mode="recompute"), at_chunk=3)
    rebuilt = run(session, 4)
    difference = rebuilt[3].frames.astype(int) - plain[3].frames.astype(int)
    assert np.abs(difference).max() <= 1


def test_a_latent_anchor_equals_commits_while_the_window_has_not_overflowed() -> None:
    engine = tiny_engine()
    plain, anchored = (
        run(engine.session("sea", window=12, anchor=anchor, **SMALL), 4) for anchor in ("off", "latent")
    )
    for one, other in zip(plain, anchored, strict=True):
        assert np.abs(one.frames.astype(int) - other.frames.astype(int)).max() <= 1


def test_a_decoded_anchor_acts_once_the_first_frame_has_left_the_window() -> None:
    engine = tiny_engine()
    latent, decoded = (
        run(engine.session("sea", window=6, anchor=anchor, **SMALL), 5) for anchor in ("latent", "decoded")
    )
    same = [one.digest == other.digest for one, other in zip(latent, decoded, strict=True)]
    assert same == [True, True, False, False, False]
    assert "anchor" in decoded[2].timing.phases_ms


def test_the_anchor_is_the_last_pixel_frame_of_the_first_latent_in_the_window() -> None:
    session = tiny_engine().session("sea", window=6, anchor="decoded", **SMALL)
    chunks = run(session, 2)
    pixels = session._history._pixels[3][0].permute(1, 2, 0)
    shown = ((pixels + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).numpy()
    assert np.array_equal(shown, chunks[1].frames[3])
    assert np.array_equal(shown, chunks[1].frames[-(1 + 4 * (3 - 1))])


def test_windowed_positions_equal_absolute_ones_until_the_window_is_full() -> None:
    engine = tiny_engine()
    absolute, windowed = (
        run(engine.session("sea", window=9, sink=3, positions=positions, **SMALL), 5)
        for positions in ("absolute", "windowed")
    )
    assert digests(absolute)[:3] == digests(windowed)[:3]
    assert digests(absolute)[3] != digests(windowed)[3]


def test_context_noise_and_kv_bias_are_not_silently_ignored() -> None:
    engine = tiny_engine()
    plain = digests(run(engine.session("sea", **SMALL), 3))
    noisy = digests(run(engine.session("sea", context_noise=100, **SMALL), 3))
    biased = digests(run(engine.session("sea", kv_bias=0.3, **SMALL), 3))
    assert plain[0] == noisy[0] == biased[0]
    assert len({plain[1], noisy[1], biased[1]}) == 3


def test_pause_ends_the_iterator_and_resume_continues_the_same_stream() -> None:
    engine = tiny_engine()
    plain = digests(run(engine.session("sea", **SMALL), 4))
    session = engine.session("sea", **SMALL)
    begun = digests(run(session, 2))
    session.control(Pause())
    assert run(session, 5) == []
    assert not session.ended
    session.control(Resume())
    assert begun + digests(run(session, 2)) == plain


def test_stop_ends_the_stream() -> None:
    session = tiny_engine().session("sea", **SMALL)
    session.control(Stop(), at_chunk=2)
    assert len(list(session.stream())) == 2
    assert session.ended


def test_a_video_is_restyled_to_its_last_frame() -> None:
    session = tiny_engine().session("sea", frames=moving_square(26), **SMALL)
    chunks = list(session.stream())
    assert [len(chunk.frames) for chunk in chunks] == [9, 12, 5]
    assert "encode" in chunks[0].timing.phases_ms


def test_less_noise_keeps_more_of_the_input() -> None:
    engine = tiny_engine()
    inputs = np.stack(list(moving_square(9)))
    vae_only = engine.model.vae
    pixels = torch.from_numpy(inputs).permute(0, 3, 1, 2)[None].float() / 127.5 - 1
    kept = vae_only.decode(vae_only.encode(pixels)[0])[0][0].permute(0, 2, 3, 1)
    kept = ((kept + 1) * 127.5).detach().numpy()
    errors = []
    for scale in (0.05, 0.4, 1.0):
        session = engine.session("sea", frames=moving_square(9), noise_scale=scale, motion_gain=0.0, **SMALL)
        (chunk,) = run(session, 1)
        errors.append(np.abs(chunk.frames - kept).mean())
    assert all(less < more for less, more in pairwise(errors)), errors


def test_the_envelope_carries_the_noise_that_motion_asked_for() -> None:
    engine = tiny_engine()
    scales = {}
    for speed in (0, 6):
        session = engine.session(
            "sea", frames=moving_square(60, speed), noise_scale=0.5, motion_gain=0.3, **SMALL
        )
        envelope = plan_chunk(session).envelope
        scales[speed] = envelope.noise_scale
        assert envelope.steps[0] == pytest.approx(1000 * envelope.noise_scale)
    assert scales[0] == 0.5
    assert 0.5 < scales[6] <= 0.8


def test_a_late_result_of_an_old_epoch_is_never_decoded() -> None:
    engine = tiny_engine()
    session = engine.session("sea", **SMALL)
    old = engine.generator.run(plan_chunk(session))
    session.control(Cut())
    new = engine.generator.run(plan_chunk(session))
    assert accept(session, old) is None
    chunk = accept(session, new)
    assert chunk is not None
    assert (chunk.epoch, len(chunk.frames)) == (1, 9)
    assert accept(session, old) is None, "a duplicate is dropped as well"


def test_a_result_ahead_of_order_is_an_error() -> None:
    engine = tiny_engine()
    session = engine.session("sea", **SMALL)
    plan_chunk(session)
    ahead = engine.generator.run(plan_chunk(session))
    with pytest.raises(EnvelopeRefused, match="answered before"):
        accept(session, ahead)


def test_latents_that_are_not_finite_are_never_decoded() -> None:
    from dataclasses import replace

    engine = tiny_engine()
    session = engine.session("sea", **SMALL)
    parcel = plan_chunk(session)
    broken = replace(parcel, latents_in=parcel.latents_in.clone().fill_(float("nan")))
    with pytest.raises(EnvelopeRefused, match="not finite"):
        accept(session, submit(engine.transport, broken))


@pytest.mark.parametrize("prompt", ["", "   \n", "x" * 100_000])
def test_an_empty_or_endless_prompt_is_refused(prompt: str) -> None:
    with pytest.raises(PromptError):
        tiny_engine().session(prompt)


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="strenght"):
        tiny_engine().session("sea", strenght=1)
