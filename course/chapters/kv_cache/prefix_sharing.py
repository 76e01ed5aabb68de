"""Requests that begin alike read their beginning once and refer to the same pages."""

from __future__ import annotations

import torch

from course.reader import Reader
from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyLM
from course.tinylm.text import encode, make_text
from course.tinylm.training import trained
from millstream.core.errors import CourseError

PREFIX = make_text(1, seed=3)
"""Beginning of all requests: an example to follow, as a system prompt is."""
ASKED = ("one red", "two blue", "three green", "four white")
LETTERS_EACH = 12


def run(reader: Reader, page: int = 16) -> None:
    if not 1 <= page <= 64:
        raise CourseError(f"--page must be 1 to 64 tokens, got {page}")
    lm = trained()
    guess = reader.predict(
        f"a prefix of {len(PREFIX)} letters, {len(ASKED)} requests, pages of {page}. How many whole pages "
        "can all share?"
    )
    reader.reveal(guess, len(PREFIX) // page, by="pages that the prefix fills")
    alone, shared = (answered(lm, page, share=share) for share in (False, True))
    assert [each.argmax() for each in alone[0]] == [each.argmax() for each in shared[0]], (
        "sharing changed an answer"
    )
    off = max(float((a - b).abs().max()) for a, b in zip(alone[0], shared[0], strict=True))
    assert off < 1e-3, f"logits differ by {off}"
    for name, (_, read, pages) in (("each its own", alone), ("shared", shared)):
        reader.say(f"{name:13} {read:4} letters read, {pages:3} pages in use")
    saved = (len(ASKED) - 1) * len(PREFIX)
    assert alone[1] - shared[1] == saved, f"{alone[1] - shared[1]} letters were not read again"
    reader.say(
        f"{saved} letters not read again; the page that the prefix fills half is copied by whoever writes "
        "into it"
    )
    reader.measured(f"logits agree to {off:.0e}")


@torch.no_grad()
def answered(lm: TinyLM, page: int, *, share: bool) -> tuple[list[torch.Tensor], int, int]:
    """The last logits of each, letters read, and pages in use at the end."""
    cache = PagedCache(lm.config, pages=64 * 16 // page + 16, page_tokens=page)
    read = 0
    prefix = CachedText()
    if share:
        lm(torch.tensor([encode(PREFIX)]), cache.grow([prefix], len(PREFIX)))
        read += len(PREFIX)
    found = []
    for prompt in ASKED:
        text = cache.fork(prefix) if share else CachedText()
        tokens = encode(prompt if share else PREFIX + prompt)
        logits = lm(torch.tensor([tokens]), cache.grow([text], len(tokens)))
        read += len(tokens)
        found.append(logits[0, -1])
    return found, read, cache.used_pages
