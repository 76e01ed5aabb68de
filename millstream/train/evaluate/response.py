"""Response of streams to a switched prompt: the judge glimpses every chunk after the switch until it
recognises the new one.

Only what differs between the two scenes is asked for, and only what the judge recognises in a glimpse of the
new one's render.
Shapes: B pairs, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.controls import Switch
from millstream.models.registry import LoadedModel
from millstream.ops.pixels import from_bytes, to_bytes
from millstream.train.data.captions import canonical_captions
from millstream.train.data.render import render
from millstream.train.data.scene import Scenes, sample_scenes, shown
from millstream.train.evaluate.classifier import GLIMPSED, AttributeNet, glimpsed
from millstream.train.evaluate.metrics import is_shown
from millstream.train.evaluate.streams import BatchStream, PromptSwitch, Tick, row_groups

MODES: tuple[Switch, ...] = ("cut", "recompute", "blend", "keep")
SEED = 434343
"""Seed of the scenes before the switch; those after it have the next one."""
SWITCH_AT = 4
"""Chunks before the switch: the window is full by then."""
WATCHED = 8
"""Chunks after the switch. A stream that has not followed by then counts as that many."""
PROMPT = 2
"""Chunks within which a stream should have followed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """Chunks until a switched prompt is recognised; the chunk of the switch is the first."""

    mode: Switch
    chunks: tuple[int, ...]
    """Number of chunks, one a stream."""
    never: int
    """Number of streams that did not follow at all."""
    median: float
    mean: float
    prompt: float
    """Share of streams that followed within two chunks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Scenes to switch between, and which attributes of the second show that it is there."""

    before: Scenes
    after: Scenes
    asked: Mapping[str, Tensor]
    """Mask of the rows that each attribute is asked of [B]."""

    def __len__(self) -> int:
        return len(self.before)

    def __getitem__(self, rows: slice | Tensor) -> Pairs:
        asked = {name: of[rows] for name, of in self.asked.items()}
        return Pairs(before=self.before[rows], after=self.after[rows], asked=asked)


def draw_pairs(judge: AttributeNet, count: int, *, config: StreamConfig, device: torch.device) -> Pairs:
    """Draw at most `count` pairs: those that differ in nothing the judge recognises are left out."""
    before, after = (sample_scenes(count, seed=seed, device=device) for seed in (SEED, SEED + 1))
    old = shown(before)
    new = shown(after)
    frames = pixel_frames(0, config.frames_per_chunk)
    size = (config.height, config.width)
    rendered = (to_bytes(render(after[rows], frames=frames, size=size)) for rows in row_groups(count, device))
    real = [_named(judge, pixels) for pixels in rendered]
    found = {name: torch.cat([named[name] for named in real]) for name in GLIMPSED}
    asked = {
        name: ~(old[name] & new[name]).any(dim=1) & is_shown(found[name], new[name]) for name in GLIMPSED
    }
    usable = torch.stack(list(asked.values())).any(dim=0).nonzero().flatten()
    return Pairs(before=before, after=after, asked=asked)[usable]


def measure_response(
    model: LoadedModel,
    judge: AttributeNet,
    pairs: Pairs,
    mode: Switch,
    *,
    config: StreamConfig,
    tick: Tick = lambda: None,
) -> Response:
    """Stream the first scene of every pair, switch to the second, and wait for the judge."""
    assert len(pairs), "no pair to switch between"
    parts = []
    for rows in row_groups(len(pairs), model.device):
        before, after = (canonical_captions(scenes[rows]) for scenes in (pairs.before, pairs.after))
        switch = PromptSwitch(prompts=after, mode=mode, at=SWITCH_AT)
        stream = BatchStream(model, before, range(rows.start, rows.stop), config=config, switch=switch)
        parts.append(_follow(stream, judge, pairs[rows], tick))
    followed = torch.cat(parts)
    at_last = followed.any(dim=1)
    chunks = torch.where(at_last, followed.int().argmax(dim=1) + 1, WATCHED).tolist()
    return Response(
        mode=mode,
        chunks=tuple(chunks),
        never=int((~at_last).sum()),
        median=statistics.median(chunks),
        mean=statistics.mean(chunks),
        prompt=sum(bool(row[:PROMPT].any()) for row in followed) / len(chunks),
    )


def response_ticks(pairs: int, device: torch.device) -> int:
    """Return how often `measure_response` will tick."""
    return len(row_groups(pairs, device)) * (SWITCH_AT + WATCHED)


def _follow(stream: BatchStream, judge: AttributeNet, pairs: Pairs, tick: Tick) -> Tensor:
    """Return whether the new prompt is recognised, [B, chunks after the switch]."""
    wanted = shown(pairs.after)
    seen = []
    for chunk in range(SWITCH_AT + WATCHED):
        pixels = stream.advance()
        tick()
        if chunk >= SWITCH_AT:
            named = _named(judge, pixels)
            right = [is_shown(named[name], wanted[name]) | ~asked for name, asked in pairs.asked.items()]
            seen.append(torch.stack(right).all(dim=0).cpu())
    return torch.stack(seen, dim=1)


@torch.inference_mode()
def _named(judge: AttributeNet, chunk_BTCYX: Tensor) -> dict[str, Tensor]:
    """Return the class of each of a chunk's attributes [B] that the judge recognises at a glimpse."""
    scores = judge(glimpsed(from_bytes(chunk_BTCYX)))
    return {name: scores[name].argmax(dim=1) for name in GLIMPSED}
