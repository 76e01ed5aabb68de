"""The server under abuse, on this machine: nothing answers 500, nothing is left behind, and nobody's picture
stands still.

    python -m tests.soak.abuse --mutations 250000    # wrong messages and requests over every protocol
    python -m tests.soak.abuse --mutations 250000 --gateway    # the same through a fleet's gateway
    python -m tests.soak.abuse --beside              # a viewer beside each kind of abuse
    python -m tests.soak.abuse --soak 3600           # all kinds in random order beside four viewers

One `millstream serve` with a tiny model, started for the run; everything is seeded, bounded in number and in
time, and goes to this machine's own address. Exits 1 when a limit is missed. Nothing else should run
meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from millstream.fleet.local_fleet import local_fleet
from millstream.load.gate import LIMITS
from millstream.load.host import Host, serve
from tests.soak.abuses.beside import FPS, SIZE, missed_beside, watch_beside
from tests.soak.abuses.campaign import run_campaign
from tests.soak.abuses.kinds import ABUSES
from tests.soak.abuses.server import MODEL, SHORT, TRACEBACK, Log, grown, settled
from tests.soak.abuses.soak import AT_ONCE, missed_in_soak, soak
from tests.soak.abuses.target import Target
from tests.soak.live import rounded
from tests.soak.report import write_report

VIEWERS = 4
WARM_S = 5.0
WARM_UP = 0.04
"""Share of the mutations that are sent before anything is measured: what only the first take is not
growth."""
SECONDS_A_MUTATION = 0.006
"""After so long for each, what is left is not sent, and that is a limit missed."""
FLEET = """
[replicas.tiny]
model = "wan-tiny"
minimum = 1
maximum = 1
idle = 3600
"""
READY_S = 120.0
MAX_MUTATIONS = 1_000_000
MAX_SECONDS = 4 * 3600.0


async def mutations(host: Host, options: argparse.Namespace) -> dict[str, Any]:
    target = Target.at(host.url)
    count = options.mutations
    await run_campaign(target, mutations=max(200, int(WARM_UP * count)), seed=options.seed + 1, limit_s=120.0)
    before = await settled(host, None)
    assert before is not None, "the server did not survive the warm-up"
    log = Log(host)
    begun = time.monotonic()
    tally = await run_campaign(
        target, mutations=count, seed=options.seed, limit_s=60 + SECONDS_A_MUTATION * count
    )
    took_s = time.monotonic() - begun
    tracebacks = log.tracebacks()
    after = await settled(host, before)
    measured = {
        **tally.summary(),
        "took_s": took_s,
        "tracebacks": tracebacks,
        "before": asdict(before),
        "after": None if after is None else asdict(after),
    }
    missed = [] if tally.total >= count else [f"{tally.total} of {count} were sent before time was up"]
    missed += (
        [f"{tally.num_failed} answers of 500, the first: {tally.failures[0]}"] if tally.num_failed else []
    )
    missed += (
        [f"{len(tally.unanswered)} were never answered, the first: {tally.unanswered[0]}"]
        if tally.unanswered
        else []
    )
    missed += [f"{number} tracebacks: {reason}" for reason, number in tracebacks.items()]
    missed += ["the server is gone"] if after is None else grown(before, after, LIMITS.memory_growth)
    return {**measured, "missed": missed}


async def beside(options: argparse.Namespace) -> dict[str, Any]:
    """Each kind on a server that has stood all before it; one that is no longer what it was is not held
    against the next."""
    seen: dict[str, Any] = {}
    tracebacks: Counter[str] = Counter()
    kinds = ["nobody", *(options.kinds or sorted(ABUSES))]
    while kinds:
        async with serve([*MODEL, *SHORT]) as host:
            log = Log(host)
            await watch_beside(host, None, seconds=WARM_S, seed=options.seed)
            stands = True
            while kinds and stands:
                kind = kinds.pop(0)
                abuse = None if kind == "nobody" else kind
                seen[kind] = await watch_beside(host, abuse, seconds=options.seconds, seed=options.seed)
                stands = not seen[kind]["refused_afterwards"]
                print(f"{kind}: {missed_beside(kind, seen[kind]) or 'stood'}", file=sys.stderr, flush=True)
            tracebacks.update(log.tracebacks())
    missed = [line for kind in seen for line in missed_beside(kind, seen[kind])]
    missed += [f"{number} tracebacks: {reason}" for reason, number in tracebacks.items()]
    return {
        "fps": FPS,
        "size": SIZE,
        "seconds": options.seconds,
        "beside": seen,
        "tracebacks": dict(tracebacks),
        "missed": missed,
    }


async def soaking(host: Host, options: argparse.Namespace) -> dict[str, Any]:
    log = Log(host)
    soaked = await soak(host, seconds=options.soak, viewers=VIEWERS, seed=options.seed)
    people = [
        {"person": each.person, "continuity": each.continuity, "stalled_s": each.stalled_s, "played_s": each.played_s,
         "misses": each.misses, "controls": each.controls, "unanswered": each.unanswered, "errors": each.errors}
        for each in soaked.people.people
    ]  # fmt: skip
    measured = {
        "fps": FPS,
        "size": SIZE,
        "at_once": AT_ONCE,
        "viewers": people,
        "server": soaked.series.summary(),
        "samples": len(soaked.series.times),
        "turns": dict(soaked.turns),
        "broken_attackers": soaked.broken,
        "tracebacks": log.tracebacks(),
    }
    tracebacks = [f"{number} tracebacks: {reason}" for reason, number in log.tracebacks().items()]
    return {**measured, "missed": missed_in_soak(measured) + tracebacks}


class Faults(logging.Handler):
    """Log records of this process, which has the gateway in it, that come with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen[f"{record.getMessage()[:100]}: {record.exc_info[1]!r}"[:300]] += 1


