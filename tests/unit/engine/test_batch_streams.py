"""Streams in batches: every row is the session that it stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from millstream.core.config import StreamConfig
from millstream.core.controls import SetPrompt
from millstream.core.errors import ConfigError
from millstream.train.evaluate import streams
from millstream.train.evaluate.classifier import FRAMES
from millstream.train.evaluate.streams import BatchStream, PromptSwitch, chunks_until, moments
from tests.unit.models_for_tests import tiny_engine

pytestmark = pytest.mark.slow

BEFORE = ["a red kite", "the sea"]
AFTER = ["a blue boat", "a forest at night"]


def config(**changes: object) -> StreamConfig:
    return tiny_engine().stream_config(height=16, width=32, **changes)


def session_frames(row: int, settings: StreamConfig, chunks: int, switch: PromptSwitch | None) -> Tensor:
    """[T, 3, Y, X] as a session with that row's prompt and seed shows them."""
    with tiny_engine().session(BEFORE[row], config=replace(settings, seed=row)) as session:
        if switch is not None:
            control = SetPrompt(prompt=switch.prompts[row], mode=switch.mode, chunks=switch.chunks)
            session.control(control, at_chunk=switch.at)
        parts = [torch.from_numpy(chunk.frames) for chunk in session.stream(chunks)]
    return torch.cat(parts).permute(0, 3, 1, 2)


def same_rows(settings: StreamConfig, chunks: int, switch: PromptSwitch | None = None) -> None:
    stream = BatchStream(tiny_engine().model, BEFORE, range(len(BEFORE)), config=settings, switch=switch)
    found = torch.cat([stream.advance() for _ in range(chunks)], dim=1)
    for row in range(len(BEFORE)):
        expected = session_frames(row, settings, chunks, switch)
        assert found[row].shape == expected.shape
        difference = (found[row].int() - expected.int()).abs()
        assert difference.max() <= 1, f"row {row} differs by {difference.max()} of 255"
        assert (difference > 0).float().mean() < 1e-3, "more than rounding"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(window=6, sink=2, positions="windowed"),
        dict(context_noise=200.0, steps=(1000,)),
        dict(kv_bias=0.5),
        dict(steps=(1000, 400), first_steps=(1000, 600, 300), sampler="unipc", frames_per_chunk=1),
    ],
    ids=["plain", "sink", "context noise", "kv bias", "first steps"],
)
def test_a_row_is_what_its_session_streams(changes: dict[str, object]) -> None:
    same_rows(config(**changes), 5)


@pytest.mark.parametrize("mode", ["cut", "recompute", "blend", "keep"])
@pytest.mark.parametrize(
    "changes", [{}, dict(window=6, sink=2, positions="windowed", context_noise=100.0)], ids=["", "sink"]
)
def test_a_row_switches_its_prompt_as_its_session_does(mode: str, changes: dict[str, object]) -> None:
    same_rows(config(**changes), 7, PromptSwitch(prompts=AFTER, mode=mode, at=4, chunks=2))


def test_rows_decoded_apart_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "DECODED", 2)
    same_rows(config(), 3)


def test_a_window_before_a_moment_is_the_newest_frames() -> None:
    settings = config()
    stream = BatchStream(tiny_engine().model, BEFORE[:1], [0], config=settings)
    first, early, late = moments(stream, [2.0, 4.0])
    whole = session_frames(0, settings, chunks_until(4.0, settings), None)
    assert (first.second, first.start, first.pixels_BTCYX.shape[1]) == (0.0, 0, 9)
    assert (early.second, early.start) == (2.0, 0)
    assert late.start + FRAMES == len(whole) >= 4 * settings.fps
    for moment in (early, late):
        expected = whole[moment.start : moment.start + FRAMES]
        assert (moment.pixels_BTCYX[0].int() - expected.int()).abs().max() <= 1


def test_anchors_are_refused() -> None:
    with pytest.raises(ConfigError, match="anchor"):
        BatchStream(tiny_engine().model, BEFORE[:1], [0], config=config(anchor="latent"))


def test_the_four_modes_show_four_pictures() -> None:
    shown = []
    for mode in ("cut", "recompute", "blend", "keep"):
        switch = PromptSwitch(prompts=AFTER, mode=mode, at=3, chunks=3)
        stream = BatchStream(tiny_engine().model, BEFORE, range(2), config=config(), switch=switch)
        shown.append([stream.advance() for _ in range(4)][-1][:, -9:].int())
    apart = [(one - other).abs().max() for i, one in enumerate(shown) for other in shown[:i]]
    assert min(apart) > 1, "a mode that does nothing would pass for another"
