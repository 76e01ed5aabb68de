"""Knobs and pads of a MIDI controller on the page's controls, in a real browser. The device is a stub that
sends real bytes."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Page, expect

from millstream.core.controls import Cut, SetKVBias, SetPrompt, SetSteps
from tests.server import browser as screen
from tests.server.fake_stream import FakeStream
from tests.server.page.heard import controls

pytestmark = screen.needs_chromium

PLUG_IN = """() => {
    window.device = { name: "Nine Knobs" };
    window.access = { inputs: new Map([["1", device]]) };
    navigator.requestMIDIAccess = async () => access;
}"""
SEND = (
    "(...messages) => messages[0].forEach((bytes) => device.onmidimessage({ data: new Uint8Array(bytes) }))"
)


def send(page: Page, *messages: list[int]) -> None:
    page.evaluate(SEND, list(messages))


def connect(page: Page) -> None:
    page.get_by_text("MIDI", exact=True).click()
    page.get_by_role("button", name="Connect").click()


def told(page: Page) -> Any:
    return expect(page.get_by_role("status", name="MIDI"))


def learn(page: Page, role: str, name: str, *messages: list[int]) -> None:
    page.get_by_role("button", name="Learn").click()
    page.get_by_role(role, name=name, exact=True).dispatch_event("pointerdown")  # type: ignore[arg-type]
    send(page, *messages)


def wait_for(page: Page, server: FakeStream, control: object) -> None:
    give_up = time.monotonic() + screen.PATIENCE_MS / 1000
    while control not in [type(each) for each in controls(server)]:
        assert time.monotonic() < give_up, controls(server)
        page.wait_for_timeout(5)


def test_a_knob_is_learnt_steers_is_remembered_and_removed(page: Page, server: FakeStream) -> None:
    page.evaluate(PLUG_IN)
    connect(page)
    told(page).to_have_text("Listening to Nine Knobs.")
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Learn").click()
    page.get_by_role("slider", name="Steps").focus()
    told(page).to_have_text("Now move a knob or press a pad for Steps.")
    send(page, [0xF8], [0xB2, 74, 64])
    told(page).to_have_text("Knob 74, channel 3 is bound to Steps.")
    assert controls(server) == [], "while it is learnt it moves nothing"
    send(page, [0xB1, 74, 127], *[[0xB2, 74, value] for value in range(64, 128)])
    wait_for(page, server, SetSteps)
    expect(page.get_by_role("slider", name="Steps")).to_have_value("8")
    expect(page.get_by_role("status", name="Last change")).to_contain_text("8 steps applied")
    assert len(controls(server)) < 5, "where the knob is now and then, not every position on the way"
    page.reload()
    page.get_by_text("MIDI", exact=True).click()
    expect(page.get_by_role("list", name="Bound knobs")).to_contain_text("Knob 74, channel 3: Steps")
    page.get_by_role("button", name="Remove knob 74, channel 3").click()
    expect(page.get_by_role("list", name="Bound knobs").get_by_role("listitem")).to_have_count(0)


def test_pads_press_buttons_and_say_prompts_and_learning_presses_nothing(
    page: Page, server: FakeStream
) -> None:
    page.evaluate(PLUG_IN)
    connect(page)
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Learn").click()
    page.get_by_role("button", name="New picture").click()  # chooses, and cuts nothing
    send(page, [0x90, 36, 100])
    learn(page, "textbox", "Prompt", [0x90, 37, 100])
    learn(page, "slider", "Weight of the past", [0xE0, 0, 64])
    page.get_by_role("textbox", name="Prompt").fill("something else")
    assert controls(server) == []
    send(page, [0x80, 36, 0], [0x90, 36, 0], [0x90, 36, 1])
    wait_for(page, server, Cut)
    send(page, [0x90, 37, 90], [0xE0, 127, 127], [0xE0, 0, 0])
    wait_for(page, server, SetPrompt)
    wait_for(page, server, SetKVBias)
    expect(page.get_by_role("slider", name="Weight of the past")).to_have_value("0.05")
    assert [each.prompt for each in controls(server) if isinstance(each, SetPrompt)] == ["a kite"]
    assert len([each for each in controls(server) if isinstance(each, Cut)]) == 1


def test_where_there_is_no_midi_one_line_says_so(page: Page) -> None:
    page.evaluate("navigator.requestMIDIAccess = undefined")
    connect(page)
    told(page).to_contain_text("This browser offers no MIDI here")
    page.evaluate(
        "() => void (navigator.requestMIDIAccess = async () => { throw new DOMException('', "
        "'NotAllowedError') })"
    )
    page.get_by_role("button", name="Connect").click()
    told(page).to_have_text("MIDI is blocked. Allow it for this page, then connect again.")
    page.evaluate("() => void (navigator.requestMIDIAccess = async () => ({ inputs: new Map() }))")
    page.get_by_role("button", name="Connect").click()
    told(page).to_have_text("No MIDI device is connected: plug one in.")
    expect(page.get_by_role("button", name="Learn")).to_be_disabled()
