"""Our own ZeRO: state that n copies of a model would hold n times is held once, a part on each of n ranks.

Parameters are laid end to end in units, one for each block and one for the rest, and every unit is cut into
as many equal parts as there are ranks. Stage 1 shards the optimiser: gradients are summed as ever, each rank
updates its part of every unit and gets the others' parts. Stage 2 sums only what a rank updates, and lets go
of the rest. Stage 3 lets go of the weights too: a unit is collected when its forward or backward pass comes
and let go of after it.

An optimiser works number by number (AdamW, SGD), since a part does not know where a matrix begins; what needs
a whole matrix is made a unit of its own and collected (`parts.py`).
Shapes: N all numbers of a unit, filled up to a multiple of the ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from millstream.core.errors import UnusedParameters
from millstream.models.weights.unread import bring
from millstream.parallel.collectives import PendingCollective, RankGroup
from millstream.train.parallel.replicas import end_to_end, gradient_of

Stage = Literal[1, 2, 3]


class PlaceInUnit(NamedTuple):
    """Place of a parameter among the numbers of its unit."""

    begin: int
    shape: torch.Size

    def of(self, whole_N: Tensor) -> Tensor:
        return whole_N[self.begin : self.begin + self.shape.numel()].view(self.shape)


class Unit:
    """Parameters that are laid end to end. The module's own parameters are views into the unit."""

    def __init__(
        self, named: Sequence[tuple[str, nn.Parameter]], group: RankGroup, stage: Stage, sent: deque[Unit]
    ) -> None:
        """`sent` is the queue of all units whose gradients are being summed."""
        self.named = named
        self._group = group
        self._stage = stage
        self._sent = sent
        self._sizes = [parameter.numel() for _, parameter in named]
        share = -(-sum(self._sizes) // group.size)
        self._filling = share * group.size - sum(self._sizes)
        with torch.no_grad():
            self._whole_N = self._laid_out([parameter for _, parameter in named])
            group.broadcast(self._whole_N, source=group.ranks[0], what="start")
        self._bytes = self._whole_N.untyped_storage().nbytes()
        for (_, parameter), view in zip(
            named, self._whole_N.split([*self._sizes, self._filling]), strict=False
        ):
            parameter.data = view.view_as(parameter)
        mine = self._whole_N[group.place * share : (group.place + 1) * share]
        self.mine = nn.Parameter(mine.clone() if stage == 3 else mine)
        """This rank's part: a view of the whole where that is always here, a copy otherwise."""
        self._ready: set[Tensor] = set()
        self._pending: PendingCollective | None = None
        for _, parameter in named:
            parameter.register_post_accumulate_grad_hook(self._became_ready)

    @property
    def is_here(self) -> bool:
        """True if all parameters of the unit are on this rank."""
        return self._whole_N.untyped_storage().nbytes() > 0

    @torch.no_grad()
    def collect(self) -> None:
        """Collect all ranks' parts here."""
        if not self.is_here:
            self._whole_N.untyped_storage().resize_(self._bytes)
            self._group.collect_into(self._whole_N, self.mine.data, "weights")

    def let_go(self) -> None:
        self._whole_N.untyped_storage().resize_(0)

    def places(self) -> Iterator[tuple[str, PlaceInUnit]]:
        begin = 0
        for (name, parameter), size in zip(self.named, self._sizes, strict=True):
            yield name, PlaceInUnit(begin, parameter.shape)
            begin += size

    def whole(self, part: Tensor) -> Tensor:
        """Return the whole of a value that is laid out as the unit is, from all ranks' parts."""
        found_N = part.new_empty(len(part) * self._group.size)
        self._group.collect_into(found_N, part, "state")
        return found_N

    def part(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return this rank's part of tensors that are shaped like the unit's parameters."""
        return self._laid_out(tensors).unflatten(0, (self._group.size, -1))[self._group.place].clone()

    @torch.no_grad()
    def updated(self) -> None:
        """Exchange all ranks' updated parts after a step of the optimiser, where the whole unit is kept."""
        if self._stage < 3:
            self._group.collect_into(self._whole_N, self.mine.data.clone(), "weights")
        elif self.is_here:
            self.let_go()  # what is here is from before

    def finish(self) -> None:
        """Wait for the mean of the gradients of this rank's part, and add it to the gradient that is
        there."""
        if (self._pending is None and self.mine.grad is None) or self._ready:
            missing = [name for name, parameter in self.named if parameter not in self._ready]
            raise UnusedParameters(missing)
        self._take_in()

    def _became_ready(self, parameter: Tensor) -> None:
        """Send the unit's gradients once all of them are ready, and free what is not needed until they are
        back."""
        self._ready.add(parameter)
        if len(self._ready) < len(self.named):
            return
        self._ready.clear()
        self._take_in()  # of the micro-batch before
        with torch.no_grad():
            gradients_N = self._laid_out([gradient_of(each) for _, each in self.named], torch.float32)
            begin = self._group.start_sum if self._stage == 1 else self._group.start_scatter
            self._pending = begin(gradients_N, "gradients")
        for _, each in self.named:
            each.grad = None
        if self._stage == 3:
            self.let_go()
        if self._stage > 1:
            self._wait_for_others()

    def _wait_for_others(self) -> None:
        """Wait for the gradients of the units before this one, so that only this unit's are whole while they
        are being summed."""
        while self._sent:
            self._sent.popleft()._take_in()
        self._sent.append(self)

    @torch.no_grad()
    def _take_in(self) -> None:
        if self._pending is None:
            return
        summed = self._pending.wait()
        self._pending = None
        if self._stage == 1:
            summed = summed.unflatten(0, (self._group.size, -1))[self._group.place]
        mean = (summed / self._group.size).to(self.mine.dtype)
        self.mine.grad = mean if self.mine.grad is None else self.mine.grad + mean

    def _laid_out(self, tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> Tensor:
        return end_to_end(tensors, dtype or tensors[0].dtype, self._filling)


class Zero:
    """Module whose state is sharded over a group, and the optimiser that updates this rank's part of it."""

    def __init__(
        self,
        module: nn.Module,
        group: RankGroup,
        stage: Stage,
        optimiser: Callable[[Sequence[Unit]], torch.optim.Optimizer],
        *,
        units: Sequence[nn.Module],
        named: Iterable[tuple[str, nn.Parameter]] | None = None,
        shared: Callable[[str], bool] = lambda name: False,
        alone: Callable[[str, nn.Parameter], bool] = lambda name, parameter: False,
    ) -> None:
        """Parameters have their names in `module`, unless `named` gives others. Each of the `units` is
        collected for its own passes and let go of after them. Their parameters that are `shared`, by name,
        are used at other times too and stay with the rest. Parameters that are `alone` are not laid end to
        end with others."""
        self._group = group
        self._stage = stage
        self._sent = deque[Unit]()
        named = module.named_parameters() if named is None else named
        names = {parameter: name for name, parameter in named if parameter.requires_grad}
        apart = [[p for p in unit.parameters() if p in names and not shared(names[p])] for unit in units]
        taken = {parameter for each in apart for parameter in each}
        rest = [parameter for parameter in names if parameter not in taken]
        whose = zip((module, *units), (rest, *apart), strict=True)
        held = [
            (of, laid) for of, each in whose for laid in _laid_together(each, lambda p: alone(names[p], p))
        ]
        self.units = [self._unit([(names[p], p) for p in each], of, keeps=of is module) for of, each in held]
        bring(module.parameters())  # what does not learn
        self.optimiser = optimiser(self.units)

    def finish(self) -> None:
        """Wait for the gradients of this rank's parts."""
        for unit in self.units:
            unit.finish()

    def squares(self) -> Tensor:
        """Return the sum of the squares of all ranks' gradients: every number is on one rank."""
        mine = torch.stack([gradient_of(unit.mine).float().square().sum() for unit in self.units]).sum()
        return self._group.sum(mine, "norm")

    def step(self) -> None:
        self.optimiser.step()
        for unit in self.units:
            unit.updated()

    def _unit(self, named: Sequence[tuple[str, nn.Parameter]], of: nn.Module, *, keeps: bool) -> Unit:
        """Make a unit. Its parameters are whole here until the next unit is made, or for as long as its stage
        keeps them so."""
        bring(parameter for _, parameter in named)
        unit = Unit(named, self._group, self._stage, self._sent)
        if self._stage == 3:
            self._collects(unit, of, keeps=keeps)
            unit.let_go()
        return unit

    def _collects(self, unit: Unit, module: nn.Module, *, keeps: bool) -> None:
        """Collect a unit for its module's passes; one that `keeps` stays from forward to backward."""
        module.register_forward_pre_hook(partial(_collected, unit))
        if not keeps:
            module.register_full_backward_pre_hook(partial(_collected, unit))

        def after(*_: Any) -> None:
            if not (keeps and torch.is_grad_enabled()):
                unit.let_go()

        module.register_forward_hook(after)


def _laid_together(
    parameters: Sequence[nn.Parameter], alone: Callable[[nn.Parameter], bool]
) -> Iterator[list[nn.Parameter]]:
    together = list[nn.Parameter]()
    for parameter in parameters:
        if alone(parameter):
            yield [parameter]
        else:
            together.append(parameter)
    if together:
        yield together


def _collected(unit: Unit, *_: Any) -> None:
    unit.collect()
