"""Speculative sampling: a cheap draft proposes several letters, one call of the model judges them all.

A letter that the draft drew with probability q and the model would draw with p is kept with probability
min(1, p/q). At the first that is not kept, a letter is drawn from what the model wants more than the draft
gave: p - q where that is positive. What comes out is distributed exactly as if the model had drawn every
letter itself.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyLM
from course.tinylm.text import END, LETTERS, encode, make_text


class CountedDraft:
    """Draft by counts: which letters followed the last few in the text. Costs a look into a table."""

    def __init__(self, order: int, lines: int = 400) -> None:
        tokens = encode(make_text(lines, seed=0))
        self._order = order
        self._counts = dict[tuple[int, ...], Counter[int]]()
        for place in range(1, len(tokens)):
            for length in range(min(order, place) + 1):
                self._counts.setdefault(tuple(tokens[place - length : place]), Counter())[tokens[place]] += 1
        self._made = dict[tuple[int, ...], Tensor]()

    def probs(self, tokens: list[int]) -> Tensor:
        """Return the probabilities of the next letter, by the longest ending of `tokens` that was seen."""
        for length in range(min(self._order, len(tokens)), -1, -1):
            ending = tuple(tokens[len(tokens) - length :])
            if ending in self._counts:
                break
        if ending not in self._made:
            counts = self._counts[ending]
            self._made[ending] = (
                torch.tensor([float(counts[letter]) for letter in range(len(LETTERS))]) / counts.total()
            )
        return self._made[ending]


def draw(probs_V: Tensor, made: torch.Generator) -> int:
    return int(torch.multinomial(probs_V, 1, generator=made))


def judged(
    proposed: list[int], draft: list[Tensor], target: list[Tensor], made: torch.Generator
) -> list[int]:
    """Return the letters that are kept, and one more. `target` has one distribution more than `draft`."""
    for place, (letter, q_V, p_V) in enumerate(zip(proposed, draft, target, strict=False)):
        if float(torch.rand((), generator=made)) * float(q_V[letter]) >= float(p_V[letter]):
            return [*proposed[:place], draw((p_V - q_V).clamp_min(0), made)]
    return [*proposed, draw(target[len(proposed)], made)]


class Speculated(NamedTuple):
    tokens: list[int]
    calls: int
    """Calls of the model after the prompt."""
    kept: int
    """Proposals that were kept; proposals after a rejected one are not judged."""
    rejected: int


@torch.no_grad()
def speculate(
    lm: TinyLM, draft: CountedDraft, prompt: str, letters: int, ahead: int, seed: int
) -> Speculated:
    """Write at least `letters` letters after the prompt, or to the end of the line; with `ahead` proposals a
    call, or none."""
    made = torch.Generator().manual_seed(seed)
    cache = PagedCache(lm.config, pages=32)
    text = CachedText()
    tokens = encode(prompt)
    calls = 0
    kept = 0
    rejected = 0
    if len(tokens) > 1:  # the last letter is read with the first proposals
        lm(torch.tensor([tokens[:-1]]), cache.grow([text], len(tokens) - 1))
    while len(tokens) < len(prompt) + letters and tokens[len(prompt) :].count(END) == 0:
        proposed = list[int]()
        given = list[Tensor]()
        for _ in range(ahead):
            given.append(draft.probs(tokens + proposed))
            proposed.append(draw(given[-1], made))
        read = tokens[text.length :] + proposed
        wanted = lm(torch.tensor([read]), cache.grow([text], len(read)))[0, -ahead - 1 :].softmax(-1)
        new = judged(proposed, given, list(wanted), made)
        tokens += new
        cache.cut(text, len(tokens) - 1)  # what was not kept is forgotten
        calls = calls + 1
        kept = kept + len(new) - 1
        rejected = rejected + (len(new) <= ahead)
    return Speculated(tokens, calls, kept, rejected)
