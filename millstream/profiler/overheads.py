"""Everything that is not the device working: shares of the wall, mean over the ranks of a mesh, each with what shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from millstream.profiler.anatomy import Anatomy
from millstream.profiler.findings import UNEXPLAINED, Finding
from millstream.profiler.kinds import PREPARES, Kind
from millstream.profiler.ranks import TracedGroup, quickest_exchanges, transfer_share, waits_for_decode

SHORT_US = 10.0
"""A kernel that ends before the host can launch the next."""
RECORD_HOST = "record the host as well: without its launch calls nobody knows why the device idles"
BETWEEN_OPERATORS = "compile, larger batches, less Python between operators"
"""Where the host is all there is."""
LONG_US = 5000.0
IN_LONG_GAPS = "see what the host does in the longest gaps (record stacks if it is not named); do it ahead in other processes"
"""Where most of the idle time is in gaps that no launch would fill."""
Ranks = Sequence[Anatomy]


def overheads(group: TracedGroup, *, bubble: float | None = None) -> list[Finding]:
    """Largest first. `bubble` is the share of idle time that the schedule predicts, if one is known."""
    decode = _decode_wait(group)
    waiting = _waiting(group, decode, bubble)
    found = [*_host(group, max(0.0, decode - _in_receive(group))), *_talk(group), *waiting]
    return sorted((finding for finding in found if finding.gain > 0), key=lambda finding: -finding.gain)


def _host(group: TracedGroup, explained: float) -> list[Finding]:
    """What the host does while the device idles; of its own business a share may be explained by somebody else's."""
    ranks = _even(group)
    share = {name: fmean(rank.shares[name] for rank in ranks) for name in ranks[0].shares}
    host = max(0.0, share["host"] + share["compile"] - explained)
    feed = share["data"] + share["encode"]
    return [
        Finding(
            name="CPU-bound",
            gain=host,
            evidence=_host_evidence(ranks, host, share["compile"]),
            remedy=_host_remedy(ranks),
        ),
        Finding(name="launch-bound", gain=share["launch"], evidence=_launch_evidence(ranks, share["launch"])),
        Finding(name="warm-up", gain=share["warm-up"], evidence=_warm_up_evidence(share["warm-up"])),
        Finding(name="queue-bound", gain=share["queue"], evidence=_queue_evidence(share["queue"])),
        Finding(name=UNEXPLAINED, gain=share["unknown"], evidence=_unknown_evidence(share["unknown"]), remedy=RECORD_HOST),
        Finding(name="synchronisation", gain=_sync_gain(ranks, share), evidence=_sync_evidence(ranks, share)),
        Finding(name="allocator", gain=share["allocator"], evidence=_allocator_evidence(ranks, share["allocator"])),
        Finding(
            name="data- or encode-bound",
            gain=feed,
            evidence=(
                f"the device idles {_percent(share['data'])} for input, {_percent(share['encode'])} for encoding",
                *_loading_evidence(ranks, share["data"]),
            ),
        ),
    ]


def _talk(group: TracedGroup) -> list[Finding]:
    """Collectives: the transfer, and waiting for whoever comes last."""
    mesh = group.mesh
    skew = _mean(mesh, lambda rank: min(rank.shares["collective"], _waited(group, rank)))
    transfer = max(0.0, _mean(mesh, lambda rank: rank.shares["collective"]) - skew) + _sent(group)
    return [
        Finding(name="communication-bound", gain=transfer, evidence=_transfer_evidence(mesh, transfer)),
        Finding(name="straggler", gain=skew, evidence=_skew_evidence(group, skew)),
    ]


