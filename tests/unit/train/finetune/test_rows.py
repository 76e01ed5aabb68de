"""What a step learns from depends on the seed, the step and the row, whoever asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.rows import ClipRows, Noising, bucket_turn, clip_order, flow_error, step_clips
from millstream.train.options import Forcing
from tests.unit.train.finetune.datasets import FRAMES, small_dataset


@given(clips=st.integers(1, 20), batch=st.integers(1, 9), seed=st.integers(0, 3))
def test_every_clip_comes_once_before_any_comes_again(clips: int, batch: int, seed: int) -> None:
    steps = -(-3 * clips // batch)
    drawn = [number for step in range(steps) for number in clip_order(clips, seed, batch, step)]
    for begin in range(0, 3 * clips, clips):
        assert sorted(drawn[begin : begin + clips]) == list(range(clips))


def test_rounds_and_seeds_have_orders_of_their_own() -> None:
    orders = [clip_order(30, seed, 30, step) for seed in range(2) for step in range(2)]
    assert len({tuple(order) for order in orders}) == 4


@given(
    clips=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 3), batch=st.integers(1, 5)
)
def test_buckets_come_as_often_as_they_have_clips_and_no_batch_mixes_them(
    clips: list[int], seed: int, batch: int
) -> None:
    turns = [bucket_turn(clips, seed, step) for step in range(2 * sum(clips))]
    for bucket, number in enumerate(clips):
        assert [turn for which, turn in turns if which == bucket] == list(range(2 * number)), (
            "turn after turn, none left out"
        )
    numbers = iter(range(sum(clips)))
    buckets = [[next(numbers) for _ in range(number)] for number in clips]
    drawn = [step_clips(buckets, seed, batch, step) for step in range(2 * sum(clips))]
    for (bucket, _), rows in zip(turns, drawn, strict=True):
        assert len(rows) == batch
        assert set(rows) <= set(buckets[bucket])
    for bucket in buckets:  # within a bucket, all once before any again
        of_it = [row for rows in drawn for row in rows if row in bucket]
        for begin in range(0, len(of_it) - len(bucket) + 1, len(bucket)):
            assert sorted(of_it[begin : begin + len(bucket)]) == bucket


def test_rows_of_buckets_are_the_same_by_themselves_and_among_others(tmp_path: Path) -> None:
    made = rows(small_dataset(tmp_path, sizes=((4, 4), (4, 8))), "teacher")
    sizes = set()
    for step in range(7):
        whole = made.rows(step, range(4))
        parts = [made.rows(step, [number]) for number in range(4)]
        sizes.add(whole.latents_BFCYX.shape[-2:])
        for of_all, *alone in zip(whole[:4], *(part[:4] for part in parts), strict=True):
            assert torch.equal(of_all, torch.cat(alone))
    assert sizes == {(4, 4), (4, 8)}


def rows(
    folder: Path, forcing: Forcing, *, drop: float = 0.0, noise: tuple[float, float] = (0.0, 1000.0)
) -> ClipRows:
    noising = Noising(forcing=forcing, frames_per_chunk=2, window=4, shift=3.0, drop=drop, noise=noise)
    return ClipRows(ClipSet(folder), noising, batch=4, seed=0)


@pytest.mark.parametrize("forcing", ["teacher", "diffusion"])
def test_a_row_is_the_same_by_itself_and_among_others(tmp_path: Path, forcing: Forcing) -> None:
    made = rows(small_dataset(tmp_path), forcing)
    whole = made.rows(5, range(4))
    parts = [made.rows(5, [number]) for number in range(4)]
    for of_all, *alone in zip(whole[:4], *(part[:4] for part in parts), strict=True):
        assert torch.equal(of_all, torch.cat(alone))


def test_a_teacher_forced_row_has_its_clean_past_first(tmp_path: Path) -> None:
    made = rows(small_dataset(tmp_path), "teacher").rows(0, range(4))
    past = FRAMES - 2
    assert made.latents_BFCYX.shape[1] == past + FRAMES
    assert (made.level_BF[:, :past] == 0).all()
    assert (made.level_BF[:, past:] > 0).all()
    # What is noisy is clean + level * (noise - clean): from the target and the level the clean frames come
    # back.
    share = made.level_BF[:, past:, None, None, None] / 1000
    clean = made.latents_BFCYX[:, past:] - share * made.target_BFCYX
    torch.testing.assert_close(clean[:, :past], made.latents_BFCYX[:, :past], rtol=1e-4, atol=1e-4)


def test_levels_stay_within_what_is_asked(tmp_path: Path) -> None:
    made = rows(small_dataset(tmp_path), "diffusion", noise=(200.0, 600.0))
    levels = torch.cat([made.rows(step, range(4)).level_BF for step in range(8)])
    assert 200 <= float(levels.min()) < 300
    assert 500 < float(levels.max()) <= 600


def test_prompts_are_left_out_as_often_as_asked(tmp_path: Path) -> None:
    folder = small_dataset(tmp_path)
    assert all((text != 0).any() for text in rows(folder, "teacher").rows(0, range(4)).text_BSE)
    assert (rows(folder, "teacher", drop=0.9999).rows(0, range(4)).text_BSE == 0).all()


def test_only_the_frames_that_are_learnt_count() -> None:
    flow = torch.randn(2, 5, 1, 2, 2)
    target = torch.randn(2, 3, 1, 2, 2)
    assert flow_error(flow, target) == (flow[:, 2:] - target).square().mean()
