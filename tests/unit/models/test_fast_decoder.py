"""The fast decoder against the plain one, on the twins of its kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from millstream.core.config import VAEConfig
from millstream.models.wan.decoder import four_phases, tap_rows
from millstream.models.wan.fast_vae import FastVAE
from millstream.ops.conv3 import PAST, SLICES, build, packed
from millstream.ops.pictures import sum_taps, woven
from tests.unit.models_for_tests import VAE, relative_error, vae
from tests.unit.rim_convolution import RimConvolution

pytestmark = pytest.mark.slow

SPLITS = [(3, 3), (1, 1, 2), (2, 3, 1), (1, 3, 3)]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize(
    "config", [VAE, VAEConfig(width=8, res_blocks=1, channels=16)], ids=["small", "wider"]
)
def test_any_split_decodes_to_the_plain_frames(config: VAEConfig, split: tuple[int, ...]) -> None:
    model = vae(config)
    latents = torch.randn(1, sum(split), config.channels, 4, 6)
    state = ()
    parts = []
    expected, end = model.decode(latents)
    fast = FastVAE(model)
    for part in latents.split(split, dim=1):
        frames, state = fast.decode(part, state)
        parts.append(frames)
    assert relative_error(torch.cat(parts, dim=1), expected) <= 1e-5
    assert all(
        relative_error(found, wanted) <= 1e-5
        for found, wanted in zip(state, end, strict=True)
        if wanted.any()
    )


def test_a_stream_may_change_between_fast_and_plain_at_any_chunk() -> None:
    model = vae()
    latents = torch.randn(1, 9, 4, 4, 6)
    expected, _ = model.decode(latents)
    fast = FastVAE(model)
    first, state = fast.decode(latents[:, :3])
    second, state = model.decode(latents[:, 3:6], state)
    third, _ = fast.decode(latents[:, 6:], state)
    assert relative_error(torch.cat([first, second, third], dim=1), expected) <= 1e-5


def test_two_futures_of_one_past_do_not_touch_each_other() -> None:
    fast = FastVAE(vae())
    _, state = fast.decode(torch.randn(1, 3, 4, 4, 6))
    kept = [tail.clone() for tail in state]
    one, other = torch.randn(2, 1, 3, 4, 4, 6).unbind(0)
    before, _ = fast.decode(one, state)
    fast.decode(other, state)
    after, _ = fast.decode(one, state)
    assert torch.equal(before, after)
    assert all(torch.equal(a, b) for a, b in zip(kept, state, strict=True))


def test_four_phases_equal_doubling_and_convolving() -> None:
    x = torch.randn(2, 3, 4, 5)
    weight = torch.randn(6, 3, 3, 3)
    expected = F.conv2d(F.interpolate(x, scale_factor=2.0, mode="nearest-exact"), weight, padding=1)
    phases = F.conv2d(x, four_phases(weight), padding=1).permute(0, 2, 3, 1).unflatten(-1, (4, -1))
    assert relative_error(woven(phases).permute(0, 3, 1, 2), expected) <= 1e-6


def test_taps_summed_equal_the_convolution() -> None:
    x = torch.randn(1, 5, 4, 6, 7)
    weight = 0.05 * torch.randn(3, 5, 3, 3, 3)
    bias = 0.1 * torch.randn(3)
    expected = F.conv3d(x, weight, bias, padding=(0, 1, 1))[0].clamp(-1, 1)
    canvas = F.pad(x, (1, 1, 1, 1))[0].permute(1, 2, 3, 0).contiguous()
    planes = (tap_rows(weight) @ canvas.flatten(0, 2).t()).unflatten(-1, canvas.shape[:3])
    assert relative_error(sum_taps(planes, bias, 4 - PAST), expected) <= 1e-6


def test_another_convolution_serves_where_it_can() -> None:
    model = vae()
    own = RimConvolution()
    latents = torch.randn(1, 6, 4, 4, 6)
    expected, _ = model.decode(latents)
    fast = FastVAE(model, own)
    first, state = fast.decode(latents[:, :3])
    second, _ = fast.decode(latents[:, 3:], state)
    assert relative_error(torch.cat([first, second], dim=1), expected) <= 1e-5
    assert own.calls > 20


@pytest.mark.parametrize("channels", SLICES)
def test_a_packed_weight_holds_every_tap_where_the_kernel_looks(channels: int) -> None:
    weight = torch.randn(channels, channels, 3, 3, 3)
    slice_ = SLICES[channels]
    found = packed(weight)
    assert found.is_contiguous()
    for t, s, y, x, k, o, e in [
        (0, 0, 0, 0, 0, 0, 0),
        (2, 1, 0, 2, 1, 7, 3),
        (1, channels // slice_ - 1, 2, 1, 0, 90, 7),
    ]:
        assert found[t, s, y, x, k, o, e] == weight[o, s * slice_ + 8 * k + e, t, y, x]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_our_convolution_builds_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    library = build()
    built_at = library.stat().st_mtime_ns
    assert build() == library
    assert library.stat().st_mtime_ns == built_at
