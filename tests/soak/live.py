"""A server and the people at it, on this machine: continuity, first frame, control to picture, admission,
overhead, leaks.

    python -m tests.soak.live                 # a few minutes
    python -m tests.soak.live --minutes 30 --rounds 15    # with half an hour of scripted use
    python -m tests.soak.live --model wan2.1-t2v-1.3b --weights random --size 480x832 --window 9 --fast on    # on a GPU

One server, started for the run; real sockets. Nothing else should run meanwhile. `millstream/load/` does the
measuring: continuity is the viewer's, overhead is the engine's time between chunks that went into none of
them.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import time
from dataclasses import asdict, replace
from typing import Any

import msgspec

from millstream.load.connects import connect_and_leave
from millstream.load.gate import LIMITS, left_behind
from millstream.load.host import Host, Usage, serve
from millstream.load.record import PersonResult
from millstream.load.run import LoadRequest, LoadResult, put_connects, put_load
from millstream.load.saturate import find_rate, measure_overhead
from tests.soak.report import write_report

CROWD = 4
MARGIN = math.sqrt(CROWD / (CROWD + 1))
"""Share of the highest rate at which the crowd is admitted: halfway to the rate at which one more would be,
because chunk times vary."""
OVERHEAD = 0.05
CHURN_CONTINUITY = 0.999
SERVER_OPTIONS = ("model", "weights", "size", "window", "fast", "precision", "device")
FEWEST_ROUNDS = 6
"""That say more of growth than the first reading and the last."""
HELD = {"memory_growth": "resident_bytes", "device_memory_growth": "device_bytes"}
WARM_VISITS = 20
WARM_USE_S = 20.0
WARM_UP = 6
CHUNKS = 30


def server_words(options: argparse.Namespace) -> list[str]:
    """Options of `millstream serve` that were given."""
    given = {name: getattr(options, name) for name in SERVER_OPTIONS}
    return [word for name, value in given.items() if value is not None for word in (f"--{name}", value)]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    async with serve(server_words(options)) as host:
        await connect_and_leave(host.url, connects=WARM_VISITS, fps=options.fps, until=time.monotonic() + 600)
        viewer = await put_load(host, LoadRequest(sessions=1, seconds=options.seconds, fps=options.fps))
        overhead = await measure_overhead(host.url, chunks=CHUNKS, warm_up=WARM_UP, fps=options.fps)
        at_most = (
            overhead.chunk_frames / (overhead.chunk_s * (1 + overhead.share)) / CROWD
        )  # a GPU has two under way
        rate = MARGIN * await find_rate(host.url, sessions=CROWD, at_most=at_most)
        crowd = await put_load(host, LoadRequest(sessions=CROWD + 1, seconds=options.seconds, fps=rate))
        return {
            "one_viewer": of_people(viewer),
            "overhead": asdict(overhead),
            "crowd": {"fps": round(rate, 2), **of_people(crowd)},
            "connects": await connects(host, options.connects, options.fps),
            "scripted_use": await scripted_use(host, options, rate),
        }


async def connects(host: Host, count: int, fps: float) -> dict[str, Any]:
    result, usage = await put_connects(host, LoadRequest(connects=count, fps=fps))
    return {**msgspec.to_builtins(result), **of_memory(usage)}


async def scripted_use(host: Host, options: argparse.Namespace, rate: float) -> dict[str, Any]:
    """Everything that people do to a server, for as long as wished; one place stays free for what their
    switches cost.

    In rounds, after each of which all leave: what is then still held says whether it grows.
    """
    use = LoadRequest(
        sessions=CROWD - 1, seconds=60 * options.minutes / options.rounds, fps=rate, script="rude"
    )
    await put_load(host, replace(use, seconds=WARM_USE_S))  # what only the first people take is not growth
    rounds = [await put_load(host, use) for _ in range(options.rounds)]
    seen = [{**of_people(each), **of_memory(each.server)} for each in rounds]
    return {"minutes": options.minutes, "people": use.sessions, "rounds": seen, **of_rounds(seen)}


def of_rounds(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst of all rounds, and growth: the later half's memory at rest beside the earlier half's, in the
    median.

    What an allocator holds back differs from one rest to the next by a few hundredths, so two readings say
    little.
    """
    growths = {name: max(each[name] for each in rounds) for name in ("memory_growth", "device_memory_growth")}
    if len(rounds) >= FEWEST_ROUNDS:
        growths = {
            name: later_over_earlier([each["memory"]["end"][of] for each in rounds])
            for name, of in HELD.items()
        }
    return {
        "continuity": min(each["continuity"] for each in rounds),
        "misses": sum(each["misses"] for each in rounds),
        "errors": [line for each in rounds for line in each["errors"]],
        "unanswered_controls": sum(each["unanswered_controls"] for each in rounds),
        **growths,
        "left_behind": [line for each in rounds for line in each["left_behind"]],
    }


