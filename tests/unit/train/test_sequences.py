"""Sequences for training: a chunk sees in them what the ring would show it."""

from __future__ import annotations

import pytest
import torch

from millstream.models.entries import Entries
from millstream.train.sequence import (
    ChunkedSequence,
    Piece,
    beside,
    diffusion_forced,
    forced_flow,
    frames_of,
    teacher_forced,
    together,
)
from tests.unit.models_for_tests import DIT, dit, relative_error, ring
from tests.unit.toy_training import CPU


@pytest.mark.parametrize("window", [3, 6, 9])
def test_a_teacher_forced_sequence_sees_what_the_ring_shows(window: int) -> None:
    model = dit()
    clean, noisy = torch.randn(2, 1, 9, 4, 4, 6).unbind(0)
    cross = model.read_prompt(torch.randn(1, 7, 24))
    sequence = ChunkedSequence(teacher_forced((2, 0, 1), 3, window), DIT, (4, 6), CPU)
    order = frames_of((2, 0, 1), 3)
    found = torch.empty_like(noisy)
    found[:, order] = forced_flow(model, clean, noisy[:, order], torch.full((1, 9), 700.0), sequence, cross)
    memory = ring(DIT, (2, 3), window)
    for chunk in range(3):
        frames = slice(3 * chunk, 3 * chunk + 3)
        memory.place(list(range(frames.start, frames.stop)))
        expected = model(noisy[:, frames], torch.full((1, 3), 700.0), memory, cross)
        model.commit(clean[:, frames], torch.zeros(1, 3), memory, cross)
        assert relative_error(found[:, frames], expected) < 1e-5


@pytest.mark.parametrize("window", [6, 9])
def test_chunks_after_a_picture_see_what_the_ring_shows(window: int) -> None:
    model = dit()
    clean, noisy = torch.randn(2, 1, 10, 4, 4, 6).unbind(0)
    cross = model.read_prompt(torch.randn(1, 7, 24))
    teacher = ChunkedSequence(teacher_forced((2, 0, 1), 3, window, given=1), DIT, (4, 6), CPU)
    order = frames_of((2, 0, 1), 3, given=1)
    assert order[:3] == [7, 8, 9]
    found = torch.empty_like(noisy)
    level = torch.full((1, 9), 700.0)
    found[:, order] = forced_flow(model, clean, noisy[:, order], level, teacher, cross)
    memory = ring(DIT, (2, 3), window)
    memory.place([0])
    model.commit(clean[:, :1], torch.zeros(1, 1), memory, cross)
    for chunk in range(3):
        frames = slice(1 + 3 * chunk, 4 + 3 * chunk)
        memory.place(list(range(frames.start, frames.stop)))
        expected = model(noisy[:, frames], torch.full((1, 3), 700.0), memory, cross)
        model.commit(clean[:, frames], torch.zeros(1, 3), memory, cross)
        assert relative_error(found[:, frames], expected) < 1e-5
    one = ChunkedSequence(diffusion_forced(3, 3, window, given=1), DIT, (4, 6), CPU)
    last = model(torch.cat([clean[:, :7], noisy[:, 7:]], dim=1), torch.zeros(1, 10), one, cross)[:, 7:]
    memory = ring(DIT, (2, 3), window)
    for frames in (slice(0, 1), slice(1, 4), slice(4, 7)):
        memory.place(list(range(frames.start, frames.stop)))
        model.commit(clean[:, frames], torch.zeros(1, frames.stop - frames.start), memory, cross)
    memory.place([7, 8, 9])
    assert relative_error(last, model(noisy[:, 7:], torch.zeros(1, 3), memory, cross)) < 1e-5


def test_a_frame_s_entries_go_where_the_sequence_has_it() -> None:
    model = dit()
    clean, noisy = torch.randn(2, 1, 9, 4, 4, 6).unbind(0)
    cross = model.read_prompt(torch.randn(1, 7, 24))
    entries = Entries(time_BFD=torch.randn(1, 9, DIT.width), patch_BFTD=torch.randn(1, 9, 1, DIT.width))
    sequence = ChunkedSequence(teacher_forced((2, 0, 1), 3, 6), DIT, (4, 6), CPU)
    order = frames_of((2, 0, 1), 3)
    shown = entries.frames(torch.tensor([*range(6), *order]))
    found = torch.empty_like(noisy)
    level = torch.full((1, 9), 700.0)
    found[:, order] = forced_flow(model, clean, noisy[:, order], level, sequence, cross, entries=shown)
    memory = ring(DIT, (2, 3), 6)
    for chunk in range(3):
        frames = slice(3 * chunk, 3 * chunk + 3)
        entered = entries.frames(frames)
        memory.place(list(range(frames.start, frames.stop)))
        expected = model(noisy[:, frames], torch.full((1, 3), 700.0), memory, cross, entered)
        model.commit(clean[:, frames], torch.zeros(1, 3), memory, cross, entered)
        assert relative_error(found[:, frames], expected) < 1e-5


def test_a_diffusion_forced_sequence_sees_the_past_as_noisy_as_it_is() -> None:
    model = dit()
    noisy = torch.randn(1, 9, 4, 4, 6)
    levels = torch.tensor([[900.0] * 3 + [100.0] * 3 + [500.0] * 3])
    cross = model.read_prompt(torch.randn(1, 7, 24))
    found = model(noisy, levels, ChunkedSequence(diffusion_forced(3, 3, 6), DIT, (4, 6), CPU), cross)
    memory = ring(DIT, (2, 3), 6)
    for chunk in range(3):
        frames = slice(3 * chunk, 3 * chunk + 3)
        memory.place(list(range(frames.start, frames.stop)))
        expected = model(noisy[:, frames], levels[:, frames], memory, cross)
        assert relative_error(found[:, frames], expected) < 1e-5


def test_layouts_beside_each_other_do_not_see_each_other() -> None:
    positions, pieces = beside(teacher_forced((0, 1), 3, 6), together(6))
    assert positions == [0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    assert pieces[-1] == Piece(slice(9, 15), (slice(9, 15),))
    assert all(run.stop <= 9 for piece in pieces[:-1] for run in piece.sees)


def test_keys_are_counted_as_they_are_seen() -> None:
    """Three chunks of two frames: the first sees itself, the others a window of four."""
    sequence = ChunkedSequence(diffusion_forced(3, 2, 4), DIT, (4, 8), CPU)
    assert sequence.num_tokens == 6 * 8
    assert sequence.keys_per_query == 8 * (2 + 4 + 4) / 3