async def through_gateway(options: argparse.Namespace) -> dict[str, Any]:
    """The mutations at a fleet's gateway. Memory is not measured: attackers and gateway are one process."""
    count = options.mutations
    faults = Faults()
    logging.getLogger().addHandler(faults)
    with (
        tempfile.TemporaryDirectory() as folder,
        local_fleet(FLEET, Path(folder), options=(*MODEL, *SHORT)) as running,
    ):
        give_up = time.monotonic() + READY_S
        while not await asyncio.to_thread(lambda: running.ready):
            assert time.monotonic() < give_up, "no replica became ready"
            await asyncio.sleep(0.1)
        begun = time.monotonic()
        target = Target.at(running.url.replace("http", "ws"))
        limit_s = 60 + 10 * SECONDS_A_MUTATION * count
        tally = await run_campaign(target, mutations=count, seed=options.seed, limit_s=limit_s)
        took_s = time.monotonic() - begun
        alive = await asyncio.to_thread(lambda: running.ready)
        of_replicas = sum(
            log.read_text(errors="replace").count(TRACEBACK) for log in Path(folder).glob("*.log")
        )
    logging.getLogger().removeHandler(faults)
    missed = [] if tally.total >= count else [f"{tally.total} of {count} were sent before time was up"]
    missed += (
        [f"{tally.num_failed} answers of 500, the first: {tally.failures[0]}"] if tally.num_failed else []
    )
    missed += (
        [f"{len(tally.unanswered)} were never answered, the first: {tally.unanswered[0]}"]
        if tally.unanswered
        else []
    )
    missed += [f"{number} tracebacks of the gateway: {reason}" for reason, number in faults.seen.items()]
    missed += [f"{of_replicas} tracebacks of the replica"] if of_replicas else []
    missed += [] if alive else ["the replica is gone"]
    return {**tally.summary(), "took_s": took_s, "tracebacks": dict(faults.seen), "missed": missed}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.beside:
        return await beside(options)
    if options.gateway:
        return await through_gateway(options)
    mode = mutations if options.mutations else soaking
    async with serve([*MODEL, *SHORT]) as host:
        return await mode(host, options)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--mutations", type=int, default=0, help="how many wrong messages and requests")
    mode.add_argument("--beside", action="store_true", help="a viewer beside each kind of abuse")
    mode.add_argument("--soak", type=float, default=0.0, help="seconds of all kinds beside four viewers")
    parser.add_argument("--gateway", action="store_true", help="send mutations through a fleet's gateway")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each abuse beside a viewer")
    parser.add_argument("--kinds", nargs="*", choices=sorted(ABUSES), help="only these, beside a viewer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    if options.gateway and not options.mutations:
        parser.error("--gateway is for --mutations")
    if (
        not 0 <= options.mutations <= MAX_MUTATIONS
        or not 0 <= max(options.soak, options.seconds) <= MAX_SECONDS
    ):
        parser.error(f"at most {MAX_MUTATIONS} mutations and {MAX_SECONDS:g} seconds")
    return options


def main() -> None:
    options = parse()
    name = (
        "abuse-gateway"
        if options.gateway
        else "abuse-mutations"
        if options.mutations
        else "abuse-beside"
        if options.beside
        else "abuse-soak"
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server and the attackers end with it
    measured = asyncio.run(measure(options))
    goals = {
        "continuity": LIMITS.continuity,
        "growth": LIMITS.memory_growth,
        "answers of 500": 0,
        "tracebacks": 0,
    }
    write_report(name, {**vars(options), "server": [*MODEL, *SHORT]}, {**rounded(measured), "goals": goals})
    sys.exit(1 if measured["missed"] else 0)


if __name__ == "__main__":
    main()
