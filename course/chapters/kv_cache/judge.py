"""Chapter 9, what is asked of an answer."""

from __future__ import annotations

from types import ModuleType

from course.chapters.kv_cache.kv_calculator import SHOWN
from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyConfig

CONFIG = TinyConfig(layers=1, width=4, heads=1, kv_heads=1)


def judge_bytes_are_those_of_published_models(answer: ModuleType) -> None:
    for shape in SHOWN:
        found = answer.kv_bytes(shape.layers, shape.kv_heads, shape.head_width, 1000, 2)
        assert found == shape.kv_bytes(1000), f"{shape.name}: {found}, not {shape.kv_bytes(1000)}"


def judge_pages_are_those_of_the_cache(answer: ModuleType) -> None:
    for past, branches, written, page in (
        (32, 4, 1, 16),
        (33, 4, 1, 16),
        (0, 3, 5, 4),
        (31, 2, 40, 8),
        (5, 1, 1, 16),
    ):
        cache = PagedCache(CONFIG, pages=100, page_tokens=page)
        text = CachedText()
        if past:
            cache.grow([text], past)
        for branch in [cache.fork(text) for _ in range(branches)]:
            cache.grow([branch], written)
        found = answer.pages_in_use(past, branches, written, page)
        assert found == cache.used_pages, (
            f"{past} forked {branches} times, {written} more: {found}, the cache has {cache.used_pages}"
        )