def later_over_earlier(held: list[int | None]) -> float:
    numbers = [number or 0 for number in held]
    half = len(numbers) // 2
    earlier = statistics.median(numbers[:half])
    later = statistics.median(numbers[-half:])
    return later / earlier - 1 if earlier else 0.0


def of_people(result: LoadResult) -> dict[str, Any]:
    """Summarise the results of the people who were admitted and of those who were refused."""
    seated = [person for person in result.people if person.outcome != "refused"]
    refused = [person for person in result.people if person.outcome == "refused"]
    return {
        "admitted": len(seated),
        "continuity": min((person.continuity or 0.0 for person in seated), default=0.0),
        "misses": sum(person.misses for person in seated),
        "errors": [line for person in seated for line in person.errors],
        "unanswered_controls": sum(person.unanswered for person in seated),
        "first_frame_s": largest(result, "first_frame_s"),
        "control_to_picture_s": msgspec.to_builtins(result.everybody["control_shown_s"]),
        "lead_and_chunk_s": promise(seated),
        "refused": [person.reason for person in refused],
        "refusal_s": largest(result, "refusal_s"),
    }


def largest(result: LoadResult, name: str) -> float | None:
    summary = result.everybody[name]
    return None if summary is None else summary.largest


def promise(seated: list[PersonResult]) -> float:
    return max((person.promise_s for person in seated), default=0.0)


def of_memory(usage: Usage | None) -> dict[str, Any]:
    assert usage is not None, "a server of our own can be read"
    growth = {"memory_growth": usage.growth, "device_memory_growth": usage.device_growth}
    return {"memory": asdict(usage), **growth, "left_behind": left_behind(usage)}


def rounded(value: Any) -> Any:
    """As many digits as mean something."""
    match value:
        case float():
            return round(value, 4)
        case dict():
            return {name: rounded(inner) for name, inner in value.items()}
        case list():
            return [rounded(inner) for inner in value]
        case _:
            return value


def missed(measured: dict[str, Any]) -> list[str]:
    """Which goals were not reached."""
    viewer = measured["one_viewer"]
    crowd = measured["crowd"]
    goals = {
        "one viewer: continuity": viewer["continuity"] >= LIMITS.continuity,
        "one viewer: first frame": (viewer["first_frame_s"] or float("inf")) < LIMITS.first_frame_s,
        "one viewer: control to picture": in_time(viewer),
        "crowd: admitted": crowd["admitted"] == CROWD,
        "crowd: continuity": crowd["continuity"] >= LIMITS.continuity,
        "crowd: refusal": len(crowd["refused"]) == 1 and crowd["refusal_s"] < LIMITS.refusal_s,
        "overhead": measured["overhead"]["share"] <= OVERHEAD,
        "connects: errors": not measured["connects"]["errors"],
        "scripted use: continuity": measured["scripted_use"]["continuity"] >= CHURN_CONTINUITY,
        "scripted use: errors": not measured["scripted_use"]["errors"],
    }
    for name in ("connects", "scripted_use"):
        growth = max(measured[name]["memory_growth"], measured[name]["device_memory_growth"])
        goals[f"{name}: memory"] = growth <= LIMITS.memory_growth
        goals[f"{name}: nothing left"] = not measured[name]["left_behind"]
    return [name for name, reached in goals.items() if not reached]


def in_time(people: dict[str, Any]) -> bool:
    """Return whether every control showed within the lead and one chunk."""
    shown = people["control_to_picture_s"]
    return (
        shown is not None
        and not people["unanswered_controls"]
        and shown["largest"] <= people["lead_and_chunk_s"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in SERVER_OPTIONS:
        parser.add_argument(f"--{name}", default="brook" if name == "model" else None)
    parser.add_argument("--fps", type=float, default=16.0, help="of one viewer")
    parser.add_argument("--seconds", type=float, default=60.0, help="of one viewer, and of the crowd")
    parser.add_argument("--minutes", type=float, default=2.0, help="of scripted use")
    parser.add_argument(
        "--rounds", type=int, default=1, help="that scripted use is cut into; memory is read after each"
    )
    parser.add_argument("--connects", type=int, default=200)
    parser.add_argument("--report", default="live")
    options = parser.parse_args()
    measured = asyncio.run(measure(options))
    goals = {
        **asdict(LIMITS),
        "overhead": OVERHEAD,
        "churn_continuity": CHURN_CONTINUITY,
        "control_to_picture": "lead and one chunk",
    }
    write_report(
        options.report, vars(options), {**rounded(measured), "goals": goals, "missed": missed(measured)}
    )


if __name__ == "__main__":
    main()
