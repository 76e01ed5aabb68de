"""Many requests at once: calls of the model are shared, and a call for many costs little more than a call for
one."""

from __future__ import annotations

import time

from course.reader import Reader
from course.tinylm.engine import TextRequest, TinyEngine
from course.tinylm.model import TinyLM
from course.tinylm.training import trained
from millstream.core.errors import CourseError


def run(reader: Reader, requests: int = 8, letters: int = 24) -> None:
    if not (1 <= requests <= 32 and 2 <= letters <= 30):
        raise CourseError(f"--requests must be 1 to 32 and --letters 2 to 30, got {requests} and {letters}")
    lm = trained()
    guess = reader.predict(
        f"{requests} requests of {letters} letters, all at once. How many calls of the model, batched?"
    )
    one_by_one, together = (served(lm, requests, letters, most_running=most) for most in (1, requests))
    reader.reveal(guess, together[0], by="a prefill each, then one call a turn for all of them")
    assert together[0] == requests + letters - 1, f"{together[0]} calls"
    assert one_by_one[0] == requests * letters, f"{one_by_one[0]} calls"
    assert one_by_one[2] == together[2], "who shares a call gets the same letters"
    for name, (calls, seconds, answers) in (("one by one", one_by_one), ("batched", together)):
        rate = sum(map(len, answers)) / seconds
        reader.measured(f"{name:11} {calls:4} calls, {1e3 * seconds:7.1f} ms, {rate:7.0f} letters/s")
    assert together[1] < one_by_one[1] or requests == 1, "fewer calls take less time"


def served(lm: TinyLM, requests: int, letters: int, most_running: int) -> tuple[int, float, list[str]]:
    """Calls, seconds and answers."""
    engine = TinyEngine(lm, pages=4 * requests, most_running=most_running)
    asked = [TextRequest(prompt="\ntwo red ", most_letters=letters, seed=seed) for seed in range(requests)]
    for request in asked:
        engine.add(request)
    begun = time.perf_counter()
    engine.run()
    assert engine.cache.used_pages == 0, "pages were left behind"
    return engine.calls, time.perf_counter() - begun, [request.answer for request in asked]
