"""Causes of time in which the device does not work: shares of the wall, mean over the ranks of a mesh, each
with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from millstream.profiler.rules.facts import SHORT_US, RankFacts, RunFacts, mean
from millstream.profiler.rules.findings import UNEXPLAINED, Finding

RECORD_HOST = "record the host as well: without its launch calls nobody knows why the device idles"
BETWEEN_OPERATORS = "compile, larger batches, less Python between operators"
"""Advice where there is no device."""
IN_LONG_GAPS = (
    "see what the host does in the longest gaps (record stacks if it is not named); do it ahead "
    "in other processes"
)
"""Advice where most of the idle time is in gaps that no launch would fill."""
RESERVES = 1.3
"""Reserved memory as a multiple of the allocated; above it, much lies idle."""
Ranks = Sequence[RankFacts]


def overheads(run: RunFacts, *, bubble: float | None = None) -> list[Finding]:
    """Return the findings, largest first. `bubble` is the share of idle time that the schedule predicts, if
    one is known."""
    decode = _decode_wait(run)
    waiting = _waiting(run, decode, bubble)
    found = [*_host(run, max(0.0, decode - _in_receive(run))), *_talk(run), *waiting]
    return sorted((finding for finding in found if finding.gain > 0), key=lambda finding: -finding.gain)


def _host(run: RunFacts, explained: float) -> list[Finding]:
    """Return findings on what the host does while the device idles. `explained` is the share of the wall that
    another cause explains; it is taken off the host's own part."""
    ranks = run.even
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
        Finding(
            name=UNEXPLAINED,
            gain=share["unknown"],
            evidence=_unknown_evidence(share["unknown"]),
            remedy=RECORD_HOST,
        ),
        Finding(name="synchronisation", gain=_sync_gain(ranks, share), evidence=_sync_evidence(ranks, share)),
        Finding(
            name="allocator", gain=share["allocator"], evidence=_allocator_evidence(ranks, share["allocator"])
        ),
        Finding(
            name="data- or encode-bound",
            gain=feed,
            evidence=(
                f"the device idles {_percent(share['data'])} for input, {_percent(share['encode'])} for "
                "encoding",
                *_loading_evidence(ranks, share["data"]),
            ),
        ),
    ]


def _talk(run: RunFacts) -> list[Finding]:
    """Return findings on collectives: the transfer, and waiting for the rank that comes last."""
    mesh = run.mesh
    skew = mean(mesh, lambda rank: min(rank.shares["collective"], rank.talk.waited))
    transfer = max(0.0, mean(mesh, lambda rank: rank.shares["collective"]) - skew) + _sent(run)
    return [
        Finding(name="communication-bound", gain=transfer, evidence=_transfer_evidence(mesh, transfer)),
        Finding(name="straggler", gain=skew, evidence=_skew_evidence(run, skew)),
    ]


def _waiting(run: RunFacts, decode: float, bubble: float | None) -> list[Finding]:
    """Return findings on receives: waiting for a front that decodes, or because too little is in flight."""
    in_receive = max(0.0, _in_receive(run) - decode)
    predicted = "" if bubble is None else f"; the schedule predicts {_percent(bubble)}"
    said = f"{_percent(in_receive)} of the wall spent in receive{predicted}"
    return [
        Finding(name="bubble-bound", gain=in_receive, evidence=(said,)),
        Finding(name="decode-bound", gain=decode, evidence=_decode_evidence(run, decode)),
    ]


def _sent(run: RunFacts) -> float:
    """Return the share that exchanges would take without waiting."""
    return mean(run.even, lambda rank: min(rank.shares["exchange"], rank.talk.sent))


def _in_receive(run: RunFacts) -> float:
    return max(0.0, mean(run.even, lambda rank: rank.shares["exchange"]) - _sent(run))


def _decode_wait(run: RunFacts) -> float:
    """Return the share of waiting for decoding, if it is at least half of what the mesh waits for; else 0."""
    waits = mean(run.mesh, lambda rank: rank.talk.stands_for_front)
    return waits if waits >= 0.5 * mean(run.mesh, lambda rank: rank.talk.stands) else 0.0


def _sync_gain(ranks: Ranks, share: dict[str, float]) -> float:
    """Return the share that would be gained without synchronisation. Limited by the host's own work: a host
    that hardly waits still needs the time for it."""
    lost = share["sync"] + share["copy"]
    if not any(rank.host.waiting for rank in ranks):
        return lost
    room = mean(ranks, lambda rank: 1 - max(rank.shares["work"], 1 - rank.host.blocked))
    return min(lost, max(room, 0.0))


