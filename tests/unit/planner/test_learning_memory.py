"""What a step holds for its way back, by every way to recompute, against the planner: live bytes, operation by operation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from benchmarks.report import RESULTS
from benchmarks.train_memory import CASES as EACH
from benchmarks.train_memory import CONFIG, WAYS, beside_plan, live_bytes, names_of_missed, planned_bytes
from benchmarks.train_step import CASES, off_plan, planned
from millstream.core.config import Recompute
from millstream.core.presets import MODELS
from millstream.models import dit as dit_module
from millstream.models.dit import CausalDiT, CrossKV
from millstream.ops.rope import Phases
from millstream.parallel.training.recompute import prepare_blocks
from millstream.planner.training import activation_bytes
from tests.unit.live_bytes import LiveBytes

pytestmark = pytest.mark.slow

FRAMES, TOKENS = 63, 1560  # so many that activations are more than gradients


@pytest.mark.parametrize("name", ["one process", "LoRA", "masters"])
@pytest.mark.parametrize("recompute", get_args(Recompute))
def test_a_step_holds_what_is_planned(recompute: Recompute, name: str) -> None:
    """`python -m benchmarks.train_memory` does the same on ranks."""
    way, config = WAYS[name], replace(CONFIG, layers=2)
    assert live_bytes(0, way, recompute, config) == pytest.approx(planned_bytes(way, recompute, config), rel=0.05)


def test_ranks_hold_what_the_planner_says_now() -> None:
    """What was measured is in the result; `python -m benchmarks.train_memory` measures again."""
    found = [beside_plan(each) for each in json.loads((RESULTS / "train_memory.json").read_text())["measured"]["rows"]]
    rows = {(each["plan"], each["shape"], each["recompute"]) for each in found}
    assert rows == {(way, *case) for way in WAYS for case in EACH}
    assert names_of_missed(found) == []


def test_a_gpu_takes_the_time_and_memory_that_the_planner_says_now() -> None:
    """What was measured is in the result; `python -m benchmarks.train_step` measures again."""
    found = json.loads((RESULTS / "train_step.json").read_text())["measured"]["cases"]
    assert off_plan({name: case | planned(CASES[name]) for name, case in found.items()}) == []


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
        prompt = layers * (torch.zeros(1, config.text_tokens, config.heads, config.head_width, dtype=torch.bfloat16),)
        memory, cross = SeenAtOnce(config.head_width), CrossKV(prompt, prompt)
        with LiveBytes() as live:
            dit.blocks(x, levels, memory, cross).sum().backward()
    return live.peak


@pytest.mark.parametrize("recompute", get_args(Recompute))
def test_each_block_keeps_what_is_planned(recompute: Recompute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dit_module, "attend", fused)
    kept = (peak_of(5, recompute) - peak_of(3, recompute)) / 2
    assert activation_bytes(MODELS["wan2.1-t2v-1.3b"].dit, FRAMES * TOKENS, recompute=recompute) == pytest.approx(
        kept, rel=0.05
    )
