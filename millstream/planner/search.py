"""All layouts for an ask, ranked; the Pareto front of cost and latency; why each other one lost; the largest
that holds.

A layout that misses a promise is ranked by how near it comes, so an impossible ask is answered by the nearest
plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from millstream.core.config import DiTConfig, StreamConfig, size_unit
from millstream.core.errors import ConfigError
from millstream.core.topology import MAX_MESH, Topology, divisors
from millstream.planner.judge import Plan, PlanAsk, judge

QUANTITIES = ("size", "window", "sessions", "batch")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanAnswer:
    plans: tuple[Plan, ...]
    """Best first."""

    def __post_init__(self) -> None:
        assert self.plans, "one device is always a layout"

    @property
    def best(self) -> Plan:
        return self.plans[0]

    @property
    def pareto(self) -> tuple[Plan, ...]:
        """Plans that hold and that no other beats in both cost and latency; cheap ones first."""
        front: list[Plan] = []
        for plan in sorted(
            (plan for plan in self.plans if plan.holds),
            key=lambda p: (p.dollars_per_stream_hour, p.latency_ms),
        ):
            if not front or plan.latency_ms < front[-1].latency_ms - 1e-9:
                front.append(plan)
        return tuple(front)

    def why_not(self, plan: Plan) -> str:
        """Against the best, in one line; empty for the best itself."""
        if plan is self.best:
            return ""
        if not plan.holds:
            return "; ".join(shortfall.said for shortfall in plan.shortfalls)
        cost = plan.dollars_per_stream_hour
        best_cost = self.best.dollars_per_stream_hour
        sooner = self.best.latency_ms / plan.latency_ms
        gains = {"the frames a second": plan.fps / self.best.fps, "the speed at which a change shows": sooner}
        dearer = (
            f"{cost / best_cost:.2f} times the price"
            if best_cost
            else f"{plan.devices} devices, not {self.best.devices}"
        )
        if gained := [f"{times:.2f} times {what}" for what, times in gains.items() if times > 1.005]:
            return f"{dearer} for {' and '.join(gained)}"
        same = cost <= best_cost * 1.005 and (best_cost or plan.devices == self.best.devices)
        return "the same price, and no quicker" if same else f"{dearer}, and no quicker"


def search(ask: PlanAsk, *, only: Topology | None = None) -> PlanAnswer:
    if only is not None:
        only.check(ask.work.spec.dit)
        if only.num_devices > ask.fleet.count:
            raise ConfigError(f"{only} takes {only.num_devices} devices and --gpus names {ask.fleet.count}")
    every = [only] if only is not None else topologies(ask.work.spec.dit, _most_devices(ask))
    return PlanAnswer(plans=tuple(sorted((judge(ask, layout) for layout in every), key=_rank)))


def _most_devices(ask: PlanAsk) -> int:
    """Count the most devices of one layout. Where any number may be had, those of one machine and a front are
    tried; more devices are more replicas."""
    return min(ask.fleet.count, ask.fleet.device.devices_per_node + 1) if ask.fleet.open else ask.fleet.count


def largest(ask: PlanAsk, quantity: str, *, only: Topology | None = None) -> tuple[int, PlanAnswer] | None:
    """The most of `quantity` for which some plan holds, and its answer; None if even the least is too much.

    `size` is the height, its width in the stream's proportions.
    """
    if quantity not in QUANTITIES:
        raise ConfigError(f"--max must be one of {', '.join(QUANTITIES)}, got {quantity!r}")
    least, most, vary = _ladder(ask, quantity)

    assert least <= most, f"{quantity} from {least} to {most}"

    def answer(steps: int) -> PlanAnswer:
        return search(vary(steps), only=only)

    if not answer(least).best.holds:
        return None
    low = least
    high = least
    while high < most and answer(high).best.holds:
        low = high
        high = min(most, 2 * high)
    if answer(high).best.holds:
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if answer(middle).best.holds else (low, middle)
    return (low * size_unit(ask.work.stream.stride) if quantity == "size" else low), answer(low)


def _rank(plan: Plan) -> tuple[float, ...]:
    if plan.holds:
        cost = plan.dollars_per_stream_hour
        return (
            0,
            cost,
            0 if cost else plan.devices,
            plan.latency_ms,
        )  # where devices cost nothing, fewer are cheaper
    return (1, -min(shortfall.share for shortfall in plan.shortfalls), plan.devices, plan.latency_ms)


def _ladder(ask: PlanAsk, quantity: str) -> tuple[int, int, Callable[[int], PlanAsk]]:
    """The least and the most that can be asked, and how to ask it."""
    work = ask.work
    stream = ask.work.stream
    unit = size_unit(stream.stride)

    def with_stream(changed: StreamConfig) -> PlanAsk:
        return replace(ask, work=replace(work, stream=changed))

    def with_size(units: int) -> PlanAsk:
        width = max(1, round(units * stream.width / stream.height))
        return with_stream(replace(stream, height=units * unit, width=width * unit))

    tallest = min(8192, 8192 * stream.height // stream.width) // unit
    return {
        "size": (1, tallest, with_size),
        "window": (
            stream.frames_per_chunk + stream.sink,
            1024,
            lambda w: with_stream(replace(stream, window=w)),
        ),
        "sessions": (1, 10_000_000, lambda n: replace(ask, sessions=n)),
        "batch": (1, 256, lambda n: replace(ask, work=replace(work, batch=n), sessions=max(ask.sessions, n))),
    }[quantity]


def topologies(dit: DiTConfig, devices: int) -> Iterator[Topology]:
    """Yield the topologies of at most `devices` devices, small ones first."""
    mesh_limit = min(devices, MAX_MESH)
    meshes = [(tp, 1, pp) for tp in divisors(dit, "tp") for pp in _stages(dit) if tp * pp <= mesh_limit]
    meshes += [(1, sp, 1) for sp in divisors(dit, "sp") if 1 < sp <= mesh_limit]
    every = [
        Topology(tp=tp, sp=sp, pp=pp, front_apart=apart) for tp, sp, pp in meshes for apart in (False, True)
    ]
    yield from sorted(
        (each for each in every if each.num_devices <= devices), key=lambda each: each.num_devices
    )


def _stages(dit: DiTConfig) -> list[int]:
    return [stages for stages in (1, 2, 3, 4, 6, 8) if stages <= dit.layers]
