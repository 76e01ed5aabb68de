"""Sessions on one GPU: each has the bits it has alone, and gives back to the byte what it took. Skipped
without one.

Needs torch, safetensors, msgspec, numpy and the model that comes with the package; nothing of the server.
"""

from __future__ import annotations

import gc
import logging
import queue
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from millstream.core.controls import Cut, SetPrompt, SetSteps, WeightedPrompt
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.notices import Ended, Notice
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest, geometry
from millstream.session.chunk import Chunk
from millstream.session.session import Session
from tests.unit.rounds import make_together

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the libraries that compile kernels
]

CHUNKS = 6
PROMPTS = ("a red balloon over the hills at dawn", "a white boat on the sea at night")
GIB = 2**30
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """In the dtype it is served in, warm: what only a first chunk takes is taken."""
    engine = Engine("brook", weights="bundled", device="cuda")
    for number in range(2):
        with steered(engine, number) as session:
            digests(session, CHUNKS)
    yield engine
    del engine
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def exact() -> Engine:
    """In float32, where a tolerance says something about the arithmetic and not about the dtype."""
    return Engine("brook", weights="bundled", device="cuda", dtype="float32")


def held_bytes() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def steered(engine: Engine, number: int) -> Session:
    """A session whose controls are its own: the first changes its prompt, the second cuts and takes fewer
    steps."""
    session = engine.session(PROMPTS[number], seed=number)
    if number == 0:
        session.control(SetPrompt(prompt=PROMPTS[1], mode="recompute"), at_chunk=2)
    else:
        session.control(Cut(), at_chunk=3)
        session.control(SetSteps(steps=(1000.0, 500.0)), at_chunk=4)
    return session


def digests(session: Session, chunks: int) -> list[str]:
    return [chunk.digest for chunk in session.stream(chunks)]


def latents(session: Session) -> torch.Tensor:
    """The newest latent frame."""
    state = session.state().history.tensors
    newest = max(int(name.removeprefix("latents.")) for name in state if name.startswith("latents."))
    return state[f"latents.{newest}"].float()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_two_interleaved_sessions_have_the_bits_they_have_alone(engine: Engine) -> None:
    alone = []
    for number in range(2):
        with steered(engine, number) as session:
            alone.append(digests(session, CHUNKS))
    with steered(engine, 0) as first, steered(engine, 1) as second:
        turns = [digests(session, 1)[0] for _ in range(CHUNKS) for session in (first, second)]
    assert [turns[0::2], turns[1::2]] == alone
    assert not set(alone[0]) & set(alone[1])


def test_sessions_that_share_model_calls_have_the_latents_they_have_alone(exact: Engine) -> None:
    alone = [exact.session(prompt, seed=number) for number, prompt in enumerate(PROMPTS)]
    together = [exact.session(prompt, seed=number) for number, prompt in enumerate(PROMPTS)]
    for _ in range(4):
        make_together(exact, together)
        for session, other in zip(together, alone, strict=True):
            digests(other, 1)
            assert relative_error(latents(session), latents(other)) < 1e-3
    for session in (*alone, *together):
        session.close()


def test_each_session_that_closes_frees_what_it_took_to_the_byte(engine: Engine) -> None:
    held = [held_bytes()]
    sessions = []
    for number in range(2):
        session = steered(engine, number)
        digests(session, CHUNKS)
        sessions.append(session)
        held.append(held_bytes())
    assert held[0] < held[1] < held[2]
    sessions.pop().close()
    assert held_bytes() == held[1]
    sessions.pop().close()
    assert held_bytes() == held[0]


def test_a_session_in_host_memory_holds_next_to_nothing_and_comes_back_to_the_same_bits(
    engine: Engine,
) -> None:
    with steered(engine, 0) as undisturbed:
        expected = digests(undisturbed, CHUNKS)
    before = held_bytes()
    with steered(engine, 0) as session:
        found = digests(session, 3)
        resident = held_bytes()
        engine.offload(session)
        away = held_bytes()
        assert away - before < 0.1 * (resident - before), "but for the phases of the frames it was at"
        assert all(cache.ring.k.device.type == "cpu" for cache in engine.generator.caches.values())
        engine.bring_back(session)
        assert held_bytes() - before == pytest.approx(resident - before, rel=0.01)
        found += digests(session, CHUNKS - 3)
    assert found == expected
    assert held_bytes() == before


def test_a_session_saved_here_goes_on_here_to_the_bit_and_on_a_cpu_to_a_tolerance(
    exact: Engine, tmp_path: Path
) -> None:
    fingerprint = exact.model.fingerprint()
    with exact.session(PROMPTS[0], seed=3) as session:
        digests(session, 3)
        snapshot.write(snapshot.capture(exact, session, fingerprint), tmp_path / "saved.safetensors")
        expected = digests(session, 1)
        picture = latents(session).cpu()
    elsewhere = Engine("brook", weights="bundled", device="cpu", dtype="float32")
    for engine in (exact, elsewhere):
        held = snapshot.read(tmp_path / "saved.safetensors", engine, engine.model.fingerprint())
        with snapshot.revive(held, engine, "another") as revived:
            found = digests(revived, 1)
            assert relative_error(latents(revived).cpu(), picture) < 1e-3
        assert found == expected or engine is elsewhere


class Owner:
    def __init__(self) -> None:
        self.heard: queue.Queue[Notice] = queue.Queue()

    def wait_for(self, kind: type, count: int = 1) -> list[Notice]:
        found: list[Notice] = []
        until = time.monotonic() + PATIENCE_S
        while len(found) < count:
            notice = self.heard.get(timeout=max(0.0, until - time.monotonic()))
            found += [notice] if isinstance(notice, kind) else []
        return found


def test_real_out_of_memory_in_one_session_ends_it_and_leaves_the_other_running(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Admission is told that sessions weigh nothing, and the process is given one GiB more than it uses."""
    caplog.set_level(
        logging.CRITICAL, logger="millstream.serving.service"
    )  # a record that is kept keeps what its trace saw
    admission = AdmissionConfig(memory_bytes=100, share=1.0)
    service = Service(engine, admission=admission, session_bytes=lambda config: 1)
    service.start(warm_up=[engine.spec.stream])
    assert service.ready.wait(PATIENCE_S)
    good = Owner()
    greedy = Owner()
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        open_and_watch(service, engine, "good", good)
        good.wait_for(Chunk, 5)
        before = service.on_engine("good", lambda session: held_bytes()).result(PATIENCE_S)
        torch.cuda.empty_cache()  # what earlier tests left reserved would be room too
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + GIB) / total)
        greedy_shape = geometry(engine.spec, engine.stream_config(window=1023))  # 1.5 GiB
        service.table.admission.times.add(greedy_shape, 1e-3)  # or its attention alone would keep it out
        open_and_watch(service, engine, "greedy", greedy, window=1023)
        (ended,) = greedy.wait_for(Ended)
        assert isinstance(ended, Ended)
        assert (ended.cause, ended.reason) == (
            "failed",
            "the device ran out of memory; choose a smaller size or window",
        )
        assert set(engine.generator.caches) == {"good"}
        good.wait_for(Chunk, 3)
        assert service.failure is None
        assert (
            abs(service.on_engine("good", lambda session: held_bytes()).result(PATIENCE_S) - before) < 2**20
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        service.close()


def open_and_watch(service: Service, engine: Engine, name: str, owner: Owner, **changes: object) -> None:
    config = engine.stream_config(**changes)
    service.open(
        OpenRequest(session_id=name, prompts=(WeightedPrompt(PROMPTS[0]),), config=config), owner.heard.put
    )
    service.watch(name)
