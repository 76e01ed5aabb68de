"""Chapter 8, what is asked of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from course.tinylm.engine import TextRequest, TinyEngine
from course.tinylm.model import TinyConfig, TinyLM

CASES = (((24, 3, 3, 3, 3, 3), 2), ((5,), 3), ((4, 4, 4, 4), 1), ((9, 2, 7, 1, 5, 5, 3), 3))


def judge_requests_are_done_when_the_engine_says_so(answer: ModuleType) -> None:
    for lengths, places in CASES:
        found = list(answer.done_turn_by_turn(lengths, places))
        engine = by_the_engine(lengths, places)
        assert found == engine, f"{lengths} in {places} places: {found}, the engine has {engine}"


def judge_letters_a_second_count_all_letters_and_all_time(answer: ModuleType) -> None:
    for lengths, places in CASES:
        expected = sum(lengths) / (max(by_the_engine(lengths, places)) * 0.02)
        found = answer.letters_a_second(lengths, places, 20.0)
        assert abs(found - expected) < 1e-6 * expected, (
            f"{lengths} in {places} places: {found}, not {expected}"
        )


def by_the_engine(lengths: Sequence[int], places: int) -> list[int]:
    """With a model that has learnt nothing, and letters that never end a line."""
    engine = TinyEngine(TinyLM(TinyConfig(layers=1)), most_running=places)
    asked = [EndlessRequest(prompt="a", most_letters=length) for length in lengths]
    for request in asked:
        engine.add(request)
    turn = 0
    done = dict[int, int]()
    while engine.waiting or engine.running:
        turn += 1
        done |= {id(request): turn for request in engine.turn() if request.is_done}
    return [done[id(request)] for request in asked]


class EndlessRequest(TextRequest):
    """Ends by its length alone."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        return len(self.written) >= self.most_letters
