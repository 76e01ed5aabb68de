"""The contract between front and mesh, where what is sent is wrong, late or double; ids as in the contract's
table.

One mesh of real processes for all of it: that each breakage leaves it in working order is half of what is
shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from millstream.core.controls import Cut, SetPrompt
from millstream.core.errors import EnvelopeRefused, WireError
from millstream.engine.engine import Engine
from millstream.session.session import Session
from millstream.wire.parcel import Delivery, Parcel
from tests.dist.meshes import SMALL, mesh_engine, mesh_of
from tests.dist.streams import BlankVAE, stays_with_local, steered, together
from tests.unit.one_chunk import accept, plan_chunk, submit


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with mesh_engine() as engine:
        yield engine


def fresh(engine: Engine, **changes: Any) -> Session:
    return engine.session("sea", seed=1, **(SMALL | changes))


def planned(session: Session) -> Parcel:
    parcel = plan_chunk(session)
    assert parcel is not None
    return parcel


def altered(parcel: Parcel, **changes: Any) -> Parcel:
    return replace(parcel, envelope=msgspec.structs.replace(parcel.envelope, **changes))


def works(engine: Engine) -> bool:
    """Whether another session streams on the same mesh as if nothing had been."""
    with fresh(engine) as session:
        return [chunk.index for chunk in session.stream(2)] == [0, 1]


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that sends whatever it is given."""
    monkeypatch.setattr(Parcel, "validate", lambda self: None)


