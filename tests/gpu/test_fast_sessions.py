"""Sessions on the fast path of one GPU: recorded before they are served, saved and replayed, given back.
Skipped without one.

Needs torch, safetensors, msgspec, numpy, Triton and the model that comes with the package; nothing of the
server.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from millstream.core.speed import ALL, Speed
from millstream.core.topology import LOCAL
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.engine.replay import replay
from millstream.engine.speed_choice import automatic_speed
from millstream.models.fast.recorded import RecordedStack
from millstream.models.fast.spread import Run
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.chunk_time_probe import PREPARED
from millstream.serving.service import Service
from millstream.session.journal import JournalWriter, read_journal
from millstream.session.session import Session
from tests.unit.models_for_tests import relative_error

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the libraries that compile kernels
]

GPU = torch.device("cuda")
BF16 = torch.bfloat16
PATIENCE_S = 120.0


def mini(speed: Speed, *, offload_text: bool = False) -> Engine:
    return Engine(
        "wan-mini",
        weights="random:3",
        device="cuda",
        dtype="bfloat16",
        speed=speed,
        offload_text=offload_text,
    )


def digests(session: Session, chunks: int) -> list[str]:
    return [chunk.digest for chunk in session.stream(chunks)]


def newest(session: Session) -> torch.Tensor:
    """The clean latents of its last frame."""
    latents = {
        name: tensor for name, tensor in session.state().history.tensors.items() if name.startswith("latents")
    }
    return latents[max(latents, key=lambda name: int(name.rpartition(".")[2]))].float().cpu()


def held_bytes() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def test_auto_is_all_of_it_here_but_for_what_brook_has_of_its_own() -> None:
    speed = automatic_speed(GPU, BF16, LOCAL)
    assert speed == ALL
    engine = Engine("brook", weights="bundled", device="cuda", speed=speed)
    assert engine.speed == Speed(blocks=True, round_keys=True, graphs=True)
    plain = Engine("brook", weights="bundled", device="cuda")
    for size in (256, 240):  # round numbers of keys, and others
        ends = []
        for each in (engine, plain):
            with each.session("a red balloon over the hills at dawn", height=size, width=size) as session:
                digests(session, 2)
                ends.append(newest(session))
        assert relative_error(*ends) < 0.2, "bfloat16, two chunks of which one feeds on the other"


def test_a_service_is_ready_when_its_calls_are_recorded_and_a_closed_session_gives_its_window_back() -> None:
    engine = mini(ALL)
    service = Service(engine, admission=AdmissionConfig(memory_bytes=2**30), session_bytes=lambda config: 1)
    service.start(warm_up=[engine.spec.stream])
    assert service.ready.wait(PATIENCE_S), service.failure
    service.close()
    blocks = engine.generator.dit.blocks
    assert isinstance(blocks, RecordedStack)
    people = min(PREPARED, engine.recorded_places(engine.spec.stream))
    recorded = 2 * engine.spec.stream.chunks_to_fill * people
    assert len(blocks._recordings) == recorded, (
        "steps and commits of a window that fills, and of a full one, for each to come"
    )
    before = held_bytes()
    with engine.session("sea") as session:
        digests(session, 8)
        window = engine.generator.caches[session.id].ring.num_bytes
        assert held_bytes() - before >= window
    assert held_bytes() - before < 0.5 * window
    assert len(blocks._recordings) == recorded, "it lay where the one before it did"


def test_who_comes_next_finds_what_was_recorded_for_who_left() -> None:
    """However the memory between them is used: three people again and again, and pictures of another size
    among them."""
    engine = mini(ALL)
    blocks = engine.generator.dit.blocks
    assert isinstance(blocks, RecordedStack)
    record = blocks._record
    made = []
    rounds = []

    def counted(run: Run) -> Run:
        made.append(run)
        return record(run)

    blocks._record = counted
    for _ in range(7):  # until calls of windows that fill came often, too
        sessions = [engine.session("sea", seed=seed) for seed in range(3)]
        for session in sessions:
            digests(session, 9)
        for session in sessions:
            session.close()
        with engine.session("sea", height=96, width=96) as other:
            digests(other, 3)
        rounds.append(len(made))
    assert rounds[-1] == rounds[-2] > 0, rounds


def test_a_journal_of_everything_replays_to_the_same_bits(tmp_path: Path) -> None:
    engine = mini(ALL)
    path = tmp_path / "run.jsonl"
    config = engine.stream_config(seed=4)
    with JournalWriter(path, engine.journal_header(config, "session")) as lines:
        digests(engine.session("sea", config=config, journal=lines, session_id="session"), 9)
    journal = read_journal(path)
    assert journal.header.speed == engine.speed
    assert [each.identical for each in replay(engine, journal)] == [True] * 9, "in an engine with recordings"
    assert [each.identical for each in replay(mini(journal.header.speed), journal)] == [True] * 9, (
        "in a fresh one"
    )


def test_a_session_saved_fast_goes_on_plain(tmp_path: Path) -> None:
    fast = mini(ALL)
    plain = mini(Speed())
    path = tmp_path / "saved.safetensors"
    assert fast.fingerprint() == plain.fingerprint()
    with fast.session("sea", seed=5) as session:
        digests(session, 6)
        snapshot.write(snapshot.capture(fast, session, fast.fingerprint()), path)
        digests(session, 1)
        expected = newest(session)
    with snapshot.revive(snapshot.read(path, plain, plain.fingerprint()), plain, "another") as revived:
        digests(revived, 1)
        assert relative_error(newest(revived), expected) < 0.05


def test_a_text_encoder_at_home_gives_the_same_bits_and_is_not_on_the_card() -> None:
    there = mini(Speed())
    with there.session("sea") as session:
        expected = digests(session, 2)
    at_home = mini(Speed(), offload_text=True)
    with at_home.session("sea") as session:
        assert digests(session, 2) == expected
    assert at_home.fingerprint() == there.fingerprint()
    weights = list(at_home.model.text.embedder.model.parameters())
    assert all(weight.device.type == "cpu" and weight.is_pinned() for weight in weights)
