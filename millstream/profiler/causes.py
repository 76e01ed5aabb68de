"""The shares of the wall that are not work, over all ranks of a mesh, each with what shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from millstream.profiler.anatomy import Anatomy
from millstream.profiler.kinds import Kind
from millstream.profiler.ranks import Group, quickest_exchanges, transfer_share, waits_for_decode

SHORT_US = 10.0
"""A kernel that ends before the host can launch the next."""
Evidence = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Causes:
    """Shares of the wall, mean over the mesh."""

    host: float
    host_evidence: Evidence
    launch: float
    launch_evidence: Evidence
    sync: float
    sync_evidence: Evidence
    transfer: float
    transfer_evidence: Evidence
    skew: float
    skew_evidence: Evidence
    bubble: float
    decode: float
    decode_evidence: Evidence
    feed: float
    feed_evidence: Evidence
    allocator: float
    allocator_evidence: Evidence


def weigh(group: Group) -> Causes:
    mesh = group.mesh
    # What makes the slow rank slow is what the others wait for: counted once, as waiting.
    even = tuple(rank for rank in mesh if rank.rank != group.skew.straggler)
    shares = {name: fmean(rank.shares[name] for rank in even) for name in mesh[0].shares}
    skew = fmean(min(rank.shares["collective"], 1e3 * group.skew.waited_ms.get(rank.rank, 0.0) / rank.wall) for rank in mesh)
    quickest = quickest_exchanges(group.ranks)
    sent = fmean(min(rank.shares["exchange"], transfer_share(rank, quickest)) for rank in even)
    decode = _decode_wait(group)
    in_receive = max(0.0, shares["exchange"] - sent)
    bubble = max(0.0, in_receive - decode)
    host = max(0.0, shares["host"] + shares["compile"] - max(0.0, decode - in_receive))
    transfer = max(0.0, fmean(rank.shares["collective"] for rank in mesh) - skew) + sent
    feed = shares["data"] + shares["encode"]
    return Causes(
        host=host,
        host_evidence=_host_evidence(mesh, host, shares["compile"]),
        launch=shares["launch"],
        launch_evidence=_launch_evidence(mesh, shares["launch"]),
        sync=_sync_gain(mesh, shares["sync"] + shares["copy"]),
        sync_evidence=_sync_evidence(mesh, shares),
        transfer=transfer,
        transfer_evidence=_transfer_evidence(mesh, transfer),
        skew=skew,
        skew_evidence=_skew_evidence(group, skew),
        bubble=bubble,
        decode=decode,
        decode_evidence=_decode_evidence(group, decode),
        feed=feed,
        feed_evidence=(f"the device idles {_percent(shares['data'])} for input, {_percent(shares['encode'])} for encoding",),
        allocator=shares["allocator"],
        allocator_evidence=_allocator_evidence(mesh, shares["allocator"]),
    )


def _decode_wait(group: Group) -> float:
    """Only where clocks agree, and only if it is most of what the mesh waits for."""
    if group.front is None or not group.same_clock:
        return 0.0
    waits = fmean(waits_for_decode(rank, group.front) for rank in group.mesh)
    waiting = fmean((rank.idle.total + (rank.exchanges - rank.work).total) / rank.wall for rank in group.mesh)
    return waits if waits >= 0.5 * waiting else 0.0


def _sync_gain(mesh: tuple[Anatomy, ...], share: float) -> float:
    """However little it waits, a host that has work to do needs the time for it."""
    room = fmean(1 - max(rank.shares["work"], 1 - rank.waiting.total / rank.wall) for rank in mesh)
    return min(share, max(room, 0.0)) if any(len(rank.waiting) for rank in mesh) else share


def _host_evidence(mesh: tuple[Anatomy, ...], share: float, compiling: float) -> Evidence:
    said = [f"{_percent(share)} of the wall the device idles until the next launch call begins"]
    if compiling >= 0.01:
        said.append(f"{_percent(compiling)} of it goes into compiling: warm up first, and see the recompilations")
    return (*said, f"launch calls come {_mean(mesh, _calls_per_ms):.1f} to the millisecond")


def _launch_evidence(mesh: tuple[Anatomy, ...], share: float) -> Evidence:
    kernels = sum(len(rank.workers) for rank in mesh)
    return (
        f"{_percent(_mean(mesh, _short_share))} of {kernels} kernels take under {SHORT_US:.0f} us",
        f"{_percent(share)} of the wall the queue is empty while the host does nothing but launch",
    )


def _sync_evidence(mesh: tuple[Anatomy, ...], shares: dict[str, float]) -> Evidence:
    calls = sum(len(rank.trace.events.of(Kind.SYNC)) for rank in mesh)
    waited = _mean(mesh, lambda rank: rank.waiting.total / rank.wall)
    return (
        f"{calls} calls make the host wait for the device, {_percent(waited)} of the wall",
        f"the device then idles {_percent(shares['sync'])}; copies that nothing covers take {_percent(shares['copy'])}",
    )


def _transfer_evidence(mesh: tuple[Anatomy, ...], share: float) -> Evidence:
    total = _mean(mesh, lambda rank: (rank.collectives | rank.exchanges).total / rank.wall)
    said = f"communication takes {_percent(total)} of the wall, {_percent(share)} of it transfer that no work covers"
    if len(mesh) > 1:
        return (said,)
    return (said, "one rank only: waiting for others counts as transfer; give the other ranks' traces")


def _skew_evidence(group: Group, share: float) -> Evidence:
    skew, slow = group.skew, group.skew.straggler
    said = f"ranks wait for the last to come {_percent(share)} of the wall, over {skew.matched} collectives"
    if slow is None:
        return (said, "no rank is the last by habit: the lengths of their work vary")
    return (said, f"rank {slow} comes last to {_percent(skew.last[slow])} of them")


def _decode_evidence(group: Group, share: float) -> Evidence:
    if group.front is None:
        return ()
    busy = group.front.decoding.total / group.front.wall
    return (f"the front decodes {_percent(busy)} of the wall; the mesh waits meanwhile, {_percent(share)} of its own",)


def _allocator_evidence(mesh: tuple[Anatomy, ...], share: float) -> Evidence:
    calls = sum(len(rank.trace.events.of(Kind.ALLOCATION)) for rank in mesh)
    said = [f"{calls} calls to the driver for memory, {_percent(share)} of the wall with the device idle"]
    for rank in mesh:
        memory = rank.trace.memory
        if len(memory.at) and memory.allocated.max() > 0 and memory.reserved.max() > 1.3 * memory.allocated.max():
            said.append(
                f"rank {rank.rank} reserves {memory.reserved.max() / memory.allocated.max():.1f} times what it allocates"
            )
        retries = rank.trace.ours.get("allocation_retries")
        if isinstance(retries, int) and retries:
            said.append(f"rank {rank.rank}: {retries} allocations had to be tried again")
    return tuple(said)


def _calls_per_ms(rank: Anatomy) -> float:
    calls = rank.trace.events.of(Kind.LAUNCH, Kind.GRAPH) if rank.has_device else rank.workers
    return 1e3 * len(calls) / rank.wall


def _short_share(rank: Anatomy) -> float:
    lengths = rank.trace.events.length[rank.workers]
    return float((lengths < SHORT_US).mean()) if len(lengths) else 0.0


def _mean(mesh: tuple[Anatomy, ...], measure: Callable[[Anatomy], float]) -> float:
    return float(np.mean([measure(rank) for rank in mesh]))


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
