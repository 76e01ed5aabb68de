"""A decoder of the usual kind: norms before, rotary positions, grouped queries, a gated feed-forward.

One device. What it remembers of the past is behind `TokenMemory`; without one a whole text is read at once.
Shapes: B rows, L new tokens, T tokens attended to, D width, N heads of queries, G heads of keys, H head
width, V letters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from course.tinylm.text import LETTERS


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyConfig:
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    """Heads of keys and values: each serves several of queries, and the cache is smaller by that factor."""
    ffn: int = 128

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers, in float32."""
        return 2 * self.layers * self.kv_heads * self.head_width * 4


class TokenMemory(Protocol):
    """Keys and values of tokens that were read before."""

    positions_BL: Tensor
    """Positions of the new tokens."""
    mask_BLT: Tensor
    """Mask of what each new token may attend to, over what `extend` returned."""

    def extend(self, layer: int, k_BLGH: Tensor, v_BLGH: Tensor) -> tuple[Tensor, Tensor]:
        """Store these, and return all keys and values: [B, T, G, H] each."""
        ...


class TinyAttention(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        keys = config.kv_heads * config.head_width
        self.qkv = nn.Linear(config.width, config.width + 2 * keys, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self, x_BLD: Tensor, turn: tuple[Tensor, Tensor], layer: int, memory: TokenMemory | None
    ) -> Tensor:
        config = self.config
        (rows, length) = x_BLD.shape[:2]
        keys = config.kv_heads * config.head_width
        q, k, v = (
            part.view(rows, length, -1, config.head_width)
            for part in self.qkv(x_BLD).split([config.width, keys, keys], dim=-1)
        )
        q = rotated(q, turn)
        k = rotated(k, turn)
        mask = None
        if memory is not None:
            k, v = memory.extend(layer, k, v)
            mask = memory.mask_BLT[:, None]
        seen = functional.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=memory is None,
            enable_gqa=True,
        )
        out: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return out


class TinyBlock(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.norm_attention = nn.RMSNorm(config.width)
        self.norm_ffn = nn.RMSNorm(config.width)
        self.attention = TinyAttention(config)
        self.up = nn.Linear(config.width, 2 * config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.width, bias=False)

    def forward(
        self, x_BLD: Tensor, turn: tuple[Tensor, Tensor], layer: int, memory: TokenMemory | None
    ) -> Tensor:
        x_BLD = x_BLD + self.attention(self.norm_attention(x_BLD), turn, layer, memory)
        gate, value = self.up(self.norm_ffn(x_BLD)).chunk(2, dim=-1)
        out: Tensor = x_BLD + self.down(functional.silu(gate) * value)
        return out


class TinyLM(nn.Module):
    __call__: Callable[..., Tensor]

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.letters = nn.Embedding(len(LETTERS), config.width)
        self.blocks = nn.ModuleList(TinyBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.05)

    def forward(self, tokens_BL: Tensor, memory: TokenMemory | None = None) -> Tensor:
        """Return logits of the letter after each token, [B, L, V]."""
        return functional.linear(self.read(tokens_BL, memory), self.letters.weight)

    def read(self, tokens_BL: Tensor, memory: TokenMemory | None = None) -> Tensor:
        """Return the model's state at each token, [B, L, D]."""
        positions = torch.arange(tokens_BL.shape[1])[None] if memory is None else memory.positions_BL
        turn = turns(positions.to(tokens_BL.device), self.config.head_width)
        x_BLD = self.letters(tokens_BL)
        for layer, block in enumerate(self.blocks):
            x_BLD = block(x_BLD, turn, layer, memory)
        read: Tensor = self.norm(x_BLD)
        return read


def turns(positions_BL: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, [B, L, 1, H/2]."""
    rates = 1000.0 ** (-torch.arange(0, head_width, 2, device=positions_BL.device) / head_width)
    angles = (positions_BL[..., None] * rates)[:, :, None]
    return angles.cos(), angles.sin()


def rotated(x_BLNH: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = turn
    first, second = x_BLNH.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
