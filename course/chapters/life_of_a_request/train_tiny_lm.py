"""Trains the language model of parts III and IV on text that a grammar makes, and keeps it for the chapters
to come."""

from __future__ import annotations

import math

from course.reader import Reader
from course.tinylm.text import LETTERS, make_text, nats_per_letter
from course.tinylm.training import STEPS, fresh, held_back_loss, keep, train_steps
from millstream.core.errors import CourseError

SHOWN = 60


def run(reader: Reader, steps: int = STEPS) -> None:
    """Only a model of the usual number of steps is kept."""
    if steps < 1:
        raise CourseError(f"--steps must be 1 or more, got {steps}")
    reader.say(f"a line: {make_text(1, seed=0).strip()}")
    guess = reader.predict(
        f"{len(LETTERS)} letters, and a model that knows nothing. What is its loss, in nats a letter?"
    )
    reader.reveal(
        guess,
        math.log(len(LETTERS)),
        by="all are equally likely: the logarithm of their number",
        tolerance=0.05,
    )
    lm = fresh()
    reader.say(f"{sum(each.numel() for each in lm.parameters())} parameters")
    for done in train_steps(lm, steps):
        if done.step % SHOWN == 0 or done.step == steps - 1:
            reader.measured(f"step {done.step:3}: loss {done.loss:.3f}, after {done.seconds:.0f} s")
    floor = nats_per_letter()
    found = held_back_loss(lm.eval())
    reader.say(
        f"nobody can do better than {floor:.4f}: the logarithm of how many lines there are, over their length"
    )
    reader.measured(f"on lines that it has not seen: {found:.4f}")
    assert found > floor, "nobody does better than the grammar, except by chance"
    if steps == STEPS:
        assert found < 2 * floor, f"it did not learn: {found}"
        keep(lm)
        reader.say("kept beside your progress; the next chapters read it")
