"""The UMT5 encoder and its tokenizer, through transformers.

A prompt's real tokens are encoded; the rest of the fixed length is zeros, as Wan was trained.
Shapes: B batch, S text tokens, E text width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from millstream.core.config import TextConfig
from millstream.core.errors import WeightsError


class Tokenizer(Protocol):
    def ids(self, text: str, limit: int) -> list[int]: ...


class ByteTokenizer:
    """UTF-8 bytes as tokens: what untrained weights are given, where no vocabulary exists."""

    END = 1
    OFFSET = 3

    def ids(self, text: str, limit: int) -> list[int]:
        return [byte + self.OFFSET for byte in text.encode()[: limit - 1]] + [self.END]


class UMT5Tokenizer:
    """A tokenizer folder as published with the weights."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError) as error:
            raise WeightsError(f"no tokenizer can be read from {folder}: {_first_line(error)}") from None

    def ids(self, text: str, limit: int) -> list[int]:
        return list(self._tokenizer(" ".join(text.split()), truncation=True, max_length=limit)["input_ids"])


class UMT5Embedder:
    """One text to its embedding [1, S, E]."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, *, tokens: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.tokens = tokens

    def __call__(self, text: str) -> Tensor:
        ids = torch.tensor([self.tokenizer.ids(text, self.tokens)], device=next(self.model.parameters()).device)
        real_BSE = self.model(input_ids=ids).last_hidden_state
        padded_BSE = real_BSE.new_zeros(1, self.tokens, real_BSE.shape[-1])
        padded_BSE[:, : real_BSE.shape[1]] = real_BSE
        return padded_BSE

    def unknown(self, text: str) -> list[str]:
        """UMT5 knows every language in some measure; nothing is left out."""
        return []


def build_umt5(config: TextConfig) -> nn.Module:
    """The encoder on the device in force (meta, before it is filled)."""
    from transformers import UMT5Config, UMT5EncoderModel

    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=config.vocabulary,
            d_model=config.width,
            d_kv=config.head_width,
            d_ff=config.ffn,
            num_layers=config.layers,
            num_heads=config.heads,
            relative_attention_num_buckets=config.position_buckets,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
        )
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
