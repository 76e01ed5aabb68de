"""`millstream train data prepare`: from videos and captions to shards of latents and embeddings.

A shard's worth of videos at a time; shards that are there are not made again, so that a run that ended early
goes on, and several processes can each take a part. A video that cannot be used is listed with the reason and
left out.
Shapes: T pixel frames, H height, W width, F latent frames, C channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional

from millstream.commands.paths import find_weights
from millstream.commands.progress import counting_bar
from millstream.commands.train.captions import SILENT, CaptionedVideo, find_videos
from millstream.commands.train.run_folder import writing_to
from millstream.commands.train.selection import FoundClip, LeftOut, select
from millstream.commands.train.sizes import nearest, parse_sizes
from millstream.core.conditions import FrameActions, check_keys
from millstream.core.config import TEMPORAL_STRIDE, ActionsConfig, ModelSpec, pixel_frames
from millstream.core.errors import ConfigError, ControlError, VideoError
from millstream.core.files import Staging
from millstream.core.presets import find_model
from millstream.engine.device_choice import choose_device
from millstream.models.carry import VAEState
from millstream.models.registry import LoadedModel, described, load_model
from millstream.models.weights.fingerprint import fingerprint_of
from millstream.ops.pixels import from_bytes
from millstream.ops.precision import working_dtype
from millstream.train.data.actions_file import read_actions
from millstream.train.data.frame_actions import (
    SUFFIXES,
    actions_file,
    at_rate,
    frame_actions,
    latent_actions,
)
from millstream.train.data.preview import as_bytes, tile
from millstream.train.finetune.dataset import (
    Clip,
    ClipSet,
    DatasetCard,
    EncodedClip,
    SkippedVideo,
    read_contents,
    shard_path,
    size_name,
    write_card,
    write_shard,
)
from millstream.video.picture import png
from millstream.video.reader import VideoReader

VIDEOS_PER_SHARD = 16
SHEET = "sheet.png"
SKIPPED = "skipped.txt"
SHOWN = 12
MOMENTS = 4
"""Clips on the sheet, and pictures of each."""
WORDS_SHOWN = 12
LOOK = "look"
"""Name of the mouse among keys."""
WHITE = 255
FoundInVideo = tuple[CaptionedVideo, FoundClip | LeftOut | VideoError]
ENCODED_AT_ONCE = 2
"""Latent frames: what a VAE holds of a long clip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareRequest:
    """The command line, parsed."""

    source: Path
    out: Path
    model: str = "brook"
    weights: tuple[str, ...] = ()
    sizes: str = ""
    """`480x832,640x640` or `auto`; the model's own by default."""
    latent_frames: int = 9
    clips: int = 1
    """Clips of each video, at most."""
    stride_s: float = 0.0
    least_motion: float = 0.0
    least_brightness: float = 0.0
    across_cuts: bool = False
    """These as a `DatasetCard` has them."""
    actions: str = ""
    """`a,d,s,w,look`: keys that are kept, and the mouse; by default what the model takes."""
    part: tuple[int, int] = (1, 1)
    """Which of how many parts of the shards to make."""
    device: str = "auto"

    def __post_init__(self) -> None:
        if min(self.latent_frames, self.clips) < 1:
            raise ConfigError(
                f"--frames and --clips must be 1 or more, got {self.latent_frames} and {self.clips}"
            )
        for name, value in (
            ("stride", self.stride_s),
            ("motion", self.least_motion),
            ("brightness", self.least_brightness),
        ):
            if not 0 <= value < math.inf:
                raise ConfigError(f"--{name} must be 0 or more, got {value:g}")
        if not 1 <= self.part[0] <= self.part[1]:
            raise ConfigError(f"--part must be K/N with K from 1 to N, got {self.part[0]}/{self.part[1]}")


