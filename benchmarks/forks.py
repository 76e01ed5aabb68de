"""Measure the cost of a fork: its time, the bytes of branches right after it and later, and the speed of a
single stream against an older checkout's.

    python -m benchmarks.forks
    python -m benchmarks.forks --against ../before          # the same stream there, in turns
    python -m benchmarks.forks --device cuda --model wan2.1-t2v-1.3b --weights random --size 480x832 --window 9 --fast on

Branches continue in turns, one chunk of each, and then one branch continues alone: the difference is the
exchange of pages. In the comparison, checkouts take turns of a few chunks, and the median of the turns'
ratios counts, because a machine's clock depends on its earlier load. Bits are compared too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import torch

from benchmarks.report import write_report
from benchmarks.timed_chunks import add_stream_options, make_session
from millstream.engine.engine import Engine
from millstream.models.fast.recorded import chunks_before
from millstream.session.chunk import PendingChunk
from millstream.session.session import Session
from millstream.wire.parcel import Parcel

BRANCHES = 16
IN_TURNS = 4
"""Branches that go on; each of `CHUNKS`."""
CHUNKS = 4
TURN = 3
"""Chunks of a checkout's turn."""
CLOCKS = ("ms", "processor_ms")
"""Clocks that a chunk is timed by: wall time, and time of the process's own threads, which varies less on a
busy CPU."""
STREAM = ("model", "weights", "device", "fast", "size", "window")
PROGRAM = Path(__file__).with_name("timed_chunks.py")


def measure_forks(options: argparse.Namespace) -> dict[str, Any]:
    engine, session = make_session(options)
    config = session.config
    warm = -(-config.window // config.frames_per_chunk) + chunks_before(len(config.steps))
    for _ in session.stream(warm):  # until the window is full, and on a GPU its calls are recorded
        engine.run_commit(session.id)
    maker = engine.generator
    name = session.id
    one = maker.held_bytes()
    times = [timed_ms(engine, partial(maker.fork, name, f"branch {number}")) for number in range(BRANCHES)]
    after = maker.held_bytes()
    window = maker.caches[name].ring.window
    measured = {
        "fork_ms": {"median": statistics.median(times), "most": max(times)},
        "one_session_bytes": one,
        "page_bytes": window.page_bytes,
        "with_branches_bytes": after,
        "times_one_session": after / one,
    }
    future = plan_future(engine, session)
    alone = [go_on(engine, parcel, "branch 0") for parcel in future]
    in_turns = [
        go_on(engine, parcel, f"branch {1 + number}") for parcel in future for number in range(IN_TURNS)
    ]
    return measured | {
        "in_turns": {
            "branches": IN_TURNS,
            "chunks": CHUNKS,
            "chunk_alone_ms": statistics.median(alone[1:]),
            "chunk_in_turns_ms": statistics.median(in_turns[IN_TURNS:]),
            "pages": maker.pages.pages_in_use,
            "pages_copied": maker.pages.copies,
            "bytes": maker.held_bytes(),
        }
    }


def plan_future(engine: Engine, session: Session) -> list[Parcel]:
    """The next chunks of a session, made once so that they are known."""
    planned = []
    for _ in range(CHUNKS):
        plan = session.decide()
        assert plan is not None, "the stream has not ended"
        planned.append(session.prepare(plan))
        chunk = PendingChunk(session, plan)
        session.receive(chunk, engine.generator.run(planned[-1]))
        session.finish(chunk)
    return planned


def go_on(engine: Engine, parcel: Parcel, branch: str) -> float:
    """Milliseconds of a chunk of another session, with its commit, without its pictures."""
    envelope = msgspec.structs.replace(parcel.envelope, session_id=branch)

    def made() -> None:
        delivery = engine.generator.run(replace(parcel, envelope=envelope))
        assert delivery.result.ok, delivery.result.error
        engine.generator.run_commit(branch)

    return timed_ms(engine, made)


def timed_ms(engine: Engine, run: Callable[[], object]) -> float:
    settle = torch.cuda.synchronize if engine.device.type == "cuda" else lambda: None
    settle()
    begun = time.perf_counter()
    run()
    settle()
    return 1e3 * (time.perf_counter() - begun)


class Checkout:
    """A stream by the package that lies in a folder, in a process of its own."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        if not (folder / "millstream").is_dir():
            raise SystemExit(
                f"error: {folder} is no checkout; --against takes a folder with millstream/ in it"
            )
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM.read_text(),
                *options,
            ],  # as a file, its folder's names would hide packages
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))},
        )

    def chunks(self, count: int) -> dict[str, Any]:
        asked, told = _pipes(self._process)
        asked.write(f"{count}\n")
        asked.flush()
        line = told.readline()
        if not line:
            raise SystemExit("error: a checkout's stream ended; its own message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        _pipes(self._process)[0].close()
        self._process.wait()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def compare(against: Path, options: argparse.Namespace) -> dict[str, Any]:
    """This checkout's stream and another's in turns, once both are warm."""
    asked = [f"--{name}={value}" for name in STREAM if (value := getattr(options, name)) not in (None, "")]
    sides = {"before": Checkout(against, asked), "now": Checkout(PROGRAM.parents[1], asked)}
    try:
        warm = {name: side.chunks(options.warm_up) for name, side in sides.items()}
        digests = {name: list(answer["digests"]) for name, answer in warm.items()}
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for turn in range(options.turns):
            for name in sorted(sides, reverse=bool(turn % 2)):
                answer = sides[name].chunks(TURN)
                digests[name] += answer.pop("digests")
                taken[name].append(answer)
    finally:
        for side in sides.values():
            side.close()
    clocks = {
        clock: {name: [turn[clock] for turn in turns] for name, turns in taken.items()} for clock in CLOCKS
    }
    return {clock: beside(times["now"], times["before"]) for clock, times in clocks.items()} | {
        "turns": options.turns,
        "same_bits": digests["before"] == digests["now"],
    }


def beside(now: Sequence[float], before: Sequence[float]) -> dict[str, Any]:
    ratios = [ours / theirs for ours, theirs in zip(now, before, strict=True)]
    return {
        "before": statistics.median(before),
        "now": statistics.median(now),
        "now_by_before": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_stream_options(parser)
    parser.add_argument(
        "--against", type=Path, help="another checkout, whose single stream is timed in turns with this one's"
    )
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=12, help="chunks before those that count")
    options = parser.parse_args()
    measured = measure_forks(options)
    if options.against is not None:
        measured["single_stream"] = compare(options.against.resolve(), options)
    configuration = {name: getattr(options, name) for name in STREAM} | {
        "branches": BRANCHES,
        "turn_chunks": TURN,
    }
    write_report("forks" if options.model == "brook" else f"forks-{options.model}", configuration, measured)


if __name__ == "__main__":
    main()
