"""Our DiT against diffusers' WanTransformer3DModel, and chunks over the ring against one masked forward of
it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT
from millstream.models.wan.layouts import translation
from tests.unit.models_for_tests import DIT, dit, relative_error, ring

if TYPE_CHECKING:
    from diffusers import WanTransformer3DModel

TOLERANCE = 1e-4


def reference_of(model: CausalDiT) -> WanTransformer3DModel:
    from diffusers import WanTransformer3DModel  # seconds, and who collects tests would pay them too

    c = model.config
    reference = WanTransformer3DModel(
        num_attention_heads=c.heads,
        attention_head_dim=c.head_width,
        in_channels=c.channels,
        out_channels=c.channels,
        text_dim=c.text_width,
        freq_dim=c.time_features,
        ffn_dim=c.ffn,
        num_layers=c.layers,
        rope_max_seq_len=64,
    )
    names = translation("dit", "diffusers", model.state_dict())
    reference.load_state_dict({names[name]: weight for name, weight in model.state_dict().items()})
    return reference.eval().requires_grad_(False)


class MaskedProcessor:
    """diffusers' own self-attention, told which tokens may see which."""

    def __init__(self, processor: object, mask: Tensor) -> None:
        self.processor = processor
        self.mask = mask

    def __call__(
        self, attn: object, hidden_states: Tensor, _text: None, _mask: None, rotary_emb: object
    ) -> Tensor:
        return self.processor(attn, hidden_states, None, self.mask, rotary_emb)


def masked_forward(
    reference: WanTransformer3DModel,
    latents: Tensor,
    levels: Tensor,
    text: Tensor,
    mask_FF: Tensor,
    tokens: int,
) -> Tensor:
    """One forward over a whole sequence with per-frame levels and a frame-by-frame mask."""
    mask = mask_FF.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)[None, None]
    kept = [block.attn1.processor for block in reference.blocks]
    for block in reference.blocks:
        block.attn1.set_processor(MaskedProcessor(block.attn1.processor, mask))
    out = reference(latents.transpose(1, 2), levels.repeat_interleave(tokens, 1), text).sample.transpose(1, 2)
    for block, processor in zip(reference.blocks, kept, strict=True):
        block.attn1.set_processor(processor)
    return out


def window_mask(frames: int, chunk: int, window: int, sink: int) -> Tensor:
    """Which frame sees which: its chunk, the sink, and the newest of the window."""
    mask = torch.zeros(frames, frames, dtype=torch.bool)
    for frame in range(frames):
        end = (frame // chunk + 1) * chunk
        for key in range(end):
            mask[frame, key] = key < sink or key >= end - (window - sink)
    return mask


CONFIGS = {
    "small": DIT,
    "wide": DiTConfig(layers=2, width=96, heads=3, ffn=160, channels=16, text_width=32, text_tokens=12),
    "head of 128": DiTConfig(
        layers=1, width=256, heads=2, ffn=300, channels=16, text_width=64, text_tokens=5
    ),
    "48 channels": DiTConfig(
        layers=2, width=96, heads=4, ffn=448, channels=48, text_width=32, text_tokens=12
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [(3, 8, 12), (1, 4, 4), (4, 10, 6)])
def test_one_call_equals_the_reference(name: str, size: tuple[int, int, int]) -> None:
    config, (frames, rows, columns) = CONFIGS[name], size
    model = dit(config)
    reference = reference_of(model)
    latents = torch.randn(1, frames, config.channels, rows, columns)
    text = torch.randn(1, 512, config.text_width)
    memory = ring(config, (rows // 2, columns // 2), window=frames)
    memory.place(list(range(frames)))
    found = model(latents, torch.full((1, frames), 937.5), memory, model.read_prompt(text))
    expected = reference(latents.transpose(1, 2), torch.tensor([937.5]), text).sample.transpose(1, 2)
    assert relative_error(found, expected) <= TOLERANCE


@pytest.mark.slow
def test_each_frame_has_its_own_noise_level() -> None:
    model = dit()
    latents = torch.randn(1, 3, 4, 8, 12)
    text = torch.randn(1, 7, 24)
    levels = torch.tensor([[0.0, 300.0, 1000.0]])
    memory = ring(DIT, (4, 6), window=3)
    memory.place([0, 1, 2])
    found = model(latents, levels, memory, model.read_prompt(text))
    everything = torch.ones(3, 3, dtype=torch.bool)
    assert (
        relative_error(found, masked_forward(reference_of(model), latents, levels, text, everything, 24))
        <= TOLERANCE
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chunk", "window", "sink"),
    [(3, 12, 0), (3, 6, 0), (3, 9, 3), (1, 4, 2), (2, 7, 1), (3, 8, 1), (2, 5, 3)],
)
def test_chunks_over_the_ring_equal_one_masked_forward(chunk: int, window: int, sink: int) -> None:
    model = dit()
    grid = (2, 3)
    tokens = 6
    chunks = 5
    reference = reference_of(model)
    clean = torch.randn(1, chunk * chunks, 4, 4, 6)
    noisy = torch.randn_like(clean)
    text = torch.randn(1, 7, 24)
    memory = ring(DIT, grid, window, sink)
    cross = model.read_prompt(text)
    for number in range(chunks):
        frames = slice(number * chunk, (number + 1) * chunk)
        memory.place(list(range(frames.start, frames.stop)))
        model(
            torch.randn(1, chunk, 4, 4, 6), torch.full((1, chunk), 1000.0), memory, cross
        )  # an earlier, noisier step
        found = model(noisy[:, frames], torch.full((1, chunk), 700.0), memory, cross)
        model.commit(clean[:, frames], torch.zeros(1, chunk), memory, cross)

        sequence = torch.cat([clean[:, : frames.start], noisy[:, frames]], dim=1)
        levels = torch.zeros(1, frames.stop)
        levels[:, frames] = 700.0
        mask = window_mask(frames.stop, chunk, window, sink)
        expected = masked_forward(reference, sequence, levels, text, mask, tokens)[:, frames]
        assert relative_error(found, expected) <= TOLERANCE, f"chunk {number}"


def test_a_commit_leaves_the_keys_a_full_call_would() -> None:
    model = dit()
    latents = torch.randn(1, 3, 4, 8, 12)
    level = torch.zeros(1, 3)
    cross = model.read_prompt(torch.randn(1, 7, 24))
    full, short = (ring(DIT, (4, 6), window=6) for _ in range(2))
    for memory, call in ((full, model), (short, model.commit)):
        memory.place([0, 1, 2])
        call(latents, level, memory, cross)
    assert torch.equal(full.k, short.k)
    assert torch.equal(full.v, short.v)
