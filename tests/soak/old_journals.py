"""Journals that an earlier checkout made, replayed by this one: the same bits, chunk by chunk, on this
machine's CPU.

    git worktree add --detach ../earlier COMMIT
    python -m tests.soak.old_journals --old ../earlier

The earlier checkout runs in this environment, as its own `generate` and `serve`. Sessions differ in model,
weights, dtype, threads, size, window, schedule, anchor, controls, input and topology; the served ones are a
camera's, one that was restored from what was saved, and one that came back after its server was killed. Each
journal is given to `replay --check` here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from millstream.client import connect
from millstream.core.client_messages import Ask
from millstream.core.controls import SetPrompt
from millstream.session.journal import read_journal
from tests.server.serve_process import server_process
from tests.soak.report import write_report
from tests.unit.models.test_lora import SPELLINGS
from tests.unit.video_files import moving_frames, write_video

TINY = "--model wan-tiny --weights random:3 --dtype fp32 --threads 1"
BROOK_FILE = Path("millstream/models/brook/brook.safetensors")
STORM = dict(type="prompt", prompt="a storm at sea")
EVERY_CONTROL: tuple[dict[str, Any], ...] = (
    dict(chunk=1, **STORM, mode="blend", chunks=2),
    dict(
        chunk=3,
        type="prompt",
        prompts=[dict(text="a desert", weight=2.0), dict(text="dusk")],
        mode="recompute",
    ),
    dict(chunk=4, type="window", window=6, sink=1),
    dict(chunk=5, type="steps", steps=[1000, 700, 300]),
    dict(chunk=5, type="kv_bias", kv_bias=0.6),
    dict(chunk=6, type="cut"),
    dict(chunk=7, type="seed", seed=12),
    dict(chunk=8, type="prompt", prompt="night", mode="keep"),
)


@dataclass(frozen=True)
class Run:
    """One `generate`, in words of its command line. `{old}` is the earlier checkout, `{files}` has a video
    and a LoRA."""

    words: str
    events: tuple[dict[str, Any], ...] = ()
    replay: str = ""
    """Words for `replay` where the journal does not say all."""


RUNS = {
    "Brook, its own weights": Run(
        "--model brook --chunks 4 --size 96x128 --threads 2", (dict(chunk=2, **STORM),), f"--weights {{old}}/{BROOK_FILE}"
    ),
    "Brook by its file": Run(
        f"--model brook --weights {{old}}/{BROOK_FILE} --chunks 3 --size 64x64 --seed 5 --threads 1",
        (dict(chunk=1, type="cut"), dict(chunk=2, **STORM, mode="keep")),
    ),
    "every control": Run(f"{TINY} --chunks 10 --size 32x48", EVERY_CONTROL),
    "bf16": Run(f"{TINY.replace('fp32', 'bf16')} --chunks 3 --size 32x32", EVERY_CONTROL[:1]),
    "a window that moves": Run(f"{TINY} --chunks 12 --window 6 --sink 2 --positions windowed --steps "
                               "1000,800,500,200"),
    "decoded anchors": Run(f"{TINY} --chunks 6 --window 6 --anchor decoded", EVERY_CONTROL[:2]),
    "latent anchors, noisy context": Run(f"{TINY} --chunks 6 --window 6 --anchor latent --context-noise 50"),
    "a video restyled": Run(
        f"{TINY} --size 32x48 --input {{files}}/input.mp4 --noise-scale 0.6 --motion-gain 0.5",
        (dict(chunk=2, type="noise_scale", noise_scale=0.9), dict(chunk=3, **STORM)),
    ),
    "a stream batch": Run("--model wan-mini --weights random --size 64x96 --chunks 8 --stream-batch 2 "
                          "--threads 2 --experimental"),
    "a LoRA, LongLive's schedule": Run(
        f"{TINY} --lora {{files}}/lora.safetensors:0.7 --schedule longlive --seconds 3 --kv-bias 0.8", (dict(at=1, **STORM),)
    ),
    "one frame a chunk, traced": Run(f"{TINY} --schedule streamdiffusion-v2 --chunks 9 --compile eager"),
    "tensor parallel": Run(f"{TINY} --topology front+tp2 --chunks 6", EVERY_CONTROL[:3], "--topology front+tp2"),
    "pipeline parallel": Run(f"{TINY} --topology front+pp2 --chunks 6", EVERY_CONTROL[:3], "--topology front+pp2"),
    "sequence parallel": Run(f"{TINY} --topology front+sp2 --chunks 4 --window 12", (), "--topology front+sp2"),
}  # fmt: skip


class Earlier:
    """Another checkout's program, and where its journals go."""

    def __init__(self, checkout: Path, files: Path) -> None:
        self._settings: dict[str, Any] = dict(cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout)})
        self._places = dict(old=checkout, files=files)
        self._files = files
        save_file(SPELLINGS["ours"](), files / "lora.safetensors")
        write_video(files / "input.mp4", moving_frames(45, 32, 48))

    def journals(self) -> Iterator[tuple[str, tuple[Path, list[str]]]]:
        """Yield each run's journal with the options that its replay needs."""
        for number, (name, run) in enumerate(RUNS.items()):
            yield name, self.generated(run, number)
        for name, journal in self.served():
            yield name, (journal, [])

    def generated(self, run: Run, number: int) -> tuple[Path, list[str]]:
        journal = self._files / f"{number}.jsonl"
        events = self._files / f"{number}.json"
        events.write_text(json.dumps(run.events))
        words = [word.format(**self._places) for word in run.words.split()]
        out = [
            "--out",
            str(self._files / f"{number}.mp4"),
            "--journal",
            str(journal),
            "--events",
            str(events),
            "--quiet",
        ]
        command = [sys.executable, "-m", "millstream", "generate", "a calm sea", *words, *out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **self._settings)
        return journal, [word.format(**self._places) for word in run.replay.split()]

    def served(self) -> Iterator[tuple[str, Path]]:
        """Yield what was special about each served session, with its journal."""
        options = [*TINY.split(), "--device", "cpu", "--keep", "2", "--data", str(self._files / "data")]
        with server_process(*options, **self._settings) as (process, url):
            names = {camera(url): "a camera", restored(url): "restored from what was saved"}
            kept = left_alone(url)
            process.kill()
        with server_process(*options, **self._settings) as (_, url), connect(url) as client:
            client.attach(kept)
            list(client.chunks(4))
        for path in sorted((self._files / "data" / "journals").glob("*.jsonl")):
            header = read_journal(path).header
            if header.session_id == kept:
                yield "back after a kill" if header.start else "cut short by a kill", path
            elif header.session_id in names:
                yield names[header.session_id], path


