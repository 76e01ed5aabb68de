"""Weights that change while a sentence is being written: it is by neither version, and no density fits it."""

from __future__ import annotations

import torch

from course.chapters.four_models.roles import LONGEST, Sentences, log_probs
from course.reader import Reader
from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyLM
from course.tinylm.text import END
from course.tinylm.training import trained


def run(reader: Reader, rows: int = 8) -> None:
    for name, changes_at in (("between sentences", LONGEST), ("in the middle of one", LONGEST // 2)):
        lm = trained()
        new = trained()
        with torch.no_grad():
            for each in new.parameters():
                each.add_(0.02 * torch.randn(each.shape, generator=torch.Generator().manual_seed(0)))
        written, sampled = write_while_it_changes(lm, new, rows, changes_at)
        with torch.no_grad():
            again = log_probs(trained(), written)
        off = float(((again - sampled).exp() - 1).abs().max())
        reader.measured(f"new weights {name:21} ratios off by {off:.2g} before anything was learnt")
        assert (off < 1e-2) == (changes_at == LONGEST), f"{name}: {off}"
    reader.say("symptom: no error; samples are a little off, and learning is slow or goes astray")
    reader.say("tool: a version that is compared before and after; RolloutEngine.roll refuses what spans two")
    reader.say("fix: hand weights over between rollouts, or keep the old ones until those under way are done")


@torch.no_grad()
def write_while_it_changes(
    lm: TinyLM, new: TinyLM, rows: int, changes_at: int
) -> tuple[Sentences, torch.Tensor]:
    """Return what was written, and the log-probabilities that it was drawn with."""
    cache = PagedCache(lm.config, pages=3 * rows)
    made = torch.Generator().manual_seed(1)
    texts = [CachedText() for _ in range(rows)]
    tokens = [torch.full((rows, 1), END)]
    logs = []
    for place in range(LONGEST):
        if place == changes_at:
            lm.load_state_dict(new.state_dict())
        log = lm(tokens[-1], cache.grow(texts, 1))[:, -1].log_softmax(-1)
        tokens.append(torch.multinomial(log.exp(), 1, generator=made))
        logs.append(log.gather(1, tokens[-1]))
    token_BT = torch.cat(tokens, dim=1)
    return Sentences(token_BT, torch.ones_like(token_BT[:, 1:], dtype=torch.bool)), torch.cat(logs, dim=1)
