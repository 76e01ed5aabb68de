"""Rewards of a run together: named in its recipe, weighted, timed, and isolated from the run.

A reward that raises, hangs, or returns no number costs its clip and a message, never the run's state; too
many clips in a row end the run.
Shapes: B clips, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from millstream.core.errors import ConfigError, RewardFailed
from millstream.train.data.vocabulary import CLASSES
from millstream.train.evaluate.classifier import JUDGE, load_classifier
from millstream.train.reward.analytic import ANALYTIC
from millstream.train.reward.attributes import AttributeReward, SwitchAnswered
from millstream.train.reward.clips import Reward, RewardClips
from millstream.train.reward.outside import ClipScore, HTTPScore, find_function

BUNDLED = "bundled"


class RewardPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plan of one reward, a `[[rewards]]` of a recipe."""

    kind: Literal[
        "attributes", "switch", "motion", "brightness", "flicker", "edges", "colour_drift", "python", "http"
    ]
    scale: float = 1.0
    """Weight of the reward; below 0, less is better."""
    names: tuple[str, ...] = ("thing", "motion")
    """Names of the attributes, for `attributes`."""
    classifier: str = BUNDLED
    """Classifier that is used, for `attributes` and `switch`."""
    views: int = 1
    """Number of slightly different views of each clip, for `attributes`."""
    call: str = ""
    """Function to call, as module:function, for `python`."""
    url: str = ""
    """Address of the service, for `http`."""
    timeout_s: float = 10.0
    """Seconds that a clip may take, for `python` and `http`."""

    def check(self) -> None:
        if unknown := [name for name in self.names if name not in CLASSES]:
            raise ConfigError(f"no attribute is called {', '.join(unknown)}; known: {', '.join(CLASSES)}")
        if not math.isfinite(self.scale) or self.timeout_s <= 0 or self.views < 1:
            raise ConfigError(
                "a reward's scale is a number, its time-out above 0 and its views 1 or more, "
                f"got {self.scale}, {self.timeout_s} and {self.views}"
            )
        if (self.kind == "python" and not self.call) or (self.kind == "http" and not self.url):
            raise ConfigError(
                f'a reward of kind "{self.kind}" needs {"call" if self.kind == "python" else "url"}'
            )

    @property
    def is_followed(self) -> bool:
        """True if the reward has gradients from pictures to their worth."""
        return self.kind == "attributes" or self.kind in ANALYTIC

    @property
    def classifier_path(self) -> Path | None:
        """Path of the classifier, if the reward uses one."""
        if self.kind not in ("attributes", "switch"):
            return None
        return JUDGE if self.classifier == BUNDLED else Path(self.classifier)


@dataclass(slots=True)
class RewardTerm:
    """Reward of a set, and what it has cost so far."""

    name: str
    reward: Reward
    scale: float
    seconds: float = 0.0
    clips: int = 0

    @property
    def cost_s(self) -> float:
        """Measured seconds a clip."""
        return self.seconds / self.clips if self.clips else 0.0

    def __call__(self, clips: RewardClips) -> Tensor:
        begun = time.perf_counter()
        found = self.reward(clips)
        if found.shape != (len(clips),):
            raise ValueError(f"returned the shape {tuple(found.shape)} for {len(clips)} clips")
        self.seconds, self.clips = self.seconds + time.perf_counter() - begun, self.clips + len(clips)
        return found.float().to(clips.pixels_BTCYX.device)


class Scored(NamedTuple):
    total_B: Tensor
    """Weighted sum of the rewards; 0 where it is not known."""
    known_B: Tensor
    terms: dict[str, float]
    """Mean of each reward over the clips whose sum is known."""
    said: list[str]
    """Messages, one for each clip or batch that was left out."""


