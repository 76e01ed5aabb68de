"""The encoder half of UMT5, under the names its checkpoints have:
`encoder.block.0.layer.0.SelfAttention.q.weight` and so on.

One text at a time, none of it padding, so there is no mask. Positions are a bias on the scores, by how far
apart two tokens are, and each layer has its own; scores are not scaled. Knows no tokenizer.
Shapes: B batch, S text tokens, E text width, N heads, H head width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from millstream.core.config import TextConfig

FURTHEST = 128
"""Tokens this far apart, or further, share a bucket."""
EPS = 1e-6


class UMT5Norm(nn.Module):
    """RMS in float32, rounded before the weight multiplies it: as it was trained, so not
    `ops.norms.rms_norm`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BSE: Tensor) -> Tensor:
        scale = torch.rsqrt(x_BSE.float().pow(2).mean(-1, keepdim=True) + EPS)
        return self.weight * (x_BSE * scale).to(x_BSE.dtype)


class UMT5Attention(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_width
        self.head_width = config.head_width
        self.q, self.k, self.v = (nn.Linear(config.width, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, config.width, bias=False)
        self.relative_attention_bias = nn.Embedding(config.position_buckets, config.heads)

    def forward(self, x_BSE: Tensor, buckets_SS: Tensor) -> Tensor:
        q, k, v = (
            part(x_BSE).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        bias_NSS = self.relative_attention_bias(buckets_SS).permute(2, 0, 1)[None].contiguous()
        found_BNSH = F.scaled_dot_product_attention(q, k, v, attn_mask=bias_NSS, scale=1.0)
        return self.o(found_BNSH.transpose(1, 2).flatten(2))


class UMT5Gated(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.wi_0, self.wi_1 = (nn.Linear(config.width, config.ffn, bias=False) for _ in range(2))
        self.wo = nn.Linear(config.ffn, config.width, bias=False)

    def forward(self, x_BSE: Tensor) -> Tensor:
        return self.wo(_gelu(self.wi_0(x_BSE)) * self.wi_1(x_BSE))


class UMT5Encoder(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocabulary, config.width)
        blocks = nn.ModuleList(nn.ModuleDict({"layer": _layers(config)}) for _ in range(config.layers))
        self.encoder = nn.ModuleDict({"block": blocks, "final_layer_norm": UMT5Norm(config.width)})

    def forward(self, ids_BS: Tensor) -> Tensor:
        """[B, S, E]."""
        buckets_SS = position_buckets(ids_BS.shape[1], self.config.position_buckets, ids_BS.device)
        blocks: Any = self.encoder["block"]
        x_BSE = self.shared(ids_BS)
        for block in blocks:
            attention, mlp = block["layer"]
            x_BSE = x_BSE + attention["SelfAttention"](attention["layer_norm"](x_BSE), buckets_SS)
            x_BSE = x_BSE + mlp["DenseReluDense"](mlp["layer_norm"](x_BSE))
        return self.encoder["final_layer_norm"](x_BSE)


def _layers(config: TextConfig) -> nn.ModuleList:
    attention = nn.ModuleDict({"SelfAttention": UMT5Attention(config), "layer_norm": UMT5Norm(config.width)})
    mlp = nn.ModuleDict({"DenseReluDense": UMT5Gated(config), "layer_norm": UMT5Norm(config.width)})
    return nn.ModuleList([attention, mlp])


def position_buckets(tokens: int, num_buckets: int, device: torch.device) -> Tensor:
    """Which bucket the distance from each token (row) to each other one (column) is in.

    A half of the buckets looks back, a half ahead; of each, half are single distances and the others widen up
    to `FURTHEST`.
    """
    places = torch.arange(tokens, device=device)
    ahead_SS = places[None, :] - places[:, None]
    distance = ahead_SS.abs()
    side = num_buckets // 2
    single = side // 2
    share = torch.log(distance.float() / single) / math.log(
        FURTHEST / single
    )  # -inf at 0, which is a single distance
    wide = (single + (share.clamp(min=0.0) * (side - single)).long()).clamp(max=side - 1)
    return torch.where(distance < single, distance, wide) + side * (ahead_SS > 0)


def _gelu(x: Tensor) -> Tensor:
    """The tanh form, rounded after every operation as in training: torch's own rounds once."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
