"""Rewards by a classifier: the probability it gives that a clip shows what its prompt says.

A prompt that does not mention an attribute is not asked for it. Of two things either may be the one that is
recognised: no classifier can know which was said first. Knows Brook's world alone: its captions and its
classes.
Shapes: B clips, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from millstream.core.config import TEMPORAL_STRIDE
from millstream.ops.pixels import from_bytes
from millstream.train.data.captions import mentioned
from millstream.train.data.vocabulary import MOTIONS, THINGS, motions_of
from millstream.train.evaluate.classifier import FRAMES, GLIMPSED, AttributeNet, glimpsed, thinned
from millstream.train.evaluate.metrics import LOOKED_AT
from millstream.train.loop import keyed_generator
from millstream.train.reward.clips import RewardClips
from millstream.train.reward.views import varied


class AttributeReward:
    """Reward that is the mean probability of what the prompt says, over these attributes, in the last two
    seconds; mean of `views` views of them, the first unchanged and the others `varied`."""

    def __init__(self, judge: AttributeNet, names: Sequence[str], views: int = 1) -> None:
        self._judge = judge
        self._names = tuple(names)
        self._views = views

    @torch.no_grad()
    def __call__(self, clips: RewardClips) -> Tensor:
        looks = _looks(clips)
        device = clips.pixels_BTCYX.device
        found = [_probabilities(self._judge, looks, clips.prompts, self._names)]
        for view in range(1, self._views):
            generator = keyed_generator(device, "view", view)
            found.append(
                _probabilities(
                    self._judge, [varied(look, generator) for look in looks], clips.prompts, self._names
                )
            )
        return _mean_of_asked(torch.stack(found).mean(dim=0))

    def log_worth(self, clips: RewardClips, generator: torch.Generator) -> Tensor:
        """Return the mean logarithm of these probabilities over `views` views, all of them varied, for
        gradients to follow. It is steep where a prompt is missed and flat where it is shown."""
        look = thinned(clips.pixels_BTCYX[:, -FRAMES:])
        views = ([varied(look, generator)] for _ in range(self._views))
        logs = torch.stack(
            [_log_probabilities(self._judge, view, clips.prompts, self._names) for view in views]
        )
        return _mean_of_asked(logs.mean(dim=0))


class SwitchAnswered:
    """Reward that is the mean probability of what the prompt says, at a glimpse of the second chunk after a
    switch of prompts. Clips without a switch all get 0."""

    def __init__(self, judge: AttributeNet, frames_per_chunk: int) -> None:
        self._judge = judge
        self._frames = TEMPORAL_STRIDE * frames_per_chunk

    @torch.no_grad()
    def __call__(self, clips: RewardClips) -> Tensor:
        if not clips.is_switched:
            return torch.zeros(len(clips), device=clips.pixels_BTCYX.device)
        chunk = clips.pixels_BTCYX[:, self._frames : 2 * self._frames]
        looks = [glimpsed(from_bytes(part)) for part in chunk.split(LOOKED_AT)]
        return _mean_of_asked(_probabilities(self._judge, looks, clips.prompts, GLIMPSED))


def look_probabilities(judge: AttributeNet, clips: RewardClips, names: Sequence[str]) -> Tensor:
    """Return the probability of what the prompts say, in the last two seconds, [B, names]; NaN where a prompt
    does not mention an attribute."""
    with torch.no_grad():
        return _probabilities(judge, _looks(clips), clips.prompts, names)


def _looks(clips: RewardClips) -> list[Tensor]:
    """Return looks at the last two seconds, some clips at a time."""
    assert clips.pixels_BTCYX.shape[1] >= FRAMES, (
        f"a look has {FRAMES} frames, clips {clips.pixels_BTCYX.shape[1]}"
    )
    return [thinned(from_bytes(part[:, -FRAMES:])) for part in clips.pixels_BTCYX.split(LOOKED_AT)]


def _probabilities(
    judge: AttributeNet, looks: Sequence[Tensor], prompts: Sequence[str], names: Sequence[str]
) -> Tensor:
    return _log_probabilities(judge, looks, prompts, names).exp()


def _log_probabilities(
    judge: AttributeNet, looks: Sequence[Tensor], prompts: Sequence[str], names: Sequence[str]
) -> Tensor:
    scores = [judge(look) for look in looks]
    asked = [asked_of(prompt) for prompt in prompts]
    return torch.stack(
        [_log_sure(torch.cat([score[name] for score in scores]), asked, name) for name in names], dim=1
    )


@lru_cache(maxsize=1024)  # every view asks again
def asked_of(prompt: str) -> dict[str, tuple[int, ...]]:
    """Return the ids that a stream of this prompt must show, any one of each attribute's. Of two things, an
    attribute that the prompt leaves open for one is left out: the colour, or the motion where the other thing
    cannot move so."""
    found = mentioned(prompt)
    things = found.get("thing", ())
    if len(found.get("colour", ())) < len(things):
        found.pop("colour", None)
    if not all(
        MOTIONS[motion] in motions_of(THINGS[thing]) for motion in found.get("motion", ()) for thing in things
    ):
        del found["motion"]
    return found


def _log_sure(scores_BC: Tensor, asked: Sequence[dict[str, tuple[int, ...]]], name: str) -> Tensor:
    """Return the logarithm of the probability of any of the ids that each row is asked for; NaN where it is
    not asked."""
    wanted_BC = torch.zeros(scores_BC.shape, dtype=torch.bool)
    for row, ids in enumerate(asked):
        wanted_BC[row, list(ids.get(name, ()))] = True
    unasked_B = ~wanted_BC.any(dim=1)
    wanted_BC = (wanted_BC | unasked_B[:, None]).to(scores_BC.device)
    unasked_B = unasked_B.to(scores_BC.device)
    sure_B = scores_BC.float().log_softmax(dim=1).masked_fill(~wanted_BC, -torch.inf).logsumexp(dim=1)
    return sure_B.masked_fill(unasked_B, torch.nan)


def _mean_of_asked(found_BA: Tensor) -> Tensor:
    """Return the mean over the attributes that are asked for; 0 where none is."""
    asked_BA = ~found_BA.isnan()
    return found_BA.where(asked_BA, 0.0).sum(dim=1) / asked_BA.sum(dim=1).clamp_min(1)
