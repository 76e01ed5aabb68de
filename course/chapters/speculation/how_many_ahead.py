"""How many letters a call of the model brings, by how many are proposed: measured, and by the formula."""

from __future__ import annotations

import time

from course.reader import Reader
from course.tinylm.model import TinyLM
from course.tinylm.speculation import CountedDraft, speculate
from course.tinylm.training import trained
from millstream.core.errors import CourseError
from millstream.planner.language.serving import tokens_a_call

TEXTS = 6
LETTERS_EACH = 80


def run(reader: Reader, order: int = 3) -> None:
    if not 0 <= order <= 8:
        raise CourseError(f"--order must be 0 to 8 letters that the draft looks at, got {order}")
    guess = reader.predict(
        "8 of 10 proposals are kept, 4 are made a call. How many letters does a call bring on average?"
    )
    reader.reveal(guess, tokens_a_call(0.8, 4), by="1 + a + a^2 + a^3 + a^4", tolerance=0.05)
    lm = trained()
    draft = CountedDraft(order=order)
    plain = None
    for ahead in (0, 1, 2, 4, 8):
        letters, calls, kept, seconds = measured(lm, draft, ahead)
        plain = plain or letters / calls
        expected = tokens_a_call(kept, ahead)
        reader.measured(
            f"{ahead} ahead: {kept:4.0%} kept, {letters / calls:5.2f} letters a call, by the formula "
            f"{expected:5.2f}, "
            f"{letters / seconds:6.0f} letters/s"
        )
        assert ahead == 0 or letters / calls > plain, (
            "a call that judges several letters brings more than one"
        )
        assert letters / calls <= ahead + 1, f"{letters / calls} letters a call"
    reader.say(
        "each further proposal brings less and costs the same; the formula takes all to be kept equally often"
    )


def measured(lm: TinyLM, draft: CountedDraft, ahead: int) -> tuple[int, int, float, float]:
    """Letters, calls, the share of judged proposals that was kept, and seconds."""
    begun = time.perf_counter()
    made = [speculate(lm, draft, "\n", LETTERS_EACH, ahead, seed) for seed in range(TEXTS)]
    seconds = time.perf_counter() - begun
    letters = sum(len(each.tokens) - 1 for each in made)
    calls = sum(each.calls for each in made)
    kept = sum(each.kept for each in made)
    rejected = sum(each.rejected for each in made)
    return letters, calls, kept / max(1, kept + rejected), seconds
