"""Rollouts on a rank of their own: weights are broadcast to it, rewarded streams come back. The rank that
learns sends the orders.

Between an order to make a batch and its answer the learning rank is free: that is what makes asynchronous
rollouts worth it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from millstream.core.errors import MillstreamError
from millstream.models.dit import CausalDiT
from millstream.parallel.collectives import RankGroup
from millstream.train.reward.rewards import Scored
from millstream.train.rl.batches import BatchMaker, Phase, RewardedBatch
from millstream.train.rl.evaluation import Evaluation
from millstream.train.rl.rollouts import Trajectories

LEARNER = 0
MAKER = 1
HOST = torch.device("cpu")


def share_weights(weights: Mapping[str, Tensor], version: int, world: RankGroup, dtype: torch.dtype) -> int:
    """Broadcast the learner's weights, sent in `dtype`, into those of all other ranks; return their version.
    Called on every rank."""
    names = sorted(weights)
    device = next(iter(weights.values())).device
    number = world.broadcast(
        torch.tensor([version], device=device), source=LEARNER, what="version of the weights"
    )
    mine = [weights[name].detach() for name in names]
    if world.rank == LEARNER:
        world.broadcast(
            torch.cat([weight.to(dtype).flatten() for weight in mine]), source=LEARNER, what="weights"
        )
        return int(number)
    flat = torch.empty(sum(weight.numel() for weight in mine), dtype=dtype, device=device)
    parts = world.broadcast(flat, source=LEARNER, what="weights").split([weight.numel() for weight in mine])
    torch._foreach_copy_(mine, [part.view_as(weight) for part, weight in zip(parts, mine, strict=True)])
    return int(number)


class RemoteBatches:
    """Batches from the rank that streams, as seen by the rank that learns."""

    def __init__(self, world: RankGroup, dtype: torch.dtype, device: torch.device) -> None:
        self._world = world
        self._dtype = dtype
        self._device = device

    def load_weights(self, actor: CausalDiT, version: int) -> Phase:
        begun = time.time()
        self._order("load_weights", version)
        share_weights(dict(actor.named_parameters()), version, self._world, self._dtype)
        return Phase("sync", begun, time.time())

    def begin(self, step: int) -> None:
        self._order("make", step)

    def collect(self) -> RewardedBatch:
        batch: RewardedBatch = self._answer()
        return replace(
            batch, made=moved(batch.made, self._device), scored=_scored(batch.scored, self._device)
        )

    def evaluate(self) -> Evaluation:
        self._order("evaluate", 0)
        found: Evaluation = self._answer()
        return found

    def close(self) -> None:
        self._order("end", 0)

    def _order(self, what: str, number: int) -> None:
        self._world.gather((what, number), "order")

    def _answer(self) -> Any:
        answer = self._world.gather(None, "answer")[MAKER]
        if isinstance(answer, Exception):
            raise answer
        return answer


def obey(maker: BatchMaker, world: RankGroup) -> None:
    """Serve the learner's orders on the streaming rank, from the first to the last."""
    while True:
        what, number = world.gather(None, "order")[LEARNER]
        if what == "end":
            return
        if what == "load_weights":
            maker.engine.load_weights_by(
                partial(share_weights, version=number, world=world, dtype=maker.engine.dtype)
            )
        else:
            world.gather(_answered(maker, what, number), "answer")


def _answered(maker: BatchMaker, what: str, number: int) -> RewardedBatch | Evaluation | MillstreamError:
    """Carry out an order; return its result in host memory, or the error."""
    try:
        if what == "evaluate":
            found = maker.evaluate()
            return replace(found, pixels_BTCYX=found.pixels_BTCYX.cpu())
        batch = maker.make(number)
    except MillstreamError as error:  # the rank that learns saves, and says it
        return error
    return replace(batch, made=moved(batch.made, HOST), scored=_scored(batch.scored, HOST))


def _scored(scored: Scored, device: torch.device) -> Scored:
    return scored._replace(total_B=scored.total_B.to(device), known_B=scored.known_B.to(device))


def moved(made: Trajectories, device: torch.device) -> Trajectories:
    """Return the trajectories on another device."""
    return Trajectories(
        version=made.version,
        text_BSE=made.text_BSE.to(device),
        past_BFCYX=made.past_BFCYX.to(device),
        clean_BFCYX=made.clean_BFCYX.to(device),
        starts=tuple(start.to(device) for start in made.starts),
        ends=tuple(end.to(device) for end in made.ends),
        log_density_BLK=made.log_density_BLK.to(device),
        shown_before_PFCYX=made.shown_before_PFCYX.to(device),
        prompts=made.prompts,
    )
