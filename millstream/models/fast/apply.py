"""Hands a loaded model to the fast path, as far as it is asked to and as the model and the device allow.

What does not apply is left plain: a model without Wan's VAE keeps its own.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from millstream.core.errors import DeviceError
from millstream.core.speed import Speed
from millstream.models.brook.files import NOTHING, Beside
from millstream.models.brook.int8 import quantise_blocks, read_ranges
from millstream.models.brook.thin import load_thin_decoder
from millstream.models.dit import CausalDiT
from millstream.models.fast.block import FastHead
from millstream.models.fast.recorded import GraphRecorder, RecordedStack
from millstream.models.fast.spread import ALONE, Spread
from millstream.models.fast.stack import FastStack
from millstream.models.registry import LoadedModel
from millstream.models.wan.fast_vae import FastVAE
from millstream.models.wan.vae import WanVAE
from millstream.ops.backend import has_triton
from millstream.ops.conv3 import find_convolution
from millstream.ops.low_attention import HEAD_WIDTHS

_FP8_CAPABILITY = (9, 0)
"""The first GPUs that multiply e4m3 with a scale a row, and whose tiles a descriptor brings."""


def accelerate(model: LoadedModel, speed: Speed, beside: Beside = NOTHING) -> LoadedModel:
    """Return the model on the fast path. It takes the weights over, so the given model must not be used
    afterwards. `beside` names the files beside Brook's weights that int8 and the thin decoder need."""
    dit = model.dit
    vae = model.vae
    if speed.blocks:
        dit = quicken(dit, speed)
    if speed.decoder and isinstance(vae, WanVAE) and vae.config.has_fast_path:
        own = find_convolution() if speed.own_convolution and vae.unquant.weight.is_cuda else None
        vae = FastVAE(vae, own if model.dtype == torch.bfloat16 else None)
    if speed.int8:
        assert beside.ranges is not None, "bytes need ranges"
        quantise_blocks(dit, read_ranges(beside.ranges))
    if speed.thin_decoder:
        assert beside.thin_decoder is not None, "there is no thin decoder"
        vae.set_submodule("decoder", load_thin_decoder(beside.thin_decoder, model.device, model.dtype))
    return replace(model, dit=dit, vae=vae)


def quicken(dit: CausalDiT, speed: Speed, spread: Spread = ALONE) -> CausalDiT:
    """Put the blocks and the head of a DiT on the fast path, in place, and return it."""
    dit.set_submodule("head", FastHead(dit.head))
    if speed.graphs and dit.patch_in.weight.is_cuda:
        recorder = spread.recorder(GraphRecorder(dit.patch_in.weight.device))
        dit.set_submodule("blocks", RecordedStack(dit.blocks, speed, recorder, spread))
    else:
        dit.set_submodule("blocks", FastStack(dit.blocks, speed, spread))
    return dit


def refuse_impossible(speed: Speed, device: torch.device, dtype: torch.dtype, head_width: int) -> None:
    """Raise if `speed` asks for something that this device cannot do."""
    if speed.fp8:
        _refuse_without_fp8(device, dtype)
    if speed.low_attention:
        _refuse_without_low_attention(device, dtype, head_width)


def _refuse_without_fp8(device: torch.device, dtype: torch.dtype) -> None:
    if device.type != "cuda":
        return  # computed in float32 from e4m3 numbers: slow, and good for looking at what e4m3 costs
    if torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise DeviceError(
            f"{torch.cuda.get_device_name(device)} cannot multiply in fp8; use --precision bf16"
        )
    if dtype != torch.bfloat16:
        raise DeviceError("fp8 products come out in bfloat16; use --dtype bfloat16 or --precision bf16")


def _refuse_without_low_attention(device: torch.device, dtype: torch.dtype, head_width: int) -> None:
    if device.type != "cuda":
        return  # the same rounding in float32: slow, and good for looking at what it costs
    if not has_triton():
        raise DeviceError(
            "low_attention is written in Triton; install it, or leave low_attention out of --fast"
        )
    if torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise DeviceError(
            f"{torch.cuda.get_device_name(device)} cannot attend in 8 bits; leave low_attention out of --fast"
        )
    if dtype != torch.bfloat16 or head_width not in HEAD_WIDTHS:
        widths = ", ".join(map(str, HEAD_WIDTHS))
        raise DeviceError(
            f"low_attention is for bfloat16 and heads of {widths}, not {dtype} and {head_width}; leave it "
            "out of --fast"
        )
