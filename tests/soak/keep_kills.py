"""Servers killed while they keep sessions: what people were shown and told before a kill holds after it, to
the bit.

    python -m tests.soak.keep_kills --kills 50            # two people of one server, `serve --keep 8`
    python -m tests.soak.keep_kills --kills 50 --fleet    # two people of a fleet of two replicas, without Ray

Each server is killed (SIGKILL) at a random moment of its sessions, and while they come back each of their
people says five controls at random moments, one of them a picture to begin from. In a fleet another replica
goes on with them; alone, the next server on the same folder, to which people come back and say what they have
seen. What each saw and heard is held against the rules:

- every chunk comes once and none is missing, whoever makes it;
- receipts come in the order in which controls were said, and none for a chunk that was seen before its
  control was said;
- a control applies at the chunk that its receipt named, and the prompt in force is the last one's;
- the journals of all servers, killed ones' too, are run again: each chunk has the frames that were seen, and
  the digest in its journal. So chunks that were made again after a kill are those that were seen before it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from millstream.client.chunk import ClientChunk
from millstream.client.connection import Connection
from millstream.client.following import FollowedConnection
from millstream.client.reading import Heard
from millstream.core.client_messages import VERSION, Attach, Start, Steer
from millstream.core.conditions import ImageMode
from millstream.core.controls import AnyControl, SetImage, SetPrompt
from millstream.core.errors import MillstreamError
from millstream.core.server_messages import EndedMessage, ErrorMessage, LiveMessage, ReceiptMessage
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.engine.replay import replay
from millstream.fleet.local_fleet import TINY, FleetOfProcesses, LocalFleet, RunningFleet, local_fleet
from millstream.server.sessions.file_store import FileStore
from millstream.session.journal import read_journal
from millstream.video.picture import png
from tests.soak.file_kills import FORKS, IMPORTED, forked_server
from tests.soak.report import write_report

PEOPLE = 2
EVERY = 8
"""Chunks from save to save."""
CONTROLS = 5
"""That each person says while the session comes back."""
PICTURE = png(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
SAID_WITHIN_S = 4.0
LONGEST_S = 4.0
"""From everybody's being back to the next kill."""
BACK_S = 900.0
"""Generous: others may use the machine too."""
FPS = 8.0
TOML = f"""
keep = {EVERY}
placement = "spread"
[replicas.tiny]
model = "wan-tiny"
weights = "random"
minimum = 2
maximum = 2
start = 10
"""


