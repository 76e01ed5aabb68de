"""Servers killed while they keep sessions: each session comes back near where it was, and what it says of its controls is true.

    python -m benchmarks.keep_kills --kills 20

Each server (`serve --keep 3`) is killed (SIGKILL) at a random moment of four sessions that are steered at every other chunk.
The next one, on the same folder, is asked for the same sessions: the same four people live through all kills. What each was
told before is held against what it is told and shown after:

- the first chunk that comes is at most a save interval before the last one that was seen;
- a control that was applied before that chunk is known, applied at the chunk it was told to have been; one that waited applies;
- the prompt in force is that of the last control which has a receipt; every other control is told as lost;
- a chunk that was seen before, under the same controls, has the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from benchmarks.file_kills import FORKS, IMPORTED, forked_server, live_until_killed
from benchmarks.report import write_report
from tests.server.serving import Client

PEOPLE = 4
EVERY = 3
"""Chunks from save to save."""
LONGEST_S = 8.0
"""From everybody's first chunk to the kill."""
FORMATS = ["raw"]


@dataclass(frozen=True, kw_only=True)
class Return:
    """One session, brought back once."""

    at: int
    """The chunk it went on with."""
    chunks_lost: int
    """That were seen and come again."""
    controls_kept: int
    controls_told_as_lost: int
    acknowledged_lost: tuple[str, ...]
    """Applied before the chunk it came back at, and not known any more. There should be none."""
    untrue: tuple[str, ...]
    """What was told or shown against what had been told. There should be nothing."""
    told_of_loss: bool
    same_pictures: bool | None
    """Of the first chunk; None where it was not seen before, or under other controls."""


