"""Brook's text encoder: words it was taught, a small transformer, zeros where the prompt has ended.

Knows its words by the vocabulary it was built with; a word it never saw is left out, and can be asked for.
Shapes: B batch, S text tokens, E text width.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.config import BrookTextConfig
from millstream.ops.attention import attend

PAD = 0
"""Token 0; word i of the vocabulary is token i + 1."""


class WordTokenizer:
    """Lower-case words of a closed vocabulary."""

    def __init__(self, vocabulary: tuple[str, ...]) -> None:
        self.vocabulary = vocabulary
        self._ids = {word: number for number, word in enumerate(vocabulary, start=1)}

    def ids(self, text: str, limit: int) -> list[int]:
        return [self._ids[word] for word in words(text) if word in self._ids][:limit]

    def unknown(self, text: str) -> list[str]:
        """Words that will be left out, each once, in order."""
        return list(dict.fromkeys(word for word in words(text) if word not in self._ids))


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
