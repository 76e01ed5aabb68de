"""What a load run notes of one person: latencies, absences, jitter and errors."""

from __future__ import annotations

import itertools

import pytest

from millstream.load.record import MAX_ERRORS, LoadRecord
from tests.unit.load_chunks import CHUNK_S, chunk


def test_a_control_is_measured_to_its_chunk_and_to_its_picture() -> None:
    record = LoadRecord(0)
    record.connecting(8.0)
    record.chunk(chunk(0), 10.0)
    record.steered("0-1", 10.1)
    record.chunk(chunk(1, shows=("0-1", "somebody else's")), 10.3)
    assert record.samples.first_frame_s == [2.0]
    assert record.samples.control_arrival_s == pytest.approx([0.2])
    assert record.samples.control_shown_s == pytest.approx([0.65])
    assert record.result(11.0).unanswered == 0


def test_a_control_before_an_interruption_says_nothing_of_latency() -> None:
    record = LoadRecord(0)
    record.chunk(chunk(0), 0.0)
    record.steered("0-1", 0.1)
    record.interrupt()
    record.chunk(chunk(1, shows=("0-1",)), 5.0)
    result = record.result(5.0)
    assert (result.interrupted, result.unanswered, result.seen["control_shown_s"]) == (1, 0, None)


def test_a_control_that_never_shows_is_unanswered() -> None:
    record = LoadRecord(0)
    record.steered("0-1", 0.0)
    record.chunk(chunk(0), 1.0)
    assert record.result(1.0).unanswered == 1


def test_the_time_away_is_no_stall_and_coming_back_is_measured() -> None:
    record = LoadRecord(0)
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
    record = LoadRecord(0)
    record.chunk(chunk(0), 0.0)
    record.go_away(0.5)
    record.come_back(30.0)
    record.chunk(chunk(0), 30.1)
    record.chunk(chunk(1), 30.2)
    result = record.result(31.0)
    assert record.samples.resume_s == pytest.approx([0.2])
    assert (result.chunks, result.num_errors, result.stalled_s) == (2, 0, 0)


def test_pictures_dropped_for_a_dozing_reader_are_counted_and_forgiven() -> None:
    record = LoadRecord(0)
    record.chunk(chunk(0), 0.0)
    record.go_away(0.5)
    record.chunk(chunk(1, pictures=False), 4.0)
    record.chunk(chunk(2), 4.0)
    result = record.result(4.0)
    assert (result.blank_chunks, result.stalled_s) == (1, 0)


def test_who_has_fallen_behind_jumps_to_what_is_now() -> None:
    record = LoadRecord(0)
    for index in range(3):
        record.chunk(chunk(index), 0.0)
    assert record.clock.ahead_s(0.0) == 3 * CHUNK_S
    record.steered("0-1", 0.0)
    record.chunk(chunk(3, shows=("0-1",)), 0.0)
    assert record.clock.ahead_s(0.0) == 2 * CHUNK_S
    assert record.samples.control_shown_s == [CHUNK_S]
    assert record.result(0.0).skipped_s == 2 * CHUNK_S


def test_a_chunk_that_is_left_out_while_watching_is_an_error() -> None:
    record = LoadRecord(0)
    record.chunk(chunk(0), 0.0)
    record.chunk(chunk(2), 0.5)
    assert record.result(1.0).num_errors == 1


def test_a_chunk_that_comes_twice_is_an_error_and_is_not_played_twice() -> None:
    record = LoadRecord(0)
    record.chunk(chunk(0), 0.0)
    record.chunk(chunk(0), 0.1)
    result = record.result(5.0)
    assert (result.num_errors, result.chunks, result.played_s) == (1, 1, CHUNK_S)


def test_jitter_is_the_deviation_from_media_time_once_the_lead_is_full() -> None:
    record = LoadRecord(0)
    wobble = itertools.cycle((0.0, 0.1))
    for index in range(3):
        record.chunk(chunk(index), index * 0.01)
    for index in range(3, 20):
        record.chunk(chunk(index), index * CHUNK_S + next(wobble))
    assert record.samples.jitter_s == pytest.approx([0.1] * 16)


def test_a_burst_after_a_halt_is_no_jitter() -> None:
    record = LoadRecord(0)
    for index in range(5):
        record.chunk(chunk(index), index * CHUNK_S)
    record.go_away(4.0)
    for index in range(5, 12):
        record.chunk(chunk(index), 10.0)
    assert record.samples.jitter_s == pytest.approx([0.0] * 3)


def test_coming_back_and_dozing_off_at_once_is_no_slow_return() -> None:
    record = LoadRecord(0)
    record.chunk(chunk(0), 0.0)
    record.go_away(0.5)
    record.come_back(1.0)
    record.go_away(1.1)
    record.chunk(chunk(1), 9.0)
    assert record.samples.resume_s == []


def test_errors_answer_nonsense_once_each_and_are_kept_in_bounds() -> None:
    record = LoadRecord(0)
    record.babbled()
    for _ in range(100):
        record.rebuked("bad_message: what?")
    result = record.result(0.0)
    assert (result.rebukes, result.num_errors, len(result.errors)) == (1, 99, MAX_ERRORS)