@dataclass(slots=True)
class RewardSet:
    terms: Sequence[RewardTerm]
    patience: int = 8
    """Number of clips left out in a row that ends the run."""
    in_a_row: int = field(default=0, init=False)

    def followed(self, clips: RewardClips, generator: torch.Generator) -> Tensor:
        """Return the worth that gradients follow: logarithms of classifiers' probabilities, and formulas of
        pixels as they are."""
        worth = torch.zeros(len(clips), device=clips.pixels_BTCYX.device)
        for term in self.terms:
            if isinstance(term.reward, AttributeReward):
                worth = worth + term.scale * term.reward.log_worth(clips, generator)
            elif term.reward in ANALYTIC.values():
                worth = worth + term.scale * term.reward(clips)
        return worth

    def score(self, clips: RewardClips) -> Scored:
        total = torch.zeros(len(clips), device=clips.pixels_BTCYX.device)
        said = list[str]()
        found = dict[str, Tensor]()
        for term in self.terms:
            found[term.name] = self._ask(term, clips, said)
            total = total + term.scale * found[term.name]
        known = total.isfinite()
        self._count(known.tolist(), said)
        terms = {name: float(each[known].mean()) if known.any() else math.nan for name, each in found.items()}
        return Scored(total.nan_to_num(0.0, 0.0, 0.0), known, terms, said)

    def _ask(self, term: RewardTerm, clips: RewardClips, said: list[str]) -> Tensor:
        """Call a reward. It may be code from outside: whatever it raises costs this batch."""
        try:
            values = term(clips)
        except Exception as error:
            said.append(f"reward {term.name}: {_line(error)}; {len(clips)} clips left out")
            return torch.full((len(clips),), math.nan, device=clips.pixels_BTCYX.device)
        bad = int((~values.isfinite()).sum())
        if bad:
            why = f" ({term.reward.why})" if isinstance(term.reward, PerClipReward) else ""
            said.append(
                f"reward {term.name}: no number for {bad} of {len(clips)} clips{why}; they are left out"
            )
        return values

    def _count(self, known: Sequence[bool], said: Sequence[str]) -> None:
        for is_known in known:
            self.in_a_row = 0 if is_known else self.in_a_row + 1
            if self.in_a_row >= self.patience:
                raise RewardFailed(
                    f"{self.in_a_row} clips in a row had no reward: {said[-1]}; mend it, the run goes on "
                    "after"
                )


class PerClipReward:
    """Reward that scores each clip in turn by a function or service. A call that takes longer than the
    time-out is abandoned."""

    def __init__(self, score: ClipScore, timeout_s: float, patience: int) -> None:
        self._score = score
        self._timeout_s = timeout_s
        self._patience = patience
        self.why = ""
        """Last error."""

    def __call__(self, clips: RewardClips) -> Tensor:
        frames_BTYX3 = clips.pixels_BTCYX.permute(0, 1, 3, 4, 2).contiguous().cpu().numpy()
        values = list[float]()
        failed = 0
        for frames, prompt in zip(frames_BTYX3, clips.prompts, strict=True):
            value = (
                math.nan
                if failed >= self._patience
                else self._one(partial(self._score, frames, prompt, clips.fps))
            )
            failed = 0 if math.isfinite(value) else failed + 1
            values.append(value)
        return torch.tensor(values)

    def _one(self, call: Callable[[], Any]) -> float:
        try:
            value = float(within(self._timeout_s, call))
        except Exception as error:  # it is not our code
            self.why = _line(error)
            return math.nan
        if not math.isfinite(value):
            self.why = f"returned {value}"
        return value


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return the result of a call, or raise its error; raise TimeoutError if it takes longer. Such a call
    goes on in its thread: Python has no way to end one."""
    result = list[Any]()

    def run() -> None:
        try:
            result.append((call(), None))
        except Exception as error:  # handed to the caller that waits
            result.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not result:
        raise TimeoutError(f"no answer within {seconds:g} s")
    value, error = result[0]
    if error is not None:
        raise error
    return value


def make_rewards(
    plans: Sequence[RewardPlan], folder: Path, device: torch.device, *, frames_per_chunk: int, patience: int
) -> RewardSet:
    """Make a recipe's rewards. `folder` is the recipe's, where its functions and classifiers are looked
    for."""
    terms = list[RewardTerm]()
    for plan in plans:
        plan.check()
        alike = sum(term.name.partition(" ")[0] == plan.kind for term in terms)
        name = plan.kind if not alike else f"{plan.kind} {alike + 1}"
        terms.append(RewardTerm(name, _reward(plan, folder, device, frames_per_chunk, patience), plan.scale))
    return RewardSet(terms, patience)


def _reward(
    plan: RewardPlan, folder: Path, device: torch.device, frames_per_chunk: int, patience: int
) -> Reward:
    if plan.kind in ANALYTIC:
        return ANALYTIC[plan.kind]
    if plan.kind == "python":
        return PerClipReward(find_function(plan.call, folder), plan.timeout_s, patience)
    if plan.kind == "http":
        return PerClipReward(HTTPScore(plan.url, plan.timeout_s), plan.timeout_s, patience)
    assert plan.classifier_path is not None
    judge = load_classifier(folder / plan.classifier_path, device)
    if plan.kind == "switch":
        return SwitchAnswered(judge, frames_per_chunk)
    return AttributeReward(judge, plan.names, plan.views)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
