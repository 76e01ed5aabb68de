"""Wan's encoder on one GPU, one way beside the other; and pictures by the small decoder for previews.

    python -m benchmarks.encoder                     # 480x832, results/encoder-480x832.json
    python -m benchmarks.encoder --size 320x576

The plain encoder, the fast one with the library's convolutions and with our own: a chunk of input frames, and
one picture that starts an epoch, which is what an anchor is. Weights are random; the small decoder's too, in
the public files' size.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.decoder import FRAMES, timed
from benchmarks.report import write_report
from millstream.core.config import SPATIAL_STRIDE, parse_size, pixel_frames
from millstream.core.presets import find_model
from millstream.core.speed import Speed
from millstream.models.fast.apply import accelerate
from millstream.models.registry import load_model
from millstream.models.wan.tiny_decoder import TinyDecoder, TinyDecoderConfig
from millstream.models.weights.fill import fill_random

GPU = torch.device("cuda")
BF16 = torch.bfloat16


@torch.inference_mode()
def encodes(model: str, size: tuple[int, int]) -> dict[str, dict[str, float]]:
    """Milliseconds, and how far the latents are from the plain encoder's."""
    spec = find_model(model)
    small = replace(spec, dit=replace(spec.dit, layers=1))  # only the VAE is of interest
    pixels = torch.rand(1, pixel_frames(1, FRAMES), 3, *size, device=GPU).mul(2).sub(1).to(BF16)
    first = pixels[:, :1]
    found: dict[str, dict[str, float]] = {}
    plain_latents: Tensor | None = None
    for name, speed in {
        "plain": Speed(),
        "library convolutions": Speed(decoder=True),
        "own convolution": Speed(decoder=True, own_convolution=True),
    }.items():
        vae = accelerate(load_model(small, ("random",), device=GPU, dtype=BF16), speed).vae
        _, state = vae.encode(first)
        latents = vae.encode(pixels, state)[0].float()
        plain_latents = latents if plain_latents is None else plain_latents
        found[name] = {
            "chunk_ms": timed(lambda: vae.encode(pixels, state)),  # noqa: B023
            "picture_ms": timed(lambda: vae.encode(first)),  # noqa: B023
            "off_by": float((latents - plain_latents).norm() / plain_latents.norm()),
        }
    return found


@torch.inference_mode()
def preview_ms(size: tuple[int, int]) -> float:
    with torch.device("meta"):
        tiny = TinyDecoder(TinyDecoderConfig())
    fill_random(tiny, seed=0, device=GPU, dtype=BF16)
    nn.utils.convert_conv2d_weight_memory_format(tiny, torch.channels_last)
    latents = torch.randn(
        1, FRAMES, tiny.config.channels, *(side // SPATIAL_STRIDE for side in size), device=GPU, dtype=BF16
    )
    _, state = tiny.decode(latents)
    return timed(lambda: tiny.decode(latents, state))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="wan2.1-t2v-1.3b")
    parser.add_argument("--size", default="480x832")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("error: encoders are compared on a CUDA GPU; none is here")
    size = parse_size(options.size)
    measured = {"encode": encodes(options.model, size), "preview_decode_ms": preview_ms(size)}
    write_report(f"encoder-{options.size}", vars(options), measured)


if __name__ == "__main__":
    main()
