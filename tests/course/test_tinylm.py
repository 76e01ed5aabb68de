"""The tiny language model: its cache, its batches and its speculation give what the model alone would."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.confidence import chance_of, of_mean, of_share
from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.engine import TextRequest, TinyEngine
from course.tinylm.model import TinyConfig, TinyLM
from course.tinylm.speculation import CountedDraft, judged, speculate
from course.tinylm.text import (
    CHOICES,
    LETTERS,
    decode,
    encode,
    is_sentence,
    make_text,
    nats_per_letter,
    write_line,
)
from course.tinylm.training import fresh, kept_file, train_steps, trained
from millstream.core.errors import CourseError, PoolFull

SMALL = TinyConfig(layers=2, width=16, heads=4, kv_heads=2, ffn=16)


def small_lm() -> TinyLM:
    torch.manual_seed(0)
    return TinyLM(SMALL).requires_grad_(requires_grad=False)


def test_text_is_of_known_letters_and_its_least_loss_is_that_of_its_choices() -> None:
    text = make_text(20, seed=1)
    assert decode(encode(text)) == text
    assert all(is_sentence(line) for line in text.strip("\n").split("\n"))
    assert not is_sentence("two red boats drift past")
    lines = {write_line(words) for words in product(*CHOICES)}
    assert len(lines) == math.prod(map(len, CHOICES)), "no two choices make the same line"
    assert nats_per_letter() * sum(len(line) + 1 for line in lines) == pytest.approx(
        math.log(len(lines)) * len(lines)
    )


def test_the_model_is_small_and_sees_no_letter_before_its_turn() -> None:
    assert sum(each.numel() for each in fresh().parameters()) <= 2_000_000
    lm = small_lm()
    tokens = torch.randint(len(LETTERS), (1, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 8:] = 3
    assert torch.equal(lm(tokens)[0, :8], lm(changed)[0, :8])
    assert not torch.equal(lm(tokens)[0, 8], lm(changed)[0, 8])


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 7),
    st.lists(st.tuples(st.sampled_from(["grow", "fork", "cut"]), st.integers(1, 6)), max_size=9),
)
def test_a_text_in_pages_is_read_as_if_it_were_alone_whatever_was_forked_and_cut(
    page: int, moves: list[tuple[str, int]]
) -> None:
    lm = small_lm()
    cache = PagedCache(SMALL, pages=200, page_tokens=page)
    draw = Random(0)
    texts = [(CachedText(), list[int]())]
    for move, count in [("grow", 3), *moves, ("grow", 2)]:
        text, tokens = texts[draw.randrange(len(texts))]
        if move == "fork":
            texts.append((cache.fork(text), list(tokens)))
        elif move == "cut":
            cache.cut(text, max(0, len(tokens) - count))
            del tokens[max(0, len(tokens) - count) :]
        else:
            new = [draw.randrange(len(LETTERS)) for _ in range(count)]
            tokens += new
            found = lm(torch.tensor([new]), cache.grow([text], count))[0, -1]
            assert torch.allclose(found, lm(torch.tensor([tokens]))[0, -1], atol=1e-4)
    for text, _ in texts:
        cache.cut(text, 0)
    assert cache.used_pages == 0, "no page is left behind"


def test_who_shares_a_batch_is_answered_as_alone_and_who_does_not_fit_waits() -> None:
    lm = small_lm()
    prompts = ["one", "two red", "three golden boats"]

    def answers(most_running: int, pages: int) -> list[str]:
        engine = TinyEngine(lm, pages=pages, page_tokens=4, most_running=most_running)
        asked = [TextRequest(prompt=prompt, most_letters=6, seed=seed) for seed, prompt in enumerate(prompts)]
        for request in asked:
            engine.add(request)
        engine.run()
        assert engine.cache.used_pages == 0
        return [request.answer for request in asked]

    assert answers(1, 8) == answers(3, 30) == answers(3, 8)


def test_a_full_pool_says_what_to_do() -> None:
    with pytest.raises(PoolFull, match="give the cache more pages"):
        PagedCache(SMALL, pages=1, page_tokens=4).grow([CachedText()], 5)


def test_speculation_with_a_sure_model_writes_what_the_model_would() -> None:
    lm = small_lm()
    with torch.no_grad():
        lm.norm.weight.mul_(1000)  # one letter has all the probability
    plain, ahead = (
        speculate(lm, CountedDraft(order=2, lines=20), "\ntwo", 12, count, seed=0) for count in (0, 3)
    )
    assert ahead.tokens[: len(plain.tokens)] == plain.tokens
    assert plain.calls == len(plain.tokens) - 4


@given(st.integers(0, 10_000))
@settings(max_examples=3, deadline=None)
def test_letters_come_out_as_the_model_wants_them_whatever_the_draft(seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, 6, generator=made, dtype=torch.float64)
    p = p / p.sum()
    q = q / q.sum()
    counts = [0] * 6
    for letter in torch.multinomial(q, 3000, replacement=True, generator=made).tolist():
        counts[judged([letter], [q], [p, p], made)[0]] += 1
    assert chance_of(counts, [3000 * float(each) for each in p]) > 1e-6


def test_training_lowers_the_loss() -> None:
    losses = [step.loss for step in train_steps(small_lm().requires_grad_(requires_grad=True), steps=6)]
    assert losses[0] == pytest.approx(math.log(len(LETTERS)), rel=0.1)
    assert losses[-1] < losses[0]


def test_a_kept_model_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path))
    kept_file().write_bytes(b"nothing")
    with pytest.raises(CourseError, match="delete it and it is made anew"):
        trained()


def test_intervals_are_those_of_the_tables() -> None:
    assert of_share(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)
    assert of_mean([1.0, 2.0, 3.0, 4.0]) == pytest.approx((0.446, 4.554), abs=1e-2)
    assert chance_of([60, 40], [50, 50]) == pytest.approx(0.0455, abs=1e-3)
