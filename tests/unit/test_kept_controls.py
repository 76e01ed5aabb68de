"""Controls that were logged and a state that was saved: together they give the envelopes of an undisturbed
stream."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.core.conditions import STILL, Picture
from millstream.core.config import ActionsConfig, ConditionsConfig, StreamConfig
from millstream.core.controls import (
    AnyControl,
    Cut,
    Pause,
    Receipt,
    Resume,
    SetActions,
    SetCamera,
    SetImage,
    SetPrompt,
    SetSeed,
    WeightedPrompt,
)
from millstream.core.envelope import Envelope
from millstream.core.errors import ControlError
from millstream.session.kept import KeptAs, LastShown, LoggedControl
from millstream.session.timeline import Timeline, TimelineState

CONFIG = StreamConfig(height=16, width=32)
TAKES = ConditionsConfig(actions=ActionsConfig(keys=("a", "w"), look=True), camera=True)
CHUNKS = 12
PICTURE = Picture.of(bytes(16 * 32 * 3), height=16, width=32)
CONTROLS: tuple[AnyControl, ...] = (
    Cut(), SetSeed(seed=3), SetPrompt(prompt="a storm", mode="blend", chunks=3), SetPrompt(prompt="a calm"), Pause(), Resume(),
    SetActions(keys=("w",), look=(6.0, 0.0)), SetActions(tapped=("a",), look=(0.0, -3.0)),
    SetCamera(path=((*STILL[:11], 0.5),)), SetImage(picture=PICTURE), SetImage(picture=PICTURE, mode="blend", chunks=2),
)  # fmt: skip
Asked = tuple[int, int, int]
"""Said before which turn, which control, for how many chunks later."""


def play(
    asked: list[Asked], save_at: int
) -> tuple[list[Envelope], list[LoggedControl], TimelineState, KeptAs]:
    """A whole stream, its log, and its state before one of its turns."""
    timeline = Timeline("s", CONFIG, (WeightedPrompt("sea"),), takes=TAKES)
    envelopes = list[Envelope]()
    log = list[LoggedControl]()
    applied = list[Receipt]()
    saved = timeline.state(), ()
    for turn in range(CHUNKS):
        if turn == save_at:
            saved = timeline.state(), tuple(applied)
        for _, kind, later in [each for each in asked if each[0] == turn]:
            chunk = timeline.chunk_index + later
            named = msgspec.structs.replace(CONTROLS[kind], id=knob_id(CONTROLS[kind], chunk, applied))
            try:
                receipt = timeline.queue(named, at_chunk=chunk)
            except ControlError:  # too many pictures
                continue
            log.append(LoggedControl(control=named, at_chunk=receipt.chunk_index))
        envelopes += planned(timeline)
        applied += timeline.take_receipts()
    state, known = saved
    kept = KeptAs(
        session_id="s", view_id="v", rate="auto", weight=1.0, lead_s=None, unattended="run", applied=known
    )
    return envelopes, log, state, kept


def knob_id(control: AnyControl, chunk: int, applied: list[Receipt]) -> str:
    """The same for all of a kind at a chunk, so that they take each other's place; another once one has
    applied."""
    name = f"{type(control).__name__}{chunk}"
    while any(receipt.control_id == name for receipt in applied):
        name += "'"
    return name


def planned(timeline: Timeline) -> list[Envelope]:
    return [timeline.plan(call_id=0, context_indices=(0,))] if timeline.absorb() else []


@given(
    st.lists(
        st.tuples(st.integers(0, CHUNKS - 1), st.integers(0, len(CONTROLS) - 1), st.integers(0, 4)),
        max_size=10,
    ),
    st.integers(0, CHUNKS - 1),
)
@example([(1, 6, 3), (2, 7, 2)], 2)  # keys that add up, one of them saved
@example([(1, 6, 3), (2, 7, 2)], 0)
@example([(1, 6, 3), (2, 7, 2)], 3)
def test_a_state_and_the_log_give_every_envelope_after_it(asked: list[Asked], save_at: int) -> None:
    envelopes, log, state, kept = play(asked, save_at)
    back = Timeline.from_state("s", CONFIG, state, TAKES)
    for each in kept.unknown(log, state):
        back.queue_again(each.control, each.control.id, each.at_chunk)
    again = [envelope for _ in range(3 * CHUNKS) for envelope in planned(back)]
    expected = [envelope for envelope in envelopes if envelope.chunk_index >= state.chunk_index]
    assert again[: len(expected)] == expected


@given(
    st.lists(
        st.tuples(st.integers(0, CHUNKS - 1), st.integers(0, len(CONTROLS) - 1), st.integers(0, 4)),
        max_size=10,
    ),
    st.integers(0, CHUNKS - 1),
)
@example([(0, 2, 3), (1, 3, 2)], 1)  # one takes the place of another that was saved while it waited
def test_every_control_that_was_acknowledged_is_known_once(asked: list[Asked], save_at: int) -> None:
    _, log, state, kept = play(asked, save_at)
    told = kept.receipts(state, kept.unknown(log, state))
    known = [receipt.control_id for receipt in (*told, *state.receipts)]
    assert sorted(known) == sorted({each.control.id for each in log})


@given(
    st.lists(
        st.tuples(st.integers(0, CHUNKS - 1), st.integers(0, len(CONTROLS) - 1), st.integers(0, 4)),
        max_size=10,
    ),
    st.integers(0, CHUNKS - 1),
    st.integers(0, 5),
)
def test_what_was_shown_comes_as_it_was_and_what_is_asked_meanwhile_applies_after_it(
    asked: list[Asked], save_at: int, turns_between: int
) -> None:
    envelopes, log, state, kept = play(asked, save_at)
    back = Timeline.from_state("s", CONFIG, state, TAKES)
    for each in kept.unknown(log, state):
        back.queue_again(each.control, each.control.id, each.at_chunk)
    shown = LastShown(chunk=envelopes[-1].chunk_index if envelopes else -1)
    back.open_from = shown.open_from(kept, state)
    again = [envelope for _ in range(turns_between) for envelope in planned(back)]
    for number in range(3):
        receipt = back.queue(SetSeed(seed=100 + number, id=f"new {number}"))
        assert receipt.chunk_index > shown.chunk
        again += planned(back)
    again += [envelope for _ in range(3 * CHUNKS) for envelope in planned(back)]
    expected = [envelope for envelope in envelopes if envelope.chunk_index >= state.chunk_index]
    assert again[: len(expected)] == expected
    applied = [receipt for receipt in back.take_receipts() if receipt.control_id.startswith("new")]
    assert [receipt.control_id for receipt in applied] == sorted(receipt.control_id for receipt in applied)


def test_a_knob_that_was_turned_at_every_chunk_is_taken_up_at_each() -> None:
    """With one id for all of them, which a new control could not have."""
    _, _, state, kept = play([], 0)
    log = [LoggedControl(control=SetSeed(seed=chunk, id="knob"), at_chunk=chunk) for chunk in range(3)]
    back = Timeline.from_state("s", CONFIG, state, TAKES)
    for each in kept.unknown(log, state):
        back.queue_again(each.control, each.control.id, each.at_chunk)
    back.open_from = 3
    assert back.queue(SetSeed(seed=3, id="knob")).chunk_index == 3
    assert [envelope.seed for _ in range(4) for envelope in planned(back)] == [0, 1, 2, 3]


def test_what_was_logged_on_a_path_that_was_left_is_not_of_this_one() -> None:
    _, _, state, kept = play([], 0)
    kept = msgspec.structs.replace(kept, path=1)
    log = [LoggedControl(control=SetSeed(seed=path, id="knob"), at_chunk=5, path=path) for path in (0, 1)]
    assert [each.path for each in kept.unknown(log, state)] == [1]
    assert LastShown(chunk=9, path=0).open_from(kept, state) == state.chunk_index
    assert "not rewound any more" in LastShown(chunk=2, path=2).welcome(kept, state)