def run_prepare(request: PrepareRequest) -> str:
    """Prepare the clips. Return the text to print."""
    done = prepare(request)
    if done is None:
        return f"part {request.part[0]} of {request.part[1]} is done; the others are not"
    clips = sum(each.start_s is not None for each in done.skipped)
    counts = {"video": len(done.skipped) - clips, "clip": clips}
    skipped = " and ".join(_counted(count, what) for what, count in counts.items() if count)
    left_out = f", {skipped} left out (see {request.out / SKIPPED})" if skipped else ""
    by_size = ", ".join(
        f"{len(numbers)} of {size_name(size)}" for size, numbers in done.clips.buckets.items()
    )
    buckets = f" ({by_size})" if len(done.clips.buckets) > 1 else ""
    no_word = (
        f"\n{request.model} has no word for: {', '.join(done.unknown[:WORDS_SHOWN])}" if done.unknown else ""
    )
    found = _counted(len(done.clips), "clip")
    return f"{request.out}: {found}{buckets}{left_out}; look at {request.out / SHEET}{no_word}"


def _say_what_is_no_chunk(frames: int, spec: ModelSpec) -> None:
    """Before hours of work: a recipe would have to be told."""
    if more := frames % spec.stream.frames_per_chunk:
        said = f"clips of {frames} latent frames are not whole chunks of {spec.stream.frames_per_chunk}"
        fix = (
            f"give --frames {frames - more + spec.stream.frames_per_chunk}, or set frames_per_chunk in the "
            "recipe"
        )
        Console(stderr=True).print(
            f"{said}, as {spec.name} streams them; {fix}", soft_wrap=True, highlight=False
        )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


class Prepared(NamedTuple):
    clips: ClipSet
    skipped: list[SkippedVideo]
    unknown: list[str]
    """Words of the captions that the model reads over."""


def prepare(request: PrepareRequest) -> Prepared | None:
    """The dataset, if it is whole; None while other parts are being made."""
    spec = find_model(request.model)
    weights = find_weights(spec.name, request.weights)
    spec = described(spec, weights)
    own = spec.stream.height, spec.stream.width
    sizes = parse_sizes(request.sizes, own, spec.stride) if request.sizes else (own,)
    videos = find_videos(request.source)
    _say_what_is_no_chunk(request.latent_frames, spec)
    device = choose_device(request.device)
    model = load_model(spec, weights, device=device, dtype=working_dtype(device), with_dit=False)
    card = DatasetCard(
        model=spec.name,
        fingerprint=fingerprint_of({part: model.records(part) for part in ("vae", "text")}),
        sizes=sizes,
        fps=spec.stream.fps,
        latent_frames=request.latent_frames,
        clips_per_video=request.clips,
        stride_s=request.stride_s,
        least_motion=request.least_motion,
        least_brightness=request.least_brightness,
        across_cuts=request.across_cuts,
        actions=parse_actions(request.actions) if request.actions else spec.conditions.actions,
        videos_per_shard=VIDEOS_PER_SHARD,
        videos=len(videos),
    )
    part, parts = request.part
    mine = [number for number in range(card.shards) if number % parts == part - 1]
    with writing_to(request.out, with_others=True):
        write_card(request.out, card, model.text.encode("")[0])
        _make_shards(
            request.out,
            {number: videos[number * VIDEOS_PER_SHARD :][:VIDEOS_PER_SHARD] for number in mine},
            model,
            card,
        )
    if any(not shard_path(request.out, number).exists() for number in range(card.shards)):
        return None
    with writing_to(request.out, with_others=True):
        skipped = _write_skipped(request.out, card)
        clips = ClipSet(request.out)
        with Staging(request.out) as staging:
            staging.path(SHEET).write_bytes(png(_sheet(clips, model)))
    unknown = dict.fromkeys(
        word for clip in clips.clips for word in model.text.embedder.read(clip.caption).unknown
    )
    return Prepared(clips, skipped, list(unknown))


def parse_actions(text: str) -> ActionsConfig:
    """Names of keys with commas between them; `look` stands for the mouse."""
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    keys = tuple(name for name in names if name != LOOK)
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"--actions names keys, each once, and look: a,d,s,w,look; got {text[:80]!r}")
    try:
        check_keys(keys)
    except ControlError as error:
        raise ConfigError(f"--actions: {error}") from None
    return ActionsConfig(keys=keys, look=LOOK in names)


