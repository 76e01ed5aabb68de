"""Rendering of what Brook learns from: clips of scenes, of one turning into another and of walks, each encoded,
with its captions and what was held in each latent frame.

A batch of clips at a time, and each batch by its number alone: a run that was cut short renders the rest.
Shapes: B and K clips, W wordings, S text tokens, T pixel frames, F latent frames, C channels, Y and X rows and
columns, A numbers of an action.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from millstream.core.config import (
    SPATIAL_STRIDE,
    TEMPORAL_STRIDE,
    ActionsConfig,
    BrookTextConfig,
    ModelSpec,
    pixel_frames,
)
from millstream.core.errors import ConfigError
from millstream.models.brook.text import WordTokenizer, padded
from millstream.models.brook.vae import BrookVAE
from millstream.ops.pixels import to_bytes
from millstream.ops.precision import mixed_precision, working_dtype
from millstream.train.data.actions_file import KEYS
from millstream.train.data.captions import WORDS, captions
from millstream.train.data.frame_actions import grouped_actions, numbers_of
from millstream.train.data.render import FPS, render
from millstream.train.data.scene import Scenes, attributes, sample_scenes
from millstream.train.data.walk.actions import Actions
from millstream.train.data.walk.captions import ALL_WORDS, steered_captions, walk_captions
from millstream.train.data.walk.clips import WalkClips, walk_clips
from millstream.train.data.walk.render import render_walks
from millstream.train.data.walk.scene import sample_walks
from millstream.train.data.walk.walker import walk
from millstream.train.evaluate.classifier import thinned
from millstream.train.plan import RunPlan
from millstream.train.pool import LatentPool, PixelPool

SWITCH_FRAME = 6
SWITCH_LENGTH = 3
"""Latent frames: a switch comes after a window's worth of another scene, and takes one chunk."""
MINUTE = 16 * 60
"""Frames: clips begin anywhere in a scene's first minute."""
FIRST_CHUNK = 3
"""Latent frames."""
UP_TO_DOWN = (1.0, -1.0)
"""A walker looks to the right and up; a control's look, and so a model's, is to the right and down."""
VAE_WALKS = 1
SWITCHED_WALKS = 2
LEFT_WALKS = 3
"""Offsets of seeds: of walks that the VAE learns, of those that others turn into, and of those others."""
SEEDS = 4
LABEL = "label."
"""Prefix of a part's labels."""

Part = dict[str, Tensor]
"""A batch of clips: `latents`, `ids`, `true_from`, and `actions`, `things`, `looks` and labels where it has any."""
Kept = Callable[[str, Callable[[], Part]], Part]
"""Returns the part of a name, making it unless it is there."""


def made_now(name: str, make: Callable[[], Part]) -> Part:
    """Keep nothing."""
    return make()


def vocabulary_of(plan: RunPlan) -> tuple[str, ...]:
    """Words of all captions of a run."""
    return ALL_WORDS if plan.pool.has_walks else WORDS


def check_walks(plan: RunPlan) -> None:
    """Raise ConfigError for keys that cannot be learnt from walks."""
    actions = plan.actions
    if actions is None:
        return
    if not plan.pool.walks:
        raise ConfigError("keys are learnt from walks; set pool.walks above 0, or leave actions out")
    unknown = [key for key in actions.keys if key not in KEYS]
    if unknown or actions.axes or len(set(actions.keys)) != len(actions.keys):
        raise ConfigError(
            f"actions of walks are keys, each once, out of {', '.join(KEYS)}, and look; got "
            f"{', '.join(actions.keys)}{' and axes' if actions.axes else ''}"
        )


def rendered_walks(
    plan: RunPlan, first: int, count: int, frames: int, device: torch.device, *, kind: int = 0
) -> WalkClips:
    """Clips `first` to `first + count` of one kind, which no other kind has."""
    size = (plan.pool.size, plan.pool.size)
    seed = plan.seed * SEEDS + kind
    return walk_clips(count, seed=seed, frames=frames, size=size, start=first, device=device)


def walk_vectors(actions: Actions, config: ActionsConfig) -> Tensor:
    """Return the actions of each latent frame [B, F, A]."""
    look = actions.look * actions.look.new_tensor(UP_TO_DOWN)
    return grouped_actions(numbers_of(actions.keys, look, KEYS, config), config)


def walk_wordings(clips: WalkClips, plan: RunPlan) -> Callable[[int], list[str]]:
    """Return how captions of the clips are worded, by a seed."""
    if plan.actions is None:
        return lambda seed: walk_captions(clips.walks, clips.attributes, seed=seed)
    held_BF = walk_vectors(clips.actions, plan.actions).any(dim=-1)
    keys_say_it = held_BF[:, :FIRST_CHUNK].any(dim=1).tolist()
    return lambda seed: steered_captions(clips.walks, clips.attributes, keys_say_it, seed=seed)


