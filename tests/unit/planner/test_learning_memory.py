"""What a step holds for its way back, by every way to recompute, against the planner: live bytes, operation
by operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from millstream.core.config import Recompute
from millstream.core.presets import MODELS
from millstream.models import dit as dit_module
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.live_bytes import LiveBytes
from millstream.ops.rope import Phases
from millstream.planner.training import activation_bytes
from millstream.train.parallel.recompute import prepare_blocks

pytestmark = pytest.mark.slow

FRAMES = 63  # so many that activations are more than gradients
TOKENS = 1560


def fused(q_BLNH: Tensor, k_BWNH: Tensor, v_BWNH: Tensor, bias: Tensor | None = None) -> Tensor:
    """The kernel itself, which torch chooses on no meta device."""
    q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BWNH, v_BWNH))
    out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]
    return out.transpose(1, 2)


class SeenAtOnce:
    def __init__(self, head_width: int) -> None:
        self.phases = Phases(*torch.zeros(2, FRAMES * TOKENS, 1, head_width // 2))

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> None: ...

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        return fused(q_BLNH, k_BLNH, v_BLNH)


def peak_of(layers: int, recompute: Recompute) -> int:
    config = replace(MODELS["wan2.1-t2v-1.3b"].dit, layers=layers)
    with torch.device("meta"):
        dit = CausalDiT(config).to(torch.bfloat16)
        prepare_blocks(dit, recompute)
        x = torch.zeros(1, FRAMES, TOKENS, config.width, dtype=torch.bfloat16, requires_grad=True)
        levels: Any = torch.zeros(1, FRAMES, 6, config.width, dtype=torch.bfloat16)
        prompt = layers * (
            torch.zeros(1, config.text_tokens, config.heads, config.head_width, dtype=torch.bfloat16),
        )
        memory = SeenAtOnce(config.head_width)
        cross = CrossKV(prompt, prompt)
        with LiveBytes() as live:
            dit.blocks(x, levels, memory, cross).sum().backward()
    return live.peak


@pytest.mark.parametrize("recompute", get_args(Recompute))
def test_each_block_keeps_what_is_planned(recompute: Recompute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dit_module, "attend", fused)
    kept = (peak_of(5, recompute) - peak_of(3, recompute)) / 2
    assert activation_bytes(
        MODELS["wan2.1-t2v-1.3b"].dit, FRAMES * TOKENS, recompute=recompute
    ) == pytest.approx(kept, rel=0.05)
