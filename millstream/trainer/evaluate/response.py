"""How soon does a stream show a switched prompt? The judge glimpses every chunk after the switch until it recognises it.

Only what differs between the two scenes is asked for, and only what the judge recognises in a glimpse of the new one's render.
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
from millstream.trainer.data.captions import canonical_captions
from millstream.trainer.data.render import render
from millstream.trainer.data.scene import Scenes, sample_scenes, shown
from millstream.trainer.evaluate.classifier import GLIMPSED, AttributeNet, glimpsed
from millstream.trainer.evaluate.metrics import is_shown
from millstream.trainer.evaluate.streams import BatchStream, PromptSwitch, Tick, row_groups

MODES: tuple[Switch, ...] = ("cut", "recompute", "blend", "keep")
SEED = 434343
"""Of the scenes before the switch; those after it have the next one."""
SWITCH_AT = 4
"""Chunks before the switch: the window is full by then."""
WATCHED = 8
"""Chunks after it. A stream that has not followed by then counts as that many."""
PROMPT = 2
"""Chunks within which a stream should have followed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """Chunks until a switched prompt is recognised; the chunk of the switch is the first."""

    mode: Switch
    chunks: tuple[int, ...]
    """One a stream."""
    never: int
    """Streams that did not follow at all."""
    median: float
    mean: float
    prompt: float
    """Share of streams that followed within two chunks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Scenes to switch between, and which attributes of the second tell that it is seen."""

    before: Scenes
    after: Scenes
    asked: Mapping[str, Tensor]
    """Per attribute, of which rows it is asked [B]."""

    def __len__(self) -> int:
        return len(self.before)

    def __getitem__(self, rows: slice | Tensor) -> Pairs:
        asked = {name: of[rows] for name, of in self.asked.items()}
        return Pairs(before=self.before[rows], after=self.after[rows], asked=asked)


def draw_pairs(judge: AttributeNet, count: int, *, config: StreamConfig, device: torch.device) -> Pairs:
    """At most `count`: pairs that differ in nothing the judge recognises are left out."""
    before, after = (sample_scenes(count, seed=seed, device=device) for seed in (SEED, SEED + 1))
    old, new = shown(before), shown(after)
    frames, size = pixel_frames(0, config.frames_per_chunk), (config.height, config.width)
    rendered = (to_bytes(render(after[rows], frames=frames, size=size)) for rows in row_groups(count, device))
    real = [_named(judge, pixels) for pixels in rendered]
    found = {name: torch.cat([named[name] for named in real]) for name in GLIMPSED}
    asked = {name: ~(old[name] & new[name]).any(dim=1) & is_shown(found[name], new[name]) for name in GLIMPSED}
    usable = torch.stack(list(asked.values())).any(dim=0).nonzero().flatten()
    return Pairs(before=before, after=after, asked=asked)[usable]


def measure_response(
    model: LoadedModel, judge: AttributeNet, pairs: Pairs, mode: Switch, *, config: StreamConfig, tick: Tick = lambda: None
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
    """How often `measure_response` will tick."""
    return len(row_groups(pairs, device)) * (SWITCH_AT + WATCHED)


def _follow(stream: BatchStream, judge: AttributeNet, pairs: Pairs, tick: Tick) -> Tensor:
    """[B, chunks after the switch]: is the new prompt recognised there?"""
    wanted, seen = shown(pairs.after), []
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
    """What the judge takes a chunk's attributes for [B], at a glimpse."""
    scores = judge(glimpsed(from_bytes(chunk_BTCYX)))
    return {name: scores[name].argmax(dim=1) for name in GLIMPSED}