def _host_remedy(ranks: Ranks) -> str:
    if not _has_device(ranks):
        return BETWEEN_OPERATORS
    in_long = mean(ranks, lambda rank: rank.host.idle_long - rank.host.idle / 2) > 0
    return IN_LONG_GAPS if in_long else ""


def _host_evidence(ranks: Ranks, share: float, compiling: float) -> tuple[str, ...]:
    has_device = _has_device(ranks)
    idles = "the device idles until the next launch call begins" if has_device else "no operator runs"
    said = [f"{_percent(share)} of the wall {idles}"]
    if compiling >= 0.01:
        said.append(
            f"{_percent(compiling)} of it goes into compiling: warm up first, and see the recompilations"
        )
    calls = "launch calls" if has_device else "operators"
    return (*said, f"{calls} come {mean(ranks, lambda rank: rank.host.calls_per_ms):.1f} to the millisecond")


def _launch_evidence(ranks: Ranks, share: float) -> tuple[str, ...]:
    kernels = sum(rank.kernels for rank in ranks)
    return (
        f"{_percent(mean(ranks, lambda rank: rank.short))} of {kernels} kernels take under {SHORT_US:.0f} us",
        f"{_percent(share)} of the wall the queue is empty while the host does nothing but launch",
    )


def _loading_evidence(ranks: Ranks, share: float) -> tuple[str, ...]:
    """Return a sentence on which side is slow: workers that this process waits for, or this process that
    prepares its input itself."""
    sources = {rank.host.input_from for rank in ranks}
    if share < 0.01:
        return ()
    if "workers" in sources:
        return ("it waits for the data loader's workers: more of them, or less for each to do",)
    if "process" in sources:
        return ("the input is read and prepared in this process: give the data loader workers",)
    prepares = sorted(rank.host.prepares for rank in ranks if rank.host.prepares)
    return (
        (f"nobody is waited for: this process prepares its input, as in {prepares[0]}",) if prepares else ()
    )


def _warm_up_evidence(share: float) -> tuple[str, ...]:
    return (
        f"{_percent(share)} of the wall the device idles in slow first calls, which make its context or load "
        "kernels",
    )


def _queue_evidence(share: float) -> tuple[str, ...]:
    return (
        f"{_percent(share)} of the wall work is launched and the device idle: it waits for another stream, "
        "rank or process",
    )


def _unknown_evidence(share: float) -> tuple[str, ...]:
    return (
        f"{_percent(share)} of the wall the device idles, and the calls that launch what follows are not in "
        "the trace",
    )


def _sync_evidence(ranks: Ranks, share: dict[str, float]) -> tuple[str, ...]:
    calls = sum(rank.host.waits for rank in ranks)
    waited = mean(ranks, lambda rank: rank.host.waiting)
    return (
        f"{calls} calls make the host wait for the device, {_percent(waited)} of the wall",
        f"the device then idles {_percent(share['sync'])}; copies that nothing covers take "
        f"{_percent(share['copy'])}",
    )


def _transfer_evidence(mesh: Ranks, share: float) -> tuple[str, ...]:
    total = mean(mesh, lambda rank: rank.talk.total)
    said = (
        f"communication takes {_percent(total)} of the wall, {_percent(share)} of it transfer that no "
        "work covers"
    )
    if len(mesh) > 1:
        return (said,)
    return (said, "one rank only: waiting for others counts as transfer; give the other ranks' traces")


def _skew_evidence(run: RunFacts, share: float) -> tuple[str, ...]:
    said = f"ranks wait for the last to come {_percent(share)} of the wall, over {run.matched} collectives"
    if run.straggler is None:
        return (said, "no rank is the last by habit: the lengths of their work vary")
    return (said, f"rank {run.straggler} comes last to {_percent(run.comes_last)} of them")


def _decode_evidence(run: RunFacts, share: float) -> tuple[str, ...]:
    return tuple(
        f"the front decodes {_percent(rank.talk.decoding)} of the wall; the mesh waits meanwhile, "
        f"{_percent(share)} of its own"
        for rank in run.ranks
        if rank.rank == run.front
    )


def _allocator_evidence(ranks: Ranks, share: float) -> tuple[str, ...]:
    calls = sum(rank.host.allocations for rank in ranks)
    said = [f"{calls} calls to the driver for memory, {_percent(share)} of the wall with the device idle"]
    for rank in ranks:
        if rank.host.reserves > RESERVES:
            said.append(f"rank {rank.rank} reserves {rank.host.reserves:.1f} times what it allocates")
        if rank.host.retries:
            said.append(f"rank {rank.rank}: {rank.host.retries} allocations had to be tried again")
    return tuple(said)


def _has_device(ranks: Ranks) -> bool:
    return any(rank.has_device for rank in ranks)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
