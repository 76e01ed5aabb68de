"""One layout against one ask: what it carries, what it costs, what it misses, and what would give first.

A promise is frames a second for so many sessions, and perhaps a first frame in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from millstream.core.config import GIB
from millstream.core.errors import ConfigError
from millstream.core.topology import Topology
from millstream.planner.footprint import DeviceNeed, device_needs
from millstream.planner.hardware import Fleet
from millstream.planner.time import ChunkTime, chunk_time
from millstream.planner.workload import Workload

MEMORY_SHARE = 0.95
"""Share of a device's memory that a plan may fill: allocators need slack."""
HOST_BAND = 0.5
"""How far a host's own work may be off: of two hosts of one kind of card, one was seen to take twice as long
as the other."""
SEVERAL_BAND = 0.2
"""How far a time on several devices may be off: this engine was never measured there. Of the published times
of other programs on several cards, nine tenths are within it; a test counts them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanAsk:
    """`work.stream.fps` for each of `sessions`, on these devices."""

    work: Workload
    fleet: Fleet
    sessions: int = 1
    first_frame_ms: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.sessions <= 10_000_000:
            raise ConfigError(f"--sessions must be 1 to 10 million, got {self.sessions}")
        if self.first_frame_ms is not None and not self.first_frame_ms > 0:
            raise ConfigError(f"--first-frame must be above 0 seconds, got {self.first_frame_ms / 1e3:g}")
        if self.work.precision == "fp8" and self.fleet.device.fp8_tflops is None:
            raise ConfigError(f"{self.fleet.device.name} has no fp8; leave --precision out")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortfall:
    """Something a plan does not hold: how much of it is there, 0 to 1, and in words."""

    what: str
    share: float
    said: str

    def __post_init__(self) -> None:
        assert 0 <= self.share <= 1, f"{self.what}: {self.share} of it is there"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    ask: PlanAsk
    layout: Topology
    time: ChunkTime
    needs: tuple[DeviceNeed, ...]
    sessions_per_replica: int
    """Sessions that keep their frame rate and fit."""
    replicas: int
    """Replicas used: no more than the sessions need."""
    shortfalls: tuple[Shortfall, ...]
    bound: str
    """Limit that is reached first, with how far it is used."""

    @property
    def work(self) -> Workload:
        """Workload that was asked for."""
        return self.ask.work

    @property
    def holds(self) -> bool:
        return not self.shortfalls

    @property
    def fps(self) -> float:
        """Frames a second of one session alone."""
        return 1e3 * self.ask.work.chunk_frames / self.time.period_ms

    @property
    def devices(self) -> int:
        return self.replicas * self.layout.num_devices

    @property
    def dollars_per_hour(self) -> float:
        """Dollars an hour for all devices it uses."""
        return self.devices * self.ask.fleet.device.dollars_per_hour

    @property
    def dollars_per_stream_hour(self) -> float:
        carried = min(self.ask.sessions, max(1, self.sessions_per_replica) * self.replicas)
        return self.dollars_per_hour / carried

    @property
    def fps_range(self) -> tuple[float, float]:
        """As low and as high as it may be, by what is known of the device."""
        return self.fps / (1 + self.band), self.fps / (1 - self.band)

    @property
    def band(self) -> float:
        """Error band of a time, each way: by the device, the program, the host or several devices, the
        least known."""
        host = HOST_BAND if self.waits_for_host else 0.0
        several = SEVERAL_BAND if self.layout.num_devices > 1 else 0.0
        return max(self.ask.fleet.device.band, self.work.software.band, host, several)

    @property
    def waits_for_host(self) -> bool:
        return self.time.period_ms == self.time.host_pace_ms

    @property
    def surely_holds(self) -> bool:
        """Even at the low end of what is known."""
        return self.holds and self.fps_range[0] >= self.ask.work.stream.fps

    @property
    def latency_ms(self) -> float:
        """From a chunk's plan to its frames: how soon a control can show, at best."""
        return self.time.serialised_ms

    @property
    def sessions_on_a_replica(self) -> int:
        """Sessions that the ask puts on a replica, as far as it carries them."""
        return max(1, min(math.ceil(self.ask.sessions / self.replicas), self.sessions_per_replica))

    @property
    def memory_share(self) -> float:
        held = max(need.bytes_for(self.sessions_on_a_replica) for need in self.needs)
        return held / self.ask.fleet.device.memory_bytes


