"""A page that two texts share, written by one of them: the other's past changes under it."""

from __future__ import annotations

import torch

from course.reader import Reader
from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyLM
from course.tinylm.text import encode
from course.tinylm.training import trained

PAST = "\ntwo red"


class CarelessCache(PagedCache):
    """Forgets to copy a shared page before it is written."""

    def _make_room(self, text: CachedText, count: int) -> None:
        while len(text.pages) < self.pages_for(text.length + count):
            text.pages.append(self._take())


def run(reader: Reader) -> None:
    lm = trained()
    for name, kind in (("careless", CarelessCache), ("copied first", PagedCache)):
        off = changed_by_a_neighbour(lm, kind)
        reader.measured(f"{name:13} logits of the first branch move by {off:.2g} when the second one writes")
        assert (off > 0.1) == (kind is CarelessCache), f"{name}: {off}"
    reader.say("symptom: no error, but an answer depends on who else is served; rerun alone, it is right")
    reader.say(
        "tool: the same request alone and with neighbours, compared; a count of the tables that refer to "
        "each page"
    )
    reader.say("fix: whoever is about to write owns the page: a copy, if others refer to it (PageTable.own)")


@torch.no_grad()
def changed_by_a_neighbour(lm: TinyLM, kind: type[PagedCache]) -> float:
    def next_logits(neighbour: str) -> torch.Tensor:
        cache = kind(lm.config, pages=8)
        mine = CachedText()
        lm(torch.tensor([encode(PAST)]), cache.grow([mine], len(PAST)))
        other = cache.fork(mine)
        lm(torch.tensor([encode(" boa")]), cache.grow([mine], 4))
        if neighbour:
            lm(torch.tensor([encode(neighbour)]), cache.grow([other], len(neighbour)))
        return lm(torch.tensor([encode("t")]), cache.grow([mine], 1))[0, -1]

    return float((next_logits("") - next_logits(" lan")).abs().max())
