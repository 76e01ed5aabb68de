"""Ranks of meshes killed at random moments, a third of them while the mesh is being brought back from the
kill before.

    python -m tests.soak.rank_kills --kills 1000 --processes 5

It may be stopped at any time, by SIGTERM or Ctrl-C: fronts finish the recovery they are in, and the report is
of the kills so far. The same command goes on from there: what each front has seen is a line of
`out/rank_kills-COMMIT.jsonl`, written every `AT_A_TIME` kills. Delete that file to begin anew.

Each process is a front of its own: the service that a server runs, a mesh of two ranks, and people who never
stop steering. Every control that was acknowledged must be applied, every chunk be shown once and in order, no
recovery may hang, the front must say that it is in trouble while it is, and hold as many descriptors and
threads at the end as at the beginning. What is measured is the time from a kill to the next chunk after the
mesh is back. Fronts over real sockets are in `tests/dist/test_serve_recovery.py`; this needs no web server.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

from millstream.commands.report import current_commit
from millstream.core.controls import Receipt, SetPrompt, WeightedPrompt
from millstream.core.errors import MillstreamError
from millstream.core.topology import Topology
from millstream.engine.engine import Engine
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.notices import Applied, Ended, Notice
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest, geometry
from millstream.session.chunk import Chunk
from tests.dist.meshes import MODEL, SMALL, alive, pids_of
from tests.soak.report import write_report

TOPOLOGY = "front+tp2"
FPS = 8.0
VIEWERS = 3
STEER_S = 0.4
"""Between two controls of one person."""
IN_A_ROW = 4
"""Kills, from one that met a sound mesh to the last that met the same recovery; a mesh is given up after
twice as many."""
AT_A_TIME = 50
"""Kills of one front; then another one takes its place."""
HANG_S = 60.0
GOAL_P95_S = 3.0
SEED = 18
SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOPPED: Event
"""One that all processes share."""
PROMPTS = ("a white boat on the sea at dawn", "rain over the hills", "a lantern in the snow")


@dataclass
class Person:
    """Steers a session all the time, and remembers what it was told and shown."""

    service: Service
    name: str
    queued: set[str] = field(default_factory=set)
    applied: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    """Why controls were not taken."""
    chunks: list[int] = field(default_factory=list)
    """Their numbers, as they came."""
    last_chunk_at: float = field(default_factory=time.monotonic)
    ended: list[str] = field(default_factory=list)
    leaving: threading.Event = field(default_factory=threading.Event)

    def live(self) -> None:
        engine = self.service.engine
        chance = random.Random(self.name)
        config = engine.stream_config(**SMALL, fps=FPS)
        prompts = (WeightedPrompt(PROMPTS[0]),)
        self.service.open(
            OpenRequest(session_id=self.name, prompts=prompts, config=config, unattended="run"), self.hear
        )
        while not self.leaving.wait(STEER_S):
            control = SetPrompt(
                prompt=chance.choice(PROMPTS), mode="keep", id=f"{self.name}-{time.monotonic_ns()}"
            )
            try:
                receipt = self.service.control(self.name, control)
            except MillstreamError as error:
                self.refused.append(str(error))
            else:
                self.queued.add(receipt.control_id)

    def hear(self, notice: Notice) -> None:
        """On the service's thread."""
        receipts: tuple[Receipt, ...] = ()
        if isinstance(notice, Chunk):
            self.chunks.append(notice.index)
            self.last_chunk_at = time.monotonic()
            receipts = notice.receipts
        elif isinstance(notice, Applied):
            receipts = notice.receipts
        elif isinstance(notice, Ended) and not self.leaving.is_set():
            self.ended.append(notice.reason)
        self.applied.update(each.control_id for each in receipts if each.state == "applied")

    @property
    def owed(self) -> set[str]:
        """Controls that it was told are queued, and not that they were applied."""
        return self.queued - self.applied


class Hang(Exception):
    """Something did not happen within `HANG_S`."""


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + HANG_S
    while not holds():
        if time.monotonic() > deadline:
            raise Hang(f"{what} did not come about within {HANG_S:g} s")
        time.sleep(0.02)


