"""Words that a model reads as others are written into envelopes, so that journals replay whatever is known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from millstream.core.controls import SetPrompt
from millstream.core.presets import find_model
from millstream.engine.engine import Engine
from millstream.engine.replay import replay
from millstream.models.brook import word_table as table_module
from millstream.models.brook.bundle import build, save_bundle
from millstream.models.weights.fill import fill_random
from millstream.session.chunk import Chunk
from millstream.session.journal import Journal, JournalWriter, read_journal

WORDS = ("a", "boat", "rainy", "red", "sea", "two")
SIZE = dict(height=64, width=64)
FIRST = "two ships on a stormy sea"
LATER = "a red vessel"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    parts = build(find_model("brook"), len(WORDS))
    for module in parts:
        fill_random(module, seed=1, device=torch.device("cpu"), dtype=torch.float32)
    path = tmp_path_factory.mktemp("brook") / "brook.safetensors"
    save_bundle(path, parts, WORDS, {}, torch.float16)
    return str(path)


def brook(weights: str) -> Engine:
    return Engine("brook", weights=weights, device="cpu", dtype="float32")


def streamed(engine: Engine, path: Path) -> list[Chunk]:
    """Two chunks of one prompt and two of another, with a journal."""
    config = engine.stream_config(**SIZE)
    header = engine.journal_header(config, "s")
    with JournalWriter(path, header) as journal:
        session = engine.session(FIRST, config=config, journal=journal, session_id="s")
        chunks = list(session.stream(2))
        session.control(SetPrompt(prompt=LATER, mode="recompute"))
        chunks += session.stream(2)
        session.close()
    return chunks


def replayed(weights: str, journal: Journal) -> list[bool]:
    return [each.identical for each in replay(brook(weights), journal)]


def without_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before there was a table: words that a model was not taught are left out."""
    monkeypatch.setattr("millstream.models.brook.bundle.word_table", dict)


def test_an_envelope_says_what_its_prompts_are_read_as(weights: str, tmp_path: Path) -> None:
    streamed(brook(weights), tmp_path / "journal.jsonl")
    envelopes = [line.envelope for line in read_journal(tmp_path / "journal.jsonl").chunks]
    assert [each.prompts[0].text for each in envelopes] == [FIRST, FIRST, LATER, LATER]
    assert [each.read for each in envelopes] == [("two boat a rainy sea",)] * 2 + [("a red boat",)] * 2


def test_a_prompt_that_is_read_as_it_is_written_says_nothing_more(weights: str) -> None:
    session = brook(weights).session("a red boat, hammer", **SIZE)
    plan = session.decide()
    assert plan is not None
    assert plan.envelope.read == ()
    assert plan.envelope.prompts_as_read == plan.envelope.prompts


def test_a_journal_from_before_the_table_replays_to_the_same_bits(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.jsonl"
    with monkeypatch.context() as earlier:
        without_table(earlier)
        old = streamed(brook(weights), path)
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    for line in lines[1:]:
        del line["envelope"]["read"]  # its program did not have the field
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    assert replayed(weights, read_journal(path)) == [True] * 4
    now = streamed(brook(weights), tmp_path / "now.jsonl")
    assert all(then.digest != chunk.digest for then, chunk in zip(old, now, strict=True)), (
        "the table changes what such prompts show, so the replay above shows something"
    )


def test_a_journal_replays_to_the_same_bits_by_a_program_with_another_table(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed(brook(weights), tmp_path / "journal.jsonl")
    without_table(monkeypatch)
    assert replayed(weights, read_journal(tmp_path / "journal.jsonl")) == [True] * 4


def test_a_prompt_is_the_same_bits_as_what_it_is_read_as(weights: str) -> None:
    engine = brook(weights)
    written = [chunk.digest for chunk in engine.session(LATER, seed=3, **SIZE).stream(2)]
    read = [chunk.digest for chunk in engine.session("a red boat", seed=3, **SIZE).stream(2)]
    assert written == read


def test_the_table_is_read_when_a_word_needs_it_and_once(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def table() -> dict[str, str]:
        asked.append(1)
        return dict(table_module.word_table())

    monkeypatch.setattr("millstream.models.brook.bundle.word_table", table)
    engine = brook(weights)
    list(engine.session("a red boat", **SIZE).stream(1))
    assert asked == []
    list(engine.session("a red ship", **SIZE).stream(3))
    assert asked == [1]
