"""A fleet on Ray, measured as its people meet it: first picture, relays, connects, refusals, moves, a deploy,
kills.

    python -m benchmarks.fleet                                    # small counts
    python -m benchmarks.fleet --moves 200 --kills 50 --node-kills 10 --gateway-kills 10 --people 20 --connects 1000
    python -m benchmarks.fleet --parts moves --moves 40           # results/fleet-moves.json
    python -m benchmarks.fleet --moves 200 ... --resume           # the same again, after an interruption
    python -m benchmarks.fleet --trace trace.json                 # for benchmarks.fleet_sim; also --without-ray

A Ray cluster of two nodes on this machine, `millstream fleet up` with three replicas of a tiny model. People
stream through it, steered alike at the same chunks, so that each must be shown the same bits as one whom
nothing happened to. Meanwhile sessions are moved, a new version is deployed, and servers, a node and the
gateway are killed (SIGKILL). What a person counts: `benchmarks/fleets/people.py`. Each part says how long it
took.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.fleets.doors import connects, first_pictures, refusals
from benchmarks.fleets.harm import TwoNodes, deploy, kill_gateway, kill_one, move_one, two_nodes
from benchmarks.fleets.people import Person, disturbed, quantile, summary
from benchmarks.fleets.visits import record_trace
from benchmarks.report import RESULTS, write_report
from millstream.fleet.kuberay import PASSING_ON
from millstream.fleet.local_fleet import KEEP, RunningFleet, fleet_of_processes, fleet_up

TWO_PLACES = 0.0067
"""GiB: of a replica while a trace is recorded, so that people wait however fast the machine is."""
TRACING = ("trace", "without_ray", "trace_s", "visitors", "stay", "seed")
"""Options of a recording."""
Found = dict[str, Any]


def doors(fleet: RunningFleet, nodes: TwoNodes, options: argparse.Namespace) -> Found:
    return {
        "first_picture": asyncio.run(first_pictures(fleet, options.pictures)),
        "connects": asyncio.run(connects(fleet, options.connects)),
        "refusals": asyncio.run(refusals(fleet, options.refusals)),
    }


def moves(fleet: RunningFleet, nodes: TwoNodes, options: argparse.Namespace) -> Found:
    people = people_of(options)
    before = time.time()
    asyncio.run(disturbed(fleet, people, lambda: move_one(fleet), options.moves, 0.5, wait=False))
    seconds = [event["seconds"] for event in fleet.events("move") if event["at"] > before]
    failed = sum(event["at"] > before for event in fleet.events("move failed"))
    spread = {"move_s_p50": quantile(seconds, 0.5), "move_s_p99": quantile(seconds, 0.99)}
    return summary(people) | {"moves": len(seconds), "failed": failed} | spread


def rolling_deploy(fleet: RunningFleet, nodes: TwoNodes, options: argparse.Namespace) -> Found:
    people = people_of(options)
    before = time.time()
    asyncio.run(disturbed(fleet, people, lambda: deploy(fleet, f"of {before:.0f}"), 1, 1.0, wait=False))
    moved, failed = (
        [event for event in fleet.events(kind) if event["at"] > before] for kind in ("move", "move failed")
    )
    return summary(people) | {"moves": len(moved), "failed_moves_tried_again": len(failed)}


def kills(fleet: RunningFleet, nodes: TwoNodes, options: argparse.Namespace) -> Found:
    return killed(fleet, options, lambda: kill_one(fleet), options.kills)


def node_kills(fleet: RunningFleet, nodes: TwoNodes, options: argparse.Namespace) -> Found:
    return killed(fleet, options, nodes.kill_node, options.node_kills)


def gateway_kills(fleet: RunningFleet, nodes: TwoNodes, options: argparse.Namespace) -> Found:
    return killed(fleet, options, lambda: kill_gateway(fleet), options.gateway_kills)


def killed(fleet: RunningFleet, options: argparse.Namespace, kill: Callable[[], object], count: int) -> Found:
    people = people_of(options)
    back = asyncio.run(disturbed(fleet, people, kill, count, 1.0))
    everybody = [each.seconds for each in back]
    hurt = [each.seconds for each in back if each.was_hurt]
    return summary(people) | {
        "kills": count,
        "next_chunk_s_p50": quantile(everybody, 0.5),
        "next_chunk_s_p95": quantile(everybody, 0.95),
        "lost_their_server": len(hurt),
        "recovery_s_p50": quantile(hurt, 0.5),
        "recovery_s_p95": quantile(hurt, 0.95),
        "recovery_s_max": max(hurt, default=None),
    }


PARTS: dict[str, Callable[[RunningFleet, TwoNodes, argparse.Namespace], Found]] = {
    "doors": doors, "moves": moves, "deploy": rolling_deploy, "kills": kills, "node-kills": node_kills,
    "gateway-kills": gateway_kills,
}  # fmt: skip


def people_of(options: argparse.Namespace) -> list[Person]:
    return [Person(options.fps) for _ in range(options.people)]


def measure(fleet: RunningFleet, nodes: TwoNodes, options: argparse.Namespace) -> None:
    """Written after each part: all of them take long."""
    asked = {name: value for name, value in vars(options).items() if name not in (*TRACING, "resume")}
    asked |= {"replicas": 3, "keep": KEEP, "serve": {name: os.environ.get(name) for name in PASSING_ON}}
    name = "fleet" if options.parts == list(PARTS) else f"fleet-{'-'.join(options.parts)}"
    found = measured_before(name, asked) if options.resume else {}
    for part in [part for part in options.parts if part not in found]:
        begun = time.monotonic()
        fleet.wait()
        found[part] = PARTS[part](fleet, nodes, options) | {
            "load_average": os.getloadavg(),
            "took_s": time.monotonic() - begun,
        }
        write_report(name, asked, found)


def measured_before(name: str, asked: Found) -> Found:
    """Return the measurements of an earlier run with the same options; empty where there is none."""
    path = RESULTS / f"{name}.json"
    report = msgspec.json.decode(path.read_bytes(), type=Found) if path.exists() else {}
    return report["measured"] if report.get("configuration") == msgspec.to_builtins(asked) else {}


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="What is measured; all of it."
    )
    parser.add_argument(
        "--resume", action="store_true", help="Leave out what the same options have measured before."
    )
    parser.add_argument("--people", type=int, default=3)
    parser.add_argument("--moves", type=int, default=10)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--node-kills", type=int, default=1)
    parser.add_argument("--gateway-kills", type=int, default=1)
    parser.add_argument("--connects", type=int, default=200)
    parser.add_argument("--refusals", type=int, default=50)
    parser.add_argument("--pictures", type=int, default=5)
    parser.add_argument("--fps", type=float, default=4.0, help="Low, for three replicas share a machine.")
    parser.add_argument("--port", type=int, default=8471)
    parser.add_argument(
        "--trace", type=Path, help="Record this instead: people who come and go, a kill and a drain."
    )
    parser.add_argument(
        "--without-ray", action="store_true", help="The trace of servers that this program starts itself."
    )
    parser.add_argument("--trace-s", type=float, default=120.0)
    parser.add_argument("--visitors", type=int, default=24)
    parser.add_argument("--stay", type=float, default=30.0, help="Seconds, on average.")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


@contextmanager
def on_two_nodes(folder: Path, port: int, more: str = "") -> Iterator[tuple[RunningFleet, TwoNodes]]:
    from millstream.fleet import on_ray

    with two_nodes() as nodes, fleet_up(folder, port=port, more=more, address=nodes.address) as fleet:
        on_ray.connect(nodes.address)
        try:
            yield fleet, nodes
        finally:
            on_ray.disconnect()


def record(folder: Path, options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        if options.without_ray:
            fleet = stack.enter_context(fleet_of_processes(folder, more=("--memory", str(TWO_PLACES))))
        else:
            fleet, _ = stack.enter_context(on_two_nodes(folder, options.port, f"memory = {TWO_PLACES}"))
        people = [Person(options.fps) for _ in range(options.visitors)]
        record_trace(fleet, people, options.trace_s, options.stay, options.seed, options.trace)


def main() -> None:
    options = options_of()
    with tempfile.TemporaryDirectory() as folder:
        if options.trace is not None:
            record(Path(folder), options)
            return
        with on_two_nodes(Path(folder), options.port) as (fleet, nodes):
            measure(fleet, nodes, options)


if __name__ == "__main__":
    main()
