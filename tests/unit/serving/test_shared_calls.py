"""Sessions that may share their model calls, around a real service on a clock on paper: nobody who was
promised a rate runs dry while sizes are learnt, and all together get no less than in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.config import StreamConfig
from millstream.core.controls import WeightedPrompt
from millstream.core.errors import Overloaded
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.chunk_times import ChunkTimes
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest
from millstream.serving.turns import Sleep
from tests.unit.paper_engine import PaperClock, PaperEngine, PaperPosted, PaperSession

CLOCKED = ("serving.session_table", "serving.service", "serving.turn_runner", "engine.pipeline")
FRAMES = 12
"""Of a chunk."""
ONE_OFF_S = 0.5
H200 = {1: 0.039, 2: 0.074, 4: 0.140, 8: 0.273}
"""Seconds of shared calls by size, as the 1.3B's at 192x320 were there."""
SINGLE_S = 0.05
DEFAULT = (192, 320)
OTHER = (192, 336)
"""Sizes of pictures: what is served by default, and what somebody else asks for."""


@dataclass
class SharingEngine(PaperEngine):
    """Calls take as long as their size says, and once more `one_off_s` when they are recorded: of each who
    lie together, and `recording_s` of each who lies somewhere by itself. Who comes lies in the first place
    that is free."""

    sizes_s: Mapping[int, float] = field(default_factory=lambda: H200)
    one_off_s: float = ONE_OFF_S
    recording_s: float = 0.0
    places: dict[str, int] = field(default_factory=dict)
    recorded: set[tuple[int, ...]] = field(default_factory=set)
    """By width of the picture and where those are who are in it."""
    runs: Counter[tuple[int, int]] = field(default_factory=Counter)
    """By width of the picture and sessions together."""
    chunk_s: float = 0.0

    @property
    def transport(self) -> Any:
        return SimpleNamespace(post=self._post)

    def _post(self, parcels: Sequence[Any]) -> PaperPosted:
        width = parcels[0].envelope.width
        who = width, *(self.places[parcel.envelope.session_id] for parcel in parcels)
        one_off_s = (
            (self.one_off_s if len(parcels) > 1 else self.recording_s) if who not in self.recorded else 0.0
        )
        self.recorded.add(who)
        self.clock.now += self.sizes_s[len(parcels)] + one_off_s
        self.one_offs += one_off_s > 0
        self.runs[width, len(parcels)] += 1
        return PaperPosted(parcels)

    def session(self, *args: Any, **named: Any) -> PaperSession:
        self.places = {name: place for name, place in self.places.items() if name in self.open_sessions}
        session = super().session(*args, **named)
        self.places[session.id] = min(set(range(len(self.places) + 1)) - set(self.places.values()))
        return session

    def recorded_places(self, config: StreamConfig) -> int:
        return 8


@dataclass
class PaperService:
    engine: SharingEngine
    service: Service

    def come(
        self, people: int, fps: float, size: tuple[int, int] = DEFAULT, lead_s: float | None = None
    ) -> float:
        """All at that rate, or the next lower one at which they are let in; their frames a second
        together."""
        while not all(self._is_in(f"{number}", fps, size, lead_s) for number in range(people)):
            self.go()
            fps *= 0.98
        return people * fps

    def _is_in(self, name: str, fps: float, size: tuple[int, int], lead_s: float | None) -> bool:
        assert fps > 1, "nobody is let in"
        config = StreamConfig(height=size[0], width=size[1], fps=fps, window=9)
        asked = OpenRequest(
            session_id=name,
            prompts=(WeightedPrompt("sea"),),
            config=config,
            may_wait=False,
            unattended="run",
            lead_s=lead_s,
        )
        try:
            self.service.open(asked, lambda notice: None)
        except Overloaded:
            return False
        return True

    def go(self) -> None:
        for name in list(self.service.table.entries):
            self.service.end(name)
        self.service._turns.finish_closing()

    def work(self, seconds: float) -> None:
        """What the engine's thread does."""
        clock = self.engine.clock
        scheduler = self.service.table.scheduler
        until = clock.now + seconds
        while clock.now < until:
            turn = scheduler.next(clock.now)
            if isinstance(turn, Sleep):
                clock.now = min(until, turn.until or until)
            else:
                self.service._turns.run(turn)

    @property
    def stalled_s(self) -> float:
        """Of all."""
        return sum(
            each.stalled_s for each in self.service.table.scheduler.metrics(self.engine.clock.now).sessions
        )

    @property
    def fps(self) -> float:
        """What all together have now."""
        return sum(entry.fps for entry in self.service.table.entries.values())

    @property
    def chunks(self) -> int:
        return sum(
            each.chunks for each in self.service.table.scheduler.metrics(self.engine.clock.now).sessions
        )


@contextmanager
def serving(
    *, batch: int, sizes_s: Mapping[int, float] = H200, one_off_s: float = ONE_OFF_S, recording_s: float = 0.0
) -> Iterator[PaperService]:
    """Warmed up with the picture it serves by default."""
    clock = PaperClock()
    engine = SharingEngine(clock, sizes_s=sizes_s, one_off_s=one_off_s, recording_s=recording_s)
    patches = [mock.patch(f"millstream.{name}.time", clock) for name in CLOCKED]
    for patch in patches:
        patch.start()
    try:
        admission = AdmissionConfig(memory_bytes=100)
        service = Service(engine, admission=admission, session_bytes=lambda config: 1, batch=batch)  # type: ignore[arg-type]
        service.table.admission.times = ChunkTimes(clock.monotonic)
        service._probe.warm_up([StreamConfig(height=DEFAULT[0], width=DEFAULT[1], fps=16.0, window=9)])
        yield PaperService(engine, service)
    finally:
        for patch in patches:
            patch.stop()


