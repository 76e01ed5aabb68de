"""Ranks that share a model read it in the memory of their share and a few blocks, and learn from the same
weights."""

from __future__ import annotations

from dataclasses import replace

import torch

from millstream.core.config import DiTConfig
from millstream.core.presets import MODELS
from millstream.models.live_bytes import LiveBytes
from millstream.models.registry import load_dit
from millstream.train.parallel.groups import create_training_groups
from millstream.train.parallel.learner import make_learner
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.task import StepOptions, TrainingTask
from millstream.train.sequence import ChunkedSequence, diffusion_forced
from tests.dist.ranks import run_ranks
from tests.soak.train_equality import mean_square

CONFIG = DiTConfig(
    layers=12, width=32, heads=2, ffn=96, channels=4, text_width=16, text_tokens=4, time_features=32
)
SPEC = replace(MODELS["wan-tiny"], dit=CONFIG)
PLACE = dict(device=torch.device("cpu"), dtype=torch.float32)
PLANS = {
    "ZeRO 3": ParallelPlan(dp=2, data="zero3"),
    "FSDP2": ParallelPlan(dp=2, data="fsdp"),
    "tensor": ParallelPlan(tp=2),
    "pipeline": ParallelPlan(pp=2, micro_batches=2),
}


def read(rank: int) -> dict[str, int]:
    """The most bytes that were there while a rank read and shared out, by plan; weights are compared on the
    way."""
    expected = dict(load_dit(SPEC, ["random:1"], **PLACE).named_parameters())
    sequence = ChunkedSequence(diffusion_forced(3, 2, 4), CONFIG, (4, 4), torch.device("cpu"))
    peaks = dict[str, int]()
    for name, plan in PLANS.items():
        groups = create_training_groups(plan, torch.device("cpu"))
        with LiveBytes("cpu") as live:
            dit = load_dit(SPEC, ["random:1"], **PLACE, later=lambda each: each.startswith("blocks."))
            dit.requires_grad_(requires_grad=True)
            learner = make_learner(
                TrainingTask(
                    dit=dit,
                    sequence=sequence,
                    latent_size=(4, 4),
                    loss=mean_square,
                    plan=plan,
                    groups=groups,
                    options=StepOptions(),
                )
            )
        peaks[name] = live.peak
        found = learner.weights()
        assert found.keys() == expected.keys(), name
        assert all(torch.equal(found[each], weight) for each, weight in expected.items()), name
    return peaks


def test_a_rank_that_trains_reads_its_share_and_a_few_blocks() -> None:
    dit = load_dit(SPEC, ["random:1"], **PLACE)
    whole, blocks = (4 * sum(each.numel() for each in part.parameters()) for part in (dit, dit.blocks))
    outside = whole - blocks
    block = blocks / CONFIG.layers
    for peaks in run_ranks(read, 2):
        for name, peak in peaks.items():
            held = outside + blocks / 2
            assert held * 0.8 < peak < held + outside + 4 * block < whole, (
                f"{name}: {peak} bytes for {held} of {whole}"
            )