def covered(masks_BT2YX: Tensor) -> Tensor:
    """Return the share of each latent cell that any thing covers [B, F, Y, X], of 255: the most in its frames."""
    batch, frames = masks_BT2YX.shape[:2]
    assert frames % TEMPORAL_STRIDE == 1, f"{frames} frames are not 1 and then groups of {TEMPORAL_STRIDE}"
    any_thing = masks_BT2YX.amax(dim=2).flatten(0, 1)[:, None].float()
    cells_BTYX = functional.avg_pool2d(any_thing, SPATIAL_STRIDE)[:, 0].unflatten(0, (batch, frames))
    later = cells_BTYX[:, 1:].unflatten(1, (-1, TEMPORAL_STRIDE)).amax(dim=2)
    return torch.cat([cells_BTYX[:, :1], later], dim=1).round().to(torch.uint8)


@torch.no_grad()
def render_clips(plan: RunPlan, device: torch.device) -> PixelPool:
    """Short clips for the VAE."""
    frames = pixel_frames(0, plan.pool.vae_latent_frames)
    size = (plan.pool.size, plan.pool.size)
    parts = []
    for number, count in enumerate(batches(plan.pool.vae_clips, plan.pool.batch)):
        scenes, start = scenes_of(plan, -1 - number, count, device)
        parts.append(to_bytes(render(scenes, start=start, frames=frames, size=size)))
    first = 0
    for count in batches(plan.pool.vae_walks, plan.pool.walk_batch):
        walks = rendered_walks(plan, first, count, frames, device, kind=VAE_WALKS)
        parts.append(to_bytes(walks.rendered.pixels))
        first += count
    return PixelPool(pixels_KTCYX=torch.cat(parts), labels={})


def render_pools(
    plan: RunPlan,
    vae: BrookVAE,
    tokenizer: WordTokenizer,
    spec: ModelSpec,
    device: torch.device,
    kept: Kept = made_now,
) -> tuple[LatentPool, PixelPool]:
    """Latents with captions for the DiT and labelled thumbnails for the classifier, from one rendering."""
    rendering = PoolRendering(plan=plan, vae=vae, tokenizer=tokenizer, spec=spec, device=device)
    return joined([*rendering.scenes(kept), *rendering.walks(kept)])