def _waiting(group: TracedGroup, decode: float, bubble: float | None) -> list[Finding]:
    """Receives: for a front that decodes, or because too little is in flight."""
    in_receive = max(0.0, _in_receive(group) - decode)
    predicted = "" if bubble is None else f"; the schedule predicts {_percent(bubble)}"
    said = f"{_percent(in_receive)} of the wall spent in receive{predicted}"
    return [
        Finding(name="bubble-bound", gain=in_receive, evidence=(said,)),
        Finding(name="decode-bound", gain=decode, evidence=_decode_evidence(group, decode)),
    ]


def _even(group: TracedGroup) -> Ranks:
    """Without the slow rank: what makes it slow is what the others wait for, and counts once, as waiting."""
    return tuple(rank for rank in group.mesh if rank.rank != group.skew.straggler)


def _waited(group: TracedGroup, rank: Anatomy) -> float:
    return 1e3 * group.skew.waited_ms.get(rank.rank, 0.0) / rank.wall


def _sent(group: TracedGroup) -> float:
    """Exchanges, had nobody waited."""
    quickest = quickest_exchanges(group.ranks)
    return _mean(_even(group), lambda rank: min(rank.shares["exchange"], transfer_share(rank, quickest)))


def _in_receive(group: TracedGroup) -> float:
    return max(0.0, _mean(_even(group), lambda rank: rank.shares["exchange"]) - _sent(group))


def _decode_wait(group: TracedGroup) -> float:
    """Only where clocks agree, and only if it is most of what the mesh waits for."""
    front = group.front
    if front is None or not group.same_clock:
        return 0.0
    waits = _mean(group.mesh, lambda rank: waits_for_decode(rank, front))
    waiting = _mean(group.mesh, lambda rank: (rank.idle.total + (rank.exchanges - rank.work).total) / rank.wall)
    return waits if waits >= 0.5 * waiting else 0.0


def _sync_gain(ranks: Ranks, share: dict[str, float]) -> float:
    """However little it waits, a host that has work to do needs the time for it."""
    lost = share["sync"] + share["copy"]
    if not any(len(rank.waiting) for rank in ranks):
        return lost
    room = _mean(ranks, lambda rank: 1 - max(rank.shares["work"], 1 - rank.blocked.total / rank.wall))
    return min(lost, max(room, 0.0))


def _host_remedy(ranks: Ranks) -> str:
    if not _has_device(ranks):
        return BETWEEN_OPERATORS
    lengths = np.concatenate([rank.idle.end - rank.idle.begin for rank in ranks])
    return IN_LONG_GAPS if lengths[lengths >= LONG_US].sum() > lengths.sum() / 2 else ""


def _host_evidence(ranks: Ranks, share: float, compiling: float) -> tuple[str, ...]:
    has_device = _has_device(ranks)
    idles = "the device idles until the next launch call begins" if has_device else "no operator runs"
    said = [f"{_percent(share)} of the wall {idles}"]
    if compiling >= 0.01:
        said.append(f"{_percent(compiling)} of it goes into compiling: warm up first, and see the recompilations")
    calls = "launch calls" if has_device else "operators"
    return (*said, f"{calls} come {_mean(ranks, _calls_per_ms):.1f} to the millisecond")


def _launch_evidence(ranks: Ranks, share: float) -> tuple[str, ...]:
    kernels = sum(len(rank.workers) for rank in ranks)
    return (
        f"{_percent(_mean(ranks, _short_share))} of {kernels} kernels take under {SHORT_US:.0f} us",
        f"{_percent(share)} of the wall the queue is empty while the host does nothing but launch",
    )


def _loading_evidence(ranks: Ranks, share: float) -> tuple[str, ...]:
    """Who is slow: workers that this process waits for, or this process that prepares its input itself."""
    names = {rank.trace.names[i] for rank in ranks for i in rank.trace.events.name[rank.trace.events.of(Kind.DATA)]}
    if share < 0.01:
        return ()
    if any("MultiProcessing" in name for name in names):
        return ("it waits for the data loader's workers: more of them, or less for each to do",)
    if any("SingleProcess" in name for name in names):
        return ("the input is read and prepared in this process: give the data loader workers",)
    prepares = sorted(name for name in names if PREPARES.search(name))
    return (f"nobody is waited for: this process prepares its input, as in {prepares[0][:100]}",) if prepares else ()


