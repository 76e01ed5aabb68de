"""People and a device at random around a real service without its thread.

Whatever they do, a session's state is one of those that there are, everybody who counts sessions counts the
same ones, and each session is told its end exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from millstream.core.config import StreamConfig
from millstream.core.controls import AnyControl, Pause, Resume, SetSteps, SetWindow, Stop, WeightedPrompt
from millstream.core.errors import MillstreamError
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.chunk_times import ChunkTimes
from millstream.serving.notices import Ended, Live, Notice, Rated, Waiting
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest, SessionEntry
from millstream.serving.turns import Sleep
from millstream.session.pacing import RateKind
from tests.unit.paper_engine import PaperClock, PaperEngine

CLOCKED = ("serving.session_table", "serving.service", "engine.pipeline")
MEMORY = 4
IDLE_S = 1.0
"""After which one that stands still gives up its place."""
SIZES = st.sampled_from([16, 64, 256])
RATES = st.sampled_from([0.1, 1.0, 8.0, 24.0, 240.0])
KINDS: st.SearchStrategy[RateKind] = st.sampled_from(["auto", "asked", "strict"])
CONTROLS: st.SearchStrategy[AnyControl] = st.sampled_from(
    [
        Pause(),
        Resume(),
        Stop(),
        SetSteps(steps=(1000.0,)),
        SetSteps(steps=tuple(range(1000, 900, -10))),
        SetWindow(window=12),
    ]
)


class SessionStates(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.clock = PaperClock()
        self.patches = [mock.patch(f"millstream.{name}.time", self.clock) for name in CLOCKED]
        for patch in self.patches:
            patch.start()
        self.engine = PaperEngine(self.clock)
        admission = AdmissionConfig(memory_bytes=MEMORY, max_waiting=3)
        self.service = Service(self.engine, admission=admission, session_bytes=lambda config: 1)  # type: ignore[arg-type]
        self.table = self.service.table
        self.table.admission.times = ChunkTimes(self.clock.monotonic)
        self.saved: list[tuple[SessionEntry, str]] = []
        self.table._revive = lambda entry, note: self.saved.append((entry, note))
        self.told: dict[str, list[Notice]] = {}
        self.viewers: dict[str, int] = {}

    def teardown(self) -> None:
        try:
            self.table.close_all(Ended(cause="closed", reason="over"))
            for name, notices in self.told.items():
                assert isinstance(notices[-1], Ended), f"{name} was never told its end"
            assert not self.engine.open_sessions, "a session's state is left"
            assert self.table.admission.metrics().admitted == self.table.admission.metrics().waiting == 0
        finally:
            for patch in self.patches:
                patch.stop()

    @initialize(target=sessions, num=st.integers(0, MEMORY))
    def begin_among_others(self, num: int) -> MultipleResults[str]:
        names = [self.open(16, 1.0, "auto", True, False, None, "pause") for _ in range(num)]
        for name in names:
            self.watch(name)
        self.work(num + 1)
        return multiple(*names)

    @rule(
        target=sessions,
        side=SIZES,
        fps=RATES,
        kind=KINDS,
        may_wait=st.booleans(),
        is_saved=st.booleans(),
        life_s=st.sampled_from([None, None, 5.0]),
        unattended=st.sampled_from(["run", "pause"]),
        yields=st.booleans(),
    )
    def open(
        self,
        side: int,
        fps: float,
        kind: RateKind,
        may_wait: bool,
        is_saved: bool,
        life_s: float | None,
        unattended: str,
        idle_s: float = IDLE_S,
        yields: bool = False,
    ) -> str:
        name = f"session-{len(self.told)}-of-somebody"
        request = self.request(name, side, fps, kind, may_wait, is_saved, life_s, unattended, idle_s, yields)
        told = self.told[name] = list[Notice]()
        self.viewers[name] = 0
        try:
            self.service.open(request, self._hear(name, told))
        except MillstreamError:
            del self.told[name]
            self.told[f"{name} (refused)"] = [Ended(cause="refused", reason="")]
        return name

    def config(self, side: int, fps: float) -> StreamConfig:
        return StreamConfig(height=side, width=side, fps=fps, window=9)

    def request(
        self,
        name: str,
        side: int,
        fps: float,
        kind: RateKind,
        may_wait: bool = False,
        is_saved: bool = False,
        life_s: float | None = None,
        unattended: str = "run",
        idle_s: float = IDLE_S,
        yields: bool = False,
    ) -> OpenRequest:
        config = self.config(side, fps)
        prompts = (WeightedPrompt("sea"),)
        start = (
            (lambda: lambda engine: engine.session(prompts, config=config, session_id=name))
            if is_saved
            else None
        )
        return OpenRequest(
            session_id=name,
            prompts=prompts,
            config=config,
            rate=kind,
            may_wait=may_wait,
            max_life_s=life_s,
            idle_s=idle_s,
            unattended=unattended,  # type: ignore[arg-type]
            start=start,
            yields=yields,
        )

    def _hear(self, name: str, told: list[Notice]) -> Callable[[Notice], None]:
        def hear(notice: Notice) -> None:
            assert not (told and isinstance(told[-1], Ended)), f"{name} was told {notice} after its end"
            words = notice.reason if isinstance(notice, (Ended, Waiting)) else ""
            words += notice.note if isinstance(notice, (Live, Rated)) else ""
            assert "of-somebody" not in words, f"a message names a session: {words}"
            told.append(notice)

        return hear

    @rule(name=sessions)
    def watch(self, name: str) -> None:
        if name in self.table.entries:
            self.service.watch(name)
            self.viewers[name] += 1

    @rule(name=sessions)
    def unwatch(self, name: str) -> None:
        if self.viewers[name]:
            self.viewers[name] -= 1
            self.service.unwatch(name)

    @precondition(lambda self: any(self.viewers.values()))
    @rule()
    def all_look_away(self) -> None:
        """For long enough that those who stand still without a viewer give up their places."""
        for name in list(self.viewers):
            while self.viewers[name]:
                self.unwatch(name)
        self.clock.now += 2 * IDLE_S
        self.work(2 * MEMORY)

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def look_again(self, data: st.DataObject) -> None:
        """At one that has given up its place, which others may have by now."""
        self.watch(data.draw(st.sampled_from(self.parked)))

    @property
    def parked(self) -> list[str]:
        return [name for name, entry in self.table.entries.items() if entry.life.state == "parked"]

    @rule(name=sessions, control=CONTROLS)
    def steer(self, name: str, control: AnyControl) -> None:
        with suppress(MillstreamError):
            self.service.control(name, control)

    @rule(name=consumes(sessions))
    def end(self, name: str) -> None:
        self.service.end(name)

    @precondition(lambda self: self.saved)
    @rule(breaks=st.booleans())
    def read_saved(self, breaks: bool) -> None:
        """The thread that reads a file is done, or has failed."""
        entry, note = self.saved.pop(0)
        if breaks:
            self.service._shared.fail(entry, RuntimeError(f"{entry.session_id} cannot be read"))
        else:
            self.service._shared.read_saved(entry, note)

    @rule(seconds=st.sampled_from([0.01, 0.3, 2.0, 30.0, 90.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(
        seconds=st.sampled_from([0.001, 0.1, 0.7, 5.0, 100.0]),
        fails=st.sampled_from([False, False, False, True]),
    )
    def change_device(self, seconds: float, fails: bool) -> None:
        """From now on chunks take so long; the next one may fail."""
        self.engine.chunk_s = seconds
        self.engine.fails = fails

    @rule(turns=st.integers(1, 6))
    def work(self, turns: int) -> None:
        """What the engine's thread does, without waiting."""
        for _ in range(turns):
            if self.service._shared.jobs:
                self.service._shared.jobs.popleft()()
                continue
            turn = self.service._turns.finish_closing() or self.table.scheduler.next(self.clock.now)
            if isinstance(turn, Sleep):
                return
            self.service._turns.run(turn)

    @invariant()
    def everybody_counts_the_same(self) -> None:
        table, admission = self.table, self.table.admission
        states = {name: entry.life.state for name, entry in table.entries.items()}
        assert set(states.values()) <= {"waiting", "placed", "parked", "returning"}, states
        assert set(admission._entries) == set(states), "admission knows others than the table"
        assert {each.session_id for each in admission._present} == {
            name for name in states if states[name] == "placed"
        }
        in_line = [each.session_id for each in admission.waiting(self.clock.now)]
        assert set(in_line) == {name for name in states if states[name] in ("waiting", "returning")}
        assert set(table.scheduler._entries) == {
            name for name, entry in table.entries.items() if entry.session is not None
        }
        assert admission.metrics().memory_bytes <= MEMORY

    @invariant()
    def who_has_ended_was_told_so_and_nobody_else(self) -> None:
        for name, notices in self.told.items():
            ended = bool(notices) and isinstance(notices[-1], Ended)
            assert ended == (name not in self.table.entries), f"{name} was told {notices[-1:]}"
