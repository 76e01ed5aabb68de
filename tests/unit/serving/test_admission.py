"""Who may join, and that those who do are served as promised: admission and scheduler against a simulated
device."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.config import GIB
from millstream.core.errors import ConfigError
from millstream.serving.admission import Admission
from millstream.serving.admission_types import AdmissionConfig, Admitted, Queued, Refused, Request
from millstream.serving.chunk_times import Geometry
from millstream.serving.promise import DeviceClaim, keep_time, longest_blocker, pressures, utilisation
from millstream.serving.scheduler import Scheduler
from millstream.serving.turns import Terms
from millstream.session.pacing import Pace
from tests.unit.simulated_device import SimulatedDevice


def shape(tokens: int, model: str = "brook") -> Geometry:
    return Geometry(model=model, tokens=tokens, calls=5, window=12, flops=1e6 * tokens)


GEOMETRY = shape(1000)
PACE = Pace(fps=16, chunk_frames=12)


def request(name: str, **changes: object) -> Request:
    fields: dict[str, object] = dict(session_id=name, geometry=GEOMETRY, pace=PACE, memory_bytes=GIB)
    return Request(**(fields | changes))  # type: ignore[arg-type]


def admission(seconds: float | None = 0.3, **changes: object) -> Admission:
    """With 0.3 s a chunk of 0.75 s, a session takes 0.4 of the device: two fit."""
    made = Admission(AdmissionConfig(**(dict(memory_bytes=8 * GIB, share=0.9) | changes)))  # type: ignore[arg-type]
    if seconds is not None:
        made.times.add(GEOMETRY, seconds)
    return made


def let_in(door: Admission, now: float) -> list[Admitted | Refused]:
    """Who leaves the line; those refused leave altogether."""
    answers = list[Admitted | Refused]()
    while (answer := door.next_in(now)) is not None:
        answers.append(answer)
        if isinstance(answer, Refused):
            door.remove(answer.session_id, now)
    return answers


def names(answers: list[Admitted | Refused]) -> list[str]:
    return [answer.session_id for answer in answers]


# --- one question, one answer


def test_sessions_are_admitted_while_the_promise_holds_and_then_wait() -> None:
    door = admission()
    first = door.ask(request("a"), 0.0)
    second = door.ask(request("b"), 0.0)
    assert isinstance(first, Admitted)
    assert first.share == pytest.approx(0.4)
    assert isinstance(second, Admitted)
    third = door.ask(request("c"), 0.0)
    assert isinstance(third, Queued)
    assert third.position == 1
    assert (
        third.reason
        == "needs 0.40 of the device and 0.10 is free: choose a smaller size or fewer steps or wait"
    )
    assert door.metrics().promised == pytest.approx(0.8)


def test_the_frame_rate_it_names_is_admitted_and_the_next_is_not() -> None:
    door = admission(seconds=0.092)
    for name in "abcdefg":
        assert isinstance(door.ask(request(name), 0.0), Admitted)
    answer = door.ask(request("h", may_wait=False), 0.0)
    assert isinstance(answer, Refused)
    assert answer.reason == "needs 0.12 of the device and 0.04 is free: lower the frame rate to 5 or wait"
    assert isinstance(door.ask(request("h", pace=Pace(fps=6, chunk_frames=12), may_wait=False), 0.0), Refused)
    assert isinstance(
        door.ask(request("h", pace=Pace(fps=5, chunk_frames=12), may_wait=False), 0.0), Admitted
    )


def test_a_session_that_could_never_run_is_refused_with_what_could() -> None:
    answer = admission(seconds=1.0).ask(request("a", rate="strict"), 0.0)
    reason = "needs 1.33 of the device and 0.90 is free: lower the frame rate to 10"
    assert answer == Refused(session_id="a", reason=reason, fps=10.0, never=True)


def test_a_lead_that_leaves_little_time_takes_more_of_the_device() -> None:
    tight = Pace(fps=16, chunk_frames=12, lead_s=1.0)
    answer = admission().ask(request("a", pace=tight, rate="strict"), 0.0)
    assert isinstance(answer, Refused)
    assert answer.reason == "needs 1.20 of the device and 0.90 is free: choose a smaller size or fewer steps"


def test_one_who_will_not_wait_is_refused_at_once() -> None:
    door = admission()
    for name in "ab":
        door.ask(request(name), 0.0)
    assert isinstance(door.ask(request("c", may_wait=False), 0.0), Refused)
    assert door.metrics().waiting == 0


def test_memory_is_promised_before_it_is_taken() -> None:
    door = admission(seconds=0.01)
    assert isinstance(door.ask(request("a", memory_bytes=5 * GIB), 0.0), Admitted)
    waits = door.ask(request("b", memory_bytes=4 * GIB), 0.0)
    assert isinstance(waits, Queued)
    assert waits.reason == "needs 4.00 GiB and 3.00 of 8.00 is free: choose a smaller window or size or wait"
    never = door.ask(request("c", memory_bytes=9 * GIB), 0.0)
    assert isinstance(never, Refused)
    assert never.reason == "needs 9.00 GiB and 8.00 of 8.00 is free: choose a smaller window or size"


def test_a_long_chunk_is_kept_from_a_session_that_could_not_wait_for_it() -> None:
    door = admission()
    door.ask(request("quick"), 0.0)
    large = shape(4000)
    door.times.add(large, 1.5)
    answer = door.ask(request("long", geometry=large, pace=Pace(fps=2, chunk_frames=12)), 0.0)
    assert isinstance(answer, Queued)
    assert answer.reason == (
        "a chunk due within 0.75 s could wait 1.50 s for another session's: choose a smaller size or fewer "
        "steps or wait"
    )


# --- steps of its own for an epoch's first chunk


def one_step(name: str, first: Geometry | None, **changes: object) -> Request:
    return request(name, geometry=replace(GEOMETRY, calls=2), first_geometry=first, **changes)


def test_others_wait_for_a_first_chunk_of_more_steps_and_its_own_session_does_not() -> None:
    """A chunk takes 0.3 s, and a first one of five times the work 1.5 s, by its operations."""
    door = admission(seconds=None)
    door.times.add(replace(GEOMETRY, calls=2), 0.3)
    first = replace(GEOMETRY, calls=5, flops=5 * GEOMETRY.flops)
    alone = door.ask(one_step("alone", first, rate="strict"), 0.0)
    assert isinstance(alone, Admitted)
    assert alone.fps == PACE.fps
    answer = door.ask(one_step("other", first, may_wait=False), 0.0)
    assert isinstance(answer, Refused)
    assert "could wait 1.20 s for another session's" in answer.reason
    assert isinstance(door.ask(one_step("even", None, may_wait=False), 0.0), Refused), (
        "it would wait for alone"
    )
    door.remove("alone", 0.0)
    assert [type(door.ask(one_step(name, None), 0.0)) for name in "ab"] == [Admitted, Admitted]


def test_a_first_chunk_that_takes_longer_than_any_may_is_refused() -> None:
    door = admission(seconds=None, longest_chunk_s=2.0)
    door.times.add(replace(GEOMETRY, calls=2), 0.3)
    slow = replace(GEOMETRY, calls=21, flops=20 * GEOMETRY.flops)
    answer = door.ask(one_step("slow", slow, rate="strict"), 0.0)
    assert isinstance(answer, Refused)
    assert answer.reason.startswith("a chunk of it would take 6 s, and 2 s is the longest here")


# --- what is not measured


def test_a_fork_makes_its_own_stream_slower_and_nobody_else() -> None:
    door = admission()  # two fit
    for name in "ab":
        assert isinstance(door.ask(request(name), 0.0), Admitted)
    before = door.metrics().promised
    assert isinstance(door.ask(request("c", may_wait=False), 0.0), Refused)
    branch = door.ask(request("a2", tree="a", may_wait=False), 0.0)
    assert isinstance(branch, Admitted)
    assert door.kept_rates() == {"a": pytest.approx(8, abs=2), "a2": pytest.approx(8, abs=2), "b": 16.0}
    assert "instead of 16, which this device keeps beside other sessions" in branch.note
    for name, fps in door.kept_rates().items():
        door.grant(name, fps)
    promised = door.metrics().promised
    assert before is not None
    assert promised is not None
    assert promised <= door.config.share
    assert isinstance(door.ask(request("c", may_wait=False), 0.0), Refused), (
        "what a fork left is not for others"
    )
    door.remove("a2", 0.0)
    assert door.kept_rates()["a"] == 16.0


@pytest.mark.parametrize("rate", ["auto", "asked"])
def test_a_device_that_hardly_keeps_one_stream_still_forks_it(rate: str) -> None:
    door = admission(seconds=6.0)  # two frames a second
    for number in range(8):
        answer = door.ask(request(f"{number}", tree="0" if number else "", rate=rate, may_wait=False), 0.0)
        assert isinstance(answer, Admitted), answer
    rates = door.kept_rates()
    assert len(set(rates.values())) == 1
    assert sum(rates.values()) <= 2.0
    assert isinstance(door.ask(request("stranger", rate=rate, may_wait=False), 0.0), Refused)


def test_a_strict_stream_is_forked_only_where_both_keep_their_rate() -> None:
    door = admission(seconds=0.4)
    assert isinstance(door.ask(request("a", rate="strict"), 0.0), Admitted)
    assert isinstance(door.ask(request("b", tree="a", rate="strict", may_wait=False), 0.0), Refused)


def test_with_nothing_measured_one_is_admitted_and_the_next_waits_for_its_times() -> None:
    door = admission(seconds=None)
    first = door.ask(request("a"), 0.0)
    assert isinstance(first, Admitted)
    assert (first.share, "nothing is measured for brook" in first.note) == (None, True)
    second = door.ask(request("b"), 0.0)
    assert isinstance(second, Queued)
    assert "still being measured" in second.reason
    assert let_in(door, 1.0) == []
    door.times.add(GEOMETRY, 0.3)
    assert names(let_in(door, 2.0)) == ["b"]


def test_a_geometry_that_was_not_measured_is_scaled_from_the_nearest_and_says_so() -> None:
    door = admission(seconds=0.3)
    answer = door.ask(request("a", geometry=shape(500)), 0.0)
    assert isinstance(answer, Admitted)
    assert answer.share == pytest.approx(0.2)
    assert answer.note.endswith(
        "takes 0.20 of the device, a chunk takes 0.15 s (scaled from 1000 tokens x 5 calls)"
    )
    larger = door.ask(request("b", geometry=shape(2000), may_wait=False), 0.0)
    assert isinstance(larger, Refused)
    assert larger.reason.startswith("needs 0.80 of the device and 0.70 is free")
    assert larger.reason.endswith("(scaled from 1000 tokens x 5 calls)")


def test_one_waiting_who_turns_out_never_to_fit_is_refused_and_blocks_nobody() -> None:
    door = admission()
    large = shape(1100)
    for each in (request("a"), request("b"), request("large", geometry=large, rate="strict"), request("c")):
        door.ask(each, 0.0)
    door.times.add(large, 5.0)
    door.remove("a", 1.0)
    refused, admitted = let_in(door, 1.0)
    assert (refused.session_id, type(refused)) == ("large", Refused)
    assert (admitted.session_id, type(admitted)) == ("c", Admitted)


# --- the line


def test_the_line_is_left_by_those_who_return_then_by_weight_then_by_arrival() -> None:
    door = admission()
    for name in "fg":
        door.ask(request(name), 0.0)
    door.park("f", 0.0)
    door.ask(request("a"), 0.0)
    for each in (request("c"), request("d", weight=2.0), request("e")):
        door.ask(each, 0.0)
    door.come_back("f", 0.0)
    assert [(each.session_id, each.position) for each in door.waiting(0.0)] == [
        ("f", 1),
        ("d", 2),
        ("c", 3),
        ("e", 4),
    ]
    door.remove("a", 1.0)
    assert names(let_in(door, 1.0)) == ["f"]
    door.remove("g", 2.0)
    door.remove("f", 2.0)
    assert names(let_in(door, 2.0)) == ["d", "c"]


def test_one_who_comes_back_is_not_refused_for_a_full_line() -> None:
    door = admission(max_waiting=1)
    door.ask(request("a"), 0.0)
    door.park("a", 0.0)
    for name in "bcd":
        door.ask(request(name), 0.0)
    assert isinstance(door.come_back("a", 1.0), Queued)
    assert door.life("a").state == "returning"
    door.step_out("a")
    assert [each.session_id for each in door.waiting(1.0)] == ["d"]


def test_nobody_overtakes_one_who_waits_even_if_there_is_room_for_them() -> None:
    door = admission()
    small = shape(100)
    door.times.add(small, 0.03)
    for name in "abc":
        door.ask(request(name), 0.0)
    behind = door.ask(request("small", geometry=small), 0.0)
    assert isinstance(behind, Queued)
    assert (behind.position, behind.reason) == (2, "1 waiting before it: wait or try again later")
    door.remove("c", 1.0)
    assert names(let_in(door, 1.0)) == ["small"], "there was room for it all the time"


def test_giving_up_moves_the_others_forward() -> None:
    door = admission()
    for name in "abcde":
        door.ask(request(name), 0.0)
    door.remove("c", 1.0)
    assert [(each.session_id, each.position) for each in door.waiting(1.0)] == [("d", 1), ("e", 2)]


def test_a_full_line_refuses_and_keeps_those_in_it() -> None:
    door = admission(max_waiting=1)
    for name in "abc":
        door.ask(request(name), 0.0)
    answer = door.ask(request("d", weight=50.0), 0.0)
    assert isinstance(answer, Refused)
    assert answer.reason.endswith("all 1 places in line are taken: try again later")
    assert [each.session_id for each in door.waiting(0.0)] == ["c"]
    assert door.metrics().refused == 1


def test_the_wait_is_told_from_limits_and_from_how_long_sessions_stayed() -> None:
    door = admission()
    door.ask(request("a", max_life_s=30.0), 0.0)
    door.ask(request("b"), 0.0)
    door.ask(request("c"), 10.0)
    door.ask(request("d"), 10.0)
    assert [each.expected_wait_s for each in door.waiting(10.0)] == [20.0, None]
    door.remove("b", 50.0)
    assert names(let_in(door, 50.0)) == ["c"]
    assert [each.expected_wait_s for each in door.waiting(50.0)] == [0.0]  # `a` is past its limit
    door.ask(request("e"), 50.0)
    assert [each.expected_wait_s for each in door.waiting(50.0)] == [0.0, 50.0]


@pytest.mark.parametrize(
    "wrong", [dict(share=0.0), dict(share=1.1), dict(memory_bytes=0), dict(max_waiting=-1)]
)
def test_a_configuration_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        AdmissionConfig(**(dict(memory_bytes=1) | wrong))  # type: ignore[arg-type]


# --- the promise


def test_with_a_lead_of_two_chunks_a_share_is_plain_utilisation() -> None:
    claims = [DeviceClaim(seconds=0.1, pace=PACE), DeviceClaim(seconds=0.3, pace=PACE)]
    assert utilisation(claims) == pytest.approx(0.4 / 0.75)
    assert keep_time(claims)


def test_a_device_that_is_half_idle_may_still_be_late() -> None:
    quick = DeviceClaim(seconds=0.1, pace=PACE)
    long = DeviceClaim(seconds=1.0, pace=Pace(fps=3, chunk_frames=12))
    assert utilisation([quick, long]) < 0.5
    assert not keep_time([quick, long])


kinds = st.tuples(
    st.sampled_from([4.0, 8.0, 12.0, 16.0, 24.0]),
    st.sampled_from([200, 500, 1000, 3000]),
    st.floats(1.2, 2.0),
)


def chunk_seconds(tokens: int, speed: float) -> float:
    return speed * (0.02 + tokens * 2e-4)


def serve_admitted(
    asked: list[tuple[float, int, float]], speed: float, seed: int, *, pauses: bool
) -> SimulatedDevice:
    """Sessions ask at any moment; those admitted run, in chunk times that vary below the measured bound."""
    chance = random.Random(seed)
    door = admission(seconds=None, share=1.0, memory_bytes=100 * GIB)
    costs = dict[str, float]()
    paces = dict[str, Pace]()
    simulated = SimulatedDevice(Scheduler(), seconds=lambda run: costs[run[0]] * chance.uniform(0.5, 1.0))

    def join(name: str, fps: float, tokens: int, lead: float) -> None:
        pace = Pace(fps=fps, chunk_frames=12, lead_s=lead * 12 / fps)
        geometry = shape(tokens)
        costs[name], paces[name] = chunk_seconds(tokens, speed), pace
        door.times.add(geometry, costs[name])
        asked = request(name, geometry=geometry, pace=pace, rate=chance.choice(["auto", "asked", "strict"]))
        answer = door.ask(asked, simulated.now)
        if isinstance(answer, Admitted):
            simulated.add(name, Terms(pace=pace.at(answer.fps)))
            for other, fps in door.kept_rates().items():
                simulated.set_pace(other, paces[other].at(fps))
            if pauses:
                pause = simulated.now + chance.uniform(2, 10)
                simulated.at(pause, lambda now: simulated.halt(name, now))
                simulated.at(pause + chance.uniform(0, 5), lambda now: simulated.proceed(name, now))

    for index, (fps, tokens, lead) in enumerate(asked):
        simulated.at(chance.uniform(0, 10), lambda _, each=(f"s{index}", fps, tokens, lead): join(*each))
    simulated.run(60.0)
    return simulated


@given(st.lists(kinds, min_size=1, max_size=10), st.floats(0.3, 2.0), st.integers(0, 1000))
@settings(max_examples=80)
def test_an_admitted_session_never_misses_while_chunks_take_what_was_measured(
    asked: list[tuple[float, int, float]], speed: float, seed: int
) -> None:
    simulated = serve_admitted(asked, speed, seed, pauses=False)
    assert {name: shadow.misses for name, shadow in simulated.shadows.items()} == dict.fromkeys(
        simulated.shadows, 0
    )


@given(st.lists(kinds, min_size=1, max_size=10), st.floats(0.3, 2.0), st.integers(0, 1000))
@settings(max_examples=80)
def test_a_resume_costs_one_miss_at_most(
    asked: list[tuple[float, int, float]], speed: float, seed: int
) -> None:
    """Whoever resumes with the next chunk half overdue has less time than was promised, once."""
    simulated = serve_admitted(asked, speed, seed, pauses=True)
    resumed = len(simulated.shadows)
    assert sum(shadow.misses for shadow in simulated.shadows.values()) <= resumed


@given(
    st.lists(st.tuples(kinds, st.booleans(), st.sampled_from([0.5, 1.0, 2.0])), max_size=40),
    st.integers(0, 1000),
)
@settings(max_examples=80)
def test_admission_never_exceeds_the_promise_the_memory_or_the_line_and_keeps_its_order(
    asked: list[tuple[tuple[float, int, float], bool, float]], seed: int
) -> None:
    chance = random.Random(seed)
    door = admission(max_waiting=5)
    here = list[str]()
    waiting = list[str]()
    for index, ((fps, tokens, lead), leaves, weight) in enumerate(asked):
        geometry = shape(tokens)
        door.times.add(geometry, chunk_seconds(tokens, 1.0))
        pace = Pace(fps=fps, chunk_frames=12, lead_s=lead * 12 / fps)
        bytes_ = chance.randrange(1, 3 * GIB)
        if isinstance(
            door.ask(
                request(f"s{index}", geometry=geometry, pace=pace, memory_bytes=bytes_, weight=weight), index
            ),
            Admitted,
        ):
            here.append(f"s{index}")
        if leaves and here:
            door.remove(here.pop(chance.randrange(len(here))), index)
        waiting = [each.session_id for each in door.waiting(index)]
        left = let_in(door, index)
        assert names(left) == waiting[: len(left)]
        here += [answer.session_id for answer in left if isinstance(answer, Admitted)]
        figures = door.metrics()
        assert figures.admitted == len(here)
        assert figures.promised is not None
        assert figures.promised <= door.config.share + 1e-9
        assert figures.memory_bytes <= door.config.memory_bytes
        assert figures.waiting <= 5


@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 2.0),
            st.sampled_from([1.0, 2.0, 4.0, 8.0, 24.0]),
            st.sampled_from([None, 14.0, 20.0]),
            st.floats(0.0, 3.0),
        ),
        max_size=8,
    )
)
def test_pressures_are_what_the_promise_says_at_every_window(
    asked: list[tuple[float, float, float | None, float]],
) -> None:
    claims = [
        DeviceClaim(seconds=seconds, pace=Pace(fps=fps, chunk_frames=12, lead_s=lead), first_s=first_s)
        for seconds, fps, lead, first_s in asked
    ]
    for claim, found in zip(claims, pressures(claims), strict=True):
        window = claim.pace.window_s
        urgent = utilisation([other for other in claims if other.pace.window_s <= window])
        assert found == pytest.approx(urgent + longest_blocker(claim, claims) / window)
        others = [other for other in claims if other is not claim]
        behind = [max(other.seconds, other.first_s) for other in others if other.pace.window_s > window]
        opening = [
            max(0.0, other.first_s - other.seconds) for other in others if other.pace.window_s <= window
        ]
        assert longest_blocker(claim, claims) == pytest.approx(max([*behind, *opening, 0.0]))
