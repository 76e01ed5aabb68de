"""Rewards by a classifier: how sure it is that a clip shows what its prompt says.

A prompt that does not mention an attribute is not asked for it. Of two things either may be the one that is recognised: no
classifier can know which was said first. Knows Brook's world alone: its captions and its classes.
Shapes: B clips, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from millstream.core.config import TEMPORAL_STRIDE
from millstream.ops.pixels import from_bytes
from millstream.trainer.data.captions import mentioned
from millstream.trainer.data.vocabulary import MOTIONS, THINGS, motions_of
from millstream.trainer.evaluate.classifier import FRAMES, GLIMPSED, AttributeNet, glimpsed, thinned
from millstream.trainer.evaluate.metrics import LOOKED_AT
from millstream.trainer.reward.clips import RewardClips


class AttributeReward:
    """The mean probability of what the prompt says, over these attributes, in the last two seconds."""

    def __init__(self, judge: AttributeNet, names: Sequence[str]) -> None:
        self._judge, self._names = judge, tuple(names)

    def __call__(self, clips: RewardClips) -> Tensor:
        return _mean_of_asked(look_probabilities(self._judge, clips, self._names))


class SwitchAnswered:
    """The same at a glimpse of the second chunk after a prompt was switched. Clips without a switch get 0, all alike."""

    def __init__(self, judge: AttributeNet, frames_per_chunk: int) -> None:
        self._judge, self._frames = judge, TEMPORAL_STRIDE * frames_per_chunk

    def __call__(self, clips: RewardClips) -> Tensor:
        if not clips.is_switched:
            return torch.zeros(len(clips), device=clips.pixels_BTCYX.device)
        chunk = clips.pixels_BTCYX[:, self._frames : 2 * self._frames]
        looks = [glimpsed(from_bytes(part)) for part in chunk.split(LOOKED_AT)]
        return _mean_of_asked(_probabilities(self._judge, looks, clips.prompts, GLIMPSED))


def look_probabilities(judge: AttributeNet, clips: RewardClips, names: Sequence[str]) -> Tensor:
    """Of what the prompts say, in the last two seconds, [B, names]; no number where a prompt does not say it."""
    assert clips.pixels_BTCYX.shape[1] >= FRAMES, f"a look has {FRAMES} frames, clips {clips.pixels_BTCYX.shape[1]}"
    looks = [thinned(from_bytes(part[:, -FRAMES:])) for part in clips.pixels_BTCYX.split(LOOKED_AT)]
    return _probabilities(judge, looks, clips.prompts, names)


@torch.no_grad()
def _probabilities(judge: AttributeNet, looks: Sequence[Tensor], prompts: Sequence[str], names: Sequence[str]) -> Tensor:
    scores = [judge(look) for look in looks]
    asked = [asked_of(prompt) for prompt in prompts]
    return torch.stack([_sure_of(torch.cat([score[name] for score in scores]), asked, name) for name in names], dim=1)


def asked_of(prompt: str) -> dict[str, tuple[int, ...]]:
    """What a stream of this prompt must show, any of those that are named. Of two things not what the prompt leaves open for
    one: its colour, or how it moves if it cannot move as the other."""
    found = mentioned(prompt)
    things = found.get("thing", ())
    if len(found.get("colour", ())) < len(things):
        found.pop("colour", None)
    if not all(MOTIONS[motion] in motions_of(THINGS[thing]) for motion in found.get("motion", ()) for thing in things):
        del found["motion"]
    return found


def _sure_of(scores_BC: Tensor, asked: Sequence[dict[str, tuple[int, ...]]], name: str) -> Tensor:
    """The probability of any of what each row is asked for; no number where it is not asked."""
    wanted_BC = torch.zeros(scores_BC.shape)
    for row, ids in enumerate(asked):
        wanted_BC[row, list(ids.get(name, ()))] = 1.0
    sure_B = (scores_BC.float().softmax(dim=1) * wanted_BC.to(scores_BC.device)).sum(dim=1)
    return sure_B.masked_fill(wanted_BC.sum(dim=1).to(scores_BC.device) == 0, torch.nan)


def _mean_of_asked(found_BA: Tensor) -> Tensor:
    """0 where nothing was asked for."""
    return found_BA.nanmean(dim=1).nan_to_num(0.0)
