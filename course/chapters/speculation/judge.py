"""Chapter 11, what is asked of an answer."""

from __future__ import annotations

import json
import random
from types import ModuleType

CASES = (
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    ([1.0, 0.0], [0.5, 0.5]),
    ([0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]),
)


def judge_what_is_kept_and_what_is_drawn_after_give_the_models_distribution(answer: ModuleType) -> None:
    for p, q in CASES:
        kept = answer.share_kept(p, q)
        rest = answer.after_rejection(p, q)
        found = [min(want, given) + (1 - kept) * more for want, given, more in zip(p, q, rest, strict=True)]
        assert max(abs(a - b) for a, b in zip(found, p, strict=True)) < 1e-9, (
            f"p {p}, q {q}: letters come out as {found}"
        )


def judge_a_proposal_is_kept_as_often_as_it_is_drawn_in_a_trial(answer: ModuleType) -> None:
    draw = random.Random(0)
    for p, q in CASES:
        letters = draw.choices(range(len(q)), q, k=20000)
        kept = sum(draw.random() < p[letter] / q[letter] for letter in letters) / len(letters)
        assert abs(answer.share_kept(p, q) - kept) < 0.02, (
            f"p {p}, q {q}: {answer.share_kept(p, q)}, in a trial {kept}"
        )


def judge_any_allowed_letters_make_a_list_and_no_list_is_left_out(answer: ModuleType) -> None:
    draw = random.Random(0)
    for _ in range(50):
        written = ""
        while len(written) < 200 and (may := answer.allowed_in_list(written)):
            written += draw.choice(sorted(may))
        if len(written) < 200:
            assert json.loads(written), f"{written!r} is no list of digits"
    for text in ("[1]", "[0,9,0]"):
        for place in range(len(text)):
            assert text[place] in answer.allowed_in_list(text[:place]), (
                f"{text[place]!r} was forbidden after {text[:place]!r}"
            )
