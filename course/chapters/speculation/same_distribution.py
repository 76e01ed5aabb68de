"""Speculative sampling draws from the model's own distribution: shown by a histogram against exact
probabilities.

All strings of two letters after a prompt have a probability that can be computed. A draft that knows only
pairs of letters and is often wrong proposes; thousands of strings are drawn; how far the counts are off is
tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from course.confidence import chance_of, of_share
from course.reader import Reader
from course.tinylm.model import TinyLM
from course.tinylm.speculation import CountedDraft, draw, judged
from course.tinylm.text import LETTERS, decode, encode
from course.tinylm.training import trained
from millstream.core.errors import CourseError

PROMPT = "\ntwo "
SHOWN = 6
Judge = Callable[[list[int], list[Tensor], list[Tensor], torch.Generator], list[int]]


def run(reader: Reader, samples: int = 4000) -> None:
    if not 1000 <= samples <= 100000:
        raise CourseError(f"--samples must be 1000 to 100000, got {samples}")
    lm = trained()
    draft = CountedDraft(order=1)
    exact, model = exact_pairs(lm)
    first = draft.probs(encode(PROMPT))
    guess = reader.predict("how many of 10 first letters that this draft proposes are kept, about?")
    kept = float(torch.minimum(first, model[()]).sum())
    reader.reveal(
        guess, 10 * kept, by="the sum of min(p, q) over all letters", tolerance=0.3, is_measured=True
    )
    counts = counted(model, draft, samples, judged)
    for letters, probability in sorted(exact.items(), key=lambda each: -each[1])[:SHOWN]:
        interval = of_share(counts[letters], samples)
        name = f"“{decode(list(letters))}”"
        share = counts[letters] / samples
        reader.measured(
            f"{name:6} exactly {probability:.4f}, drawn {share:.4f}, 95% interval {interval.low:.4f} to "
            f"{interval.high:.4f}"
        )
    chance = chance_of([counts[letters] for letters in exact], [samples * each for each in exact.values()])
    reader.measured(
        f"{samples} strings; counts that are further off come by chance {100 * chance:.0f} times in 100"
    )
    assert chance > 1e-4, f"the distribution is changed: {chance:.2g}"
    reader.say("the draft decides how quick it is, and nothing else")


@torch.no_grad()
def exact_pairs(lm: TinyLM) -> tuple[dict[tuple[int, int], float], dict[tuple[int, ...], Tensor]]:
    """The probability of every string of two letters, and the model's distributions after 0, 1 and 2 of
    them."""
    prompt = encode(PROMPT)
    letters = range(len(LETTERS))
    after_one = lm(torch.tensor([[*prompt, letter] for letter in letters])).softmax(-1).double()
    first = after_one[0, -2]
    second = after_one[:, -1]
    model: dict[tuple[int, ...], Tensor] = {(): first} | {(letter,): second[letter] for letter in letters}
    exact = {(a, b): float(first[a] * second[a, b]) for a in letters for b in letters}
    assert abs(sum(exact.values()) - 1) < 1e-6, "probabilities sum to 1"
    return exact, model


def counted(
    model: dict[tuple[int, ...], Tensor], draft: CountedDraft, samples: int, judge: Judge
) -> Counter[tuple[int, ...]]:
    made = torch.Generator().manual_seed(0)
    found = Counter[tuple[int, ...]]()
    prompt = encode(PROMPT)
    for _ in range(samples):
        string = list[int]()
        while len(string) < 2:
            proposed = list[int]()
            given = list[Tensor]()
            wanted = list[Tensor]()
            while len(string + proposed) < 2:
                wanted.append(model[tuple(string + proposed)])
                given.append(draft.probs(prompt + string + proposed).double())
                proposed.append(draw(given[-1], made))
            string += judge(proposed, given, [*wanted, wanted[-1]], made)  # a third letter is not looked at
        found[tuple(string[:2])] += 1
    return found
