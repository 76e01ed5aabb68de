"""Prompts and mixes of prompts to conditioning, with an LRU of embeddings. Knows no text model.

Shapes: S text tokens, E text width.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import msgspec
import torch
from torch import Tensor, nn

from millstream.core.controls import WeightedPrompt
from millstream.core.reading import PromptReading


class Embedder(Protocol):
    @property
    def model(self) -> nn.Module: ...

    def __call__(self, text: str) -> Tensor:
        """[1, S, E]"""

    def read(self, text: str) -> PromptReading:
        """Put a text into words that the model was taught, and say which those are not."""


class PromptEncoder:
    """Holds the embeddings of the last `capacity` texts, no more."""

    def __init__(self, embedder: Embedder, *, capacity: int = 32) -> None:
        self.embedder = embedder
        self.capacity = capacity
        self._recent: OrderedDict[str, Tensor] = OrderedDict()

    def __call__(self, prompts: tuple[WeightedPrompt, ...]) -> Tensor:
        """Conditioning [1, S, E] of a mix: the weighted sum of its texts' embeddings."""
        assert prompts, "a mix has a prompt"
        embeddings = [self.encode(prompt.text) for prompt in prompts]
        if len(prompts) == 1:
            return embeddings[0]
        weighted = [prompt.weight * each.float() for prompt, each in zip(prompts, embeddings, strict=True)]
        return torch.stack(weighted).sum(0).to(embeddings[0].dtype)

    def read(self, prompts: tuple[WeightedPrompt, ...]) -> tuple[WeightedPrompt, ...]:
        """Return the mix in the model's own words: to be encoded in place of what was written."""
        return tuple(
            msgspec.structs.replace(prompt, text=self.embedder.read(prompt.text).text) for prompt in prompts
        )

    @torch.no_grad()
    def encode(self, text: str) -> Tensor:
        if text in self._recent:
            self._recent.move_to_end(text)
            return self._recent[text]
        self._recent[text] = self.embedder(text)
        if len(self._recent) > self.capacity:
            self._recent.popitem(last=False)
        return self._recent[text]
