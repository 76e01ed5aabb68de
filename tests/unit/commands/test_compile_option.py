"""`--compile`: the blocks are compiled where the model is, the stream is the same, and the journal says
so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from millstream.core.errors import ConfigError
from millstream.core.speed import Speed
from millstream.engine.engine import Engine
from millstream.parallel.compiled import read_counters
from millstream.session.journal import read_journal
from tests.unit.commands.test_cli import TINY, frames_of, millstream
from tests.unit.models_for_tests import tiny_engine

pytestmark = pytest.mark.slow

PLACE = dict(weights="random:3", device="cpu", dtype="float32")


def test_a_compiled_stream_is_the_plain_one_and_its_journal_replays_it_compiled(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    made = {}
    for backend in ("off", "eager"):
        out = tmp_path / f"{backend}.mp4"
        asked = [
            *TINY,
            "--chunks",
            3,
            "--compile",
            backend,
            "--journal",
            journal,
            "--out",
            out,
            "--overwrite",
        ]
        code, _, errors = millstream("generate", *asked)
        assert code == 0, errors
        made[backend] = frames_of(out).astype(int)
    assert np.abs(made["eager"] - made["off"]).max() <= 1
    assert read_journal(journal).header.compile == "eager"
    code, said, errors = millstream("replay", journal, "--check", "--quiet")
    assert (code, said.splitlines()[0]) == (0, "identical"), errors


def test_a_compiled_server_warms_up_until_every_shape_has_been_there() -> None:
    engine = Engine("wan-tiny", **PLACE, compile_backend="eager")
    config = engine.stream_config(window=9)
    assert engine.chunks_until_warm(config) == 4
    assert tiny_engine().chunks_until_warm(config) == 1
    assert engine.surroundings()["compile"] == "eager"


def test_a_compiled_server_compiles_in_warm_ups_and_at_no_other_time() -> None:
    torch._dynamo.reset()  # or graphs of another test would serve
    engine = Engine("wan-tiny", **PLACE, compile_backend="eager")

    def compiled_by(window: int, *, warming_up: bool) -> int:
        before = read_counters()
        with engine.session(
            "sea", config=engine.stream_config(height=32, width=48, window=window)
        ) as session:
            if warming_up:
                engine.warm_up(session)
            else:
                assert len(list(session.stream(3))) == 3
        return read_counters().since(before).graphs

    assert compiled_by(3, warming_up=True) > 0
    assert compiled_by(6, warming_up=False) == 0
    assert compiled_by(6, warming_up=True) > 0


def test_what_cannot_be_compiled_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"compiled by inductor, aot_eager, eager or not at all \(off\), got 'gcc'"
    ):
        Engine("wan-tiny", **PLACE, compile_backend="gcc")
    with pytest.raises(ConfigError, match="fast blocks are not compiled"):
        Engine("wan-tiny", **PLACE, compile_backend="eager", speed=Speed(blocks=True))
    asked = [*TINY, "--compile", "eager", "--fast", "blocks", "--out", tmp_path / "clip.mp4"]
    code, _, errors = millstream("generate", *asked)
    assert (code, len(errors.strip().splitlines())) == (2, 1), errors