def rates_text(ask: PlanAsk) -> str:
    """Return the source of a plan's rates, and how far it may be off on one device and on several."""
    device = ask.fleet.device
    band = max(device.band, ask.work.software.band)
    source = (
        "rates measured"
        if device.is_measured
        else f"rates of {device.architecture} chips from published kernels"
    )
    text = f"{source}, ±{100 * band:.0f}%"
    if ask.fleet.count > 1 and band < SEVERAL_BAND:
        text += f" on one, ±{100 * SEVERAL_BAND:.0f}% on several, which were never measured here"
    return text


def judge(ask: PlanAsk, layout: Topology) -> Plan:
    work = ask.work
    time = chunk_time(work, ask.fleet, layout)
    needs = device_needs(work, ask.fleet.device, layout)
    room = int(MEMORY_SHARE * ask.fleet.device.memory_bytes)
    fit = min(need.sessions_in(room) for need in needs)
    in_time = time.period_ms <= ask.work.deadline_ms
    kept = math.floor(ask.work.deadline_ms / time.busy_ms + 1e-9) * ask.work.batch if in_time else 0
    carried = min(fit, kept)
    available = ask.fleet.count // layout.num_devices
    assert available, f"{layout} needs {layout.num_devices} devices, there are {ask.fleet.count}"
    return Plan(
        ask=ask,
        layout=layout,
        time=time,
        needs=needs,
        sessions_per_replica=carried,
        replicas=min(available, math.ceil(ask.sessions / max(1, carried))),
        shortfalls=tuple(_shortfalls(ask, time, needs, fit, kept, available)),
        bound=_bound(ask, time, needs),
    )


def _shortfalls(
    ask: PlanAsk, time: ChunkTime, needs: tuple[DeviceNeed, ...], fit: int, kept: int, replicas: int
) -> list[Shortfall]:
    found = []
    work = ask.work
    deadline = ask.work.deadline_ms
    if fit < work.batch:
        fullest = max(needs, key=lambda need: need.bytes_for(work.batch))
        need = fullest.bytes_for(work.batch)
        have = ask.fleet.device.memory_bytes
        said = f"a device ({fullest.role}) needs {need / GIB:.1f} GiB and has {MEMORY_SHARE * have / GIB:.1f}"
        found.append(Shortfall(what="memory", share=MEMORY_SHARE * have / need, said=said))
    if time.period_ms > deadline:
        fps = 1e3 * work.chunk_frames / time.period_ms
        said = (
            f"one stream reaches {fps:.1f} of {work.stream.fps:g} FPS: a chunk takes "
            f"{time.period_ms:.0f} "
            f"ms of {deadline:.0f}"
        )
        found.append(Shortfall(what="frame rate", share=deadline / time.period_ms, said=said))
    carried = min(fit, kept) * replicas
    if not found and carried < ask.sessions:
        said = f"carries {carried} of {ask.sessions} sessions"
        found.append(Shortfall(what="sessions", share=carried / ask.sessions, said=said))
    limit = ask.first_frame_ms
    if limit is not None and time.first_frame_ms > limit:
        said = f"the first frame comes after {time.first_frame_ms / 1e3:.2f} s, not {limit / 1e3:.2f}"
        found.append(Shortfall(what="first frame", share=limit / time.first_frame_ms, said=said))
    return found


def _bound(ask: PlanAsk, time: ChunkTime, needs: tuple[DeviceNeed, ...]) -> str:
    """Return what one session uses furthest: the mesh, by what fills its time, the VAE, memory, or the wait
    for the first frame."""
    deadline = ask.work.deadline_ms
    call = time.call
    parts = {"products": call.products, "attention": call.attention, "bandwidth": call.elementwise}
    parts["communication"] = call.communication
    used = {
        max(parts, key=lambda name: parts[name]): time.mesh_ms / deadline,
        "VAE": time.front_ms / deadline,
        "host": time.host_pace_ms / deadline,
        "memory": max(need.bytes_for(ask.work.batch) for need in needs)
        / (MEMORY_SHARE * ask.fleet.device.memory_bytes),
    }
    if ask.first_frame_ms is not None:
        used["first frame"] = time.first_frame_ms / ask.first_frame_ms
    name = max(used, key=lambda key: used[key])
    return f"{name} {100 * used[name]:.0f}%"
