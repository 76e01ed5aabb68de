"""One text written with a cache and without: the same letters, from a fraction of the work."""

from __future__ import annotations

import time

import torch

from course.reader import Reader
from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyLM
from course.tinylm.text import decode, encode
from course.tinylm.training import trained
from millstream.core.errors import CourseError

PROMPT = "\ntwo red "


def run(reader: Reader, letters: int = 60) -> None:
    if not 2 <= letters <= 80:
        raise CourseError(f"--letters must be 2 to 80, got {letters}")
    lm = trained()
    first = len(PROMPT)
    guess = reader.predict(
        f"{first} letters of prompt, {letters} written, no cache. How many letters does the model read in all?"
    )
    (plain, read_plain, plain_s), (cached, read_cached, cached_s) = (
        written(lm, letters, with_cache=with_cache) for with_cache in (False, True)
    )
    reader.reveal(
        guess, read_plain, by="all letters so far, again for every letter: it grows with the square"
    )
    assert read_plain == sum(range(first, first + letters)), f"{read_plain} letters were read"
    assert read_cached == first + letters - 1, f"{read_cached} letters were read with a cache"
    assert plain == cached, f"{decode(plain)!r} without a cache, {decode(cached)!r} with one"
    reader.measured(f"without a cache {read_plain:5} letters read, {1e3 * plain_s:7.1f} ms")
    reader.measured(f"with a cache    {read_cached:5} letters read, {1e3 * cached_s:7.1f} ms")
    reader.say("the same letters: keys and values of a letter do not depend on what comes after it")
    kv = lm.config.kv_bytes_per_token
    reader.say(f"price: {kv} bytes a letter, {kv * (first + letters)} bytes for this text")


@torch.no_grad()
def written(lm: TinyLM, letters: int, *, with_cache: bool) -> tuple[list[int], int, float]:
    """The likeliest letters, how many were read for them, and seconds."""
    cache = PagedCache(lm.config, pages=8)
    text = CachedText()
    tokens = encode(PROMPT)
    read = 0
    begun = time.perf_counter()
    for _ in range(letters):
        new = tokens[text.length :]
        memory = cache.grow([text], len(new)) if with_cache else None
        logits = lm(torch.tensor([new]), memory)
        read += len(new)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens, read, time.perf_counter() - begun