def _make_shards(
    out: Path, shards: Mapping[int, Sequence[CaptionedVideo]], model: LoadedModel, card: DatasetCard
) -> None:
    """Write the shards that are missing or not of these videos, by number."""
    with counting_bar("video", sum(map(len, shards.values()))) as tick, ThreadPoolExecutor(1) as decoder:
        for number, videos in shards.items():
            path = shard_path(out, number)
            if not path.exists() or not _is_of(path, videos):
                found = _ahead(_found_in(videos, card), decoder)
                write_shard(path, *_encoded(found, model, card.actions, tick))
            else:
                for _ in videos:
                    tick()


def _is_of(shard: Path, videos: Sequence[CaptionedVideo]) -> bool:
    """Return whether a shard was made of these videos, as they are captioned now. One that was left out may
    have been mended since; then it was not."""
    contents = read_contents(shard)
    made_s = shard.stat().st_mtime
    captions = {os.path.abspath(clip.video): clip.caption for clip in contents.clips}
    left_out = {os.path.abspath(each.video): each.why for each in contents.skipped}
    there = {os.path.abspath(video.path): video for video in videos}
    if not captions.keys() | left_out.keys() <= there.keys():
        return False
    is_captioned = all(there[name].caption == caption for name, caption in captions.items())
    return is_captioned and not any(_is_mended(there[name], why, made_s) for name, why in left_out.items())


def _is_mended(video: CaptionedVideo, why: str, left_out_s: float) -> bool:
    """Return whether a video that was left out then may be used now."""
    if why in SILENT:
        return video.caption != ""
    return video.path.exists() and video.path.stat().st_mtime > left_out_s


def _encoded(
    found: Iterable[FoundInVideo],
    model: LoadedModel,
    takes: ActionsConfig | None,
    tick: Callable[[], None],
) -> tuple[list[EncodedClip], list[SkippedVideo]]:
    """Encode a shard's videos, with a tick for each; what is kept of a clip is small."""
    clips = list[EncodedClip]()
    skipped = list[SkippedVideo]()
    text_SE = functools.lru_cache(1)(
        lambda caption: model.text.encode(model.text.embedder.read(caption).text)[0]
    )
    for _, in_video in itertools.groupby(
        found, lambda each: id(each[0])
    ):  # a list may name the same video twice
        some, left_out = _encoded_video(in_video, model, takes, text_SE)
        clips += some
        skipped += left_out
        tick()
    return clips, skipped


def _encoded_video(
    found_in_video: Iterable[FoundInVideo],
    model: LoadedModel,
    takes: ActionsConfig | None,
    text_SE: Callable[[str], Tensor],
) -> tuple[list[EncodedClip], list[SkippedVideo]]:
    clips = list[EncodedClip]()
    skipped = list[SkippedVideo]()
    for video, found in found_in_video:
        name = str(video.path)
        match found:
            case FoundClip(start_s, pixels_THW3, actions):
                size = pixels_THW3.shape[1], pixels_THW3.shape[2]
                clip = Clip(video=name, size=size, start_s=start_s, caption=video.caption)
                held = None if takes is None else latent_actions(actions, takes)
                clips.append(EncodedClip(clip, _latents(model, pixels_THW3), text_SE(video.caption), held))
            case LeftOut(start_s, why):
                skipped.append(SkippedVideo(video=name, why=why, start_s=start_s))
            case VideoError():  # of a video that breaks off, nothing is taken
                why = str(found).removeprefix(name).lstrip(": ")  # a line of the list begins with the name
                clips = []
                skipped = [SkippedVideo(video=name, why=why)]
    return clips, skipped


def _found_in(videos: Sequence[CaptionedVideo], card: DatasetCard) -> Iterator[FoundInVideo]:
    for video in videos:
        try:
            yield from ((video, found) for found in _clips_of(video, card))
        except VideoError as error:
            yield video, error


def _ahead(found: Iterator[FoundInVideo], thread: ThreadPoolExecutor) -> Iterator[FoundInVideo]:
    """The next clip is decoded while one is encoded."""
    coming = thread.submit(next, found, None)
    while (item := coming.result()) is not None:
        coming = thread.submit(next, found, None)
        yield item


