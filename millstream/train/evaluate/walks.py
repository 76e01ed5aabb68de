"""Walks through a model's streams, by scripted keys: does the picture move as they say, and does it stay what
was asked for?

Scenes and tracks are held out. Motion is read by its own judge (`motion.py`), in units of a key that is held;
what that judge reads in renders of the same walks is measured beside it, and is as good as it gets. Knows no
files and prints nothing.
Shapes: B walks, F latent frames, T pixel frames, C channels, Y and X rows and columns, M motions, A numbers of an
action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.core.config import ActionsConfig, StreamConfig, pixel_frames
from millstream.core.errors import ConfigError
from millstream.models.registry import LoadedModel
from millstream.ops.pixels import to_bytes
from millstream.train.data.render import FPS
from millstream.train.data.scene import shown
from millstream.train.data.walk.actions import Actions, random_tracks
from millstream.train.data.walk.captions import plain_steered_captions
from millstream.train.data.walk.render import render_walks
from millstream.train.data.walk.scene import Walks, sample_walks
from millstream.train.data.walk.walker import walk
from millstream.train.evaluate.classifier import FRAMES, AttributeNet
from millstream.train.evaluate.metrics import Impression, accuracy, impression, joined
from millstream.train.evaluate.motion import (
    MOTIONS,
    SECONDS,
    UNITS,
    MotionJudge,
    asked,
    moved,
    read_motion,
)
from millstream.train.evaluate.streams import BatchStream, Tick, row_groups
from millstream.train.pool_rendering import walk_vectors

SEED = 979_797
"""Seed of the scenes and tracks: no training has it, and no judge."""
RENDERED = (128, 128)
"""Size of renders, whatever a model's: both judges see them smaller still."""
HALF_A_KEY = 0.5
"""Least motion that must be asked for, if its sign is to be right."""
ATTRIBUTES = ("setting", "time", "weather", "thing", "colour")
"""Attributes that a walker's prompt promises. Things are left behind by and by."""
LASTING = ("setting", "time", "weather")
"""Attributes that are still promised after a long walk."""
FIRST_SECONDS = 10.0
"""Seconds at each end of a long walk that are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Walked:
    """Scripted walks: scenes, tracks and what they ask for."""

    walks: Walks
    actions: Actions
    vectors_BFA: Tensor
    asked_BFM: Tensor

    def __len__(self) -> int:
        return len(self.walks)

    @property
    def prompts(self) -> list[str]:
        return plain_steered_captions(self.walks)


@dataclass(frozen=True, kw_only=True, slots=True)
class MotionFigures:
    """Motion that was read against what keys asked for, by the names of motions. None where there was nothing
    to measure by."""

    correlation: dict[str, float | None]
    """Over all latent frames of all walks."""
    right_sign: dict[str, float | None]
    """Share of the latent frames with at least half a key's worth in which it goes to that side."""
    frames: dict[str, int]
    """Number of those."""
    drift: dict[str, float | None]
    """Mean motion while nothing is held, in metres or degrees a second."""
    restless: dict[str, float | None]
    """Mean size of the same."""
    idle_frames: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SteeringFigures:
    """All that was found of a model's walks."""

    walks: int
    seconds: float
    streamed: MotionFigures
    rendered: MotionFigures | None
    """Motion that the judge reads in renders of some of the walks; None where none were rendered."""
    adherence: dict[str, dict[str, float]]
    """Share of the walks in which the classifier recognises each attribute: in the first two seconds, in the
    last, and in the first two of those that were rendered."""
    crispness: float
    """Strength of edges in the last two seconds, relative to the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LongWalk:
    """Long random walks: their last ten seconds beside their first."""

    walks: int
    seconds: float
    motion_first: MotionFigures
    motion_last: MotionFigures
    adherence: dict[str, dict[str, float]]
    """Share of the walks in which the classifier recognises what lasts: at ten seconds, at the end."""
    crispness: float
    """Strength of edges at the end, relative to that at ten seconds."""


def actions_of_model(model: LoadedModel) -> ActionsConfig:
    """Return the keys that a model takes; raise ConfigError if it takes none."""
    actions = model.spec.conditions.actions
    if actions is None or not actions.keys:
        raise ConfigError(
            "this model takes no keys, so nobody walks in it; give one that learnt them with --weights "
            "(docs/training.md, A Brook to walk in)"
        )
    return actions


def scripted_walks(count: int, seconds: float, config: StreamConfig, takes: ActionsConfig) -> Walked:
    """Walks of held-out scenes on held-out tracks, as long as whole chunks that last `seconds`."""
    frames = config.frames_per_chunk * chunks_of(seconds, config)
    tracks = random_tracks(count, frames=pixel_frames(0, frames), seed=SEED, fps=FPS, held_out=True)
    vectors = walk_vectors(tracks, takes)
    return Walked(
        walks=sample_walks(count, seed=SEED, held_out=True),
        actions=tracks,
        vectors_BFA=vectors,
        asked_BFM=asked(vectors, takes),
    )


def chunks_of(seconds: float, config: StreamConfig) -> int:
    """At least as many as the classifier looks at."""
    least = max(FRAMES, seconds * config.fps)
    return math.ceil(
        (least + 3) / pixel_frames(1, config.frames_per_chunk)
    )  # 3: the first latent frame has one


def steering_ticks(count: int, seconds: float, config: StreamConfig, model: LoadedModel) -> int:
    return len(row_groups(count, model.device)) * chunks_of(seconds, config)


def measure_steering(
    model: LoadedModel,
    judge: MotionJudge,
    classifier: AttributeNet,
    *,
    config: StreamConfig,
    count: int,
    seconds: float,
    renders: int = 0,
    tick: Tick = lambda: None,
) -> SteeringFigures:
    """Stream `count` walks, and read their motion; of `renders` of them what the judge reads in renders."""
    walked = scripted_walks(count, seconds, config, actions_of_model(model))
    motions = []
    looks: list[tuple[Impression, Impression]] = []
    for rows in row_groups(count, model.device):
        read, begun, ended = _watch(model, judge, walked, rows, config, tick)
        motions.append(read)
        looks.append((impression(classifier, begun), impression(classifier, ended)))
    first, last = (joined([pair[i] for pair in looks]) for i in range(2))
    wanted = shown(walked.walks.scenes)
    found_BFM = torch.cat(motions)
    adherence = {"first": _named(first, wanted), "last": _named(last, wanted)}
    rendered = None
    if renders:
        part = min(renders, count)
        rendered, seen = _of_renders(judge, classifier, walked, part, model.device)
        adherence["rendered"] = _named(seen, {name: is_B[:part] for name, is_B in wanted.items()})
    return SteeringFigures(
        walks=count,
        seconds=seconds,
        streamed=motion_figures(found_BFM, walked.asked_BFM[:, 1:]),
        rendered=rendered,
        adherence=adherence,
        crispness=float(last.edges.mean() / first.edges.mean()),
    )


def measure_long_walk(
    model: LoadedModel,
    judge: MotionJudge,
    classifier: AttributeNet,
    *,
    config: StreamConfig,
    count: int,
    seconds: float,
    tick: Tick = lambda: None,
) -> LongWalk:
    """Stream `count` walks for long."""
    walked = scripted_walks(count, seconds, config, actions_of_model(model))
    motions = []
    looks: list[tuple[Impression, Impression]] = []
    for rows in row_groups(count, model.device):
        read, begun, ended = _watch(model, judge, walked, rows, config, tick, first_second=FIRST_SECONDS)
        motions.append(read)
        looks.append((impression(classifier, begun), impression(classifier, ended)))
    first, last = (joined([pair[i] for pair in looks]) for i in range(2))
    wanted = shown(walked.walks.scenes)
    found_BFM = torch.cat(motions)
    asked_BFM = walked.asked_BFM[:, 1:]
    part = round(FIRST_SECONDS / SECONDS)
    lasting = {"first": _named(first, wanted), "last": _named(last, wanted)}
    return LongWalk(
        walks=count,
        seconds=seconds,
        motion_first=motion_figures(found_BFM[:, :part], asked_BFM[:, :part]),
        motion_last=motion_figures(found_BFM[:, -part:], asked_BFM[:, -part:]),
        adherence={when: {name: found[name] for name in LASTING} for when, found in lasting.items()},
        crispness=float(last.edges.mean() / first.edges.mean()),
    )


def motion_figures(found_BFM: Tensor, asked_BFM: Tensor) -> MotionFigures:
    """`found` and `asked` of the same latent frames, in units of a key."""
    assert found_BFM.shape == asked_BFM.shape, f"{found_BFM.shape} read and {asked_BFM.shape} asked for"
    found = found_BFM.double().cpu()
    wanted = asked_BFM.double().cpu()
    idle_BF = (wanted == 0).all(dim=-1)
    correlation = dict[str, float | None]()
    right = dict[str, float | None]()
    frames = dict[str, int]()
    drift = dict[str, float | None]()
    restless = dict[str, float | None]()
    for number, name in enumerate(MOTIONS):
        read = found[..., number]
        told = wanted[..., number]
        correlation[name] = _correlation(read.flatten(), told.flatten())
        asked_for = told.abs() >= HALF_A_KEY
        frames[name] = int(asked_for.sum())
        right[name] = _mean((read.sign() == told.sign())[asked_for])
        a_second = read[idle_BF] * UNITS[number] / SECONDS
        drift[name] = _mean(a_second)
        restless[name] = _mean(a_second.abs())
    return MotionFigures(
        correlation=correlation,
        right_sign=right,
        frames=frames,
        drift=drift,
        restless=restless,
        idle_frames=int(idle_BF.sum()),
    )


def _watch(
    model: LoadedModel,
    judge: MotionJudge,
    walked: Walked,
    rows: slice,
    config: StreamConfig,
    tick: Tick,
    *,
    first_second: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Motions of some walks' streams [B, F, M], and as bytes two seconds that end at `first_second` or as soon as
    there are two, and the last two."""
    stream = BatchStream(
        model,
        walked.prompts[rows],
        range(rows.start, rows.stop),
        config=config,
        actions_BFA=walked.vectors_BFA[rows],
    )
    motions = []
    recent: Tensor | None = None
    num_shown = 0
    begun: Tensor | None = None
    before: Tensor | None = None
    for _ in range(walked.vectors_BFA.shape[1] // config.frames_per_chunk):
        chunk = stream.advance()
        tick()
        seen = chunk if before is None else torch.cat([before, chunk], dim=1)
        if seen.shape[1] > 1:
            motions.append(read_motion(judge, seen))
        before = chunk[:, -1:]
        num_shown += chunk.shape[1]
        recent = chunk if recent is None else torch.cat([recent, chunk], dim=1)[:, -FRAMES:]
        if begun is None and num_shown >= max(FRAMES, first_second * config.fps):
            begun = recent
    begun = begun if begun is not None else recent
    assert recent is not None, "a walk has at least one chunk"
    assert begun is not None, "a walk has at least one chunk"
    return torch.cat(motions, dim=1), begun, recent


def _of_renders(
    judge: MotionJudge, classifier: AttributeNet, walked: Walked, count: int, device: torch.device
) -> tuple[MotionFigures, Impression]:
    """What the judge reads in the walks as they are rendered, against how the camera was moved; and what the
    classifier sees in their first two seconds."""
    walks = walked.walks[:count]
    poses = walk(walks, walked.actions[:count], fps=FPS)
    found = []
    seen = []
    for row in range(count):
        one = slice(row, row + 1)
        pose = type(poses)(
            x=poses.x[one], y=poses.y[one], z=poses.z[one], yaw=poses.yaw[one], pitch=poses.pitch[one]
        )
        pixels = render_walks(walks[one], pose, size=RENDERED, fps=FPS, device=device).pixels
        found.append(read_motion(judge, to_bytes(pixels)))
        seen.append(impression(classifier, to_bytes(pixels[:, :FRAMES])))
    return motion_figures(torch.cat(found), moved(poses)), joined(seen)


def _named(seen: Impression, wanted: Mapping[str, Tensor]) -> dict[str, float]:
    found = accuracy(seen.named, wanted)
    return {name: found[name] for name in ATTRIBUTES}


def _mean(numbers: Tensor) -> float | None:
    return float(numbers.double().mean()) if len(numbers) else None


def _correlation(read: Tensor, told: Tensor) -> float | None:
    if len(read) < 2 or not told.std() or not read.std():
        return None
    return float(torch.corrcoef(torch.stack([read, told]))[0, 1])
