"""Hand-written kernels of the VAE against their plain twins, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("a GPU is here: tests/gpu runs these kernels compiled", allow_module_level=True)
pytest.importorskip("triton", reason="needs Triton, which interprets kernels on a CPU")

from millstream.ops.conv3 import PAST, TAPS
from millstream.ops.kernels.pictures import (
    launch_merge_onto,
    launch_split_frames,
    launch_sum_taps,
    launch_to_pictures,
)
from millstream.ops.pictures import inner, merge_onto, split_frames, sum_taps, to_pictures
from tests.unit.models_for_tests import relative_error

pytestmark = pytest.mark.filterwarnings("ignore")  # numpy, inside the interpreter

FRAMES = 2
ROWS = 4
COLUMNS = 6


@pytest.mark.parametrize("channels", [12, 16])
@pytest.mark.parametrize("phases", [False, True])
@pytest.mark.parametrize(
    ("norms", "keep", "pad"), [(True, True, 1), (True, False, 0), (False, False, 1), (False, True, 0)]
)
def test_merge_onto_equals_its_twin(channels: int, phases: bool, norms: bool, keep: bool, pad: int) -> None:
    size = (
        (FRAMES, ROWS // 2 + 1, COLUMNS // 2 + 1, 4, channels)
        if phases
        else (FRAMES, ROWS, COLUMNS, channels)
    )
    y = torch.randn(size)
    bias = torch.randn(channels)
    residual = torch.randn(FRAMES, ROWS, COLUMNS, channels)
    weight = torch.randn(channels) if norms else None
    ours, twins = (
        torch.full((PAST + FRAMES, ROWS + 2 * pad, COLUMNS + 2 * pad, channels), 9.0) for _ in range(2)
    )
    found = launch_merge_onto(y, bias, residual, weight, ours, pad=pad, keep=keep)
    expected = merge_onto(y, bias, residual, weight, twins, pad=pad, keep=keep)
    assert relative_error(ours, twins) <= 1e-6
    assert (inner(ours, pad)[:PAST] == 9.0).all(), "the past stays as it is"
    assert (found is None) == (not keep) == (expected is None)
    if found is not None and expected is not None:
        assert relative_error(found, expected) <= 1e-6


def test_merge_onto_only_keeps_where_there_is_no_canvas() -> None:
    y = torch.randn(FRAMES, ROWS, COLUMNS, 12)
    bias = torch.randn(12)
    found = launch_merge_onto(y, bias, None, None, None, keep=True)
    assert found is not None
    assert relative_error(found, y + bias) <= 1e-6


@pytest.mark.parametrize("phases", [False, True])
@pytest.mark.parametrize(("past", "pad"), [(1, 0), (2, 1), (3, 0)], ids=["shorter", "as long", "longer"])
def test_the_tail_is_the_canvass_last_frames_as_far_as_they_are_new(
    past: int, pad: int, phases: bool
) -> None:
    size = (FRAMES, ROWS // 2 + 1, COLUMNS // 2 + 1, 4, 12) if phases else (FRAMES, ROWS, COLUMNS, 12)
    y = torch.randn(size)
    bias = torch.randn(12)
    weight = torch.randn(12)
    for merge in (launch_merge_onto, merge_onto):
        canvas = torch.full((past + FRAMES, ROWS + 2 * pad, COLUMNS + 2 * pad, 12), 9.0)
        tail = torch.full((past, ROWS, COLUMNS, 12), 9.0)
        merge(y, bias, None, weight, canvas, past=past, pad=pad, tail=tail)
        assert torch.equal(tail, inner(canvas, pad)[-past:])
        assert int((tail != 9.0).sum()) == min(past, FRAMES) * ROWS * COLUMNS * 12


@pytest.mark.parametrize(("past", "edge"), [(0, 1), (1, 0)])
def test_merge_onto_a_canvas_with_another_past_or_an_edge_equals_its_twin(past: int, edge: int) -> None:
    y = torch.randn(FRAMES, ROWS, COLUMNS, 12)
    bias = torch.randn(12)
    ours, twins = (torch.full((past + FRAMES, ROWS + edge, COLUMNS + edge, 12), 9.0) for _ in range(2))
    launch_merge_onto(y, bias, None, None, ours, past=past)
    merge_onto(y, bias, None, None, twins, past=past)
    assert torch.equal(ours, twins)
    assert int((ours != 9.0).sum()) == y.numel(), "what is beyond the frames stays as it is"


def test_split_frames_equals_its_twin() -> None:
    y = torch.randn(FRAMES, ROWS, COLUMNS, 24)
    bias = torch.randn(24)
    assert relative_error(launch_split_frames(y, bias), split_frames(y, bias)) <= 1e-6


def test_sum_taps_equals_its_twin() -> None:
    planes = 0.1 * torch.randn(TAPS * 3 + 7, PAST + FRAMES, ROWS + 2, COLUMNS + 2)
    bias = torch.randn(3)
    found = launch_sum_taps(planes, bias, FRAMES)
    expected = sum_taps(planes, bias, FRAMES)
    assert relative_error(found, expected) <= 1e-6


def every_bfloat16() -> torch.Tensor:
    """All that are finite."""
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return numbers[numbers.isfinite()]


def test_every_number_becomes_the_byte_of_its_twin() -> None:
    numbers = every_bfloat16()
    pixels = numbers[: len(numbers) // 6 * 6].view(1, 3, 2, -1)
    assert torch.equal(launch_to_pictures(pixels), to_pictures(pixels))


def test_halves_between_two_bytes_go_where_the_twins_go() -> None:
    halves = (torch.arange(255, dtype=torch.float32) + 0.5) / 127.5 - 1
    pixels = torch.cat(
        [halves, halves.nextafter(torch.tensor(2.0)), halves.nextafter(torch.tensor(-2.0))]
    ).view(1, 3, 1, 255)
    assert torch.equal(launch_to_pictures(pixels), to_pictures(pixels))


def test_planes_may_lie_in_memory_in_any_order() -> None:
    by_colour = torch.randn(3, FRAMES, ROWS, COLUMNS).transpose(0, 1)
    by_pixel = torch.randn(FRAMES, ROWS, COLUMNS, 3).permute(0, 3, 1, 2)
    for pixels in (by_colour, by_pixel):
        assert torch.equal(launch_to_pictures(pixels), to_pictures(pixels))