def test_eight_who_were_promised_all_of_the_device_wait_at_their_start_if_ever_as_in_turns() -> None:
    for batch in (1, 8):
        with serving(batch=batch, recording_s=0.2) as paper:
            promised = paper.come(8, FRAMES / H200[1] / 8)
            learnt = Counter(paper.engine.runs)
            paper.work(2.0)
            stalled_s = paper.stalled_s
            paper.work(6.0)
            assert 0.94 * FRAMES / H200[1] < promised == pytest.approx(paper.fps)
            assert paper.stalled_s == stalled_s < 8 * 0.1, "of the first chunks, which are short"
            shared = sum(runs for (_, size), runs in (paper.engine.runs - learnt).items() if size > 1)
    assert shared > 20, "shared calls were chosen"


def test_a_trial_that_was_slow_takes_nothing_from_what_is_promised() -> None:
    """Shared calls that were never made before, of which each is slow: what is promised is what a chunk takes
    by itself."""
    with serving(batch=2, sizes_s={1: 0.04, 2: 0.5}) as paper:
        paper.service.table.scheduler.batch_times._keys.clear()
        promised = paper.come(2, 0.5 * FRAMES / 0.04 / 2, OTHER, 20.0)
        paper.work(8.0)
        assert paper.engine.runs[OTHER[1], 2], "it was tried"
        assert paper.fps == pytest.approx(promised)
        paper.go()
        assert paper.come(2, 0.94 * FRAMES / 0.04 / 2, OTHER) == pytest.approx(0.94 * FRAMES / 0.04, rel=0.05)


def test_sizes_are_learnt_before_anybody_comes_and_only_while_more_pays() -> None:
    with serving(batch=8) as paper:
        assert {size for _, size in paper.engine.runs} == {1, 2, 4, 8}
        assert paper.service.table.scheduler.batch_times.one_off_s == pytest.approx(ONE_OFF_S)
        assert not paper.engine.open_sessions
    with serving(batch=8, sizes_s={1: 0.04, 2: 0.08, 4: 0.1, 8: 0.1}) as paper:
        assert {size for _, size in paper.engine.runs} == {1, 2}
    with serving(batch=1) as paper:
        assert {size for _, size in paper.engine.runs} == {1}


@pytest.mark.parametrize(
    ("lead_s", "tries"), [(None, False), (8.0, True)], ids=["no time for it", "time for it"]
)
def test_what_was_not_warmed_up_is_tried_only_when_nobody_runs_dry_over_what_is_new(
    lead_s: float | None, tries: bool
) -> None:
    with serving(batch=2) as paper:
        paper.come(4, 0.9 * FRAMES / H200[1] / 4, OTHER, lead_s)
        paper.work(2.0)
        stalled_s = paper.stalled_s
        paper.work(8.0)
        assert paper.stalled_s == stalled_s
        assert bool(paper.engine.runs[OTHER[1], 2]) == tries


def test_what_shared_calls_save_is_not_promised_to_people_who_may_not_meet() -> None:
    sizes_s = {1: 0.04, 2: 0.05, 4: 0.07, 8: 0.1}
    with serving(batch=8, sizes_s=sizes_s) as paper:
        paper.come(8, 12.0, lead_s=59.0)
        paper.work(8.0)  # as fast as can be: nearly all in calls of eight
        paper.go()
        promised = paper.come(8, 1.1 * FRAMES / sizes_s[1] / 8)
        assert 0.94 * FRAMES / sizes_s[1] < promised <= FRAMES / sizes_s[1]


@given(
    savings=st.lists(st.floats(0.6, 1.15), min_size=3, max_size=3),
    one_off_s=st.floats(0.0, 1.0),
    people=st.integers(2, 8),
    load=st.floats(0.3, 1.0),
    size=st.sampled_from([DEFAULT, OTHER]),
)
@settings(max_examples=15, deadline=None)
def test_whatever_sizes_cost_nobody_runs_dry_who_would_not_in_turns(
    savings: list[float], one_off_s: float, people: int, load: float, size: tuple[int, int]
) -> None:
    with serving(batch=8, sizes_s=costs(savings), one_off_s=one_off_s) as paper:
        paper.come(people, load * FRAMES / SINGLE_S / people, size)
        paper.work(2.0)
        stalled_s = paper.stalled_s
        paper.work(4.0)
        assert paper.stalled_s == stalled_s


@given(savings=st.lists(st.floats(0.6, 1.15), min_size=3, max_size=3), people=st.integers(2, 8))
@settings(max_examples=8, deadline=None)
def test_whatever_sizes_cost_all_together_get_what_turns_give(savings: list[float], people: int) -> None:
    with serving(batch=8, sizes_s=costs(savings)) as paper:
        paper.come(people, 12.0, lead_s=59.0)
        paper.work(4.0)
        assert paper.chunks >= 4.0 / SINGLE_S - 8, "what one call may hold up when time is over"


def costs(savings: Sequence[float]) -> dict[int, float]:
    """Each size as many times what its half takes for as many."""
    found = {1: SINGLE_S}
    for saving in savings:
        found[2 * max(found)] = 2 * found[max(found)] * saving
    return found
