"""One request, stage by stage, with the clock read between them."""

from __future__ import annotations

import time
from itertools import pairwise

from course.reader import Reader
from course.tinylm.engine import TextRequest, TinyEngine
from course.tinylm.text import encode
from course.tinylm.training import trained
from millstream.core.errors import CourseError

PROMPT = "\ntwo red"


def run(reader: Reader, letters: int = 24) -> None:
    if not 2 <= letters <= 60:
        raise CourseError(f"--letters must be 2 to 60, got {letters}")
    engine = TinyEngine(trained())
    request = TextRequest(prompt=PROMPT, most_letters=letters, temperature=0.0)
    guess = reader.predict(
        f"a prompt of {len(PROMPT)} letters, an answer of {letters}. How many calls of the model?"
    )
    times = [time.perf_counter()]
    encode(request.prompt)
    times.append(time.perf_counter())
    engine.add(request)
    engine.turn()
    times.append(time.perf_counter())
    engine.run()
    times.append(time.perf_counter())
    reader.reveal(
        guess,
        engine.calls,
        by="one reads the whole prompt and gives the first letter, each other letter is a call",
    )
    assert engine.calls == len(request.written), f"{engine.calls} calls for {len(request.written)} letters"
    tokenise, prefill, decode = (1e3 * (after - before) for before, after in pairwise(times))
    reader.measured(f"text to numbers            {tokenise:8.3f} ms")
    reader.measured(
        f"prefill, {len(PROMPT)} letters at once {prefill:8.3f} ms: then the first letter is there"
    )
    reader.measured(
        f"decode, a letter at a time {decode:8.3f} ms: {decode / (len(request.written) - 1):.3f} ms a letter"
    )
    reader.measured(f"answer: “{request.answer.strip()}”")
    reader.say("two times that readers notice: until the first letter, and from one letter to the next")