@dataclass
class Life:
    """What one person was told and shown by one server."""

    prompt: str
    """Before any control."""
    asked: dict[str, str] = field(default_factory=dict)
    """The prompt of each control."""
    queued: set[str] = field(default_factory=set)
    applied: dict[str, int] = field(default_factory=dict)
    """The chunk of each."""
    pictures: dict[int, str] = field(default_factory=dict)
    """A digest of each chunk's."""
    note: str = ""
    first: int = -1
    shown: str = ""
    """The prompt of the first chunk."""

    def hear(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "note":
                self.note += message["message"]
            case "receipt" if message["state"] == "queued":
                self.queued.add(message["control_id"])
            case "receipt":
                self.applied[message["control_id"]] = message["chunk_index"]
            case "chunk":
                self.pictures[message["index"]] = hashlib.sha256(b"".join(message["parts"])).hexdigest()
                if self.first < 0:
                    self.first, self.shown = message["index"], message["prompts"][0]["text"]

    def at(self, chunk: int) -> set[str]:
        """Controls that were applied there."""
        return {name for name, where in self.applied.items() if where == chunk}

    def prompt_at(self, chunk: int) -> str:
        """By its receipts; several controls of one chunk apply in the order of their numbers."""
        due = [(where, int(name), name) for name, where in self.applied.items() if where <= chunk]
        return self.asked[max(due)[2]] if due else self.prompt


class Steerer:
    """Has one session, changes its prompt again and again, and comes back to it on every server. Unless it names a pace, the
    rate is the machine's to choose and the lead is as usual: chunks come all the time, and a kill between any two of them."""

    def __init__(self, number: int, **pace: float) -> None:
        self.chunks = 0
        self.session = ""
        self.returns: list[Return] = []
        self._prompt = f"sea {number}"
        self._asked: dict[str, str] = {}
        self._url = ""
        self._pace = pace
        self._life = Life(self._prompt)

    def come_to(self, url: str) -> None:
        self._url, self.chunks = url, 0

    def live(self) -> None:
        before, life = self._life, Life(self._prompt, self._asked)
        self._life = life
        with suppress(ConnectionClosed), connect(self._url.replace("http", "ws") + "/v1/stream", max_size=None) as connection:
            client = Client(connection)
            client.hear("hello")
            client.say(self._opening())
            while True:
                message = client.next()
                assert message["type"] not in ("error", "ended"), message
                life.hear(message)
                if message["type"] == "live":
                    self.session = message["session"]
                if message["type"] == "chunk":
                    self.chunks += 1
                    if self.chunks == 1 and before.pictures:
                        self.returns.append(judge(before, life))
                    self._steer(client)

    def _opening(self) -> dict[str, Any]:
        if self.session:
            return {"type": "attach", "version": 1, "session": self.session, "formats": FORMATS}
        return {"type": "start", "version": 1, "prompt": self._prompt, "formats": FORMATS, "wait": True, **self._pace}

    def _steer(self, client: Client) -> None:
        if self.chunks % 2:
            name = str(len(self._asked))
            prompt = self._asked[name] = f"storm {name}"
            client.say({"type": "control", "control": {"type": "prompt", "id": name, "prompt": prompt, "mode": "keep"}})


def judge(before: Life, after: Life) -> Return:
    """What a session said when its first chunk was there, against what it had said."""
    at, last = after.first, max(before.pictures)
    acknowledged = before.queued | set(before.applied)
    unheard = range(min(at, last + 1), max(at, last) + 1)
    """Chunks whose receipts need not have been heard before: those that did not come then, and the first that has come now."""
    wrong = [
        f"{name} is said to have applied at {where}"
        for name, where in after.applied.items()
        if before.applied.get(name, where) != where or (name not in before.applied and where not in unheard)
    ]
    wrong += [f"{name} still waits" for name in after.queued - set(after.applied)]
    wrong += [f"{name} was never asked for" for name in set(after.applied) - set(after.asked)]
    if after.shown != after.prompt_at(at):
        wrong.append(f"{after.shown!r} at chunk {at}, not {after.prompt_at(at)!r}")
    comparable = at in before.pictures and before.at(at) == after.at(at)
    return Return(
        at=at,
        chunks_lost=max(0, last + 1 - at),
        controls_kept=len(after.applied),
        controls_told_as_lost=len(acknowledged - set(after.applied)),
        acknowledged_lost=tuple(name for name, where in before.applied.items() if where < at and name not in after.applied),
        untrue=tuple(wrong),
        told_of_loss=f"at chunk {at}, where it was last kept" in after.note and "lost" in after.note,
        same_pictures=before.pictures[at] == after.pictures[at] if comparable else None,
    )


def run(kills: int, seed: int) -> tuple[list[Return], list[float]]:
    """What became of each session at each kill, and the seconds from kill to kill."""
    rng, took_s = random.Random(seed), list[float]()
    people = [Steerer(number) for number in range(PEOPLE)]
    with tempfile.TemporaryDirectory(prefix="millstream-keep-kills-") as folder:
        for number in range(kills + 1):  # the last one shows what was left by the one before
            begun = time.monotonic()
            with forked_server(Path(folder) / "data", "--keep", str(EVERY)) as (kill, url):
                for person in people:
                    person.come_to(url)
                num_chunks = 1 if number else EVERY  # nothing is kept of one that has just begun
                live_until_killed(people, kill, num_chunks=num_chunks, after_s=rng.uniform(0.0, LONGEST_S))
            took_s.append(time.monotonic() - begun)
            print([person.returns[-1] for person in people if person.returns], flush=True)
    return [one for person in people for one in person.returns], took_s


def report(kills: int, returns: Sequence[Return], took_s: Sequence[float]) -> dict[str, object]:
    compared = [one.same_pictures for one in returns if one.same_pictures is not None]
    return {
        "kills": kills,
        "first_and_last_chunk_come_back_at": [min(one.at for one in returns), max(one.at for one in returns)],
        "sessions_to_bring_back": kills * PEOPLE,
        "sessions_brought_back": len(returns),
        "within_one_save_interval": sum(one.chunks_lost <= EVERY for one in returns),
        "most_chunks_lost": max(one.chunks_lost for one in returns),
        "controls_kept": sum(one.controls_kept for one in returns),
        "acknowledged_controls_lost_that_were_before_the_save": [name for one in returns for name in one.acknowledged_lost],
        "controls_told_as_lost": sum(one.controls_told_as_lost for one in returns),
        "returns_not_told_of_loss": sum(not one.told_of_loss for one in returns),
        "untrue": [words for one in returns for words in one.untrue],
        "first_chunks_compared": len(compared),
        "first_chunks_that_differ": compared.count(False),
        "seconds_a_kill": round(sum(took_s) / len(took_s), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    FORKS.set_forkserver_preload(IMPORTED)
    measured = report(options.kills, *run(options.kills, options.seed))
    about = {"model": "wan-tiny", "kills": options.kills, "seed": options.seed, "people": PEOPLE, "keep": EVERY}
    write_report("keep_kills", about | {"longest_life_s": LONGEST_S}, measured)


if __name__ == "__main__":
    main()
