"""One chunk of work is one message, the envelope: what it says at first, later, and after the prompt was
changed."""

from __future__ import annotations

from course.chapters.video_overlap.small_stream import OTHER, brook_on, session_on
from course.reader import Reader
from millstream.core.controls import SetPrompt
from millstream.core.envelope import Envelope
from millstream.session.session import Session


def run(reader: Reader) -> None:
    guess = reader.predict(
        "2 steps and a commit; and before them the 2 chunks of the window again, a call each. How many calls?"
    )
    with brook_on("local") as engine:
        first, later, switched = (session_on(engine) for _ in range(3))
        for session in (later, switched):
            list(session.stream(3))
        switched.control(SetPrompt(prompt=OTHER))
        planned = {"the first": first, "the fourth": later, "after a prompt": switched}
        envelopes = {name: _planned(session) for name, session in planned.items()}
    for name, envelope in envelopes.items():
        flags = {
            "empty caches": envelope.reset_kv,
            "read the prompt": envelope.reset_cross,
            "rebuild": envelope.recompute,
        }
        told = ", ".join(what for what, holds in flags.items() if holds) or "go on"
        steps = ", ".join(f"{level:.0f}" for level in envelope.steps)
        frames = f"frames {envelope.start_frame} to {envelope.end_frame - 1}"
        reader.say(f"{name:15} {frames}: {told}; steps at levels {steps}; {envelope.expected_calls} calls")
    assert envelopes["the first"].expected_calls == envelopes["the fourth"].expected_calls == 3, (
        "2 steps and a commit"
    )
    assert envelopes["after a prompt"].recompute, "the window is read under the new prompt"
    reader.reveal(
        guess,
        envelopes["after a prompt"].expected_calls,
        by="the envelope says it, and the generator counts along",
    )
    reader.say(
        "what is not in the envelope does not happen: kept in order, envelopes are a journal that can be run again"
    )


def _planned(session: Session) -> Envelope:
    plan = session.decide()
    assert plan is not None, "the session goes on"
    return plan.envelope