@dataclass(eq=False)
class Witness:
    """One person, who notes what they are shown and told, and steers."""

    number: int
    session: str = ""
    shown: dict[int, str] = field(default_factory=dict)
    """A digest of each chunk's frames."""
    arrivals: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Controls, in the order they were said."""
    seen_before: dict[str, int] = field(default_factory=dict)
    """The last chunk that was seen when each was said."""
    queued: dict[str, int] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    prompt: str = ""
    """Prompt of the last chunk."""
    asked: str = ""
    """Prompt that was asked for last."""
    untrue: list[str] = field(default_factory=list)
    """There should be nothing."""
    stalls: list[float] = field(default_factory=list)
    """After each kill that hit it, how long nothing was left to play."""
    _dry_at: float = 0.0

    @property
    def last(self) -> int:
        return max(self.shown, default=-1)

    def start(self) -> Start:
        return Start(
            version=VERSION,
            prompt=f"sea {self.number}",
            fps=FPS,
            seed=self.number,
            formats=("raw",),
            wait=True,
        )

    def next_control(self) -> AnyControl:
        number = len(self.said)
        name = f"{self.number}/{number}"
        self.said.append(name)
        self.seen_before[name] = self.last
        if number % CONTROLS == 2:
            mode: ImageMode = "cut" if number % (2 * CONTROLS) == 2 else "blend"
            return SetImage(id=name, image=PICTURE, mode=mode, chunks=3)
        self.asked = f"storm {name}"
        return SetPrompt(id=name, prompt=self.asked, mode="keep")

    def hear(self, heard: Heard) -> None:
        match heard:
            case LiveMessage(session=session):
                self.session = session
            case ClientChunk(header=header):
                self._see(heard, header.index)
                self.prompt = header.prompts[0].text
                self.applied |= {receipt.control_id: receipt.chunk_index for receipt in header.receipts}
            case ReceiptMessage(control_id=name, state="queued", chunk_index=chunk):
                self._acknowledge(name, chunk)
            case ReceiptMessage(control_id=name, chunk_index=chunk):
                if self.applied.setdefault(name, chunk) != chunk:
                    self.untrue.append(
                        f"{name} applied at {self.applied[name]}, and later it is said at {chunk}"
                    )
            case ErrorMessage() | EndedMessage():
                self.untrue.append(f"heard {heard}")

    def _see(self, pictures: ClientChunk, index: int) -> None:
        now = time.monotonic()
        header = pictures.header
        if index != self.last + 1:
            self.untrue.append(f"chunk {index} came after {self.last}")
        self.shown.setdefault(index, hashlib.sha256(pictures.data).hexdigest())
        if self._dry_at and now > self._dry_at:
            self.stalls.append(now - self._dry_at)
        self._dry_at = max(self._dry_at, now) + header.frames / header.fps
        self.arrivals.append(now)

    def _acknowledge(self, name: str, chunk: int) -> None:
        if name in self.queued:
            return
        expected = self.said[len(self.queued)]
        if name != expected:
            self.untrue.append(f"{name} was acknowledged before {expected}, which was said first")
        if chunk <= self.seen_before[name]:
            self.untrue.append(
                f"{name} is to apply at {chunk}, and {self.seen_before[name]} was seen before it was said"
            )
        if self.queued and chunk < max(self.queued.values()):
            self.untrue.append(f"{name} is to apply at {chunk}, before one that was said earlier")
        self.queued[name] = chunk

    def judge(self) -> list[str]:
        """At the end, when all has come."""
        late = [name for name in self.said if name not in self.queued]
        moved = [name for name in self.queued if self.applied.get(name) != self.queued[name]]
        wrong = [f"{late} were never acknowledged"] if late else []
        wrong += [f"{moved} did not apply where they were to"] if moved else []
        if self.said and self.prompt != self.asked:
            wrong.append(f"{self.prompt!r} is shown, and {self.asked!r} was asked for last")
        return [*self.untrue, *wrong]


async def say_controls(
    witness: Witness, line: FollowedConnection | Connection, rng: random.Random, within_s: float
) -> None:
    for moment_s in sorted(rng.uniform(0.0, within_s) for _ in range(CONTROLS)):
        await asyncio.sleep(moment_s / CONTROLS)
        await line.say(Steer(control=witness.next_control()))


async def until(met: Any, what: str) -> None:
    give_up = time.monotonic() + BACK_S
    while not met():
        assert time.monotonic() < give_up, f"not within {BACK_S:g} s: {what}"
        await asyncio.sleep(0.05)


async def follow(witness: Witness, line: FollowedConnection) -> None:
    """Until it is cancelled."""
    while True:
        witness.hear(await line.hear())


async def of_a_fleet(
    here: LocalFleet, people: Sequence[Witness], kills: int, rng: random.Random
) -> list[int]:
    """How many sessions each kill hit."""
    fleet: RunningFleet = FleetOfProcesses(here.url, here)
    await asyncio.to_thread(fleet.wait, 2)
    lines = [await FollowedConnection.open(here.url) for _ in people]
    for witness, line in zip(people, lines, strict=True):
        await line.hear()
        await line.say(witness.start())
    following = [asyncio.ensure_future(follow(*both)) for both in zip(people, lines, strict=True)]
    hit = list[int]()
    await until(lambda: all(each.last >= 3 for each in people), "everybody sees something")
    for number in range(kills):
        await asyncio.to_thread(fleet.wait, 2)
        await asyncio.sleep(rng.uniform(0.0, LONGEST_S))
        doomed = here.place_of(rng.choice(people).session)
        hurt = [each for each in people if here.place_of(each.session) == doomed]
        hit.append(len(hurt))
        await asyncio.to_thread(here.replicas.kill, doomed)
        await asyncio.gather(
            *(
                say_controls(each, line, rng, SAID_WITHIN_S)
                for each, line in zip(people, lines, strict=True)
                if each in hurt
            )
        )
        await until(lambda: _is_settled(people), "what was said is seen")
        broken = [task.exception() for task in following if task.done()]
        assert not broken, broken
        print(number + 1, doomed, [(each.last, len(each.judge())) for each in people], flush=True)
    for task, line in zip(following, lines, strict=True):
        task.cancel()
        await line.close()
    return hit


def _is_settled(people: Sequence[Witness]) -> bool:
    return all(not each.said or each.prompt == each.asked for each in people)


async def of_one_server(data: Path, people: Sequence[Witness], kills: int, rng: random.Random) -> list[int]:
    for number in range(kills + 1):  # the last one shows what was left by the one before
        server = forked_server(data, "--keep", str(EVERY), "--size", "32x32")
        kill, url = await asyncio.to_thread(server.__enter__)
        try:
            living = [asyncio.ensure_future(_live(each, url, rng)) for each in people]
            goals = [each.last + 3 for each in people]
            await until(partial(_is_back, people, goals), "everybody is back")
            await asyncio.sleep(rng.uniform(0.0, LONGEST_S))
            kill()
            await asyncio.gather(*living)
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)
        print(number, [(each.last, len(each.judge())) for each in people], flush=True)
    return [len(people)] * kills


def _is_back(people: Sequence[Witness], goals: Sequence[int]) -> bool:
    return _is_settled(people) and all(each.last >= goal for each, goal in zip(people, goals, strict=True))


async def _live(witness: Witness, url: str, rng: random.Random) -> None:
    """Until the server is gone."""
    line = await Connection.open(url)
    await line.hear()
    attach = Attach(version=VERSION, session=witness.session, formats=("raw",), seen=witness.last)
    is_back = bool(witness.session)
    await line.say(attach if is_back else witness.start())
    with suppress(MillstreamError):
        while not isinstance(heard := await line.hear(), LiveMessage):
            witness.hear(heard) if heard is not None else None
        witness.hear(heard)
        saying = asyncio.ensure_future(say_controls(witness, line, rng, 1.0)) if is_back else None
        while (heard := await line.hear()) is not None:
            witness.hear(heard)
        if saying is not None:
            await saying


@dataclass(frozen=True, kw_only=True)
class Replayed:
    journals: int = 0
    chunks: int = 0
    seen: int = 0
    """Number of replayed chunks that a client had seen."""
    digests_differing: int = 0
    frames_differing: int = 0
    """Chunks whose frames are not those that were seen."""


def replayed(folders: Sequence[Path], people: Sequence[Witness]) -> Replayed:
    """Run every journal that servers have left again."""
    torch.set_num_threads(1)
    shown = {each.session: each.shown for each in people}
    journals = chunks = seen = digests = frames = 0
    with Engine("wan-tiny", weights="random", device="cpu", dtype="float32") as engine:
        for folder in folders:
            FileStore(folder)  # takes up what a killed server was writing
            for path in sorted((folder / "journals").glob("*.jsonl")):
                journal = read_journal(path)
                start = None
                journals += 1
                if journal.header.start is not None:
                    start = snapshot.read(
                        path.parent / journal.header.start.path, engine, engine.fingerprint()
                    )
                for each in replay(engine, journal, start=start):
                    saw = shown[journal.header.session_id].get(each.chunk.index)
                    chunks += 1
                    seen += saw is not None
                    digests += not each.identical
                    frames += saw not in (None, hashlib.sha256(each.chunk.frames.tobytes()).hexdigest())
    return Replayed(
        journals=journals, chunks=chunks, seen=seen, digests_differing=digests, frames_differing=frames
    )


def report(people: Sequence[Witness], hit: Sequence[int], again: Replayed) -> dict[str, object]:
    stalls = sorted(stall for each in people for stall in each.stalls)
    return {
        "kills": len(hit),
        "sessions_brought_back": sum(hit),
        "controls_said_while_they_came_back": sum(len(each.said) for each in people),
        "controls_acknowledged": sum(len(each.queued) for each in people),
        "chunks_seen": sum(len(each.shown) for each in people),
        "untrue": [words for each in people for words in each.judge()],
        "journals_replayed": again.journals,
        "chunks_replayed": again.chunks,
        "chunks_replayed_that_were_seen": again.seen,
        "replayed_digests_that_differ": again.digests_differing,
        "replayed_frames_that_differ_from_what_was_seen": again.frames_differing,
        "stalls": len(stalls),
        "stall_s_median": round(stalls[len(stalls) // 2], 2) if stalls else 0.0,
        "stall_s_longest": round(stalls[-1], 2) if stalls else 0.0,
    }


def run(kills: int, seed: int, *, fleet: bool) -> dict[str, object]:
    rng = random.Random(seed)
    people = [Witness(number) for number in range(PEOPLE)]
    with tempfile.TemporaryDirectory(prefix="millstream-keep-kills-") as name:
        folder = Path(name)
        if fleet:
            with local_fleet(TOML, folder, options=(*TINY, "--size", "32x32")) as here:
                hit = asyncio.run(of_a_fleet(here, people, kills, rng))
            folders = [path for path in sorted(folder.glob("tiny-*")) if path.is_dir()]
        else:
            hit = asyncio.run(of_one_server(folder / "data", people, kills, rng))
            folders = [folder / "data"]
        return report(people, hit, replayed(folders, people))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fleet", action="store_true")
    options = parser.parse_args()
    FORKS.set_forkserver_preload(IMPORTED)
    about = {
        "model": "wan-tiny",
        "kills": options.kills,
        "seed": options.seed,
        "people": PEOPLE,
        "keep": EVERY,
        "fps": FPS,
    }
    name = "keep_kills_fleet" if options.fleet else "keep_kills"
    write_report(name, about, run(options.kills, options.seed, fleet=options.fleet))


if __name__ == "__main__":
    main()
