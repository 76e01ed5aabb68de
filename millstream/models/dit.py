"""A causal diffusion transformer over video latents, as in Wan 2.1.

One device, one chunk at a time. Self-attention sees whatever its `Memory` returns: a session's ring when
streaming, a masked sequence when training. `parallel/` shards it from outside; nothing here knows about
ranks.
Shapes: B batch, F frames, T tokens a frame, L = F*T chunk tokens, D width, N heads, H head width, C latent
channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.config import DiTConfig
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.kv import Memory
from millstream.models.typed_modules import TypedModuleList
from millstream.ops.attention import attend
from millstream.ops.norms import layer_norm, rms_norm
from millstream.ops.rope import rotate


@dataclass(frozen=True, slots=True)
class CrossKV:
    """Keys and values of a prompt for every layer: computed once per conditioning, read by every call."""

    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        assert len(self.k) == len(self.v), f"keys of {len(self.k)} layers and values of {len(self.v)}"

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.k, *self.v))

    def to(self, device: torch.device) -> CrossKV:
        return CrossKV(tuple(k.to(device) for k in self.k), tuple(v.to(device) for v in self.v))


class RMSNorm(nn.Module):
    """RMS norm over the full width, all heads together: the reason tensor parallelism needs one small
    collective."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """The projections that self- and cross-attention share."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.o = nn.Linear(config.width, config.width)
        self.norm_q = RMSNorm(config.width, config.eps)
        self.norm_k = RMSNorm(config.width, config.eps)

    def query(self, x_BLD: Tensor) -> Tensor:
        return self.norm_q(self.q(x_BLD)).unflatten(-1, (self.heads, -1))

    def key_value(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        k = self.norm_k(self.k(x_BLD)).unflatten(-1, (self.heads, -1))
        return k, self.v(x_BLD).unflatten(-1, (self.heads, -1))


class SelfAttention(Attention):
    def remember(self, x_BLD: Tensor, layer: int, memory: Memory) -> None:
        """Write this chunk's keys and values to memory, and attend to nothing."""
        k, v = self.key_value(x_BLD)
        memory.write(layer, rotate(k, memory.phases), v)

    def forward(self, x_BLD: Tensor, layer: int, memory: Memory) -> Tensor:
        k, v = self.key_value(x_BLD)
        q = rotate(self.query(x_BLD), memory.phases)
        return self.o(memory.attend(layer, q, rotate(k, memory.phases), v).flatten(2))


class CrossAttention(Attention):
    def forward(self, x_BLD: Tensor, k_BSNH: Tensor, v_BSNH: Tensor) -> Tensor:
        return self.o(attend(self.query(x_BLD), k_BSNH, v_BSNH).flatten(2))


class MLP(nn.Module):
    """Up, activate, down."""

    def __init__(self, inner: int, hidden: int, outer: int, activation: str) -> None:
        super().__init__()
        self.up = nn.Linear(inner, hidden)
        self.down = nn.Linear(hidden, outer)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        return self.down(F.silu(hidden) if self.activation == "silu" else F.gelu(hidden, approximate="tanh"))


class Block(nn.Module):
    """Self-attention to the window, cross-attention to the prompt, and an MLP; each frame is modulated by its
    own noise level."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.modulation = _modulation(6, config.width)
        self.self_attn = SelfAttention(config)
        self.cross_norm = nn.LayerNorm(config.width, eps=config.eps)
        self.cross_attn = CrossAttention(config)
        self.ffn = MLP(config.width, config.ffn, config.width, "gelu")

    def forward(
        self, x_BFTD: Tensor, levels_BF6D: Tensor, layer: int, memory: Memory, cross: CrossKV
    ) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self._modulations(levels_BF6D)
        attended = self.self_attn(self._modulated(x_BFTD, shift1, scale1).flatten(1, 2), layer, memory)
        x_BFTD = x_BFTD + attended.view_as(x_BFTD) * gate1
        asked = self.cross_attn(self.cross_norm(x_BFTD).flatten(1, 2), cross.k[layer], cross.v[layer])
        x_BFTD = x_BFTD + asked.view_as(x_BFTD)
        return x_BFTD + self.ffn(self._modulated(x_BFTD, shift2, scale2)) * gate2

    def remember(self, x_BFTD: Tensor, levels_BF6D: Tensor, layer: int, memory: Memory) -> None:
        """Write this layer's keys and values to memory, and compute nothing else."""
        shift, scale, *_ = self._modulations(levels_BF6D)
        self.self_attn.remember(self._modulated(x_BFTD, shift, scale).flatten(1, 2), layer, memory)

    def _modulations(self, levels_BF6D: Tensor) -> tuple[Tensor, ...]:
        return (self.modulation + levels_BF6D).unsqueeze(3).unbind(2)

    def _modulated(self, x_BFTD: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return layer_norm(x_BFTD, self.eps) * (1 + scale) + shift


class PatchEmbedding(nn.Module):
    """One linear map per patch of latent cells."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.patch = config.patch
        self.weight = nn.Parameter(
            torch.empty(config.width, config.channels_in, 1, config.patch, config.patch)
        )
        self.bias = nn.Parameter(torch.zeros(config.width))
        nn.init.normal_(self.weight, std=(config.channels_in * config.patch**2) ** -0.5)

    def forward(self, latents_BFCYX: Tensor) -> Tensor:
        p = self.patch
        cells = latents_BFCYX.unflatten(-2, (-1, p)).unflatten(-1, (-1, p))  # B F C rows p columns p
        tokens = cells.permute(0, 1, 3, 5, 2, 4, 6).flatten(4).flatten(2, 3)
        return F.linear(tokens, self.weight.flatten(1), self.bias)


class Head(nn.Module):
    """From tokens back to latent cells."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        self.modulation = _modulation(2, config.width)
        self.proj = nn.Linear(config.width, config.patch**2 * config.channels)

    def forward(self, x_BFTD: Tensor, time_BFD: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.unpatch(self.project(x_BFTD, time_BFD), grid)

    def project(self, x_BFTD: Tensor, time_BFD: Tensor) -> Tensor:
        """Each token's cells, by itself, [B, F, T, cells]."""
        shift, scale = (self.modulation + time_BFD.unsqueeze(2)).unsqueeze(3).unbind(2)
        return self.proj(layer_norm(x_BFTD, self.config.eps) * (1 + scale) + shift)

    def unpatch(self, cells: Tensor, grid: tuple[int, int]) -> Tensor:
        """The cells of all tokens in their places."""
        p = self.config.patch
        cells = cells.unflatten(2, grid).unflatten(-1, (p, p, self.config.channels))  # B F rows columns p p C
        return cells.permute(0, 1, 6, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)


class Embedded(NamedTuple):
    """A chunk as the blocks take it."""

    x_BFTD: Tensor
    time_BFD: Tensor
    levels_BF6D: Tensor
    grid: tuple[int, int]
    """Tokens of a frame, height x width."""


class BlockStack(TypedModuleList[Block]):
    """Blocks one after the other; layers are numbered from the first of them, in memory and prompt alike."""

    def forward(self, x_BFTD: Tensor, levels_BF6D: Tensor, memory: Memory, cross: CrossKV) -> Tensor:
        for layer, block in enumerate(self):
            x_BFTD = block(x_BFTD, levels_BF6D, layer, memory, cross)
        return x_BFTD

    def remember(self, x_BFTD: Tensor, levels_BF6D: Tensor, memory: Memory, cross: CrossKV) -> None:
        """Leave keys and values; the last layer stops at its own."""
        *body, last = self
        for layer, block in enumerate(body):
            x_BFTD = block(x_BFTD, levels_BF6D, layer, memory, cross)
        last.remember(x_BFTD, levels_BF6D, len(body), memory)


class CausalDiT(nn.Module):
    """Predicts the flow (noise minus clean latents) of one chunk."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_in = PatchEmbedding(config)
        self.text_in = MLP(config.text_width, config.width, config.width, "gelu")
        self.time_in = MLP(config.time_features, config.width, config.width, "silu")
        self.time_out = nn.Linear(config.width, 6 * config.width)
        self.blocks = BlockStack(Block(config) for _ in range(config.layers))
        self.head = Head(config)

    @property
    def cached_layers(self) -> int:
        """Layers whose keys and values it writes."""
        return len(self.blocks)

    @property
    def cached_heads(self) -> int:
        """Heads whose keys and values it writes."""
        return next(iter(self.blocks)).self_attn.heads

    def forward(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor:
        """Flow at noise level `level_BF` (0 to 1000) of each frame. Writes the chunk's keys and values into
        `memory`."""
        x, time, levels, grid = self.embed(latents_BFCYX, level_BF, entries)
        return self.head(self.blocks(x, levels, memory, cross), time, grid)

    def commit(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> None:
        """Leave the chunk's keys and values in `memory` and predict nothing: the last layer stops at its
        keys."""
        x, _, levels, _ = self.embed(latents_BFCYX, level_BF, entries)
        self.blocks.remember(x, levels, memory, cross)

    def read_prompt(self, text_BSE: Tensor) -> CrossKV:
        """Keys and values of a prompt for every layer."""
        return prompt_of_blocks(self.blocks, self.text_in(text_BSE))

    def embed(self, latents_BFCYX: Tensor, level_BF: Tensor, entries: Entries = NO_ENTRIES) -> Embedded:
        """A chunk as the blocks take it. All that enters beside it enters here: the blocks know of none."""
        assert level_BF.shape == latents_BFCYX.shape[:2], (
            f"levels of {tuple(level_BF.shape)} frames for latents {tuple(latents_BFCYX.shape)}"
        )
        x_BFTD = self.patch_in(self._with_channels(latents_BFCYX, entries.channels_BFCYX))
        time_BFD = self.time_in(time_features(level_BF, self.config.time_features).to(x_BFTD.dtype))
        if entries.patch_BFTD is not None:
            x_BFTD = x_BFTD + entries.patch_BFTD.to(x_BFTD.dtype)
        if entries.time_BFD is not None:
            time_BFD = time_BFD + entries.time_BFD.to(time_BFD.dtype)
        levels_BF6D = self.time_out(F.silu(time_BFD)).unflatten(-1, (6, -1))
        grid = latents_BFCYX.shape[-2] // self.config.patch, latents_BFCYX.shape[-1] // self.config.patch
        return Embedded(x_BFTD, time_BFD, levels_BF6D, grid)

    def _with_channels(self, latents_BFCYX: Tensor, channels_BFCYX: Tensor | None) -> Tensor:
        """Latents with the channels that enter beside them; zeros where none are given."""
        count = self.config.entry_channels
        if not count:
            assert channels_BFCYX is None, "channels enter a DiT that has no place for them"
            return latents_BFCYX
        batch, frames, _, rows, columns = latents_BFCYX.shape
        if channels_BFCYX is None:
            channels_BFCYX = latents_BFCYX.new_zeros(batch, frames, count, rows, columns)
        beside = channels_BFCYX.to(latents_BFCYX.dtype).expand(batch, frames, count, rows, columns)
        return torch.cat([latents_BFCYX, beside], dim=2)


def prompt_of_blocks(blocks: Iterable[Block], text_BSD: Tensor) -> CrossKV:
    """Keys and values of a prompt for each of these layers."""
    pairs = [block.cross_attn.key_value(text_BSD) for block in blocks]
    return CrossKV(tuple(k for k, _ in pairs), tuple(v for _, v in pairs))


def time_features(level: Tensor, count: int) -> Tensor:
    """Cosines and sines of a noise level at geometrically spaced frequencies, float32."""
    assert count % 2 == 0, f"cosines and sines come in pairs, got {count} features"
    half = count // 2
    frequencies = torch.exp(
        -math.log(10000.0) * torch.arange(half, device=level.device, dtype=torch.float64) / half
    )
    angle = level.to(torch.float64).unsqueeze(-1) * frequencies
    return torch.cat([angle.cos(), angle.sin()], dim=-1).float()


def _modulation(num_vectors: int, width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(1, num_vectors, width), std=width**-0.5))
