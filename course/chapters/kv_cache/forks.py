"""Several continuations of one text, by the pages that branches of a video session share: no copy until
somebody writes."""

from __future__ import annotations

import torch

from course.chapters.kv_cache.branches import TextBranch
from course.reader import Reader
from course.tinylm.model import TinyLM
from course.tinylm.text import decode, encode
from course.tinylm.training import trained
from millstream.core.errors import CourseError
from millstream.models.pages import PagePool

PAST = "\ntwo red boats drift past the mill. "
PAGE = 8
PAGES = 12
LETTERS_EACH = 10


def run(reader: Reader, branches: int = 4) -> None:
    if not 2 <= branches <= 16:
        raise CourseError(f"--branches must be 2 to 16, got {branches}")
    lm = trained()
    pool = PagePool()
    past = TextBranch.first(lm.config, pool, pages=PAGES, page_tokens=PAGE)
    read(lm, past, encode(PAST))
    forked = [past.fork() for _ in range(branches)]
    guess = reader.predict(
        f"{len(PAST)} letters in pages of {PAGE}, forked {branches} times. How many pages have been copied?"
    )
    reader.reveal(
        guess, pool.copies, by="models/pages.py counts them: a fork is another table of the same pages"
    )
    assert pool.copies == 0, f"{pool.copies} pages were copied"
    texts = [f"{place}{'blue' if place % 2 else 'red'}" for place in range(branches)]
    found = [read(lm, branch, encode(text)) for branch, text in zip(forked, texts, strict=True)]
    for logits, text in zip(found, texts, strict=True):
        with torch.no_grad():
            alone = lm(torch.tensor([encode(PAST + text)]))[0, -1]
        assert torch.allclose(logits, alone, atol=1e-3), (
            f"a branch differs by {float((logits - alone).abs().max())}"
        )
    reader.say(
        f"each wrote letters of its own ({', '.join(texts)}) and agrees with a model that read its whole "
        "text alone"
    )
    separate = branches * past.window.num_bytes
    together = past.window.num_bytes + pool.bytes_in_use
    reader.say(
        f"windows of their own: {separate} bytes; one window and a pool of {pool.pages_in_use} pages: "
        f"{together} bytes"
    )
    assert together < separate, f"{together} of {separate} bytes"
    before = pool.copies
    read(lm, forked[0], encode(" "))
    reader.say(f"pages exchanged when the first branch takes the window over again: {pool.copies - before}")
    reader.say(
        "so branches that take turns cost a few copied pages a turn; those that share a call have a window each"
    )


@torch.no_grad()
def read(lm: TinyLM, branch: TextBranch, tokens: list[int]) -> torch.Tensor:
    assert branch.length + len(tokens) <= PAGES * PAGE, f"no room for {decode(tokens)!r}"
    return lm(torch.tensor([tokens]), branch.grow(len(tokens)))[0, -1]
