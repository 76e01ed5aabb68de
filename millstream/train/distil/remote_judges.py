"""Teacher and critic on ranks of their own: the student's send them pictures and get back where these should
have been.

Both sides go through the same steps: who has a turn follows from the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from millstream.parallel.collectives import RankGroup
from millstream.train.distil.judges import Judged, Judges, StreamView
from millstream.train.distil.matching import has_turn
from millstream.train.distil.training_rows import ClipBatch, Distillation
from millstream.train.finetune.roles import MethodRecipe, Role
from millstream.train.noising import Noised
from millstream.train.options import MatchingOptions
from millstream.train.parallel.between import RowExchange, Side
from millstream.train.parallel.groups import TrainingGroups, create_training_groups, create_world
from millstream.train.parallel.states import ParameterState, Read
from millstream.train.parallel.task import LearntStep, MayStep


class PlacedRoles(NamedTuple):
    """Place of a rank in a run of several roles."""

    learns: Role
    """Role that learns on this rank: on the ranks of judges apart, the critic."""
    groups: TrainingGroups
    world: RankGroup
    """Ranks of all roles."""
    exchange: RowExchange | None
    """Exchange between the sides, where there are two."""


def place_roles(recipe: MethodRecipe, device: torch.device) -> PlacedRoles:
    """Place this rank. Called on every rank: all of them make the groups of both sides."""
    if recipe.placement == "together":
        groups = create_training_groups(recipe.plan, device)
        return PlacedRoles("student", groups, groups.everybody, None)
    recipe.check_ranks(dist.get_world_size() if dist.is_initialized() else 1)
    student = Side(recipe.plan, 0)
    judges = Side(recipe.plan_of("critic"), student.plan.world_size)
    made = [create_training_groups(side.plan, device, first=side.first) for side in (student, judges)]
    world = create_world()
    exchange = RowExchange(world, (student, judges), recipe.batch, device)
    return PlacedRoles(
        "student" if world.rank in student.ranks else "critic",
        made[world.rank in judges.ranks],
        world,
        exchange,
    )


class RemoteJudges:
    """Judges on other ranks, as seen by the student's ranks."""

    def __init__(self, exchange: RowExchange, views: Sequence[StreamView]) -> None:
        self._exchange = exchange
        self._views = list(views)

    def pull(self, judged: Judged, view: StreamView, guidance: float) -> Tensor:
        self._send(judged, view, guidance)
        _, (wanted,) = self._exchange.receive()
        return wanted

    def learn(self, judged: Judged, view: StreamView, may_step: MayStep) -> LearntStep:
        self._send(judged, view, 0.0)
        (loss, norm, taken), _ = self._exchange.receive()
        may_step(norm)  # so that this side's guard has seen what the other's has
        return LearntStep(torch.tensor(loss), torch.tensor(norm), taken)

    def set_rate(self, lr: float) -> None:
        """Do nothing: the judges' own ranks set the rate."""

    def states(self) -> Iterator[ParameterState]:
        return iter(())

    def load_state(self, read: Read) -> None:
        """Do nothing: the judges' own ranks load their state."""

    def _send(self, judged: Judged, view: StreamView, guidance: float) -> None:
        assert judged.entries.is_empty, "judges on ranks of their own are sent no entries"
        context = view.sequence.num_frames - judged.clean_BFCYX.shape[1]  # of the past no more is looked at
        tensors = (judged.clean_BFCYX, judged.past_BFCYX[:, :context], *judged.seen, judged.text_BSE)
        self._exchange.send((self._views.index(view), guidance), tensors)


class JudgesApart(Distillation):
    """Step of the judges on their own ranks."""

    def __init__(
        self, judges: Judges, exchange: RowExchange, views: Sequence[StreamView], options: MatchingOptions
    ) -> None:
        self._judges = judges
        self._exchange = exchange
        self._views = views
        self._options = options

    def learn(self, step: int, batch: ClipBatch, may_step: Mapping[str, MayStep]) -> dict[str, LearntStep]:
        if has_turn(self._options, step):
            judged, view, guidance = self._receive()
            self._exchange.send(None, (self._judges.pull(judged, view, guidance),))
        judged, view, _ = self._receive()
        learnt = self._judges.learn(judged, view, may_step["critic"])
        self._exchange.send((float(learnt.loss), float(learnt.norm), learnt.taken))
        return {"critic": learnt}

    def set_rate(self, lr: float) -> None:
        self._judges.set_rate(lr)

    def _receive(self) -> tuple[Judged, StreamView, float]:
        (number, guidance), (clean, past, noisy, noise, level, text) = self._exchange.receive()
        return Judged(clean, past, Noised(noisy, noise, level), text), self._views[number], guidance
