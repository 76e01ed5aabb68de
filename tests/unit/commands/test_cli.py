"""The command line as a person uses it: what it writes, and what it says when it cannot."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.core.presets import MODELS
from millstream.models.dit import CausalDiT
from millstream.video.writer import VideoWriter
from tests.unit.models.test_tiny_decoder import PUBLIC_WIDTHS, saved, tensors
from tests.unit.session.test_session import moving_square

pytestmark = pytest.mark.slow

TINY = ["--model", "wan-tiny", "--weights", "random", "--size", "16x32", "--dtype", "float32", "--quiet"]


def millstream(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def frames_of(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def test_a_prompt_becomes_a_playable_clip(tmp_path: Path) -> None:
    code, said, _ = millstream("generate", "a lantern", *TINY, "--chunks", 2, "--out", tmp_path / "clip.mp4")
    assert code == 0
    assert said.strip() == str(tmp_path / "clip.mp4")
    assert frames_of(tmp_path / "clip.mp4").shape == (21, 16, 32, 3)


@pytest.mark.parametrize("name", ["clip.webm", "clip.gif", "frames"])
def test_other_kinds_of_output(tmp_path: Path, name: str) -> None:
    assert millstream("generate", *TINY, "--chunks", 1, "--out", tmp_path / name)[0] == 0
    found = tmp_path / name
    count = len(list(found.glob("*.png"))) if found.is_dir() else len(frames_of(found))
    assert count == 9


def test_seconds_are_kept_to_the_frame(tmp_path: Path) -> None:
    millstream("generate", *TINY, "--seconds", 1, "--fps", 10, "--out", tmp_path / "clip.mp4")
    assert len(frames_of(tmp_path / "clip.mp4")) == 10


def test_a_timeline_a_journal_and_a_replay(tmp_path: Path) -> None:
    events = tmp_path / "events.json"
    events.write_text(
        json.dumps([{"chunk": 1, "type": "prompt", "prompt": "a storm"}, {"chunk": 2, "type": "cut"}])
    )
    journal = tmp_path / "run.jsonl"
    clip = tmp_path / "clip.mp4"
    again = tmp_path / "again.mp4"
    code, _, _ = millstream(
        "generate", *TINY, "--seconds", 2, "--events", events, "--journal", journal, "--out", clip
    )
    assert code == 0
    code, said, _ = millstream("replay", journal, "--check", "--out", again, "--quiet")
    assert code == 0
    assert said.splitlines()[0] == "identical"
    assert np.array_equal(frames_of(clip), frames_of(again))


def test_the_fast_path_gives_the_same_clip_to_rounding_and_replays_to_its_own_bits(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    plain = tmp_path / "plain"
    fast = tmp_path / "fast"
    assert millstream("generate", *TINY, "--chunks", 3, "--out", plain)[0] == 0
    speed = ("--fast", "blocks,round_keys,decoder")
    assert millstream("generate", *TINY, "--chunks", 3, *speed, "--journal", journal, "--out", fast)[0] == 0
    pairs = [(picture(path), picture(fast / path.name)) for path in sorted(plain.iterdir())]
    assert len(pairs) == 33
    assert max(np.abs(one - other).max() for one, other in pairs) <= 1
    code, said, _ = millstream("replay", journal, "--check", "--quiet")
    assert (code, said.strip()) == (0, "identical")
    _, _, errors = millstream("replay", journal, "--check", "--quiet", "--fast", "off")
    assert "speed: blocks,round_keys,decoder then, off now" in errors


def test_a_preview_decoder_shows_other_pictures_of_the_same_latents(tmp_path: Path) -> None:
    small = saved(tmp_path / "taew2_1.pth", tensors(PUBLIC_WIDTHS))
    made = {}
    for name, options in (("full", []), ("preview", ["--preview-decoder", small])):
        journal = tmp_path / f"{name}.jsonl"
        command = ("generate", *TINY, "--chunks", 1, *options, "--journal", journal, "--out", tmp_path / name)
        assert millstream(*command)[0] == 0
        digests = [json.loads(line)["digest"] for line in journal.read_text().splitlines()[1:]]
        made[name] = digests, [picture(path) for path in sorted((tmp_path / name).iterdir())]
    assert made["full"][0] == made["preview"][0]
    assert len(made["full"][1]) == len(made["preview"][1]) == 9
    assert not np.array_equal(made["full"][1], made["preview"][1])


def picture(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24").astype(int)


def test_a_timeline_may_hold_more_events_than_can_wait_at_once(tmp_path: Path) -> None:
    events = tmp_path / "events.json"
    events.write_text(json.dumps([{"chunk": 1 + n % 2, "type": "seed", "seed": n} for n in range(400)]))
    assert (
        millstream("generate", *TINY, "--chunks", 3, "--events", events, "--out", tmp_path / "clip.mp4")[0]
        == 0
    )


def test_a_replay_that_differs_says_so_and_fails(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    millstream("generate", *TINY, "--chunks", 2, "--journal", journal, "--out", tmp_path / "clip.mp4")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[1]["envelope"]["seed"] = 99
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, said, errors = millstream("replay", journal, "--check", "--quiet")
    assert code == 1
    assert said.strip() == "2 chunks differ"
    assert "chunk 0 differs" in errors


def test_a_journal_cut_short_is_replayed_and_reported(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    millstream("generate", *TINY, "--chunks", 3, "--journal", journal, "--out", tmp_path / "clip.mp4")
    journal.write_bytes(journal.read_bytes()[:-30])
    code, said, errors = millstream("replay", journal, "--check", "--quiet")
    assert (code, said.strip()) == (0, "identical")
    assert "cut short; 2 complete chunks" in " ".join(errors.split())
    journal.write_text(journal.read_text().splitlines()[0] + "\n")
    code, _, errors = millstream("replay", journal, "--check", "--quiet")
    assert (code, "has no complete chunk, so there is nothing to compare" in " ".join(errors.split())) == (
        2,
        True,
    )


def test_a_video_is_restyled_at_its_own_rate_and_its_journal_replays(tmp_path: Path) -> None:
    source = tmp_path / "in.mp4"
    clip = tmp_path / "out.mp4"
    journal = tmp_path / "run.jsonl"
    with VideoWriter(source, fps=24) as writer:
        writer.write(np.stack(list(moving_square(15))))
    restyle = [*TINY, "--input", source, "--noise-scale", 0.4]
    assert millstream("generate", *restyle, "--journal", journal, "--out", clip)[0] == 0
    with av.open(str(clip)) as container:
        assert float(container.streams.video[0].average_rate) == 24
    assert len(frames_of(clip)) == 15
    assert millstream("replay", journal, "--check", "--quiet")[1].strip() == "identical"
    source.write_bytes(source.read_bytes() + b"changed")
    code, _, errors = millstream("replay", journal, "--check")
    assert code == 2
    assert "not the video" in errors


def test_doctor_speaks_json() -> None:
    code, said, _ = millstream("doctor", "--json", "--port", 0)
    findings = json.loads(said)
    assert {finding["area"] for finding in findings} == {
        "software",
        "cpu",
        "gpu",
        "compiler",
        "video",
        "weights",
        "serving",
    }
    assert all(finding["ok"] or finding["fix"] for finding in findings)
    assert code == 0, "nothing is missing that nothing works without"


def truncated_weights(folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_file(CausalDiT(MODELS["wan-tiny"].dit).state_dict(), path)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def other_weights(folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_file(CausalDiT(MODELS["wan-mini"].dit).state_dict(), path)
    return path


def file_of(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def tensors_of(folder: Path, name: str) -> Path:
    save_file({"decoder.mine": torch.zeros(2)}, folder / name)
    return folder / name


MISTAKES = {
    "unknown model": (lambda t: ["--model", "wan3"], "wan-tiny"),
    "no such weights": (lambda t: ["--weights", t / "none"], "does not exist"),
    "garbage weights": (lambda t: ["--weights", file_of(t, "w.safetensors", b"garbage")], "damaged"),
    "truncated weights": (lambda t: ["--weights", truncated_weights(t)], "damaged"),
    "weights alone": (lambda t: ["--weights", other_weights(t)], "no weights for vae, text, tokenizer"),
    "no weights": (lambda t: ["--model", "wan2.1-t2v-14b"], "--weights random"),
    "odd size": (lambda t: ["--size", "30x48"], "32x48"),
    "size in words": (lambda t: ["--size", "big"], "HEIGHTxWIDTH"),
    "steps that rise": (lambda t: ["--steps", "250,1000"], "must decrease"),
    "steps in words": (lambda t: ["--steps", "many"], "1000,750,500,250"),
    "empty prompt": (lambda t: ["  "], "empty"),
    "endless prompt": (lambda t: ["x" * 100_000], "shorten"),
    "small window": (lambda t: ["--window", 4, "--sink", 2], "use 5 or more"),
    "no such video": (lambda t: ["--input", t / "none.mp4"], "none.mp4"),
    "empty video": (lambda t: ["--input", file_of(t, "v.mp4", b"")], "v.mp4"),
    "broken video": (lambda t: ["--input", file_of(t, "v.mp4", b"\x00" * 5000)], "v.mp4"),
    "event in the past": (lambda t: ["--events", file_of(t, "e.json", b'[{"at":-1,"type":"cut"}]')], "past"),
    "event after the end": (
        lambda t: ["--events", file_of(t, "e.json", b'[{"at":99,"type":"cut"}]')],
        "after the end",
    ),
    "events that are no JSON": (lambda t: ["--events", file_of(t, "e.json", b"[")], "not JSON"),
    "output exists": (lambda t: ["--out", file_of(t, "there.mp4", b"mine")], "--overwrite"),
    "output of no kind": (lambda t: ["--out", t / "clip.doc"], ".mp4"),
    "output in a file": (lambda t: ["--out", file_of(t, "file", b"") / "clip.mp4"], "file"),
    "journal exists": (lambda t: ["--journal", file_of(t, "j", b"mine")], "--overwrite"),
    "no such weights of Brook": (
        lambda t: ["--model", "brook", "--weights", t / "none"],
        "is not there; check the path",
    ),
    "no such device": (lambda t: ["--device", "cuda:7"], "--device cpu"),
    "no such dtype": (lambda t: ["--dtype", "int3"], "bfloat16"),
    "no such speed-up": (lambda t: ["--fast", "quick"], "say auto, off, on"),
    "graphs of nothing": (lambda t: ["--fast", "graphs"], "switch blocks on"),
    "no such preview decoder": (lambda t: ["--preview-decoder", t / "none.pth"], "none.pth"),
    "a preview decoder of something else": (
        lambda t: ["--preview-decoder", tensors_of(t, "vae.safetensors")],
        "taew2_1",
    ),
    "a stream batch": (lambda t: ["--stream-batch", 2], "--stream-batch is experimental"),
    "exchange groups": (lambda t: ["--exchange-groups", 2], "add --experimental to use it"),
    "peer memory": (lambda t: ["--fast", "blocks,peer_memory"], "--fast peer_memory is experimental"),
    "fast blocks staggered": (
        lambda t: ["--fast", "on", "--stream-batch", 2, "--experimental"],
        "--fast auto",
    ),
    "too large": (lambda t: ["--size", "8192x8192", "--window", 900], "GiB free"),
    "both lengths": (lambda t: ["--seconds", 1, "--chunks", 1], "not both"),
    "no length": (lambda t: ["--seconds", 0], "above 0"),
    "unknown schedule": (lambda t: ["--schedule", "mine"], "self-forcing"),
    "noise without input": (lambda t: ["--noise-scale", 0.5], "--input"),
    "lora that is not there": (lambda t: ["--lora", t / "style.safetensors:0.5"], "style.safetensors"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_fix_and_leaves_nothing_behind(
    tmp_path: Path, name: str
) -> None:
    arguments, fix = MISTAKES[name]
    asked = arguments(tmp_path)
    out = [] if "--out" in asked else ["--out", tmp_path / "new" / "clip.mp4"]
    replaced = {option for option in asked if str(option).startswith("--")}
    defaults = [TINY[i : i + 2] for i in range(0, len(TINY) - 1, 2)]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = [value for pair in defaults if pair[0] not in replaced for value in pair]
    if name == "no weights":
        kept = [value for value in kept if value not in ("--weights", "random")]
    code, _, errors = millstream("generate", *asked, *kept, "--quiet", *out)
    assert code == 2
    assert len(errors.strip().splitlines()) == 1, errors
    assert errors.startswith("error: ")
    assert fix in errors
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_no_disk_space_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: the system refuses the write in the same way."""
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); from millstream.commands.main import main; "
        "main()"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "generate",
        *TINY,
        "--chunks",
        "3",
        "--out",
        str(tmp_path / "clip.mp4"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "clip.mp4" in done.stderr
    assert "choose another" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2000


def test_convert_tells_what_it_did_and_its_folder_is_found(tmp_path: Path) -> None:
    source = other_weights(tmp_path)
    code, said, _ = millstream("convert", source, tmp_path / "models" / "wan-mini")
    assert code == 0
    assert said.startswith("wan-mini: dit")
    assert (tmp_path / "models" / "wan-mini" / "config.json").is_file()
    code, _, errors = millstream("convert", tmp_path / "none.pt", tmp_path / "x")
    assert code == 2
    assert "does not exist" in errors


def test_an_interrupted_run_leaves_no_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.generation.generator import Generator

    calls = []

    def interrupt(self: Generator, parcels: object) -> None:
        calls.append(parcels)
        raise KeyboardInterrupt

    monkeypatch.setattr(Generator, "begin", interrupt)
    code, _, errors = millstream("generate", *TINY, "--chunks", 2, "--out", tmp_path / "clip.mp4")
    assert calls
    assert code == 130
    assert "stopped" in errors
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() > 0
