from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from millstream.core.errors import ConfigError
from millstream.train.finetune.dataset import ClipSet, read_card, shard_path, write_card, write_shard
from tests.unit.train.finetune.datasets import small_dataset


def test_clips_come_back_in_order_wherever_their_shard_ends(tmp_path: Path) -> None:
    clips = ClipSet(small_dataset(tmp_path, 7))
    assert [clips[number].clip.caption for number in range(len(clips))] == [
        f"clip {number}" for number in range(7)
    ]
    assert clips.latent_size == (4, 4)
    again = ClipSet(tmp_path)[6]
    assert torch.equal(again.latents_FCYX, clips[6].latents_FCYX)


def test_what_is_not_finished_says_how_to_finish_it(tmp_path: Path) -> None:
    shard_path(small_dataset(tmp_path), 1).unlink()
    with pytest.raises(
        ConfigError, match="1 of 3 shards are missing; run `millstream train data prepare` again"
    ):
        ClipSet(tmp_path)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    path = shard_path(small_dataset(tmp_path), 1)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ConfigError, match=r"shard-00001\.safetensors is no shard of clips"):
        ClipSet(tmp_path)


def test_a_dataset_without_its_empty_prompt_says_how_to_get_it(tmp_path: Path) -> None:
    (small_dataset(tmp_path) / "no-prompt.safetensors").unlink()
    with pytest.raises(
        ConfigError, match=r"no-prompt\.safetensors .* run `millstream train data prepare` again"
    ):
        ClipSet(tmp_path)


def test_one_folder_holds_one_dataset(tmp_path: Path) -> None:
    card = read_card(small_dataset(tmp_path))
    with pytest.raises(ConfigError, match="was begun with latent_frames = 6 and this is 9"):
        write_card(tmp_path, msgspec.structs.replace(card, latent_frames=9), torch.zeros(2, 2))


def test_a_dataset_without_a_clip_says_where_the_reasons_are(tmp_path: Path) -> None:
    small_dataset(tmp_path)
    for number in range(3):
        write_shard(shard_path(tmp_path, number), [], [])
    with pytest.raises(ConfigError, match=r"has no clip: .* skipped.txt"):
        ClipSet(tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no dataset; make one"):
        ClipSet(tmp_path)


def test_a_dataset_of_before_sizes_is_refused_with_the_fix(tmp_path: Path) -> None:
    small_dataset(tmp_path)
    (tmp_path / "dataset.json").write_text('{"version": 1, "model": "wan-tiny", "size": [32, 32]}')
    with pytest.raises(
        ConfigError,
        match="of version 1, this reads 2; run `millstream train data prepare` again with another",
    ):
        ClipSet(tmp_path)


def test_clips_of_several_sizes_lie_in_one_shard(tmp_path: Path) -> None:
    clips = ClipSet(small_dataset(tmp_path, 7, sizes=((4, 4), (8, 4))))
    assert clips.buckets == {(32, 32): [0, 2, 4, 6], (64, 32): [1, 3, 5]}
    plain = ClipSet(small_dataset(tmp_path / "plain", 7))
    assert torch.equal(clips[0].latents_FCYX, plain[0].latents_FCYX)
    assert [clips[number].latents_FCYX.shape[-2] for number in range(7)] == [4, 8, 4, 8, 4, 8, 4]
    assert [clips[number].clip.caption for number in range(7)] == [f"clip {number}" for number in range(7)]