def joined(parts: Sequence[Part]) -> tuple[LatentPool, PixelPool]:
    """Return all clips as the DiT learns them, and the thumbnails of those that have any."""

    def every(name: str) -> Tensor:
        return torch.cat([part[name] for part in parts if name in part])

    def of_all(name: str) -> Tensor | None:
        """Zeros for clips without; None if no clip has it."""
        shape = next((part[name][:1] for part in parts if name in part), None)
        if shape is None:
            return None
        rows = [
            part[name] if name in part else shape.new_zeros((len(part["latents"]), *shape.shape[1:]))
            for part in parts
        ]
        return torch.cat(rows)

    labels = [name for name in parts[0] if name.startswith(LABEL)]
    return (
        LatentPool(
            latents_KFCYX=every("latents"),
            ids_KWS=every("ids"),
            true_from_K=every("true_from"),
            actions_KFA=of_all("actions"),
            walks_K=of_all("walks"),
            things_KFYX=of_all("things"),
        ),
        PixelPool(
            pixels_KTCYX=every("looks"), labels={name.removeprefix(LABEL): every(name) for name in labels}
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRendering:
    """Renders and encodes batches of clips, with the VAE as it is."""

    plan: RunPlan
    vae: BrookVAE
    tokenizer: WordTokenizer
    spec: ModelSpec
    device: torch.device

    @torch.no_grad()
    def scenes(self, kept: Kept) -> Iterator[Part]:
        """Yield clips of scenes that pan past, then of one turning into another."""
        pool = self.plan.pool
        number = 0
        for count in batches(pool.clips, pool.batch):
            yield kept(f"scenes-{number:04d}-{count}", partial(self._scenes, number, count))
            number += 1
        for count in batches(pool.switches, pool.batch):
            yield kept(f"switches-{number:04d}-{count}", partial(self._switches, number, count))
            number += 1

    @torch.no_grad()
    def walks(self, kept: Kept) -> Iterator[Part]:
        """Yield clips of one walk turning into another, then of walks: as many as there is time for, and one
        batch at least."""
        pool = self.plan.pool
        begun = time.perf_counter()
        first = 0
        for count in batches(pool.walk_switches, pool.walk_batch):
            yield kept(f"walk-switches-{first:05d}-{count}", partial(self._walk_switches, first, count))
            first += count
        first = 0
        for count in batches(pool.walks, pool.walk_batch):
            if first and pool.walk_seconds and time.perf_counter() - begun > pool.walk_seconds:
                return
            yield kept(f"walks-{first:05d}-{count}", partial(self._walks, first, count))
            first += count

    @property
    def _frames(self) -> int:
        return pixel_frames(0, self.plan.pool.latent_frames)

    def _scenes(self, number: int, count: int) -> Part:
        scenes, start = scenes_of(self.plan, number, count, self.device)
        pixels = self._render(scenes, start)
        return self._part(pixels, number, lambda seed: captions(scenes, seed=seed)) | _looks(pixels, scenes)

    def _switches(self, number: int, count: int) -> Part:
        (before, early), (after, late) = (
            scenes_of(self.plan, 2 * number + i, count, self.device) for i in range(2)
        )
        old, new = (self._render(scenes, start) for scenes, start in ((before, early), (after, late)))
        pixels = torch.lerp(old, new, dissolve(self._frames, self.device))
        return self._part(pixels, number, lambda seed: captions(after, seed=seed), true_from=SWITCH_FRAME)

    def _walks(self, first: int, count: int) -> Part:
        clips = rendered_walks(self.plan, first, count, self._frames, self.device)
        pixels = clips.rendered.pixels
        part = self._part(pixels, first, walk_wordings(clips, self.plan)) | self._walked(clips)
        on_host = clips.walks.scenes
        scenes = Scenes(
            **{field.name: getattr(on_host, field.name).to(self.device) for field in fields(on_host)}
        )
        return part | _looks(pixels, scenes) | {"things": covered(clips.rendered.masks)}

    def _walk_switches(self, first: int, count: int) -> Part:
        """Both walks are under the same keys, as when a prompt is switched on the way."""
        after = rendered_walks(self.plan, first, count, self._frames, self.device, kind=SWITCHED_WALKS)
        left = sample_walks(count, seed=self.plan.seed * SEEDS + LEFT_WALKS, held_out=False, start=first)
        poses = walk(left, after.actions, fps=FPS)
        size = (self.plan.pool.size, self.plan.pool.size)
        before = render_walks(left, poses, size=size, fps=FPS, device=self.device)
        pixels = torch.lerp(before.pixels, after.rendered.pixels, dissolve(self._frames, self.device))
        wordings = walk_wordings(after, self.plan)
        return self._part(pixels, first, wordings, true_from=SWITCH_FRAME) | self._walked(after)

    def _render(self, scenes: Scenes, start: int) -> Tensor:
        size = (self.plan.pool.size, self.plan.pool.size)
        return render(scenes, start=start, frames=self._frames, size=size)

    def _walked(self, clips: WalkClips) -> Part:
        walked = {"walks": torch.ones(len(clips.walks), dtype=torch.bool, device=self.device)}
        if self.plan.actions is None:
            return walked
        return walked | {"actions": walk_vectors(clips.actions, self.plan.actions).to(self.device)}

    def _part(
        self, pixels: Tensor, number: int, wordings: Callable[[int], list[str]], *, true_from: int = 0
    ) -> Part:
        plan = self.plan
        assert isinstance(self.spec.text, BrookTextConfig)
        with mixed_precision(self.device):
            latents = self.vae.encode(pixels)[0].to(working_dtype(self.device))
        texts = [wordings(plan.seed + plan.pool.wordings * number + w) for w in range(plan.pool.wordings)]
        ids = [padded(self.tokenizer, text, self.spec.text.tokens) for text in texts]
        return {
            "latents": latents,
            "ids": torch.stack(ids, dim=1).to(self.device),
            "true_from": torch.full((len(pixels),), true_from, device=self.device),
        }


def _looks(pixels: Tensor, scenes: Scenes) -> Part:
    """Thumbnails for the classifier, with what they show."""
    labels = {LABEL + name: found for name, found in attributes(scenes).items()}
    return {"looks": to_bytes(thinned(pixels))} | labels


def dissolve(frames: int, device: torch.device) -> Tensor:
    """Return the share of the second scene that each pixel frame shows [T, 1, 1, 1]: all of it one chunk
    after the switch."""
    first = pixel_frames(0, SWITCH_FRAME)
    last = pixel_frames(0, SWITCH_FRAME + SWITCH_LENGTH)
    share = ((torch.arange(frames, device=device) - first + 1) / (last - first)).clamp(0, 1)
    return (share * share * (3 - 2 * share))[:, None, None, None]


def batches(total: int, size: int) -> list[int]:
    return [min(size, total - done) for done in range(0, total, size)]


def scenes_of(plan: RunPlan, number: int, count: int, device: torch.device) -> tuple[Scenes, int]:
    """A batch of scenes no other batch has, and the moment at which its clips begin."""
    seed = (plan.seed + 1) * 1_000_003 + number
    return sample_scenes(count, seed=seed, device=device), seed * 37 % MINUTE