def _warm_up_evidence(share: float) -> tuple[str, ...]:
    return (f"{_percent(share)} of the wall the device idles in launches over 1 ms: they load their kernels first",)


def _queue_evidence(share: float) -> tuple[str, ...]:
    return (
        f"{_percent(share)} of the wall work is launched and the device idle: it waits for another stream, rank or process",
    )


def _unknown_evidence(share: float) -> tuple[str, ...]:
    return (f"{_percent(share)} of the wall the device idles, and the calls that launch what follows are not in the trace",)


def _sync_evidence(ranks: Ranks, share: dict[str, float]) -> tuple[str, ...]:
    calls = sum(len(rank.trace.events.of(Kind.SYNC)) for rank in ranks)
    waited = _mean(ranks, lambda rank: rank.waiting.total / rank.wall)
    return (
        f"{calls} calls make the host wait for the device, {_percent(waited)} of the wall",
        f"the device then idles {_percent(share['sync'])}; copies that nothing covers take {_percent(share['copy'])}",
    )


def _transfer_evidence(mesh: Ranks, share: float) -> tuple[str, ...]:
    total = _mean(mesh, lambda rank: (rank.collectives | rank.exchanges).total / rank.wall)
    said = f"communication takes {_percent(total)} of the wall, {_percent(share)} of it transfer that no work covers"
    if len(mesh) > 1:
        return (said,)
    return (said, "one rank only: waiting for others counts as transfer; give the other ranks' traces")


def _skew_evidence(group: TracedGroup, share: float) -> tuple[str, ...]:
    skew, slow = group.skew, group.skew.straggler
    said = f"ranks wait for the last to come {_percent(share)} of the wall, over {skew.matched} collectives"
    if slow is None:
        return (said, "no rank is the last by habit: the lengths of their work vary")
    return (said, f"rank {slow} comes last to {_percent(skew.last[slow])} of them")


def _decode_evidence(group: TracedGroup, share: float) -> tuple[str, ...]:
    if group.front is None:
        return ()
    busy = group.front.decoding.total / group.front.wall
    return (f"the front decodes {_percent(busy)} of the wall; the mesh waits meanwhile, {_percent(share)} of its own",)


def _allocator_evidence(ranks: Ranks, share: float) -> tuple[str, ...]:
    calls = sum(len(rank.trace.events.of(Kind.ALLOCATION)) for rank in ranks)
    said = [f"{calls} calls to the driver for memory, {_percent(share)} of the wall with the device idle"]
    for rank in ranks:
        memory = rank.trace.memory
        allocated, reserved = (int(values.max(initial=0)) for values in (memory.allocated, memory.reserved))
        if allocated and reserved > 1.3 * allocated:
            said.append(f"rank {rank.rank} reserves {reserved / allocated:.1f} times what it allocates")
        retries = rank.trace.ours.get("allocation_retries")
        if isinstance(retries, int) and retries:
            said.append(f"rank {rank.rank}: {retries} allocations had to be tried again")
    return tuple(said)


def _has_device(ranks: Ranks) -> bool:
    return any(rank.has_device for rank in ranks)


def _calls_per_ms(rank: Anatomy) -> float:
    calls = rank.trace.events.of(Kind.LAUNCH, Kind.GRAPH) if rank.has_device else rank.workers
    return 1e3 * len(calls) / rank.wall


def _short_share(rank: Anatomy) -> float:
    lengths = rank.trace.events.length[rank.workers]
    return float((lengths < SHORT_US).mean()) if len(lengths) else 0.0


def _mean(ranks: Ranks, measure: Callable[[Anatomy], float]) -> float:
    return fmean(measure(rank) for rank in ranks)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
