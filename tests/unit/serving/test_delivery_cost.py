"""Admission counts what the host can pass on as it counts what the device can make."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.serving.admission_types import Admitted
from millstream.serving.delivery_cost import DeliveryCost
from millstream.session.chunk import PendingChunk
from millstream.session.pacing import Pace
from tests.unit.serving.test_admission import admission, request

MS = st.floats(20.0, 200.0)


def made(*, device_ms: float, host_ms: float, thread_ms: float, **fields: object) -> PendingChunk:
    """On a GPU."""
    plain = dict(session=None, plan=None, turn_s=0.0, shares_device=True, device_s=device_ms / 1e3)
    host = dict(host_s=host_ms / 1e3, thread_s=thread_ms / 1e3)
    return PendingChunk(**(plain | host | fields))  # type: ignore[arg-type]


def slowest_s(takes: DeliveryCost, chunk: PendingChunk) -> float:
    return takes.slowest_s(chunk, chunk.chunk_s)


@settings(max_examples=40)
@given(device_ms=MS, thread_ms=MS, send_ms=MS, encode_ms=MS)
def test_neither_device_nor_host_is_promised_twice_and_nobody_is_refused_who_fits(
    device_ms: float, thread_ms: float, send_ms: float, encode_ms: float
) -> None:
    takes = DeliveryCost(send_s=send_ms / 1e3, encode_s=encode_ms / 1e3)
    door = admission(slowest_s(takes, made(device_ms=device_ms, host_ms=thread_ms, thread_ms=thread_ms)))
    pace = Pace(fps=16, chunk_frames=12)
    people = 0
    while isinstance(
        door.ask(request(f"s{people}", pace=pace, memory_bytes=1, may_wait=False, rate="strict"), 0.0),
        Admitted,
    ):
        people += 1
    most_s = max(device_ms, thread_ms + send_ms, encode_ms) / 1e3
    assert people * most_s / pace.media_s <= door.config.share + 1e-9
    assert (people + 1) * most_s / pace.media_s > door.config.share - 1e-9


def test_what_the_host_is_slowed_by_others_counts_once_it_is_seen() -> None:
    quiet, crowded = (made(device_ms=2, host_ms=ms, thread_ms=7) for ms in (7, 9))
    takes = DeliveryCost(send_s=1e-3, encode_s=4e-3)
    assert slowest_s(takes, quiet) == 8e-3
    assert slowest_s(takes, crowded) == 9e-3


def test_a_chunk_that_is_long_on_its_device_takes_what_it_took() -> None:
    takes = DeliveryCost(send_s=2e-3, encode_s=5e-3)
    assert slowest_s(takes, made(device_ms=280, host_ms=20, thread_ms=15)) == 0.28
    assert slowest_s(takes, made(device_ms=0, host_ms=0, thread_ms=0, turn_s=0.3, shares_device=False)) == 0.3


def test_a_host_that_is_the_limit_slows_those_who_may_be_slowed() -> None:
    door = admission(slowest_s(DeliveryCost(send_s=2e-3), made(device_ms=2, host_ms=7, thread_ms=7)))
    for number in range(8):
        door.ask(request(f"s{number}", pace=Pace(fps=240, chunk_frames=12), rate="auto", memory_bytes=1), 0.0)
    rates = door.kept_rates().values()
    assert len(rates) == 8
    assert 0.97 * 0.9 < sum(rates) / 12 * 9e-3 <= 0.9
