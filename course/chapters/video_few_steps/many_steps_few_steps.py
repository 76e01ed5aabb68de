"""A perfect teacher, asked for fewer and fewer steps: it ends between the pictures, which is what blur is."""

from __future__ import annotations

from course.chapters.video_few_steps.two_points import distance, ends, some_noise
from course.reader import Reader

COUNTS = (1, 2, 4, 16, 64)


def run(reader: Reader, rows: int = 1000) -> None:
    noise = some_noise(rows)
    guess = reader.predict(
        "pictures are -1 and 1. One step from pure noise: where does a perfect teacher end?"
    )
    found = {steps: ends(noise, steps) for steps in COUNTS}
    reader.reveal(
        guess,
        round(float(found[1].abs().max()), 4),
        by="the mean of all pictures, since pure noise says nothing yet",
    )
    for steps, each in found.items():
        reader.say(
            f"{steps:3} steps, {steps:3} model calls: {distance(each):.3f} from the nearest picture on "
            "average"
        )
    errors = [distance(each) for each in found.values()]
    assert errors == sorted(errors, reverse=True), f"more steps end nearer: {errors}"
    assert errors[0] > 0.99, f"{errors}"
    assert errors[-1] < 0.05, f"{errors}"
    reader.say("the path is curved, and a step is straight: a teacher needs many")
