"""Dataset of clips as training reads it: latents and text embeddings in shards, made once from videos.

    dataset.json                what all clips have in common, and the model they were made for
    no-prompt.safetensors       the embedding of an empty prompt
    shard-00012.safetensors     latents of each size [N, F, C, Y, X], text [N, S, E], of a steered model what
                                was held [N, F, A]; the origin of each clip, in its header

A shard holds the clips of a fixed slice of the videos and appears by rename, so that a shard which is there
is whole; missing ones are made by the next run that prepares the dataset. Clips of one size are a bucket: a
step learns from one of them.
Shapes: N clips of a shard, F latent frames, C latent channels, Y and X latent rows and columns, S text
tokens, E text width, A numbers of an action.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from millstream.core.config import ActionsConfig
from millstream.core.errors import ConfigError
from millstream.core.files import Staging

VERSION = 2
CARD = "dataset.json"
NO_PROMPT = "no-prompt.safetensors"
TEXT = "text"
ACTIONS = "actions"
STORED = torch.float16
"""Dtype of stored tensors: it has more digits than bfloat16, and latents are of unit size."""
AGAIN = "run `millstream train data prepare` again"


class CardVersion(msgspec.Struct, frozen=True):
    """Version of a card, read before it is known how to read the rest."""

    version: int


class DatasetCard(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    model: str
    fingerprint: str
    """Fingerprint of the VAE and the text encoder that made the dataset."""
    sizes: tuple[tuple[int, int], ...]
    """Sizes of pictures, height x width: a video gets the one whose shape is nearest to its own."""
    fps: float
    latent_frames: int
    clips_per_video: int
    stride_s: float = 0.0
    """Seconds from the beginning of one clip to that of the next; 0 for one after the other."""
    least_motion: float = 0.0
    """Smallest change of a clip's pictures, in levels of 255 a second; stiller clips are left out."""
    least_brightness: float = 0.0
    """Smallest mean level of a clip; darker clips are left out."""
    across_cuts: bool = False
    """True if a clip may have a cut in it."""
    actions: ActionsConfig | None = None
    """Actions that are kept of each latent frame, from a file beside each video."""
    videos_per_shard: int
    videos: int

    @property
    def shards(self) -> int:
        return -(-self.videos // self.videos_per_shard)


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    video: str
    size: tuple[int, int]
    start_s: float
    caption: str


class SkippedVideo(msgspec.Struct, frozen=True, kw_only=True):
    video: str
    why: str
    start_s: float | None = None
    """Start of the clip that was skipped; None where the whole video was."""


class ShardContents(msgspec.Struct, frozen=True, kw_only=True):
    clips: tuple[Clip, ...]
    skipped: tuple[SkippedVideo, ...] = ()


class EncodedClip(NamedTuple):
    clip: Clip
    latents_FCYX: Tensor
    text_SE: Tensor
    actions_FA: Tensor | None = None


class ClipPlace(NamedTuple):
    shard: Path
    row: int
    """Row of its text among the shard's texts."""
    latents: str
    """Name of the tensor that holds its latents."""
    latents_row: int


def latents_of(size: tuple[int, int]) -> str:
    """Return the name that a shard gives its latents of that size."""
    return f"latents {size_name(size)}"


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def write_shard(path: Path, clips: Sequence[EncodedClip], skipped: Sequence[SkippedVideo]) -> None:
    by_name = dict[str, list[Tensor]]()
    for each in clips:
        by_name.setdefault(latents_of(each.clip.size), []).append(each.latents_FCYX)
        by_name.setdefault(TEXT, []).append(each.text_SE)
        if each.actions_FA is not None:
            by_name.setdefault(ACTIONS, []).append(each.actions_FA)
    tensors = {name: torch.stack(rows).to("cpu", STORED).contiguous() for name, rows in by_name.items()}
    contents = ShardContents(clips=tuple(each.clip for each in clips), skipped=tuple(skipped))
    with Staging(path.parent) as staging:
        save_file(
            tensors, staging.path(path.name), metadata={"contents": msgspec.json.encode(contents).decode()}
        )


def read_contents(path: Path) -> ShardContents:
    try:
        with safe_open(path, "pt") as shard:
            return msgspec.json.decode((shard.metadata() or {}).get("contents", "{}"), type=ShardContents)
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{path} is no shard of clips ({type(error).__name__}); remove it and {AGAIN}"
        ) from None