@pytest.fixture
def sent(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls that are handed to the thread that sends headers, from now on."""
    found = list[str]()
    link = mesh_of(engine).link
    put = link._put

    def noted(what: str, *rest: Any, **how: Any) -> Any:
        found.extend([what] if what.startswith("call") else [])
        return put(what, *rest, **how)

    monkeypatch.setattr(link, "_put", noted)
    return found


def test_om_01_metadata_that_cannot_be_serialised_fails_before_the_header(
    engine: Engine, sent: list[str]
) -> None:
    with fresh(engine) as session, pytest.raises(WireError, match="cannot be serialised"):
        submit(engine.transport, altered(planned(session), seed=2**70))
    assert sent == []
    assert works(engine)
    assert sent, "a chunk that is sent is noted"


def test_om_02_a_dtype_the_wire_does_not_carry_fails_before_the_header(
    engine: Engine, sent: list[str]
) -> None:
    with fresh(engine) as session:
        parcel = planned(session)
        with pytest.raises(WireError, match="complex64"):
            submit(engine.transport, replace(parcel, latents_in=parcel.latents_in.to(torch.complex64)))
    assert sent == []
    assert works(engine)
    assert sent, "a chunk that is sent is noted"


def test_om_03_a_wrong_number_of_calls_is_refused_by_the_front_and_by_the_leader_before_it_broadcasts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh(engine) as session:
        parcel = altered(planned(session), expected_calls=7)
        with pytest.raises(EnvelopeRefused, match="expects 7 model calls, its plan has 3"):
            submit(engine.transport, parcel)
        unchecked(monkeypatch)
        result = submit(engine.transport, parcel).result
    assert (result.ok, result.observed_calls) == (False, 0)
    assert "expects 7 model calls" in result.error
    monkeypatch.undo()
    assert works(engine)


def test_om_07_a_refused_envelope_is_answered_and_ends_its_session_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh(engine) as calm, fresh(engine) as rude:
        first = next(calm.stream(1))
        assert next(rude.stream(1)).digest == first.digest
        unchecked(monkeypatch)
        strange = altered(planned(rude), version=9)
        with pytest.raises(EnvelopeRefused, match="version 9 is not spoken here"):
            accept(rude, submit(engine.transport, strange))
        monkeypatch.undo()
        with pytest.raises(EnvelopeRefused, match="finds no cache here"):
            accept(rude, submit(engine.transport, planned(rude)))
        assert [chunk.index for chunk in calm.stream(2)] == [1, 2]


def test_an_envelope_for_another_model_is_refused_before_anybody_computes(engine: Engine) -> None:
    with fresh(engine) as session:
        parcel = planned(session)
        wide = replace(parcel, latents_in=parcel.latents_in.repeat(1, 1, 2, 1, 1))
        assert "8 channels" in submit(engine.transport, wide).result.error
    assert works(engine)


def test_om_09_late_results_after_a_cut_are_received_and_never_decoded(engine: Engine) -> None:
    with fresh(engine) as session:
        assert next(session.stream(1)).index == 0
        flying = [engine.transport.post([planned(session)]) for _ in range(2)]
        session.control(Cut())
        flying.append(engine.transport.post([planned(session)]))
        chunks = [accept(session, flight.result()[0]) for flight in flying]
        assert chunks[:2] == [None, None]
        assert chunks[2] is not None
        assert (chunks[2].index, chunks[2].epoch, len(chunks[2].frames)) == (3, 1, 9)


def test_om_10_recompute_without_context_is_refused_before_it_is_sent(engine: Engine) -> None:
    with fresh(engine) as session:
        list(session.stream(2))
        session.control(SetPrompt(prompt="hills", mode="recompute"))
        parcel = planned(session)
        assert parcel.envelope.recompute
        with pytest.raises(EnvelopeRefused, match="context frames must come with it"):
            submit(engine.transport, replace(parcel, context_frames=None))
        chunk = accept(session, submit(engine.transport, parcel))
        assert chunk is not None
        assert chunk.index == 2


def test_r_01_double_and_reordered_envelopes_emit_each_chunk_once_and_in_order(engine: Engine) -> None:
    with fresh(engine) as session:
        one = planned(session)
        other = planned(session)
        deliveries: list[Delivery] = []
        for parcel in (one, one, other, other):
            deliveries.append(submit(engine.transport, parcel))
        assert [delivery.result.ok for delivery in deliveries] == [True] * 4
        assert deliveries[0].result == deliveries[1].result, "the same answer, not another run"
        assert deliveries[2].result == deliveries[3].result
        chunks = [accept(session, delivery) for delivery in deliveries]
        assert [chunk and chunk.index for chunk in chunks] == [0, None, 1, None]
        late = submit(engine.transport, one)
        assert not late.result.ok, "one that the mesh is past is not run again"
        assert accept(session, late) is None
    with fresh(engine) as session:
        one = planned(session)
        other = planned(session)
        early = submit(engine.transport, one), submit(engine.transport, other)
        with pytest.raises(EnvelopeRefused, match="was answered before"):
            accept(session, early[1])
    with fresh(engine) as session:
        planned(session)
        result = submit(engine.transport, planned(session)).result
        assert (result.ok, result.observed_calls) == (False, 0), (
            "a chunk that comes before the one it follows is not run"
        )
        assert "finds no cache here" in result.error
    assert works(engine)


def test_a_prompt_travels_once(engine: Engine) -> None:
    with fresh(engine) as one, fresh(engine) as other:
        next(one.stream(1))
        parcel = planned(other)
        assert parcel.conditioning is not None
        (sent,), _ = mesh_of(engine).link._known.strip([parcel])
        assert sent.conditioning is None
        assert accept(other, submit(engine.transport, parcel)) is not None


def test_what_a_session_held_is_given_back(engine: Engine) -> None:
    session = fresh(engine)
    next(session.stream(1))
    with_it = engine.held_bytes()
    session.close()
    with fresh(engine) as another:
        next(another.stream(1))
        assert engine.held_bytes() == with_it > 0


def test_fifty_chunks_with_switches_and_a_cut_are_what_local_makes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_parts", replace(engine.parts, vae=BlankVAE()))
    stays_with_local((steered(engine), together(engine)))


def test_a_process_can_be_the_front_of_several_meshes(engine: Engine) -> None:
    with mesh_engine("front+1") as another:
        assert works(another)
        assert works(engine)
    assert works(engine)
