"""Effect of more devices, from one to a thousand: how quick one stream gets, how many streams all of them
carry, where the first stalls, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from millstream.core.errors import ConfigError
from millstream.planner.hardware import Fleet
from millstream.planner.judge import Plan, PlanAsk
from millstream.planner.search import search

MOST = 1024
GAIN = 0.10
"""Twice the devices that make a stream less than this much quicker are wasted on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    devices: int
    quickest: Plan
    """For one stream, of those that take so many devices or fewer."""
    streams: int
    """Streams that all of them carry at the promised rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    devices: int
    gain: float
    """Gain in one stream's speed, from here to twice the devices."""
    why: str


def scaling(ask: PlanAsk) -> tuple[Rung, ...]:
    """At every power of two up to `MOST`. Plans that do not fit a device's memory are left out."""
    every = search(replace(ask, fleet=Fleet(device=ask.fleet.device, count=MOST), sessions=1)).plans
    fit = [plan for plan in every if all(shortfall.what != "memory" for shortfall in plan.shortfalls)]
    if not fit:
        raise ConfigError(
            f"no layout of {ask.work.spec.name} fits {ask.fleet.device.name}: {every[0].shortfalls[0].said}"
        )
    counts = [1 << power for power in range(MOST.bit_length()) if 1 << power <= MOST]
    rungs = (
        _rung(devices, [plan for plan in fit if plan.layout.num_devices <= devices]) for devices in counts
    )
    return tuple(rung for rung in rungs if rung is not None)


def _rung(devices: int, plans: Sequence[Plan]) -> Rung | None:
    if not plans:
        return None
    return Rung(
        devices=devices,
        quickest=max(plans, key=lambda plan: (plan.fps, -plan.layout.num_devices)),
        streams=max(devices // plan.layout.num_devices * plan.sessions_per_replica for plan in plans),
    )


def stall(rungs: Sequence[Rung]) -> Stall | None:
    """The first place from which one stream does not get quicker any more, up to twice the devices."""
    for number, (here, twice) in enumerate(pairwise(rungs)):
        gain = twice.quickest.fps / here.quickest.fps - 1
        later = max(rung.quickest.fps for rung in rungs[number:]) / here.quickest.fps - 1
        if gain < GAIN and later < 2 * GAIN:
            return Stall(devices=here.devices, gain=gain, why=_why(rungs[-1].quickest))
    return None


def _why(last: Plan) -> str:
    """Explain what limits the quickest plan of all."""
    time = last.time
    call = last.time.call
    if last.layout.front_apart and time.front_ms >= time.mesh_ms:
        return (
            f"the VAE on its own device takes {time.front_ms:.0f} ms of each chunk, and no layout divides it"
        )
    talk = call.communication / call.total
    if talk >= 0.2:
        return (
            f"{100 * talk:.0f}% of a call in {last.layout} is communication, which more devices only add to"
        )
    return (
        f"no layout of this model that is quicker takes more than the {last.layout.num_devices} devices "
        f"of {last.layout}"
    )
