"""Time that looking ahead saves a change, what it costs other sessions, and a check that bits stay
what they are.

    python -m benchmarks.look_ahead
    python -m benchmarks.look_ahead --device cuda --model wan2.1-t2v-1.3b --weights random --size 480x832 --window 9 --fast on

One service, one person who changes the prompt at random moments, in four ways that take turns: `off` (nothing
is made ahead), `asked` (only what was sent already), `right` (a draft, then the same prompt), `wrong` (a
draft, then another). Change to frame is from the control to the frames of the chunk that it first shows in.
First the person is alone, then there are others who only watch; their continuity is compared between the
ways. At the end every journal is replayed.
"""

from __future__ import annotations

import argparse
import queue
import random
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.report import write_report
from benchmarks.timed_chunks import add_stream_options, make_session
from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.controls import SetPrompt, WeightedPrompt
from millstream.engine.engine import Engine
from millstream.engine.replay import replay
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.notices import Notice
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest
from millstream.session.chunk import Chunk
from millstream.session.journal import JournalWriter, read_journal
from millstream.session.session import Session

WAYS = ("off", "asked", "right", "wrong")
PLACES = 64
SETTLE_CHUNKS = 2
"""Before each change."""
PATIENCE_S = 120.0
TIMED = 12
"""Chunks by which the rate is chosen."""


@dataclass
class Person:
    """One session, and what its owner hears, with the moment."""

    name: str
    heard: queue.Queue[tuple[float, Notice]] = field(default_factory=queue.Queue)

    def tell(self, notice: Notice) -> None:
        self.heard.put((time.monotonic(), notice))

    def next_chunk(self) -> tuple[float, Chunk]:
        while True:
            at, notice = self.heard.get(timeout=PATIENCE_S)
            if isinstance(notice, Chunk):
                return at, notice


@dataclass
class Stage:
    """A service with one person who steers and others who watch."""

    service: Service
    config: StreamConfig
    folder: Path
    chance: random.Random
    period_s: float
    """From a chunk of the person who steers to the next one."""
    count: int = 0

    def open(self, name: str) -> Person:
        person = Person(name)
        engine = self.service.engine
        journal = JournalWriter(self.folder / f"{name}.jsonl", engine.journal_header(self.config, name))
        prompts = (WeightedPrompt("a boat on the sea"),)
        self.service.open(
            OpenRequest(session_id=name, prompts=prompts, config=self.config, journal=journal), person.tell
        )
        self.service.watch(name)
        return person

    def change(self, person: Person, way: str, moment: float) -> float:
        """Seconds from a change to its frames. Somebody types from the first of some chunks on, and sends
        after this share of the time between two chunks."""
        self.count += 1
        self.service.ahead.is_on = way != "off"
        wanted = SetPrompt(prompt=f"a boat on the sea, number {self.count}")
        drafts = {"right": wanted, "wrong": SetPrompt(prompt=f"something else, number {self.count}")}
        for _ in range(SETTLE_CHUNKS):
            person.next_chunk()
            self.service.draft(person.name, drafts.get(way))
        time.sleep(moment * self.period_s)
        asked = time.monotonic()
        receipt = self.service.control(person.name, wanted)
        self.service.draft(person.name, None)
        while True:
            at, notice = person.next_chunk()
            if receipt.control_id in [each.control_id for each in notice.receipts]:
                return at - asked

    def stalled(self, person: Person) -> dict[str, float]:
        """Return totals of all other sessions since they began: seconds stalled and played, misses."""
        others = [
            each for each in self.service.metrics().scheduler.sessions if each.session_id != person.name
        ]
        return {
            "stalled_s": sum(each.stalled_s for each in others),
            "played_s": sum(each.played_s for each in others),
            "misses": sum(each.misses for each in others),
        }


def measure(stage: Stage, person: Person, rounds: int) -> dict[str, Any]:
    """Measure all ways in turns, in another order and at another moment each round."""
    seconds = defaultdict[str, list[float]](list)
    others = defaultdict[str, defaultdict[str, float]](lambda: defaultdict(float))
    before = stage.service.metrics().look_ahead
    for number in range(rounds):
        moment = (number + stage.chance.random()) / rounds
        for way in stage.chance.sample(WAYS, len(WAYS)):
            since = stage.stalled(person)
            seconds[way].append(stage.change(person, way, moment))
            for name, value in stage.stalled(person).items():
                others[way][name] += value - since[name]
    after = stage.service.metrics().look_ahead
    off = statistics.mean(seconds["off"])
    return {
        "made": after.made - before.made,
        "taken": after.taken - before.taken,
        "change_to_frame": {
            way: {
                "mean_s": statistics.mean(seconds[way]),
                "median_s": statistics.median(seconds[way]),
                "sooner": 1 - statistics.mean(seconds[way]) / off,
            }
            for way in WAYS
        },
        "others": {
            way: {
                **figures,
                "continuity": figures["played_s"] / max(1e-9, figures["played_s"] + figures["stalled_s"]),
            }
            for way, figures in others.items()
            if figures["played_s"]
        },
    }


def chunk_s(engine: Engine, session: Session) -> float:
    """Return the most seconds that a chunk with a full window took."""
    took = []
    for chunk in session.stream(session.config.chunks_to_fill + TIMED):
        engine.run_commit(session.id)
        took.append(chunk.timing.total_ms / 1e3)
    return max(took[-TIMED:])


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    engine, session = make_session(options)
    config = session.config
    took_s = chunk_s(engine, session)
    session.close()
    admission = AdmissionConfig(memory_bytes=PLACES, max_waiting=0, share=1.0)
    service = Service(engine, admission=admission, session_bytes=lambda config: 1, look_ahead=True)
    service.start(warm_up=[config])
    try:
        assert service.ready.wait(600), "the model did not warm up"
        fps = options.load * pixel_frames(1, config.frames_per_chunk) / took_s
        stage = Stage(
            service, replace(config, fps=fps), folder, random.Random(options.seed), took_s / options.load
        )
        person = stage.open("steered")
        measured = {"chunk_s": took_s, "fps": fps, "alone": measure(stage, person, options.rounds)}
        for number in range(options.others):
            stage.open(f"watched-{number}")
        measured["beside_others"] = measure(stage, person, options.rounds) if options.others else None
    finally:
        service.close()
    return {"stream": str(config), "device": str(engine.device)}, measured | {
        "replayed": replayed(engine, folder)
    }


def replayed(engine: Engine, folder: Path) -> dict[str, int]:
    chunks = [each for path in sorted(folder.glob("*.jsonl")) for each in replay(engine, read_journal(path))]
    return {"chunks": len(chunks), "identical": sum(each.identical for each in chunks)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_stream_options(parser)
    parser.set_defaults(model="wan-tiny", weights="random", size="32x48", window=6)
    parser.add_argument("--load", type=float, default=0.3, help="share of the device that one session needs")
    parser.add_argument("--others", type=int, default=1, help="sessions beside, in the second half")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        about, measured = run(options, Path(folder))
    write_report("look_ahead", vars(options) | about, measured)


if __name__ == "__main__":
    main()
