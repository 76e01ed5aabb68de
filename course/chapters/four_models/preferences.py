"""A reward model learns from pairs which of two sentences somebody prefers. Here somebody likes golden
things."""

from __future__ import annotations

import math
from functools import cache
from random import Random

import torch
from torch import Tensor
from torch.nn import functional

from course.chapters.four_models.roles import LONGEST, ScoredLM, Sentences
from course.confidence import of_share
from course.reader import Reader
from course.tinylm.text import CHOICES, END, encode
from course.tinylm.training import trained
from millstream.core.errors import CourseError

LIKED = "golden"
STEPS = 60
PAIRS = 16


def run(reader: Reader, pairs: int = 200) -> None:
    if not 20 <= pairs <= 2000:
        raise CourseError(f"--pairs must be 20 to 2000, got {pairs}")
    guess = reader.predict(
        "a reward model that knows nothing compares two sentences. What is its loss, in nats?"
    )
    reader.reveal(guess, math.log(2), by="both are equally likely: the logarithm of 2", tolerance=0.02)
    model, losses = learnt_reward()
    assert abs(losses[0] - math.log(2)) < 1e-5, f"{losses[0]}"
    better, worse = make_pairs(pairs, Random(99))
    with torch.no_grad():
        right = int((model.at_the_end(better) > model.at_the_end(worse)).sum())
    low, high = of_share(right, pairs)
    reader.measured(f"loss {losses[0]:.3f} before, {losses[-1]:.3f} after {STEPS} steps of {PAIRS} pairs")
    reader.measured(f"on new pairs it agrees {right / pairs:.1%} of the time, 95% in {low:.1%} to {high:.1%}")
    assert low > 0.9, f"it agrees {right} times in {pairs}"
    with torch.no_grad():
        scores = {text: float(model.at_the_end(as_sentences([text]))) for text in STRANGE}
    for text, score in scores.items():
        reader.measured(f"  {score:+6.2f}  {text}")
    reader.say("what it says of sentences that nobody compared for it is anybody's guess")


STRANGE = (
    "two golden boats drift past the mill.",
    "two red boats drift past the mill.",
    "golden golden golden golden golden.",
)


@cache
def learnt_reward() -> tuple[ScoredLM, list[float]]:
    """Train the reward model, shared by all scripts of the chapter, and return it with its losses. Bradley
    and Terry's loss: the better sentence is likelier to score more."""
    model = ScoredLM(trained())
    draw = Random(0)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = list[float]()
    for _ in range(STEPS):
        better, worse = make_pairs(PAIRS, draw)
        loss = -functional.logsigmoid(model.at_the_end(better) - model.at_the_end(worse)).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return model.requires_grad_(requires_grad=False), losses


def make_pairs(count: int, draw: Random) -> tuple[Sentences, Sentences]:
    """Sentences of the grammar, of which the first has the liked colour and the second another."""
    rows: tuple[list[str], list[str]] = ([], [])
    for _ in range(count):
        for side, colour in enumerate((LIKED, draw.choice([each for each in CHOICES[1] if each != LIKED]))):
            number, _, thing, verb, place = map(draw.choice, CHOICES)
            rows[side].append(f"{number} {colour} {thing} {verb} {place}.")
    return as_sentences(rows[0]), as_sentences(rows[1])


def as_sentences(texts: list[str]) -> Sentences:
    token_BT = torch.full((len(texts), LONGEST + 1), END)
    lengths = [len(text) for text in texts]
    for row, text in enumerate(texts):
        token_BT[row, 1 : 1 + len(text)] = torch.tensor(encode(text))
    written: Tensor = torch.arange(LONGEST) < torch.tensor(lengths)[:, None]
    return Sentences(token_BT, written)