@dataclass
class CallCount:
    """Counts and times of one front."""

    back_s: list[float] = field(default_factory=list)
    """Seconds from every kill to the next chunk after the mesh was back."""
    during: int = 0
    """Kills that met a mesh which was being brought back."""
    held: list[tuple[int, int]] = field(default_factory=list)
    """Descriptors and threads, after every recovery."""
    hangs: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    ended: list[str] = field(default_factory=list)

    def add(self, person: Person) -> None:
        shown = person.chunks
        self.counts += Counter(
            chunks=len(shown),
            chunks_shown_twice=len(shown) - len(set(shown)),
            chunks_skipped=len(set(range(max(shown, default=-1) + 1)) - set(shown)),
            chunks_out_of_order=sum(later < earlier for earlier, later in itertools.pairwise(shown)),
            controls_acknowledged=len(person.queued),
            controls_lost=len(person.owed),
        )
        self.refused.update(person.refused)
        self.ended += person.ended


class Front:
    """One service over a mesh, and what is done to its ranks."""

    def __init__(self, service: Service, people: list[Person], seed: int) -> None:
        self.service = service
        self.people = people
        self.tally = CallCount()
        self._chance = random.Random(seed)

    def one_recovery(self, most: int) -> None:
        """Kills, each of which but the first meets the recovery from those before; then wait until chunks
        come."""
        tally = self.tally
        chance = self._chance
        time.sleep(chance.uniform(0.0, 0.6))
        times = [self._kill()]
        until(lambda: self.service.trouble, "a word on the loss")
        while len(times) < min(most, IN_A_ROW) and chance.random() < self._eagerness(len(times)):
            time.sleep(chance.uniform(0.0, 0.5))
            if not self.service.trouble:
                break
            times.append(self._kill())
            tally.during += 1
        until(lambda: not self.service.trouble, "a mesh")
        before = [len(person.chunks) for person in self.people]
        until(
            lambda: any(len(now.chunks) > then for now, then in zip(self.people, before, strict=True)),
            "a chunk",
        )
        if (
            STOPPED.is_set()
        ):  # a signal may have reached the ranks as well: this recovery is not from our kills alone
            return
        now = time.monotonic()
        tally.back_s += [now - killed for killed in times]
        tally.held.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
        for person in self.people:
            if now - person.last_chunk_at > HANG_S:
                raise Hang(
                    f"a chunk of session {person.name}, while others had theirs, did not come within "
                    f"{HANG_S:g} s"
                )

    def _eagerness(self, now: int) -> float:
        """How likely the next kill is to meet this recovery, so that a third do."""
        return 0.6 if 3 * self.tally.during < len(self.tally.back_s) + now else 0.2

    def _kill(self) -> float:
        while True:
            with suppress(ProcessLookupError, IndexError):  # between two meshes
                os.kill(self._chance.choice(alive(sorted(pids_of(self.service.engine)))), signal.SIGKILL)
                return time.monotonic()
            time.sleep(0.005)


@contextmanager
def serving() -> Iterator[Service]:
    with Engine("wan-tiny", **MODEL, topology=Topology.parse(TOPOLOGY)) as engine:
        service = Service(
            engine, admission=AdmissionConfig(memory_bytes=VIEWERS), session_bytes=lambda config: 1
        )
        service.table.admission.times.add(
            geometry(engine.spec, engine.stream_config(**SMALL)), 1e-6
        )  # all may come in
        service.start()
        assert service.ready.wait(HANG_S), f"the service was not ready within {HANG_S:g} s"
        try:
            yield service
        finally:
            service.close()


def begin(stopped: Event) -> None:
    """In each process: a signal is for whoever started it, who tells the others."""
    global STOPPED
    STOPPED = stopped
    for each in SIGNALS:
        signal.signal(each, lambda *_: None)


