"""Clips that people have, as training reads them: latents and text embeddings in shards, made once from videos.

    dataset.json                what all clips have in common, and the model they were made for
    no-prompt.safetensors       the embedding of an empty prompt
    shard-00012.safetensors     latents [N, F, C, Y, X] and text [N, S, E]; where each clip is from, in its header

A shard holds the clips of a fixed slice of the videos and appears by rename. What is there is whole; what is missing is made by
whoever comes next.
Shapes: N clips of a shard, F latent frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.core.files import Staging

VERSION = 1
CARD, NO_PROMPT = "dataset.json", "no-prompt.safetensors"
STORED = torch.float16
"""More digits than bfloat16, and latents are of unit size."""
AGAIN = "run `millstream train data prepare` again"


class DatasetCard(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    model: str
    fingerprint: str
    """Of the VAE and the text encoder that made it."""
    size: tuple[int, int]
    fps: float
    latent_frames: int
    clips_per_video: int
    videos_per_shard: int
    videos: int

    @property
    def shards(self) -> int:
        return -(-self.videos // self.videos_per_shard)


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    video: str
    start_s: float
    caption: str


class SkippedVideo(msgspec.Struct, frozen=True, kw_only=True):
    video: str
    why: str


class ShardContents(msgspec.Struct, frozen=True, kw_only=True):
    clips: tuple[Clip, ...]
    skipped: tuple[SkippedVideo, ...] = ()


class EncodedClip(NamedTuple):
    clip: Clip
    latents_FCYX: Tensor
    text_SE: Tensor


class ClipPlace(NamedTuple):
    shard: Path
    row: int


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def write_shard(path: Path, clips: Sequence[EncodedClip], skipped: Sequence[SkippedVideo]) -> None:
    tensors = dict[str, Tensor]()
    if clips:
        tensors["latents"] = torch.stack([each.latents_FCYX for each in clips]).to("cpu", STORED).contiguous()
        tensors["text"] = torch.stack([each.text_SE for each in clips]).to("cpu", STORED).contiguous()
    contents = ShardContents(clips=tuple(each.clip for each in clips), skipped=tuple(skipped))
    with Staging(path.parent) as staging:
        save_file(tensors, staging.path(path.name), metadata={"contents": msgspec.json.encode(contents).decode()})


def read_contents(path: Path) -> ShardContents:
    try:
        with safe_open(path, "pt") as shard:
            return msgspec.json.decode((shard.metadata() or {}).get("contents", "{}"), type=ShardContents)
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is no shard of clips ({type(error).__name__}); remove it and {AGAIN}") from None


def write_card(folder: Path, card: DatasetCard, no_prompt_SE: Tensor) -> None:
    """What is there already must be the same: one folder holds one dataset."""
    if (folder / CARD).exists():
        before = read_card(folder)
        for name in DatasetCard.__struct_fields__:
            if getattr(before, name) != getattr(card, name):
                raise ConfigError(
                    f"{folder} was begun with {name} = {getattr(before, name)!r} and this is {getattr(card, name)!r}; "
                    "choose another --out, or the same options and videos"
                )
    with Staging(folder) as staging:
        save_file({"text": no_prompt_SE.to("cpu", STORED).contiguous()}, staging.path(NO_PROMPT))
        staging.path(CARD).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2))


def read_card(folder: Path) -> DatasetCard:
    try:
        card = msgspec.json.decode((folder / CARD).read_bytes(), type=DatasetCard)
    except FileNotFoundError:
        raise ConfigError(f"{folder} is no dataset; make one: millstream train data prepare VIDEOS --out {folder}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{folder / CARD} cannot be read: {error}") from None
    if card.version != VERSION:
        raise ConfigError(f"{folder} is a dataset of version {card.version}, this reads {VERSION}; {AGAIN} with another --out")
    return card


class ClipSet:
    """All clips of a dataset, read when they are needed."""

    def __init__(self, folder: Path) -> None:
        self.card = read_card(folder)
        paths = [shard_path(folder, number) for number in range(self.card.shards)]
        missing = [path.name for path in paths if not path.exists()]
        if missing:
            raise ConfigError(f"{folder} is not finished, {len(missing)} of {len(paths)} shards are missing; {AGAIN}")
        contents = {path: read_contents(path).clips for path in paths}
        self.clips = [clip for clips in contents.values() for clip in clips]
        if not self.clips:
            raise ConfigError(f"{folder} has no clip: every video was left out, and skipped.txt in it says why")
        self._places = [ClipPlace(path, row) for path, clips in contents.items() for row in range(len(clips))]
        with safe_open(folder / NO_PROMPT, "pt") as file:
            self.no_prompt_SE: Tensor = file.get_tensor("text").float()

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def latent_size(self) -> tuple[int, int]:
        latents = self[0].latents_FCYX
        return latents.shape[-2], latents.shape[-1]

    def __getitem__(self, number: int) -> EncodedClip:
        place = self._places[number]
        with safe_open(place.shard, "pt") as shard:
            latents, text = (shard.get_slice(name)[place.row] for name in ("latents", "text"))
        return EncodedClip(self.clips[number], latents.float(), text.float())
