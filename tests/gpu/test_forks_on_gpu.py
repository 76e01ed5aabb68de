"""Branches of a session on the fast path of one GPU: recorded calls, later commits, host memory. Skipped
without one."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch

from millstream.core.controls import SetPrompt
from millstream.core.errors import PoolFull
from millstream.core.speed import ALL, Speed
from millstream.engine.engine import Engine
from millstream.engine.future_picture import future_picture
from millstream.models.fast.recorded import RecordedStack
from millstream.wire.parcel import Parcel, digest
from tests.unit.one_chunk import accept, plan_chunk

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the libraries that compile kernels
]

PAST = 8
CHUNKS = 12
SPEEDS = {"plain": Speed(), "all": ALL, "low attention": replace(ALL, low_attention=True)}


def mini(speed: Speed) -> Engine:
    return Engine("wan-mini", weights="random:3", device="cuda", dtype="bfloat16", speed=speed)


def planned(engine: Engine, **stream: object) -> tuple[list[Parcel], list[str]]:
    """A session's parcels, and the digests it gives alone."""
    session = engine.session("sea", seed=4, **stream)
    parcels = []
    digests = []
    for _ in range(CHUNKS):
        parcel = plan_chunk(session)
        assert parcel is not None
        delivery = engine.generator.run(parcel)
        parcels.append(parcel)
        digests.append(digest(delivery.latents_out))
        accept(session, delivery)
    return parcels, digests


def run(engine: Engine, parcel: Parcel, name: str) -> str:
    delivery = engine.generator.run(
        replace(parcel, envelope=msgspec.structs.replace(parcel.envelope, session_id=name))
    )
    assert delivery.result.ok, delivery.result.error
    return digest(delivery.latents_out)


@pytest.mark.parametrize("stream", [{}, dict(sink=2, positions="windowed")], ids=["ring", "sink"])
@pytest.mark.parametrize("speed", SPEEDS)
def test_branches_in_turns_give_what_one_gives_alone(speed: str, stream: dict) -> None:
    engine = mini(SPEEDS[speed])
    parcels, expected = planned(engine, **stream)
    names = ["one", "two", "three"]
    assert [run(engine, parcel, "one") for parcel in parcels[:PAST]] == expected[:PAST]
    for name in names[1:]:
        engine.generator.fork("one", name)
    for parcel, wanted in zip(parcels[PAST:], expected[PAST:], strict=True):
        assert [run(engine, parcel, name) for name in names] == [wanted] * 3
    if isinstance(engine.generator.dit.blocks, RecordedStack):
        assert len(engine.generator.dit.blocks._recordings) <= 4, "one window beside the first session's"


@pytest.mark.parametrize("speed", SPEEDS)
def test_previews_leave_a_stream_its_bits(speed: str) -> None:
    engine = mini(SPEEDS[speed])
    with engine.session("sea", seed=4) as alone:
        expected = [chunk.digest for chunk in alone.stream(CHUNKS)]
    with engine.session("sea", seed=4) as session:
        for wanted in expected:
            (chunk,) = session.stream(1)
            assert chunk.digest == wanted
            assert future_picture(engine, session, SetPrompt(prompt="storm")).any()


def test_a_branch_in_host_memory_comes_back_to_the_same_bits() -> None:
    engine = mini(ALL)
    parcels, expected = planned(engine)
    for parcel in parcels[:PAST]:
        run(engine, parcel, "one")
    engine.generator.fork("one", "two")
    engine.generator.move("two", torch.device("cpu"))
    assert [run(engine, parcel, "one") for parcel in parcels[PAST:]] == expected[PAST:]
    engine.generator.move("two", torch.device("cuda", 0))
    assert [run(engine, parcel, "two") for parcel in parcels[PAST:]] == expected[PAST:]
    assert engine.generator.pages.pages_in_use == 0


def test_a_fork_takes_no_memory_and_one_beyond_the_card_is_refused() -> None:
    engine = mini(ALL)
    parcels, _ = planned(engine)
    for parcel in parcels[:PAST]:
        run(engine, parcel, "one")
    engine.generator.run_commit("one")
    before = torch.cuda.memory_allocated()
    for number in range(16):
        engine.generator.fork("one", f"branch {number}")
    assert torch.cuda.memory_allocated() == before
    engine.generator.pages.promised_bytes += torch.cuda.mem_get_info()[1]
    run(engine, parcels[PAST], "one")  # has frames now that nobody keeps
    with pytest.raises(PoolFull, match="end a branch"):
        engine.generator.fork("one", "one too many")
