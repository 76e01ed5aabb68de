"""Room for the longest possible text, or a page at a time: how many texts fit, and what is wasted."""

from __future__ import annotations

from random import Random

from course.reader import Reader
from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyConfig
from millstream.core.errors import CourseError

LONGEST = 256
ROOM = 4096
"""Tokens."""


def run(reader: Reader, page: int = 16, seed: int = 0) -> None:
    if not 1 <= page <= LONGEST:
        raise CourseError(f"--page must be 1 to {LONGEST} tokens, got {page}")
    draw = Random(seed)
    lengths = [min(LONGEST, 1 + int(draw.expovariate(1 / 60))) for _ in range(500)]
    reader.say(
        f"room for {ROOM} tokens; texts of at most {LONGEST}, {sum(lengths) / len(lengths):.0f} on average"
    )
    guess = reader.predict(f"whoever comes gets room for {LONGEST} tokens. How many texts fit?")
    reader.reveal(guess, ROOM // LONGEST, by="room over the longest text")
    whole, _ = fitted(lengths, LONGEST)
    assert whole == ROOM // LONGEST, f"{whole} texts in pages as long as the longest"
    reader.say(f"{'page':>6}{'texts':>7}{'wasted':>9}")
    for size in sorted({1, 4, page, 64, LONGEST}):
        texts, wasted = fitted(lengths, size)
        reader.say(f"{size:6}{texts:7}{wasted:9.1%}")
    texts, wasted = fitted(lengths, page)
    assert texts > whole or page == LONGEST, "pages are given to whom needs them"
    assert wasted * ROOM <= (texts + 1) * page, "a text wastes less than a page"
    reader.say("a text wastes half a page on average; small pages waste less and have longer tables")


def fitted(lengths: list[int], page: int) -> tuple[int, float]:
    """How many texts fit, in order, and the share of the room in use that holds nothing."""
    cache = PagedCache(
        TinyConfig(layers=1, width=4, heads=1, kv_heads=1), pages=ROOM // page, page_tokens=page
    )
    texts = list[CachedText]()
    for length in lengths:
        if cache.pages_for(length) > cache.free_pages:
            break
        texts.append(CachedText())
        cache.grow([texts[-1]], length)
    held = sum(text.length for text in texts)
    return len(texts), 1 - held / (cache.used_pages * page)
