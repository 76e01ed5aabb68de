"""Several cards for one promise: what each needs for it, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from millstream.core.errors import ConfigError
from millstream.core.topology import Topology
from millstream.planner.hardware import Fleet
from millstream.planner.judge import Plan, PlanAsk
from millstream.planner.search import PlanAnswer, search


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    answers: tuple[PlanAnswer, ...]
    """One for each fleet: those that hold, cheapest first; then the others, nearest first."""
    refused: tuple[str, ...] = ()
    """Fleets that could not be asked, and why."""

    @property
    def best(self) -> Plan:
        return self.answers[0].best

    @property
    def holding(self) -> tuple[PlanAnswer, ...]:
        return tuple(answer for answer in self.answers if answer.best.holds)


def compare(ask: PlanAsk, fleets: Sequence[Fleet], *, only: Topology | None = None) -> Comparison:
    """Ask the same of each fleet. What one of them cannot do at all, such as fp8, does not stop the
    others."""
    assert fleets, "no fleet to compare"
    refused: list[str] = []
    found = sorted(_answers(ask, fleets, only, refused), key=_rank)
    if not found:
        raise ConfigError("; ".join(refused))
    return Comparison(answers=tuple(found), refused=tuple(refused))


def _answers(
    ask: PlanAsk, fleets: Iterable[Fleet], only: Topology | None, refused: list[str]
) -> Iterator[PlanAnswer]:
    for fleet in fleets:
        try:
            yield search(replace(ask, fleet=fleet), only=only)
        except ConfigError as error:
            refused.append(str(error))


def _rank(answer: PlanAnswer) -> tuple[float, ...]:
    plan = answer.best
    if plan.holds:
        return (0, plan.dollars_per_hour, plan.devices, plan.latency_ms)
    return (1, -min(shortfall.share for shortfall in plan.shortfalls), plan.devices, plan.latency_ms)
