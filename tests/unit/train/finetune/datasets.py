"""A dataset small enough for tests, written as `millstream train data prepare` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from millstream.core.config import SPATIAL_STRIDE, ActionsConfig, ModelSpec
from millstream.core.presets import find_model
from millstream.train.finetune.dataset import (
    Clip,
    DatasetCard,
    EncodedClip,
    shard_path,
    write_card,
    write_shard,
)
from millstream.train.finetune.recipe import TuningRecipe

SPEC = find_model("wan-tiny")
FRAMES = 6
SIZE = (4, 4)
PER_SHARD = 3


def small_dataset(
    folder: Path,
    clips: int = 7,
    *,
    sizes: Sequence[tuple[int, int]] = (SIZE,),
    spec: ModelSpec = SPEC,
    frames: int = FRAMES,
    actions: ActionsConfig | None = None,
) -> Path:
    """Clips of these latent sizes in turn, with random keys held if they have actions."""
    generator = torch.Generator().manual_seed(5)
    text = (spec.dit.text_tokens, spec.dit.text_width)
    card = DatasetCard(
        model=spec.name,
        fingerprint="",
        sizes=tuple(map(in_pixels, sizes)),
        fps=16.0,
        latent_frames=frames,
        clips_per_video=1,
        actions=actions,
        videos_per_shard=PER_SHARD,
        videos=clips,
    )
    write_card(folder, card, torch.zeros(text))
    made = [
        EncodedClip(
            Clip(
                video=f"{number}.mp4",
                size=in_pixels(sizes[number % len(sizes)]),
                start_s=0.0,
                caption=f"clip {number}",
            ),
            torch.randn(frames, spec.dit.channels, *sizes[number % len(sizes)], generator=generator),
            torch.randn(text, generator=generator),
            None if actions is None else torch.rand(frames, actions.features, generator=generator).round(),
        )
        for number in range(clips)
    ]
    for number in range(card.shards):
        write_shard(shard_path(folder, number), made[number * PER_SHARD : (number + 1) * PER_SHARD], [])
    return folder


def in_pixels(latent_size: tuple[int, int]) -> tuple[int, int]:
    return SPATIAL_STRIDE * latent_size[0], SPATIAL_STRIDE * latent_size[1]


def recipe(**changed: object) -> TuningRecipe:
    given: dict[str, object] = {
        "model": SPEC.name,
        "weights": ("random:3",),
        "data": "clips",
        "steps": 6,
        "batch": 4,
        "lr": 1e-2,
        "warm_up": 1,
        "frames_per_chunk": 2,
        "window": 4,
        "checkpoint_every": 2,
    }
    return TuningRecipe(**{**given, **changed})  # type: ignore[arg-type]
