"""From a prompt to what the DiT reads: tokenizers, and the UMT5 encoder behind them.

A prompt's real tokens are encoded; the rest of the fixed length is zeros, as Wan was trained.
Shapes: B batch, S text tokens, E text width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from millstream.core.errors import WeightsError
from millstream.core.reading import PromptReading
from millstream.models.wan.umt5 import UMT5Encoder


class Tokenizer(Protocol):
    def ids(self, text: str, limit: int) -> list[int]: ...


class ByteTokenizer:
    """UTF-8 bytes as tokens: what untrained weights are given, where no vocabulary exists."""

    END = 1
    OFFSET = 3

    def ids(self, text: str, limit: int) -> list[int]:
        return [byte + self.OFFSET for byte in text.encode()[: limit - 1]] + [self.END]


class UMT5Tokenizer:
    """A tokenizer folder as published with the weights; of its files, `tokenizer.json` says everything."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer as Tokens  # the engine's core does without

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise WeightsError(
                f"no tokenizer can be read from {folder}: it has no tokenizer.json, which Wan publishes there"
            )
        try:
            self._tokenizer = Tokens.from_file(str(path))
        except Exception as error:  # the library has no class of its own for a broken file
            raise WeightsError(f"no tokenizer can be read from {path}: {_first_line(error)}") from None
        self._tokenizer.no_padding()

    def ids(self, text: str, limit: int) -> list[int]:
        self._tokenizer.enable_truncation(limit)
        return list(self._tokenizer.encode(" ".join(text.split())).ids)


class UMT5Embedder:
    """Embedder of one text at a time, to [1, S, E]."""

    def __init__(self, model: UMT5Encoder, tokenizer: Tokenizer, *, tokens: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.tokens = tokens

    def __call__(self, text: str) -> Tensor:
        ids = torch.tensor(
            [self.tokenizer.ids(text, self.tokens)], device=next(self.model.parameters()).device
        )
        real_BSE = self.model(ids)
        padded_BSE = real_BSE.new_zeros(1, self.tokens, real_BSE.shape[-1])
        padded_BSE[:, : real_BSE.shape[1]] = real_BSE
        return padded_BSE

    def read(self, text: str) -> PromptReading:
        """UMT5 knows every language in some measure; nothing is left out or exchanged."""
        return PromptReading(text)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