def camera(url: str) -> str:
    """A session that restyled what a client sent, by its id."""
    with connect(url) as client:
        session = client.start(Ask(prompt="a calm sea", size="32x48", noise_scale=0.7, input=True)).session
        for frame in moving_frames(36, 32, 48):
            client.send_frame(frame)
        list(client.chunks(2))
        return session


def restored(url: str) -> str:
    """A session that went on, steered, from what another had saved in its middle."""
    with connect(url) as client:
        client.start(Ask(prompt="a calm sea", seed=8, window=6, sink=1))
        list(client.chunks(3))
        saved = client.save().snapshot
    with connect(url) as client:
        session = client.restore(saved).session
        client.applied(client.steer(SetPrompt(prompt="a storm at sea", mode="blend", chunks=2)))
        list(client.chunks(4))
        return session


def left_alone(url: str) -> str:
    """A session that lives on without its client."""
    with connect(url) as client:
        session = client.start(Ask(prompt="a calm sea", steps=(1000, 600, 200), unattended="run")).session
        list(client.chunks(5))
        client.detach()
        return session


def replayed(journal: Path, words: list[str]) -> dict[str, Any]:
    """Replay a journal with this checkout and return the result."""
    command = [sys.executable, "-m", "millstream", "replay", str(journal), "--check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    read = read_journal(journal)
    about = {"model": read.header.model, "dtype": read.header.dtype, "topology": read.header.topology}
    return about | {
        "chunks": len(read.chunks),
        "same_bits": done.returncode == 0,
        "said": done.stdout.strip(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, required=True, help="a checkout of an earlier commit")
    old = parser.parse_args().old.resolve()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=old, check=True, capture_output=True, text=True
    ).stdout.strip()
    rows = {}
    with tempfile.TemporaryDirectory(prefix="millstream-old-journals-") as folder:
        earlier = Earlier(old, Path(folder))
        for name, (journal, words) in earlier.journals():
            rows[name] = replayed(journal, words)
            print(f"{name}: {rows[name]}", flush=True)
    same = sum(row["same_bits"] for row in rows.values())
    about = {"made_by": commit, "device": "cpu", "runs": {name: run.words for name, run in RUNS.items()}}
    write_report("old_journals", about, {"journals": len(rows), "same_bits": same, "rows": rows}, shown=False)
    print(f"{same} of {len(rows)} journals replay to the same bits")


if __name__ == "__main__":
    main()