def _clips_of(video: CaptionedVideo, card: DatasetCard) -> Iterator[FoundClip | LeftOut]:
    """At the model's frame rate, in the size whose shape is nearest to the video's."""
    if not video.caption:
        raise VideoError(video.why_silent)
    with VideoReader(video.path) as reader:
        reader.size = nearest(card.sizes, reader.source_size)
        held = None if card.actions is None else _held(video.path, reader.fps, card.fps)
        for found in select(_at_rate(reader, card.fps), card):
            yield (
                found if held is None or isinstance(found, LeftOut) else _with_actions(found, held, card.fps)
            )


def _held(video: Path, video_fps: float, fps: float) -> list[FrameActions]:
    """Return what is held in each picture at the dataset's rate."""
    path = actions_file(video)
    if path is None:
        raise VideoError(
            f"there is no {video.stem}{SUFFIXES[0]} or {SUFFIXES[1]} beside it, with its actions"
        )
    return at_rate(frame_actions(read_actions(path)), from_fps=video_fps, fps=fps)


def _with_actions(clip: FoundClip, held: Sequence[FrameActions], fps: float) -> FoundClip:
    begin = round(clip.start_s * fps)
    mine = held[begin : begin + len(clip.pixels_THW3)]
    if len(mine) < len(clip.pixels_THW3):
        raise VideoError(f"its actions end after {len(held) / fps:.2f} s, before its pictures do")
    return clip._replace(actions=mine)


def _at_rate(reader: VideoReader, fps: float) -> Iterator[np.ndarray]:
    """Each moment's picture: some are shown again where the video has fewer, and left out where it has
    more."""
    wanted = 0
    for number, picture_HW3 in enumerate(reader.frames()):
        while wanted / fps < (number + 1) / reader.fps:
            yield picture_HW3
            wanted += 1


@torch.inference_mode()
def _latents(model: LoadedModel, pixels_THW3: np.ndarray) -> Tensor:
    """[F, C, Y, X], a few frames at a time."""
    pixels = from_bytes(torch.from_numpy(pixels_THW3).movedim(-1, 1).to(model.device))[None].to(model.dtype)
    state: VAEState = ()
    found = list[Tensor]()
    begin = 0
    end = pixel_frames(0, ENCODED_AT_ONCE)
    while begin < pixels.shape[1]:
        latents, state = model.vae.encode(pixels[:, begin:end], state)
        found.append(latents[0])
        begin = end
        end = end + TEMPORAL_STRIDE * ENCODED_AT_ONCE
    return torch.cat(found)


@torch.inference_mode()
def _sheet(clips: ClipSet, model: LoadedModel) -> np.ndarray:
    """Draw what the model will see: a row for each of some clips, decoded again. Smaller ones have a white
    rim."""
    rows = []
    height = max(size[0] for size in clips.buckets)
    width = max(size[1] for size in clips.buckets)
    for number in range(0, len(clips), max(1, len(clips) // SHOWN)):
        latents = clips[number].latents_FCYX.to(model.device, model.dtype)
        pixels_TCYX = model.vae.decode(latents[None])[0][0]
        moments = torch.linspace(0, len(pixels_TCYX) - 1, MOMENTS).round().long().tolist()
        shown_MHW3 = as_bytes(pixels_TCYX[moments].float())
        rim = (0, 0, 0, width - shown_MHW3.shape[2], 0, height - shown_MHW3.shape[1])
        rows.append(functional.pad(shown_MHW3, rim, value=WHITE))
    return tile(torch.stack(rows[:SHOWN])).numpy()


def _write_skipped(out: Path, card: DatasetCard) -> list[SkippedVideo]:
    found = [each for number in range(card.shards) for each in read_contents(shard_path(out, number)).skipped]
    with Staging(out) as staging:
        staging.path(SKIPPED).write_text("".join(f"{_place(each)}: {each.why}\n" for each in found))
    return found


def _place(skipped: SkippedVideo) -> str:
    return skipped.video if skipped.start_s is None else f"{skipped.video}, {skipped.start_s:.2f} s"
