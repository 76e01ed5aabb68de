"""Brook's text encoder: words it was taught, a small transformer, zeros where the prompt has ended.

Knows its words by the vocabulary it was built with. A word it never saw is read as one of those where a table
says so (`word_table.py`), else left out. Tokens are made of a text as it stands: what it is read as is decided
before, once, and written into the chunk's envelope.
Shapes: B batch, S text tokens, E text width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.config import BrookTextConfig
from millstream.core.reading import PromptReading
from millstream.models.brook.word_table import MAX_WORDS
from millstream.ops.attention import attend

PAD = 0
"""Token 0; word i of the vocabulary is token i + 1."""


class WordTokenizer:
    """Lower-case words of a closed vocabulary."""

    def __init__(self, vocabulary: tuple[str, ...], table: Callable[[], Mapping[str, str]] = dict) -> None:
        """`table` is asked for when a text first has a word that is not in the vocabulary."""
        self.vocabulary = vocabulary
        self._table = table
        self._ids = {word: number for number, word in enumerate(vocabulary, start=1)}

    def ids(self, text: str, limit: int) -> list[int]:
        return [self._ids[word] for word in words(text) if word in self._ids][:limit]

    def read(self, text: str) -> PromptReading:
        """Put a text into words of the vocabulary. Known words stay what they are, but within a phrase that
        has others; of several phrases the longest is taken."""
        said = words(text)
        if self._knows(said):
            return PromptReading(text)
        table = self._table()
        read: list[str] = []
        unknown: dict[str, None] = {}
        understood: dict[str, str] = {}
        place = 0
        while place < len(said):
            count, target = self._longest(said[place : place + MAX_WORDS], table)
            name = " ".join(said[place : place + count])
            place += count
            if target is None:
                unknown[name] = None
            else:
                read += target.split()
                if target not in ("", name):
                    understood[name] = target
        return PromptReading(
            " ".join(read) if understood else text, tuple(unknown), tuple(understood.items())
        )

    def _longest(self, said: list[str], table: Mapping[str, str]) -> tuple[int, str | None]:
        """Return of how many words the first name is and what it is read as; None for nothing known."""
        for count in range(len(said), 0, -1):
            first = said[:count]
            if count == 1 and self._knows(first):
                return 1, first[0]
            target = table.get("_".join(first))
            if target is not None and self._knows(target.split()) and not self._knows(first):
                return count, target
        return 1, None

    def _knows(self, said: list[str]) -> bool:
        return all(word in self._ids for word in said)


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


class Layer(nn.Module):
    """Self-attention over a prompt's words, then a small MLP."""

    def __init__(self, config: BrookTextConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 2 * config.width)
        self.down = nn.Linear(2 * config.width, config.width)

    def forward(self, x_BSE: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x_BSE)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x_BSE = x_BSE + self.out(attend(q, k, v, bias).flatten(2))
        return x_BSE + self.down(F.gelu(self.up(self.norm2(x_BSE))))


class BrookText(nn.Module):
    def __init__(self, config: BrookTextConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary + 1, config.width)
        self.position = nn.Parameter(nn.init.normal_(torch.empty(config.tokens, config.width), std=0.02))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, ids_BS: Tensor) -> Tensor:
        """[B, S, E] with zeros at padding. A prompt without words is all zeros."""
        real_BS = ids_BS != PAD
        sees = real_BS | ~real_BS.any(dim=1, keepdim=True)  # no word at all: attend anywhere, zeroed below
        bias = torch.zeros(sees.shape, device=ids_BS.device, dtype=self.position.dtype).masked_fill(
            ~sees, float("-inf")
        )
        x_BSE = self.embedding(ids_BS) + self.position[: ids_BS.shape[1]]
        for layer in self.layers:
            x_BSE = layer(x_BSE, bias[:, None, None])
        return self.norm(x_BSE) * real_BS.unsqueeze(-1)


def padded(tokenizer: WordTokenizer, texts: list[str], tokens: int) -> Tensor:
    """Token ids [B, S]."""
    rows = [tokenizer.ids(text, tokens) for text in texts]
    return torch.tensor([row + [PAD] * (tokens - len(row)) for row in rows], dtype=torch.int64)
