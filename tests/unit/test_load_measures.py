"""How a load run measures: percentiles, the viewer's clock, a person's record, scripts and the gate."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.controls import Receipt, SetPrompt
from millstream.core.errors import ConfigError, ProtocolBroken
from millstream.load.connection import check_loopback
from millstream.load.gate import missed
from millstream.load.host import Reading, Usage
from millstream.load.messages import ChunkHeader, Live, Start, Steer, read, write
from millstream.load.playout import Playout
from millstream.load.record import MAX_ERRORS, Record
from millstream.load.run import LoadRequest, LoadResult
from millstream.load.script import TEMPERS, Babble, Change, Doze, Leave, Rest, acts
from millstream.load.summary import percentile, summarise

FPS, FRAMES = 16.0, 12
CHUNK_S = FRAMES / FPS


def chunk(index: int, *, pictures: bool = True, shows: tuple[str, ...] = (), media_s: float | None = None) -> ChunkHeader:
    return ChunkHeader(
        index=index,
        epoch=0,
        media_s=index * CHUNK_S if media_s is None else media_s,
        fps=FPS,
        frames=FRAMES,
        sizes=(10,) * FRAMES if pictures else (),
        receipts=tuple(Receipt(control_id=name, state="applied", chunk_index=index) for name in shows),
    )


# Percentiles.


def test_of_a_hundred_values_the_99th_percentile_is_the_99th() -> None:
    summary = summarise([float(value) for value in range(100, 0, -1)])
    assert summary is not None
    assert (summary.count, summary.p50, summary.p95, summary.p99, summary.largest) == (100, 50, 95, 99, 100)


def test_of_nothing_there_is_no_summary() -> None:
    assert summarise([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.floats(0.001, 1))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


# The viewer's clock.


def test_a_viewer_whose_chunks_come_in_time_never_stalls() -> None:
    clock = Playout(FPS)
    shown = [clock.arrive(index * CHUNK_S - (0.1 if index else 0), FRAMES) for index in range(20)]
    assert shown == pytest.approx([index * CHUNK_S for index in range(20)])
    assert clock.continuity(20 * CHUNK_S) == 1.0
    assert clock.misses == 0


def test_a_late_chunk_is_a_stall_as_long_as_it_is_late() -> None:
    clock = Playout(FPS)
    clock.arrive(10.0, FRAMES)
    assert clock.arrive(11.0, FRAMES) == 11.0
    assert clock.stalled_s(11.0) == pytest.approx(0.25)
    assert clock.misses == 1
    assert clock.continuity(11.75) == pytest.approx(1.5 / 1.75)


def test_a_stall_that_goes_on_counts_already() -> None:
    clock = Playout(FPS)
    clock.arrive(0.0, FRAMES)
    assert clock.continuity(2 * CHUNK_S) == pytest.approx(0.5)


def test_before_the_first_frame_there_is_no_continuity() -> None:
    assert Playout(FPS).continuity(5.0) is None


def test_a_chunk_without_pictures_is_a_frozen_picture() -> None:
    clock = Playout(FPS)
    clock.arrive(0.0, FRAMES)
    clock.arrive(0.0, FRAMES, pictures=False)
    assert clock.continuity(2 * CHUNK_S) == pytest.approx(0.5)


def test_a_halt_shifts_everything_and_stalls_nothing() -> None:
    clock = Playout(FPS)
    clock.arrive(0.0, FRAMES)
    clock.halt(0.5)
    clock.proceed(100.5)
    assert clock.arrive(100.6, FRAMES) == pytest.approx(100.75)
    assert clock.stalled_s(101.0) == 0
    assert clock.halted_s == 100


def test_what_is_forgiven_is_no_stall_and_what_exceeds_it_is() -> None:
    clock = Playout(FPS)
    clock.arrive(0.0, FRAMES)
    clock.forgive(1.0)
    clock.arrive(CHUNK_S + 1.5, FRAMES)
    assert clock.forgiven_s == pytest.approx(1.0)
    assert clock.stalled_s(CHUNK_S + 1.5) == pytest.approx(0.5)


Happening = tuple[str, float]
COMMON = ("chunk", "halt", "proceed", "forgive")


def stories(*kinds: str) -> st.SearchStrategy[list[Happening]]:
    return st.lists(st.tuples(st.sampled_from((*COMMON, *kinds)), st.floats(0, 3)), max_size=60)


@given(stories("blank") | stories("skip"), st.floats(0, 5))
def test_every_second_since_the_first_frame_is_played_stalled_forgiven_or_halted(
    story: list[Happening], after_s: float
) -> None:
    clock, now = Playout(FPS), 50.0
    clock.arrive(now, FRAMES)
    for what, seconds in story:
        now += seconds
        match what:
            case "chunk" | "blank":
                clock.arrive(now, FRAMES, pictures=what == "chunk")
            case "halt":
                clock.halt(now)
            case "proceed":
                clock.proceed(now)
            case "forgive":
                clock.forgive(seconds)
            case "skip":
                clock.skip(now, to_ahead_s=seconds)
    clock.proceed(now)
    clock.arrive(now, FRAMES)  # so that no stall is still going on
    now += clock.ahead_s(now)  # media without pictures has been lived through, too
    assert clock.played_s(now) + clock.stalled_s(now) + clock.forgiven_s + clock.halted_s == pytest.approx(now - 50.0)
    later = now + after_s
    assert clock.continuity(later) is not None
    assert 0 <= (clock.continuity(later) or 0) <= 1
    assert clock.stalled_s(later) <= clock.stalled_s(now) + after_s + 1e-6


# A person's record.


def test_a_control_is_measured_to_its_chunk_and_to_its_picture() -> None:
    record = Record(0, FPS)
    record.connecting(8.0)
    record.chunk(chunk(0), 10.0)
    record.steered("0-1", 10.1)
    record.chunk(chunk(1, shows=("0-1", "somebody else's")), 10.3)
    assert record.samples.first_frame_s == [2.0]
    assert record.samples.control_arrival_s == pytest.approx([0.2])
    assert record.samples.control_shown_s == pytest.approx([0.65])
    assert record.result(11.0).unanswered == 0


def test_a_control_before_an_interruption_says_nothing_of_latency() -> None:
    record = Record(0, FPS)
    record.chunk(chunk(0), 0.0)
    record.steered("0-1", 0.1)
    record.interrupt()
    record.chunk(chunk(1, shows=("0-1",)), 5.0)
    result = record.result(5.0)
    assert (result.interrupted, result.unanswered, result.seen["control_shown_s"]) == (1, 0, None)


def test_a_control_that_never_shows_is_unanswered() -> None:
    record = Record(0, FPS)
    record.steered("0-1", 0.0)
    record.chunk(chunk(0), 1.0)
    assert record.result(1.0).unanswered == 1


def test_the_time_away_is_no_stall_and_coming_back_is_measured() -> None:
    record = Record(0, FPS)
    record.chunk(chunk(0), 0.0)
    record.go_away(0.5)
    record.come_back(30.0)
    record.chunk(chunk(2), 30.2)  # chunk 1 was sent to nobody
    record.chunk(chunk(3), 32.0)
    result = record.result(32.0)
    assert record.samples.resume_s == pytest.approx([0.2])
    assert result.stalled_s == pytest.approx(1.8 - 0.25 - 2 * CHUNK_S)
    assert result.forgiven_s == pytest.approx(CHUNK_S)
    assert result.num_errors == 0


def test_who_comes_back_may_be_shown_the_last_chunk_again() -> None:
    record = Record(0, FPS)
    record.chunk(chunk(0), 0.0)
    record.go_away(0.5)
    record.come_back(30.0)
    record.chunk(chunk(0), 30.1)
    record.chunk(chunk(1), 30.2)
    result = record.result(31.0)
    assert record.samples.resume_s == pytest.approx([0.2])
    assert (result.chunks, result.num_errors, result.stalled_s) == (2, 0, 0)


def test_pictures_dropped_for_a_dozing_reader_are_counted_and_forgiven() -> None:
    record = Record(0, FPS)
    record.chunk(chunk(0), 0.0)
    record.go_away(0.5)
    record.chunk(chunk(1, pictures=False), 4.0)
    record.chunk(chunk(2), 4.0)
    result = record.result(4.0)
    assert (result.blank_chunks, result.stalled_s) == (1, 0)


def test_who_has_fallen_behind_jumps_to_what_is_now() -> None:
    record = Record(0, FPS)
    for index in range(3):
        record.chunk(chunk(index), 0.0)
    assert record.clock.ahead_s(0.0) == 3 * CHUNK_S
    record.steered("0-1", 0.0)
    record.chunk(chunk(3, shows=("0-1",)), 0.0)
    assert record.clock.ahead_s(0.0) == 2 * CHUNK_S
    assert record.samples.control_shown_s == [CHUNK_S]
    assert record.result(0.0).skipped_s == 2 * CHUNK_S


def test_a_chunk_that_is_left_out_while_watching_is_an_error() -> None:
    record = Record(0, FPS)
    record.chunk(chunk(0), 0.0)
    record.chunk(chunk(2), 0.5)
    assert record.result(1.0).num_errors == 1


def test_a_chunk_that_comes_twice_is_an_error_and_is_not_played_twice() -> None:
    record = Record(0, FPS)
    record.chunk(chunk(0), 0.0)
    record.chunk(chunk(0), 0.1)
    result = record.result(5.0)
    assert (result.num_errors, result.chunks, result.played_s) == (1, 1, CHUNK_S)


def test_jitter_is_the_deviation_from_media_time_once_the_lead_is_full() -> None:
    record, wobble = Record(0, FPS), itertools.cycle((0.0, 0.1))
    for index in range(3):
        record.chunk(chunk(index), index * 0.01)
    for index in range(3, 20):
        record.chunk(chunk(index), index * CHUNK_S + next(wobble))
    assert record.samples.jitter_s == pytest.approx([0.1] * 16)


def test_a_burst_after_a_halt_is_no_jitter() -> None:
    record = Record(0, FPS)
    for index in range(5):
        record.chunk(chunk(index), index * CHUNK_S)
    record.go_away(4.0)
    for index in range(5, 12):
        record.chunk(chunk(index), 10.0)
    assert record.samples.jitter_s == pytest.approx([0.0] * 3)


def test_coming_back_and_dozing_off_at_once_is_no_slow_return() -> None:
    record = Record(0, FPS)
    record.chunk(chunk(0), 0.0)
    record.go_away(0.5)
    record.come_back(1.0)
    record.go_away(1.1)
    record.chunk(chunk(1), 9.0)
    assert record.samples.resume_s == []


def test_errors_answer_nonsense_once_each_and_are_kept_in_bounds() -> None:
    record = Record(0, FPS)
    record.babbled()
    for _ in range(100):
        record.rebuked("bad_message: what?")
    result = record.result(0.0)
    assert (result.rebukes, result.num_errors, len(result.errors)) == (1, 99, MAX_ERRORS)


# Scripts.


def test_the_same_seed_and_person_act_the_same_and_others_do_not() -> None:
    def begins(seed: int, person: int) -> list[Any]:
        return list(itertools.islice(acts(TEMPERS["rude"], ["a", "b"], seed=seed, person=person), 40))

    assert begins(1, 2) == begins(1, 2)
    assert begins(1, 2) != begins(1, 3) != begins(2, 3)


def test_one_deck_of_the_rude_has_everything() -> None:
    temper = TEMPERS["rude"]
    dealt = [act for _, act in itertools.islice(acts(temper, [], seed=0, person=0), len(temper.deck))]
    assert {type(act) for act in dealt} == {Change, Rest, Leave, Doze, Babble}
    modes = {act.control.mode for act in dealt if isinstance(act, Change) and isinstance(act.control, SetPrompt)}
    assert modes == {"cut", "recompute", "keep", "blend"}
    assert {act.abruptly for act in dealt if isinstance(act, Leave)} == {True, False}


@given(st.sampled_from(sorted(TEMPERS)), st.integers(0, 2**32), st.integers(0, 63))
def test_every_control_that_is_dealt_is_one_that_can_apply(name: str, seed: int, person: int) -> None:
    for think_s, act in itertools.islice(acts(TEMPERS[name], ["a kite"], seed=seed, person=person), 30):
        assert TEMPERS[name].think_s[0] <= think_s <= TEMPERS[name].think_s[1]
        if isinstance(act, Change):
            act.control.check()


# Messages and addresses.


def test_what_is_said_is_what_the_protocol_names() -> None:
    start = write(Start(version=1, prompt="a kite", fps=16.0, seed=3, formats=("jpeg",), wait=False))
    assert start == '{"type":"start","version":1,"prompt":"a kite","fps":16.0,"seed":3,"formats":["jpeg"],"wait":false}'
    assert '"control":{"type":"prompt"' in write(Steer(control=SetPrompt(prompt="a kite")))


def test_fields_that_the_harness_does_not_know_are_ignored() -> None:
    live = read('{"type":"live","session":"s","view":"v","format":"jpeg","config":{"lead_s":1.5},"note":"","new":1}')
    assert live == Live(session="s", format="jpeg", config={"lead_s": 1.5})


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff{}", "{}", '{"type":"sing"}', "\x00"])
def test_what_the_protocol_does_not_know_is_said_in_one_line(data: str | bytes) -> None:
    with pytest.raises(ProtocolBroken, match="does not know"):
        read(data)


@pytest.mark.parametrize("url", ["ws://127.0.0.1:8000", "ws://localhost:1", "ws://[::1]:8000", "ws://127.8.9.1"])
def test_addresses_of_this_machine_are_fine(url: str) -> None:
    check_loopback(url)


@pytest.mark.parametrize(
    "url",
    ["ws://10.0.0.1:8000", "ws://example.org", "wss://127.0.0.1", "http://127.0.0.1:8000", "127.0.0.1:8000",
     "ws://127.0.0.1.example.org", "ws://user@192.168.0.1:8000", "ws://0.0.0.0:8000", "ws://127.0.0.1:port", ""],
)  # fmt: skip
def test_load_is_put_on_no_other_machine(url: str) -> None:
    with pytest.raises(ConfigError):
        LoadRequest(url=url)


@pytest.mark.parametrize(
    "options", [{"sessions": 0}, {"sessions": 65}, {"seconds": 0}, {"seconds": 3601}, {"connects": 1001}, {"fps": 0},
                {"fps": float("nan")}, {"seconds": float("inf")}, {"script": "drunk"}],
)  # fmt: skip
def test_a_run_is_bounded_in_count_and_time(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LoadRequest(**options)


# The gate.


def good_run() -> Record:
    record = Record(0, FPS)
    record.connecting(-1.0)
    for index in range(10):
        record.chunk(chunk(index), index * CHUNK_S)
    record.clock.halt(10 * CHUNK_S)
    return record


def result_of(record: Record, **others: Any) -> LoadResult:
    empty: dict[str, Any] = dict(everybody={}, server=None, connects=None, after_connects=None)
    return LoadResult(people=(record.result(100.0),), **{**empty, **others})


def test_a_good_run_passes_the_gate() -> None:
    assert missed(result_of(good_run())) == []


def test_each_limit_that_is_missed_is_said() -> None:
    slow = good_run()
    slow.samples.first_frame_s = [2.5]
    slow.samples.control_shown_s = [slow.promise_s + 0.1]
    slow.clock.late_s = 1.0
    slow.steered("lost", 0.0)
    slow.error("bad_state: no")
    lines = "\n".join(missed(result_of(slow)))
    for words in ("first frame after 2.50 s", "(p95)", "continuity 0.88", "never showed", "bad_state"):
        assert words in lines


def test_a_refusal_is_no_miss_unless_it_was_slow() -> None:
    refused = Record(0, FPS)
    refused.refused("all places are taken", 0.05)
    assert missed(result_of(refused)) == []
    refused.samples.refusal_s = [0.2]
    assert "0.200 s to be refused" in missed(result_of(refused))[0]


def test_memory_threads_and_tasks_that_stay_behind_are_said() -> None:
    start = Reading(resident_bytes=1000, threads=5, tasks=7)
    usage = Usage(start=start, peak_bytes=1100, end=Reading(resident_bytes=1030, threads=6, tasks=8))
    lines = missed(result_of(good_run(), after_connects=usage))
    assert len(lines) == 3
    for line, words in zip(lines, ("3.0%", "6 threads", "8 tasks"), strict=True):
        assert words in line