def kill_ranks(number: int, kills: int) -> CallCount:
    """In a process of its own."""
    if STOPPED.is_set():
        return CallCount()
    torch.set_num_threads(1)
    with serving() as service:
        front = Front(
            service, [Person(service, f"{number}-{seat}") for seat in range(VIEWERS)], SEED + number
        )
        threads = [threading.Thread(target=person.live, daemon=True) for person in front.people]
        for thread in threads:
            thread.start()
        try:
            until(lambda: all(person.chunks for person in front.people), "everybody's first chunk")
            while (done := len(front.tally.back_s)) < kills and not STOPPED.is_set():
                front.one_recovery(kills - done)
                print(
                    f"front {number}: {len(front.tally.back_s)} kills, back after "
                    f"{front.tally.back_s[-1]:.1f} s",
                    flush=True,
                )
        except Hang as hang:
            front.tally.hangs.append(str(hang))
        for person in front.people:
            person.leaving.set()
        for thread in threads:
            thread.join()
        with suppress(Hang):
            until(lambda: not any(person.owed for person in front.people), "the last controls")
        for person in front.people:
            front.tally.add(person)
    return front.tally


def report(tallies: list[CallCount], processes: int) -> None:
    ordered = sorted(seconds for tally in tallies for seconds in tally.back_s)
    counts = sum((tally.counts for tally in tallies), Counter[str]())
    names = (
        "chunks",
        "chunks_shown_twice",
        "chunks_skipped",
        "chunks_out_of_order",
        "controls_acknowledged",
        "controls_lost",
    )
    held = [tally.held for tally in tallies if tally.held]
    grown = [[after - before for before, after in zip(each[0], each[-1], strict=True)] for each in held]
    write_report(
        "rank_kills",
        {
            "topology": TOPOLOGY,
            "model": "wan-tiny",
            "processes": processes,
            "fronts": len(tallies),
            "viewers": VIEWERS,
            "seed": SEED,
            "load_average": os.getloadavg()[0],
        },
        {
            "kills": len(ordered),
            "of_them_during_a_recovery": sum(tally.during for tally in tallies),
            "recovered_s": {
                "median": round(statistics.median(ordered), 2),
                "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
                "longest": round(ordered[-1], 2),
            },
            "goal_p95_s": GOAL_P95_S,
            **{name: counts[name] for name in names},
            "controls_refused": dict(sum((tally.refused for tally in tallies), Counter[str]())),
            "sessions_ended": [reason for tally in tallies for reason in tally.ended],
            "hangs": [hang for tally in tallies for hang in tally.hangs],
            "descriptors_grown": max(descriptors for descriptors, _ in grown),
            "threads_grown": max(threads for _, threads in grown),
        },
    )


def read_tallies(path: Path) -> list[CallCount]:
    """Read the tallies of earlier fronts."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [CallCount(**json.loads(line)) for line in lines]
    for tally in found:
        tally.counts, tally.refused = Counter(tally.counts), Counter(tally.refused)
    return found


def run_fronts(kills: int, first: int, processes: int) -> Iterator[CallCount]:
    """Run fronts and yield the tally of each as it finishes. A signal ends those under way early, and no
    other begins."""
    shares = [min(AT_A_TIME, kills - begun) for begun in range(0, kills, AT_A_TIME)]
    context = multiprocessing.get_context("spawn")
    stopped = context.Event()
    for each in SIGNALS:
        signal.signal(each, lambda *_: stopped.set())
    with ProcessPoolExecutor(processes, mp_context=context, initializer=begin, initargs=(stopped,)) as pool:
        futures = [pool.submit(kill_ranks, first + number, share) for number, share in enumerate(shares)]
        for future in as_completed(futures):
            tally = future.result()
            if tally.held or tally.hangs:
                yield tally


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill ranks of meshes at random moments.")
    parser.add_argument("--kills", type=int, default=1000, help="of all fronts together")
    parser.add_argument(
        "--processes", type=int, default=1, help="fronts at the same time; each has two ranks"
    )
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    path = Path(
        f"out/rank_kills-{current_commit().name.removesuffix('+')}.jsonl"
    )  # its own report changes the tree
    path.parent.mkdir(exist_ok=True)
    tallies = read_tallies(path)
    for tally in run_fronts(
        options.kills - sum(len(each.back_s) for each in tallies), len(tallies), options.processes
    ):
        tallies.append(tally)
        with path.open("a") as file:
            file.write(json.dumps(vars(tally)) + "\n")
    if any(tally.held for tally in tallies):
        report(tallies, options.processes)


if __name__ == "__main__":
    main()
