"""What a person is told of a run is what it does: tokens, FLOPs and their share of the device's, memory, time
without rows."""

from __future__ import annotations

import pytest
import torch

from millstream.commands.train.shown import model_flops, peak_tflops, progress_line
from millstream.core.chunk_work import block_products
from millstream.core.presets import find_model
from millstream.planner.hardware import DEVICES
from millstream.train.finetune.meter import TuningReport
from millstream.train.sequence import ChunkedSequence, teacher_forced

DIT = find_model("wan2.1-t2v-1.3b").dit


def report(tokens: int, pairs: float, *, seconds: float = 2.0) -> TuningReport:
    losses = {"flow": 0.25, "norm": 1.5, "skipped": 0.0}
    return TuningReport(
        step=9,
        total=20,
        losses=losses,
        lr=1e-4,
        seconds=seconds,
        steps=5,
        tokens=tokens,
        pairs=pairs,
        waited_s=0.05,
    )


def flops_by_hand(tokens: int, keys: int) -> int:
    """Of a forward pass: every product of every block, and its attention to video and text."""
    products = sum(
        2 * each.rows * each.inner * each.outer * each.count for each in block_products(DIT, tokens)
    )
    attention = 2 * 2 * tokens * DIT.width * (keys + DIT.text_tokens)
    return DIT.layers * (products + attention)


def test_the_models_flops_are_those_of_its_products_forward_and_twice_backward() -> None:
    tokens = 32_760
    keys = 12_000
    found = report(tokens, tokens * keys)
    assert model_flops(DIT, found, lora=False) == 3 * flops_by_hand(tokens, keys)
    assert model_flops(DIT, found, lora=True) == 2 * flops_by_hand(tokens, keys)


def test_clips_of_several_sizes_cost_what_each_costs() -> None:
    """Of two steps with other sizes the sum, from counts alone."""
    total = 0.0
    tokens = 0
    pairs = 0.0
    for size in ((8, 8), (8, 16)):
        sequence = ChunkedSequence(teacher_forced(range(3), 3, 9), DIT, size, torch.device("cpu"))
        total += 3 * flops_by_hand(sequence.num_tokens, round(sequence.keys_per_query))
        tokens += sequence.num_tokens
        pairs += sequence.num_tokens * sequence.keys_per_query
    assert model_flops(DIT, report(tokens, pairs), lora=False) == pytest.approx(total, rel=1e-3)


def test_the_line_says_speed_utilisation_memory_and_time_without_rows() -> None:
    flops = 0.4 * 4 * 2.0 * 989e12  # what four GPUs at 40% do in two seconds
    line = progress_line(report(32_760, 1.0), flops, ranks=4, peak=989.0, peak_bytes=12 << 30)
    assert line == "flow 0.25  norm 1.5  16,380 tokens/s  1,582 TFLOP/s  MFU 40%  12.0 GiB  data 2%"
    assert "MFU" not in progress_line(report(1, 1.0), flops, ranks=4, peak=None, peak_bytes=0)


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_a_gpu_is_known_by_its_name(name: str) -> None:
    assert peak_tflops(f"NVIDIA {name} 80GB HBM3") == DEVICES[name.lower()].bf16_tflops
    assert peak_tflops("a device that nobody knows") is None
