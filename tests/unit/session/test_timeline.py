"""Controls become envelopes at chunk boundaries, each answered twice. No model is needed to show it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from millstream.core.config import StreamConfig
from millstream.core.controls import (
    MAX_MIX,
    AskedPrompt,
    Cut,
    Pause,
    Resume,
    SetKVBias,
    SetNoiseScale,
    SetPrompt,
    SetSeed,
    SetSteps,
    SetWindow,
    Stop,
    WeightedPrompt,
)
from millstream.core.envelope import Envelope
from millstream.core.errors import ConfigError, ControlError, PromptError
from millstream.session.history import History
from millstream.session.timeline import MAX_WAITING, Timeline

CONFIG = StreamConfig(height=64, width=64, steps=(1000, 500), window=9, sink=0)


class Run:
    """A timeline with the frames its session would hold."""

    def __init__(self, **changes: object) -> None:
        fields = {name: getattr(CONFIG, name) for name in StreamConfig.__dataclass_fields__} | changes
        self.timeline = Timeline("s", StreamConfig(**fields), (WeightedPrompt("sea"),), has_input=True)
        self.held: list[int] = []

    def plan(self) -> Envelope:
        assert self.timeline.absorb()
        if self.timeline.start_frame == 0:
            self.held = []
        sink, newest = self.timeline.sink, self.timeline.window - self.timeline.sink - 3
        rest = self.held[sink:]
        context = tuple(self.held[:sink] + rest[max(0, len(rest) - newest) :])
        envelope = self.timeline.plan(call_id=self.timeline.chunk_index + 1, context_indices=context)
        envelope.validate()
        self.held.extend(range(envelope.start_frame, envelope.end_frame))
        return envelope


def texts(envelope: Envelope) -> dict[str, float]:
    return {prompt.text: prompt.weight for prompt in envelope.prompts}


def test_the_first_envelope_allocates_and_resets_and_the_next_does_neither() -> None:
    run = Run()
    first = run.plan()
    second = run.plan()
    assert (first.init_cache, first.reset_kv, first.reset_cross, first.recompute) == (True, True, True, False)
    assert (second.init_cache, second.reset_kv, second.reset_cross, second.recompute) == (False,) * 4
    assert (first.start_frame, second.start_frame) == (0, 3)
    assert first.expected_calls == 3


def test_a_control_is_queued_then_applied_at_the_next_unplanned_chunk() -> None:
    run = Run()
    run.plan()
    queued = run.timeline.queue(SetSeed(seed=9, id="mine"))
    assert (queued.control_id, queued.state, queued.chunk_index) == ("mine", "queued", 1)
    assert run.timeline.take_receipts() == ()
    assert run.plan().seed == 9
    (applied,) = run.timeline.take_receipts()
    assert (applied.control_id, applied.state, applied.chunk_index) == ("mine", "applied", 1)
    assert run.timeline.take_receipts() == ()


def test_a_cut_starts_a_new_epoch_and_clears_both_caches() -> None:
    run = Run()
    run.plan()
    run.timeline.queue(Cut())
    cut = run.plan()
    assert (cut.cache_epoch, cut.start_frame, cut.chunk_index) == (1, 0, 1)
    assert cut.reset_kv
    assert cut.reset_cross
    assert not cut.init_cache
    assert not cut.recompute


@pytest.mark.parametrize(
    ("mode", "epoch", "recompute"), [("cut", 1, False), ("recompute", 0, True), ("keep", 0, False)]
)
def test_prompt_modes(mode: str, epoch: int, recompute: bool) -> None:
    run = Run()
    run.plan()
    run.timeline.queue(SetPrompt(prompt="storm", mode=mode))
    envelope = run.plan()
    assert texts(envelope) == {"storm": 1.0}
    assert envelope.reset_cross
    assert (envelope.cache_epoch, envelope.recompute) == (epoch, recompute)
    assert envelope.context_indices == ((0, 1, 2) if recompute else ())
    assert envelope.reset_kv == (mode != "keep")
    assert not run.plan().reset_cross


def test_a_blend_walks_over_its_chunks_and_keeps_the_window() -> None:
    run = Run()
    run.plan()
    run.timeline.queue(SetPrompt(prompt="storm", mode="blend", chunks=4))
    shares = [texts(run.plan()) for _ in range(5)]
    assert [round(share.get("storm", 0), 6) for share in shares] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert [round(share.get("sea", 0), 6) for share in shares] == [0.75, 0.5, 0.25, 0.0, 0.0]
    assert not run.plan().reset_cross


def test_a_blend_can_be_interrupted_by_another() -> None:
    run = Run()
    run.timeline.queue(SetPrompt(prompt="storm", mode="blend", chunks=2))
    run.plan()
    run.timeline.queue(SetPrompt(prompt="desert", mode="blend", chunks=2))
    assert texts(run.plan()) == pytest.approx({"sea": 0.25, "storm": 0.25, "desert": 0.5})
    assert texts(run.plan()) == {"desert": 1.0}


@pytest.mark.parametrize("weight", [1e308, 1e7, 0.0, -1.0, float("nan"), float("inf")])
def test_weights_whose_shares_a_float_cannot_hold_are_refused(weight: float) -> None:
    mix = (AskedPrompt("sea", weight), AskedPrompt("sky", weight))
    with pytest.raises(PromptError, match="weights must be above 0 and at most"):
        Run().timeline.queue(SetPrompt(prompts=mix))


def test_a_share_too_small_for_a_float_is_none() -> None:
    run = Run()
    run.timeline.queue(SetPrompt(prompts=(AskedPrompt("sea", 1e6), AskedPrompt("sky", 5e-324)), mode="cut"))
    assert texts(run.plan()) == {"sea": 1.0}


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefghijklmnop"), st.integers(1, 256), st.floats(1e-300, 1e6)),
        max_size=60,
    )
)
def test_blends_that_cut_each_other_short_stay_a_mix_that_can_be_saved(
    blends: list[tuple[str, int, float]],
) -> None:
    run = Run()
    for text, chunks, weight in blends:
        mix = (AskedPrompt(text, weight), AskedPrompt(text.upper(), 1.0))
        run.timeline.queue(SetPrompt(prompts=mix, mode="blend", chunks=chunks))
        assert len(run.plan().prompts) <= MAX_MIX
        state = run.timeline.state()
        assert Timeline.from_state("t", run.timeline.config, state).state() == state


def test_weighted_prompts_are_normalised() -> None:
    run = Run()
    run.timeline.queue(SetPrompt(prompts=(WeightedPrompt("a", 3), WeightedPrompt("b", 1)), mode="keep"))
    assert texts(run.plan()) == {"a": 0.75, "b": 0.25}


def test_steps_seed_noise_and_bias_take_effect_together() -> None:
    run = Run(warp=False)
    for control in (
        SetSteps(steps=(900, 300, 100)),
        SetSeed(seed=4),
        SetKVBias(kv_bias=0.5),
        SetNoiseScale(noise_scale=0.3),
    ):
        run.timeline.queue(control)
    envelope = run.plan()
    assert (envelope.steps, envelope.expected_calls) == ((900, 300, 100), 4)
    assert (envelope.seed, envelope.kv_bias, run.timeline.noise_scale) == (4, 0.5, 0.3)


def test_a_new_window_is_allocated_and_rebuilt_from_what_is_held() -> None:
    run = Run()
    for _ in range(3):
        run.plan()
    run.timeline.queue(SetWindow(window=7, sink=1))
    envelope = run.plan()
    assert envelope.init_cache
    assert envelope.recompute
    assert envelope.context_indices == (0, 6, 7, 8)
    assert envelope.expected_calls == 2 + 2 + 1


def test_an_anchored_stream_rebuilds_its_window_every_chunk_and_commits_nothing() -> None:
    run = Run(anchor="latent", window=6)
    envelopes = [run.plan() for _ in range(4)]
    assert [envelope.recompute for envelope in envelopes] == [False, True, True, True]
    assert not any(envelope.commit for envelope in envelopes)
    assert envelopes[3].context_indices == (6, 7, 8)
    assert envelopes[3].expected_calls == 1 + 2


def test_pause_holds_planning_and_resume_goes_on_with_what_was_asked_meanwhile() -> None:
    run = Run()
    run.plan()
    run.timeline.queue(Pause())
    assert not run.timeline.absorb()
    run.timeline.queue(SetSeed(seed=77))
    assert not run.timeline.absorb()
    run.timeline.queue(Resume())
    envelope = run.plan()
    assert (envelope.chunk_index, envelope.seed) == (1, 77)
    assert [receipt.chunk_index for receipt in run.timeline.take_receipts()] == [1, 1, 1]


def test_what_is_asked_for_a_chunk_that_a_pause_holds_back_applies_when_that_is_planned() -> None:
    """Whether it came before the pause or after: its receipt comes with the chunk that shows it."""
    run = Run()
    run.plan()
    for control in (SetPrompt(id="a", prompt="a cat"), Pause(id="p"), SetSeed(id="s", seed=77)):
        run.timeline.queue(control)
    assert not run.timeline.absorb()
    assert [receipt.control_id for receipt in run.timeline.take_receipts()] == ["p"]
    assert (run.timeline.prompts[0].text, run.timeline.seed) != ("a cat", 77)
    run.timeline.queue(Resume(id="r"))
    envelope = run.plan()
    assert (envelope.prompts[0].text, envelope.seed) == ("a cat", 77)
    assert [receipt.control_id for receipt in run.timeline.take_receipts()] == ["a", "s", "r"]


def test_a_paused_session_that_stops_applies_all_it_was_asked() -> None:
    run = Run()
    for control in (Pause(id="p"), SetSeed(id="s", seed=77), Stop(id="e")):
        run.timeline.queue(control)
    assert not run.timeline.absorb()
    assert [receipt.control_id for receipt in run.timeline.take_receipts()] == ["p", "s", "e"]
    assert run.timeline.stopped


def test_stop_ends_planning_and_refuses_what_comes_after() -> None:
    run = Run()
    run.timeline.queue(Stop())
    assert not run.timeline.absorb()
    with pytest.raises(ControlError, match="stopped"):
        run.timeline.queue(Cut())


def test_a_control_for_a_planned_chunk_is_refused() -> None:
    run = Run()
    run.plan()
    run.plan()
    with pytest.raises(ControlError, match="past; the next that can change is 2"):
        run.timeline.queue(Cut(), at_chunk=1)


@pytest.mark.parametrize(
    ("control", "error"),
    [
        (SetPrompt(prompt="  "), PromptError),
        (SetPrompt(), PromptError),
        (SetPrompt(prompt="x" * 100_000), PromptError),
        (SetPrompt(prompt="x", prompts=(WeightedPrompt("y"),)), PromptError),
        (SetPrompt(prompts=(WeightedPrompt("y", float("nan")),)), PromptError),
        (SetPrompt(prompt="x", mode="blend", chunks=0), ControlError),
        (SetSteps(steps=(500, 1000)), ConfigError),
        (SetSteps(steps=()), ConfigError),
        (SetSteps(steps=(1000, 5e-324)), ConfigError),
        (SetSeed(seed=-1), ConfigError),
        (SetNoiseScale(noise_scale=float("nan")), ConfigError),
        (SetWindow(window=4, sink=2), ConfigError),
        (SetKVBias(kv_bias=0), ConfigError),
    ],
    ids=repr,
)
def test_what_can_never_apply_is_refused_at_once(control: object, error: type[Exception]) -> None:
    run = Run()
    with pytest.raises(error):
        run.timeline.queue(control)
    assert run.plan().seed == CONFIG.seed


def test_noise_scale_without_an_input_is_refused_rather_than_ignored() -> None:
    timeline = Timeline("s", CONFIG, (WeightedPrompt("sea"),))
    with pytest.raises(ControlError, match="input video"):
        timeline.queue(SetNoiseScale(noise_scale=0.5))


def test_waiting_controls_are_bounded_and_ids_unique() -> None:
    run = Run()
    run.timeline.queue(Cut(id="a"))
    for other, at_chunk in ((SetSeed(id="a", seed=1), None), (Cut(id="a"), 1)):
        with pytest.raises(ControlError, match="already waiting"):
            run.timeline.queue(other, at_chunk=at_chunk)
    for _ in range(MAX_WAITING - 1):
        run.timeline.queue(SetSeed(seed=1))
    with pytest.raises(ControlError, match="wait for their receipts"):
        run.timeline.queue(Cut())


def test_a_control_with_the_id_of_one_that_waits_takes_its_place_and_its_turn_is_the_newer_ones() -> None:
    run = Run()
    for seed in range(3 * MAX_WAITING):
        run.timeline.queue(SetSeed(id="knob", seed=seed))
    run.timeline.queue(SetSeed(seed=7))
    run.timeline.queue(SetSeed(id="knob", seed=9))
    assert run.plan().seed == 9
    assert [receipt.control_id for receipt in run.timeline.take_receipts()] == ["c1", "knob"]


control_lists = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.one_of(
            st.builds(Cut),
            st.builds(SetSeed, seed=st.integers(0, 9)),
            st.builds(
                SetPrompt,
                prompt=st.sampled_from(["a", "b"]),
                mode=st.sampled_from(["cut", "recompute", "keep", "blend"]),
                chunks=st.integers(1, 4),
            ),
            st.builds(SetWindow, window=st.integers(6, 12), sink=st.integers(0, 3)),
            st.builds(Pause),
            st.builds(Resume),
        ),
    ),
    max_size=12,
)


@settings(max_examples=150)
@given(control_lists, st.sampled_from(["off", "latent", "decoded"]))
def test_whatever_is_asked_every_envelope_is_valid_and_every_control_is_answered_once(
    asked: list[tuple[int, object]], anchor: str
) -> None:
    run = Run(anchor=anchor)
    ids = [run.timeline.queue(control, at_chunk=chunk).control_id for chunk, control in asked]
    applied: list[str] = []
    epochs = [0]
    for _ in range(16):
        if not run.timeline.absorb():
            applied += [receipt.control_id for receipt in run.timeline.take_receipts()]
            run.timeline.queue(Resume(id="again"))
        envelope = run.plan()
        applied += [r.control_id for r in run.timeline.take_receipts() if r.control_id != "again"]
        assert envelope.cache_epoch >= epochs[-1]
        assert (envelope.start_frame == 0) == (envelope.cache_epoch > epochs[-1] or envelope.chunk_index == 0)
        epochs.append(envelope.cache_epoch)
    assert sorted(applied) == sorted(ids)


levels = st.floats(0, 1000, exclude_min=True)


@given(
    st.lists(levels, min_size=1, max_size=4),
    st.floats(1e-3, 1e9),
    st.booleans(),
    st.floats(0, 1, exclude_min=True),
)
def test_steps_that_were_taken_can_be_made(
    steps: list[float], shift: float, warp: bool, noise_scale: float
) -> None:
    """Arithmetic may bring two of them together, or one to 0: then they were not to be taken."""
    try:
        run = Run(shift=shift, warp=warp)
        run.timeline.queue(SetSteps(steps=tuple(sorted(set(steps), reverse=True))))
    except ConfigError:
        reject()
    assert run.timeline.absorb()
    run.timeline.plan(call_id=1, context_indices=(), noise_scale=noise_scale).validate()


def test_history_holds_the_sink_and_the_newest_frames_only() -> None:
    import torch

    history = History()
    for start in range(0, 30, 3):
        history.push(start, torch.full((1, 3, 1, 1, 1), float(start)), window=8, sink=2)
        assert len(history) <= 8
    assert history.context_indices(window=8, sink=2, frames_per_chunk=3) == (0, 1, 27, 28, 29)
    assert history.context((0, 1, 27)).shape == (1, 3, 1, 1, 1)


def test_the_first_chunk_of_each_epoch_has_steps_of_its_own() -> None:
    run = Run(first_steps=(1000, 750, 500, 250), steps=(1000,), warp=False)
    run.timeline.queue(Cut(), at_chunk=2)
    planned = [run.plan() for _ in range(4)]
    first, later = (1000, 750, 500, 250), (1000,)
    assert [envelope.steps for envelope in planned] == [first, later, first, later]
    assert [envelope.expected_calls for envelope in planned] == [5, 2, 5, 2]


def test_steps_that_change_leave_those_of_a_first_chunk_unless_they_are_named() -> None:
    run = Run(first_steps=(1000, 900), steps=(1000,), warp=False)
    for chunk, control in enumerate((SetSteps(steps=(800,)), SetSteps(steps=(700,), first_steps=(700,)))):
        run.timeline.queue(control, at_chunk=1 + 2 * chunk)
        run.timeline.queue(Cut(), at_chunk=2 + 2 * chunk)
    assert [run.plan().steps for _ in range(6)] == [(1000, 900), (800,), (1000, 900), (700,), (700,), (700,)]
    again = Timeline.from_state("s", run.timeline.config, run.timeline.state())
    assert (again.steps, again.first_steps) == ((700,), (700,))
    with pytest.raises(ConfigError, match="first_steps must decrease"):
        run.timeline.queue(SetSteps(steps=(700,), first_steps=(300, 500)))


@given(
    st.sampled_from([1, 3, 4, 8]), st.integers(0, 3), st.lists(st.integers(1, 20), max_size=4, unique=True)
)
def test_chunks_of_any_size_are_numbered_and_rebuilt_as_they_were_made(
    frames: int, sink: int, cuts: list[int]
) -> None:
    """With the window rebuilt at each chunk: by chunks, oldest first, and never more than it holds."""
    window = sink + 2 * frames + 1
    config = replace(CONFIG, frames_per_chunk=frames, window=window, sink=sink, anchor="latent")
    timeline = Timeline("s", config, (WeightedPrompt("sea"),))
    for chunk in cuts:
        timeline.queue(Cut(), at_chunk=chunk)
    history = History()
    epochs: dict[int, int] = {}
    for chunk in range(24):
        assert timeline.absorb()
        if timeline.start_frame == 0:
            history.clear()
        context = history.context_indices(window=window, sink=sink, frames_per_chunk=frames)
        envelope = timeline.plan(call_id=chunk + 1, context_indices=context)
        envelope.validate()
        assert envelope.start_frame == epochs.get(envelope.cache_epoch, 0)
        epochs[envelope.cache_epoch] = envelope.end_frame
        groups = [envelope.context_indices[group] for group in envelope.context_groups()]
        assert [frame for group in groups for frame in group] == list(context)
        assert all(len(group) <= frames for group in groups)
        made = torch.zeros(1, frames, 1, 1, 1)
        history.push(envelope.start_frame, made, window=window, sink=sink)
    assert max(epochs) == len(cuts)