def write_card(folder: Path, card: DatasetCard, no_prompt_SE: Tensor) -> None:
    """Write a dataset's card. A card that is there already must be the same: one folder holds one dataset."""
    if (folder / CARD).exists():
        before = read_card(folder)
        for name in DatasetCard.__struct_fields__:
            if getattr(before, name) != getattr(card, name):
                raise ConfigError(
                    f"{folder} was begun with {name} = {getattr(before, name)!r} and this is "
                    f"{getattr(card, name)!r}; "
                    "choose another --out, or the same options and videos"
                )
    with Staging(folder) as staging:
        save_file({TEXT: no_prompt_SE.to("cpu", STORED).contiguous()}, staging.path(NO_PROMPT))
        staging.path(CARD).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2))


def read_card(folder: Path) -> DatasetCard:
    try:
        written = (folder / CARD).read_bytes()
        version = msgspec.json.decode(written, type=CardVersion).version
        if version != VERSION:
            raise ConfigError(
                f"{folder} is a dataset of version {version}, this reads {VERSION}; {AGAIN} with another "
                "--out"
            )
        return msgspec.json.decode(written, type=DatasetCard)
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} is no dataset; make one: millstream train data prepare VIDEOS --out {folder}"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{folder / CARD} cannot be read: {error}") from None


class ClipSet:
    """Clips of a dataset, read when they are needed."""

    def __init__(self, folder: Path) -> None:
        self.card = read_card(folder)
        paths = [shard_path(folder, number) for number in range(self.card.shards)]
        missing = [path.name for path in paths if not path.exists()]
        if missing:
            raise ConfigError(
                f"{folder} is not finished, {len(missing)} of {len(paths)} shards are missing; {AGAIN}"
            )
        contents = {path: read_contents(path).clips for path in paths}
        self.clips = [clip for clips in contents.values() for clip in clips]
        if not self.clips:
            raise ConfigError(
                f"{folder} has no clip: every video was left out, and skipped.txt in it says why"
            )
        self._places = [place for path, clips in contents.items() for place in _places(path, clips)]
        self.buckets: dict[tuple[int, int], list[int]] = {}
        """Numbers of the clips of each size."""
        for number, clip in enumerate(self.clips):
            self.buckets.setdefault(clip.size, []).append(number)
        try:
            with safe_open(folder / NO_PROMPT, "pt") as file:
                self.no_prompt_SE: Tensor = file.get_tensor(TEXT).float()
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{folder / NO_PROMPT} cannot be read ({type(error).__name__}); {AGAIN}"
            ) from None

    def __len__(self) -> int:
        return len(self.clips)

    @cached_property
    def digest(self) -> str:
        """Digest of the clips and their captions, in their order."""
        return hashlib.blake2b(msgspec.json.encode(self.clips), digest_size=16).hexdigest()

    @property
    def latent_size(self) -> tuple[int, int]:
        """Latent size of all clips; raises ConfigError if they have several."""
        if len(self.buckets) > 1:
            raise ConfigError(
                f"clips of one size are needed and these are {size_names(self.buckets)}; prepare them with "
                "one "
                "--sizes"
            )
        return self.latent_sizes[0]

    @property
    def latent_sizes(self) -> list[tuple[int, int]]:
        """Latent size of each bucket, all different."""
        shapes = (self[numbers[0]].latents_FCYX.shape for numbers in self.buckets.values())
        return [(shape[-2], shape[-1]) for shape in shapes]

    def __getitem__(self, number: int) -> EncodedClip:
        place = self._places[number]
        with safe_open(place.shard, "pt") as shard:
            latents = shard.get_slice(place.latents)[place.latents_row]
            text = shard.get_slice(TEXT)[place.row]
            held = shard.get_slice(ACTIONS)[place.row].float() if self.card.actions is not None else None
        return EncodedClip(self.clips[number], latents.float(), text.float(), held)


def _places(shard: Path, clips: Sequence[Clip]) -> Iterator[ClipPlace]:
    seen = dict[str, int]()
    for row, clip in enumerate(clips):
        name = latents_of(clip.size)
        yield ClipPlace(shard, row, name, seen.setdefault(name, 0))
        seen[name] += 1


def size_name(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def size_names(sizes: Iterable[tuple[int, int]]) -> str:
    return ", ".join(map(size_name, sizes))
