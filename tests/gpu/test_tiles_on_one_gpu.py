"""A VAE in tiles that are all on one GPU: kernels and our convolution in each, edges traded between their
threads."""

from __future__ import annotations

import pytest
import torch

from millstream.core.config import VAEConfig
from millstream.models.carry import VAE
from millstream.models.wan.fast_vae import FastVAE
from millstream.models.wan.vae import WanVAE
from millstream.ops.conv3 import find_convolution
from millstream.parallel.spatial import SplitVAE
from tests.unit.models_for_tests import relative_error, vae

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

GPU = torch.device("cuda")
BF16 = torch.bfloat16


def plain() -> WanVAE:
    return vae(VAEConfig()).to(GPU, BF16)


@torch.inference_mode()
def streamed(network: VAE, latents: torch.Tensor, pixels: torch.Tensor) -> list[torch.Tensor]:
    """Both ways, in an epoch's first chunk and the next one."""
    shown, past = network.decode(latents[:, :3])
    more, _ = network.decode(latents[:, 3:], past)
    coded, past = network.encode(pixels[:, :9])
    further, _ = network.encode(pixels[:, 9:], past)
    return [each.float() for each in (shown, more, coded, further)]


@pytest.mark.parametrize("count", [2, 4, 6])
@pytest.mark.parametrize("own", [False, True], ids=["library", "own"])
def test_fast_tiles_on_one_gpu_are_the_whole_fast_vae(count: int, own: bool) -> None:
    generator = torch.Generator(GPU).manual_seed(5)
    latents = torch.randn(1, 6, 16, 10, 14, generator=generator, device=GPU).to(BF16)
    pixels = (torch.rand(1, 21, 3, 80, 112, generator=generator, device=GPU) * 2 - 1).to(BF16)
    whole = FastVAE(plain(), find_convolution() if own else None)
    expected = streamed(plain(), latents, pixels)
    alone = streamed(whole, latents, pixels)
    tiles = streamed(SplitVAE(whole, [GPU] * count), latents, pixels)
    for tiled, single, exact in zip(tiles, alone, expected, strict=True):
        assert relative_error(tiled, single) <= 0.03
        assert relative_error(tiled, exact) <= 1.25 * relative_error(single, exact) + 1e-3


@torch.inference_mode()
def test_tiles_go_on_where_the_callers_work_is_queued() -> None:
    """On a stream of its own, behind something slow: whoever read too early would see what was there
    before."""
    tiles = SplitVAE(FastVAE(plain(), find_convolution()), [GPU] * 4)
    beside = torch.cuda.Stream()
    latents = torch.randn(1, 3, 16, 12, 16, device=GPU, dtype=BF16)
    expected, state = tiles.decode(latents)
    after, _ = tiles.decode(latents, state)
    torch.cuda.synchronize()
    for _ in range(3):
        late = torch.zeros_like(latents)
        torch.cuda.synchronize()
        with torch.cuda.stream(beside):
            torch.cuda._sleep(20_000_000)
            late.copy_(latents)
            found, past = tiles.decode(late)
            further, _ = tiles.decode(late, past)
            found = found.clone()
            further = further.clone()
        torch.cuda.synchronize()
        assert relative_error(found.float(), expected.float()) <= 5e-3
        assert relative_error(further.float(), after.float()) <= 5e-3
