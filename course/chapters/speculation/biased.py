"""One line of speculative sampling done wrong: after a rejection, draw from the model itself. It looks right,
and is not."""

from __future__ import annotations

import torch
from torch import Tensor

from course.chapters.speculation.same_distribution import counted, exact_pairs
from course.confidence import chance_of, of_share
from course.reader import Reader
from course.tinylm.speculation import CountedDraft, draw, judged
from course.tinylm.text import decode
from course.tinylm.training import trained


def judged_wrongly(
    proposed: list[int], draft: list[Tensor], target: list[Tensor], made: torch.Generator
) -> list[int]:
    for place, (letter, q_V, p_V) in enumerate(zip(proposed, draft, target, strict=False)):
        if float(torch.rand((), generator=made)) * float(q_V[letter]) >= float(p_V[letter]):
            return [
                *proposed[:place],
                draw(p_V, made),
            ]  # this line is the mistake: what the draft gave already is given again
    return [*proposed, draw(target[len(proposed)], made)]


def run(reader: Reader, samples: int = 12000) -> None:
    draft = CountedDraft(order=1)
    (exact, model) = exact_pairs(trained())
    chances = list[float]()
    for name, judge in (("as it should be", judged), ("drawn from p", judged_wrongly)):
        counts = counted(model, draft, samples, judge)
        chances.append(
            chance_of([counts[pair] for pair in exact], [samples * each for each in exact.values()])
        )
        worst = max(exact, key=lambda pair: abs(counts[pair] / samples - exact[pair]))
        low, high = of_share(counts[worst], samples)
        reader.measured(
            f"{name:16} furthest off “{decode(list(worst))}”: exactly {exact[worst]:.4f}, 95% in {low:.4f} "
            f"to {high:.4f}; "
            f"by chance: {chances[-1]:.1e}"
        )
    assert chances[0] > 1e-4 > chances[1], f"{chances}"
    reader.say("symptom: none; every text is fluent, and what the draft likes is written too often")
    reader.say(
        "tool: a histogram against exact probabilities, at a place where draft and model differ, and a test of it"
    )
    reader.say("fix: draw from max(p - q, 0): what the model still has to give")
