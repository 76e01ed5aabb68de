"""Batches that a step learns from: streams that were rolled out and rewarded, by weights of one version.

This is the side of a run that streams: it holds the serving engine, the rewards and the judge, and knows
nothing of learning. Batches are made when they are asked for, or, `asynchronous`, in a thread while the step
before is learnt from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from millstream.models.dit import CausalDiT
from millstream.train.evaluate.classifier import AttributeNet
from millstream.train.loop import keyed_generator
from millstream.train.reward.clips import RewardClips
from millstream.train.reward.rewards import RewardSet, Scored
from millstream.train.rl.evaluation import Evaluation, evaluate
from millstream.train.rl.prompting import evaluated_prompts, step_plan
from millstream.train.rl.recipe import PolicyRecipe
from millstream.train.rl.rollouts import RolloutEngine, RolloutPlan, Trajectories


class Phase(NamedTuple):
    """Named span of time, in seconds of `time.time`, which processes of one machine share."""

    name: str
    begun: float
    ended: float


@contextmanager
def timed(name: str, phases: list[Phase], device: torch.device) -> Iterator[None]:
    begun = time.time()
    yield
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    phases.append(Phase(name, begun, time.time()))


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardedBatch:
    made: Trajectories
    scored: Scored
    group: int
    fork_at: int
    costs: dict[str, float]
    """Seconds a clip that each reward took."""
    phases: list[Phase]


class Batches(Protocol):
    """Source of batches: on this rank, or on one of its own."""

    def load_weights(self, actor: CausalDiT, version: int) -> Phase:
        """Take the actor's weights over. No batch may be under way."""

    def begin(self, step: int) -> None:
        """Begin a step's batch with the current weights."""

    def collect(self) -> RewardedBatch:
        """Return the batch that was begun, when it is done."""

    def evaluate(self) -> Evaluation: ...

    def close(self) -> None: ...


class BatchMaker:
    """Batches made on this rank, on the device that learns too."""

    def __init__(
        self,
        recipe: PolicyRecipe,
        engine: RolloutEngine,
        rewards: RewardSet,
        judge: AttributeNet | None,
        *,
        threaded: bool,
    ) -> None:
        self.recipe = recipe
        self.engine = engine
        self.rewards = rewards
        self.judge = judge
        self._device = engine.model.device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollouts") if threaded else None
        is_apart = threaded and self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if is_apart else None
        self._begun: int | Future[RewardedBatch] | None = None

    def load_weights(self, actor: CausalDiT, version: int) -> Phase:
        assert self._begun is None, (
            f"weights of version {version} for a rollout of version {self.engine.version} under way"
        )
        phases = list[Phase]()
        with timed("sync", phases, self._device):
            self.engine.load_weights(actor, version)
        return phases[0]

    def begin(self, step: int) -> None:
        assert self._begun is None, "one batch at a time"
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._begun = step if self._thread is None else self._thread.submit(self._make_beside, step)

    def collect(self) -> RewardedBatch:
        begun = self._begun
        self._begun = None
        assert begun is not None, "no batch was begun"
        return self.make(begun) if isinstance(begun, int) else begun.result()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def make(self, step: int) -> RewardedBatch:
        plan = step_plan(self.recipe, step)
        phases = list[Phase]()
        compares = not self.recipe.learner.follows_pixels
        if self.recipe.tried > 1 and compares:
            with timed("try", phases, self._device):
                plan = self.least_worth(plan)
        with timed("rollout", phases, self._device):
            made = self.engine.roll(plan)
        with timed("reward", phases, self._device):
            scored = self.score(plan, made)
            if self.recipe.tried > 1 and not compares:
                made, scored = self.missed(made, scored)
        costs = {term.name: term.cost_s for term in self.rewards.terms}
        return RewardedBatch(
            made=made, scored=scored, group=plan.group, fork_at=plan.fork_at, costs=costs, phases=phases
        )

    def score(self, plan: RolloutPlan, made: Trajectories) -> Scored:
        pixels = self.engine.show(made)
        fps = self.engine.config.fps
        clips = RewardClips(
            pixels_BTCYX=pixels, prompts=plan.row_prompts, fps=fps, is_switched=bool(plan.before)
        )
        return self.rewards.score(clips)

    def worth(self, made: Trajectories, clean_BFCYX: Tensor, rows: Tensor) -> Tensor:
        """Return what finished chunks of these rows are worth as pictures, with gradients back to them."""
        generator = keyed_generator(self._device, "worth", self.recipe.seed, made.version, int(rows[0]))
        prompts = tuple(made.prompts[row] for row in rows.tolist())
        pictures = self.engine.paint(made, clean_BFCYX, rows)
        return self.rewards.followed(
            RewardClips(pixels_BTCYX=pictures, prompts=prompts, fps=self.engine.config.fps), generator
        )

    def read(self, prompts: Sequence[str]) -> Tensor:
        """Encode prompts [B, S, E]."""
        return self.engine.read(prompts)

    def least_worth(self, plan: RolloutPlan) -> RolloutPlan:
        """Return the plan with those of its prompts whose stream is worth least: from the others there is
        little to learn."""
        trial = replace(plan, group=1, fork_at=0, before=())
        kept = self._least(self.score(trial, self.engine.roll(trial)), 1).tolist()
        before = tuple(plan.before[place] for place in kept) if plan.before else ()
        return replace(plan, prompts=tuple(plan.prompts[place] for place in kept), before=before)

    def missed(self, made: Trajectories, scored: Scored) -> tuple[Trajectories, Scored]:
        """Return those of the streams that were tried which are worth least. Only for algorithms that follow
        pixels: streams that are compared cannot be chosen by their worth."""
        places = self._least(scored, made.group)
        total_B, known_B = (
            each.view(-1, made.group)[places].flatten() for each in (scored.total_B, scored.known_B)
        )
        return made.of_pasts(places), scored._replace(total_B=total_B, known_B=known_B)

    def _least(self, scored: Scored, group: int) -> Tensor:
        """Return the places of the prompts worth least, as many as are learnt from."""
        worth_P = scored.total_B.masked_fill(~scored.known_B, math.inf).view(-1, group).mean(dim=1)
        return worth_P.argsort(stable=True)[: self.recipe.prompts_per_step]

    def evaluate(self) -> Evaluation:
        assert self._begun is None, "an evaluation while a batch is under way"
        found = evaluate(
            self.engine.model,
            self.engine.dit,
            evaluated_prompts(self.recipe),
            config=self.engine.config,
            chunks=self.recipe.chunks,
            rewards=self.rewards,
            judge=self.judge,
        )
        return replace(found, pixels_BTCYX=found.pixels_BTCYX[: self.recipe.samples])

    def _make_beside(self, step: int) -> RewardedBatch:
        """Make a batch in the thread, on a CUDA stream of its own, so that it does not wait for what is
        learnt meanwhile."""
        with torch.cuda.stream(self._stream):  # of None it is nothing
            return self.make(step)
