"""Serves the tiny language model to several readers at once: a queue, a paged cache, and one batched call a
turn.

A request waits until pages for its longest possible text are free, is read in one call (prefill), and then
gets a letter a turn together with all others that are running (decode). Who is done leaves and somebody else
comes in, turn by turn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyLM
from course.tinylm.text import END, decode, encode


@dataclass(eq=False, kw_only=True, slots=True)
class TextRequest:
    prompt: str
    most_letters: int = 60
    seed: int = 0
    temperature: float = 1.0
    text: CachedText = field(default_factory=CachedText)
    written: list[int] = field(default_factory=list)

    @property
    def answer(self) -> str:
        return decode(self.written)

    @property
    def is_done(self) -> bool:
        return len(self.written) >= self.most_letters or self.written[-1:] == [END]


class TinyEngine:
    def __init__(self, lm: TinyLM, *, pages: int = 64, page_tokens: int = 16, most_running: int = 8) -> None:
        self.lm = lm
        self.cache = PagedCache(lm.config, pages=pages, page_tokens=page_tokens)
        self.most_running = most_running
        self.waiting: deque[TextRequest] = deque()
        self.running: list[TextRequest] = []
        self.calls = 0
        """Calls of the model since the engine was made."""

    def add(self, request: TextRequest) -> None:
        self.waiting.append(request)

    @torch.no_grad()
    def turn(self) -> list[TextRequest]:
        """Write one letter for every running request and return the requests that got one."""
        began = list(self._let_in())
        old = [request for request in self.running if request not in began]
        if old:
            last = torch.tensor([[request.written[-1]] for request in old])
            logits = self.lm(last, self.cache.grow([request.text for request in old], 1))[:, -1]
            self.calls += 1
            for request, row in zip(old, logits, strict=True):
                request.written.append(self._draw(request, row))
        got = began + old
        for request in got:
            if request.is_done:
                self.cache.cut(request.text, 0)
                self.running.remove(request)
        return got

    def run(self) -> None:
        """Run turns until no request is left."""
        while self.waiting or self.running:
            assert self.turn(), "nobody got a letter: the first in line needs more pages than there are"

    def _let_in(self) -> list[TextRequest]:
        began = list[TextRequest]()
        while self.waiting and len(self.running) < self.most_running:
            first = self.waiting[0]
            prompt = encode(self.waiting[0].prompt)
            promised = sum(self._still_needs(each) for each in self.running)
            if self.cache.pages_for(len(prompt) + first.most_letters) + promised > self.cache.free_pages:
                break
            self.waiting.popleft()
            logits = self.lm(torch.tensor([prompt]), self.cache.grow([first.text], len(prompt)))[0, -1]
            self.calls += 1
            first.written.append(self._draw(first, logits))
            self.running.append(first)
            began.append(first)
        return began

    def _still_needs(self, request: TextRequest) -> int:
        whole = len(request.prompt) + request.most_letters
        return self.cache.pages_for(whole) - len(request.text.pages)

    def _draw(self, request: TextRequest, logits_V: Tensor) -> int:
        """Draw a letter from the request's own seed and place, so that it does not depend on other
        requests."""
        if request.temperature == 0:
            return int(logits_V.argmax())
        made = torch.Generator().manual_seed(1000003 * request.seed + len(request.written))
        return int(torch.multinomial((logits_V / request.temperature).softmax(-1), 1, generator=made))
