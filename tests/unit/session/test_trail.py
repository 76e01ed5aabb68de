"""A trail keeps whole states only where both halves are there: the generator's copy and the decoder's
past."""

from __future__ import annotations

import pytest

from millstream.core.rewind import RewindConfig
from millstream.engine.depths import Depths
from millstream.engine.engine import Engine
from millstream.session.session import Session
from millstream.wire.local import LocalTransport

pytestmark = pytest.mark.slow


def decoder_pasts(session: Session) -> int:
    """Count the decoder pasts that the trail holds."""
    return sum(1 for past in session.trail._past.values() if past.decoder)


@pytest.mark.parametrize(
    "depth", [1, 2], ids=["one after the other", "the next chunk sent first, as over a mesh"]
)
def test_a_decoder_past_without_its_generator_copy_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """A mesh without room for copies of its caches had kept the decoder's past of every fourth chunk, 96
    chunks long."""
    engine = Engine(
        "wan-tiny", weights="random:3", device="cpu", dtype="float32", rewind=RewindConfig(states=8, every=1)
    )
    session = engine.session("sea", height=16, width=32, window=6)
    monkeypatch.setattr(LocalTransport, "fork", lambda self, session_id, new_id: False)
    list(engine.stream(session, depths=Depths(d_in=depth, d_out=depth)).stream(10))
    assert decoder_pasts(session) <= 1, "only the newest may wait for its copy"
    assert session.trail.states in ((), (0,))
    session.close()


@pytest.mark.parametrize(
    "depth", [1, 2], ids=["one after the other", "the next chunk sent first, as over a mesh"]
)
def test_states_that_do_not_fit_leave_no_decoder_past(depth: int) -> None:
    engine = Engine(
        "wan-tiny",
        weights="random:3",
        device="cpu",
        dtype="float32",
        rewind=RewindConfig(every=1, max_bytes=1),
    )
    session = engine.session("sea", height=16, width=32, window=6)
    list(engine.stream(session, depths=Depths(d_in=depth, d_out=depth)).stream(6))
    assert session.trail.states == ()
    assert decoder_pasts(session) <= 1, "only the newest may wait for its copy"
    session.close()
