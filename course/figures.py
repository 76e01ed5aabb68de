"""Numbers within sentences: `reads 14<!-- = weights_7b_gb --> GB`. The comment names what is computed here
and written in front of it: by the planner's formulas, from a card's data, from what a chapter's own code
holds.

Neither a browser nor a code host shows the comment. What was measured stands in the output of its script,
never in a sentence.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from course.chapters.lab_ddp import judge as lab_ddp
from course.chapters.lab_precision import before_and_after as precision_run
from course.chapters.lab_precision import judge as lab_precision
from course.chapters.lab_processes import judge as lab_processes
from course.tinylm.model import TinyConfig, TinyLM
from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import GIB, SPATIAL_STRIDE, TEMPORAL_STRIDE, pixel_frames
from millstream.core.errors import CourseError
from millstream.core.presets import find_model
from millstream.planner.bubbles import bubble
from millstream.planner.footprint import PROCESS_BYTES
from millstream.planner.hardware import DEVICES, NETWORK, NVLINK4, PCIE5
from millstream.planner.language.decoders import find_decoder
from millstream.planner.training import PRECISIONS, Sharding, training_state

FIGURE = re.compile(r"(?P<value>\d[\d,.]*(?:e-?\d+)?)<!-- = (?P<name>\w+) -->")
_MARK = "<!-- = "
H200 = DEVICES["h200"]
LLAMA_70B = find_decoder("70b")
BROOK = find_model("brook")
WAN = find_model("wan2.1-t2v-1.3b")
WEIGHT, GRADIENT, OPTIMISER = PRECISIONS["mixed"]
HALF = torch.finfo(torch.float16)
BRAIN = torch.finfo(torch.bfloat16)
CHUNK = pixel_frames(1, WAN.stream.frames_per_chunk)


def _weights(billions: float, trained: int | None = 0) -> float:
    """GB of a model in bf16; with gradients and optimiser where all of it is trained."""
    return training_state(int(billions * 1e9), Sharding(zero=0), trained=trained).total / 1e9


def _tolerance(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


FIGURES = {
    "h200_tb_s": f"{H200.bandwidth_tb_s:g}",
    "nvlink_gb_s": f"{NVLINK4.beta_gb_s:g}",
    "pcie_gb_s": f"{PCIE5.beta_gb_s:g}",
    "network_gb_s": f"{NETWORK.beta_gb_s:g}",
    "process_gib": f"{PROCESS_BYTES / GIB:g}",
    "weights_7b_gb": f"{_weights(7):g}",
    "read_7b_ms": f"{_weights(7) / H200.bandwidth_tb_s:.1f}",
    "used_by_one_text_percent": f"{100 * H200.bandwidth_tb_s / H200.bf16_tflops:.1f}",
    "four_models_7b_gb": f"{2 * _weights(7, None) + 2 * _weights(7):g}",
    "tiny_parameters": f"{sum(each.numel() for each in TinyLM(TinyConfig()).parameters()):,}",
    "grouped_70b_times": f"{LLAMA_70B.heads / LLAMA_70B.kv_heads:g}",
    "eight_texts_70b_gib": f"{8 * LLAMA_70B.kv_bytes(32 * 1024) / GIB:g}",
    "eight_texts_70b_percent": f"{100 * 8 * LLAMA_70B.kv_bytes(32 * 1024) / (2 * LLAMA_70B.parameters):.0f}",
    "wan_frame_tokens": f"{tokens_per_frame(WAN.dit, WAN.stream):,}",
    "wan_height": f"{WAN.stream.height}",
    "wan_width": f"{WAN.stream.width}",
    "adam_bytes": f"{WEIGHT + GRADIENT + OPTIMISER:g}",
    "adam_float32_bytes": f"{sum(PRECISIONS['fp32']):g}",
    "weight_bytes": f"{WEIGHT}",
    "gradient_bytes": f"{GRADIENT}",
    "optimiser_bytes": f"{OPTIMISER:g}",
    "beside_optimiser_bytes": f"{WEIGHT + GRADIENT}",
    "beside_weight_bytes": f"{GRADIENT + OPTIMISER:g}",
    "float16_digits": f"{1 - torch.tensor(HALF.eps).log2():.0f}",
    "float16_lost": _tolerance(HALF.smallest_normal * HALF.eps / 2),
    "float16_largest": f"{HALF.max:.0f}",
    "bfloat16_digits": f"{1 - torch.tensor(BRAIN.eps).log2():.0f}",
    "bfloat16_lost": f"{int(1e3 * BRAIN.eps / 2) / 1e3:g}",
    "lab_precision_gradient": _tolerance(lab_precision.TINY),
    "lab_precision_off_percent": f"{100 * lab_precision.OFF:g}",
    "lab_precision_wide": f"{lab_precision.WIDE:g}",
    "lab_precision_updates": f"{lab_precision.UPDATES}",
    "lab_precision_update": f"{lab_precision.UPDATE:.4f}",
    "lab_precision_updated": f"{1 - lab_precision.UPDATES * lab_precision.UPDATE:g}",
    "lab_precision_loss_weight": _tolerance(precision_run.WEIGHT),
    "lab_processes_off": _tolerance(lab_processes.OFF),
    "lab_ddp_off": _tolerance(lab_ddp.OFF),
    "spatial_stride": f"{SPATIAL_STRIDE}",
    "temporal_stride": f"{TEMPORAL_STRIDE}",
    "first_frame_lacks": f"{TEMPORAL_STRIDE - pixel_frames(0, 1)}",
    "latents_times_fewer": f"{3 * TEMPORAL_STRIDE * SPATIAL_STRIDE**2 / BROOK.dit.channels:g}",
    "first_chunk_pictures": f"{pixel_frames(0, WAN.stream.frames_per_chunk)}",
    "chunk_pictures": f"{CHUNK}",
    "noise_level": f"{WAN.stream.steps[0]:g}",
    "calls": f"{len(WAN.stream.steps) + 1}",
    "brook_calls": f"{len(BROOK.stream.steps) + 1}",
    "rate": f"{WAN.stream.fps:g}",
    "chunk_plays_s": f"{CHUNK / WAN.stream.fps:g}",
    "gpipe_waits_percent": f"{100 * bubble('gpipe', 8, 4 * 8):.0f}",
}


def with_figures(text: str) -> str:
    """A page with every figure as it is today."""
    written, count = FIGURE.subn(lambda found: f"{_value(found['name'])}{_MARK}{found['name']} -->", text)
    if count != text.count(_MARK):
        raise CourseError(
            f"{text.count(_MARK) - count} marks {_MARK}NAME --> have no number in front of them"
        )
    return written


def without_marks(text: str) -> str:
    """As the site shows it."""
    return FIGURE.sub(lambda found: found["value"], text)


def write_figures(page: Path) -> None:
    page.write_text(with_figures(page.read_text(encoding="utf-8")), encoding="utf-8")


def _value(name: str) -> str:
    if name not in FIGURES:
        raise CourseError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}")
    return FIGURES[name]
