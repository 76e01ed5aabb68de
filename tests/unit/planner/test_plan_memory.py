"""What networks hold at their fullest moment, counted op by op on the meta device, against the planner's
formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from millstream.core.config import GIB, BrookVAEConfig, DiTConfig, StreamConfig, VAEConfig
from millstream.core.presets import MODELS
from millstream.core.topology import Topology
from millstream.models import dit as dit_module
from millstream.models import kv
from millstream.models.brook.vae import BrookVAE
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.live_bytes import LiveBytes
from millstream.models.wan.vae import WanVAE
from millstream.ops.rope import Phases
from millstream.planner.fast_memory import canvas_bytes, fast_decode_peak, rounding_bytes
from millstream.planner.footprint import KEY_MULTIPLE, device_needs, rank_parameters
from millstream.planner.hardware import find_device
from millstream.planner.memory import dit_parameters, memory_need
from millstream.planner.peaks import decode_peak, dit_peak, encode_peak, tiled_decode_peak, vae_state_bytes
from millstream.planner.software import SOFTWARE
from millstream.planner.workload import Workload


class FusedMemory:
    """Attention as a fused kernel leaves it: an answer and no scores."""

    def __init__(self, tokens: int, head_width: int) -> None:
        self.phases = Phases(torch.zeros(tokens, 1, head_width // 2), torch.zeros(tokens, 1, head_width // 2))

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> None: ...

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        return torch.empty_like(q_BLNH)


def live_bytes_of_a_call(config: DiTConfig, stream: StreamConfig, dtype: torch.dtype) -> int:
    rows, columns = stream.latent_size
    tokens = stream.frames_per_chunk * rows * columns // 4
    with torch.device("meta"), torch.no_grad():
        model = CausalDiT(config).to(dtype)
        prompt = tuple(
            torch.zeros(1, config.text_tokens, config.heads, config.head_width, dtype=dtype)
            for _ in range(config.layers)
        )
        latents = torch.zeros(1, stream.frames_per_chunk, config.channels, rows, columns, dtype=dtype)
        level = torch.zeros(1, stream.frames_per_chunk)
        memory = FusedMemory(tokens, config.head_width)
        with LiveBytes() as live:
            model(latents, level, memory, CrossKV(prompt, prompt))
    return live.peak


@pytest.mark.parametrize(
    ("name", "dtype", "ffn"),
    [
        ("wan2.1-t2v-14b", torch.bfloat16, None),
        ("wan2.1-t2v-1.3b", torch.bfloat16, None),
        ("wan2.1-t2v-1.3b", torch.bfloat16, 1536),
        ("brook", torch.float32, None),
    ],
)
def test_a_call_holds_what_is_predicted(
    name: str, dtype: torch.dtype, ffn: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dit_module, "attend", lambda q, k, v, bias=None: torch.empty_like(q))
    spec = MODELS[name]
    config = replace(spec.dit, layers=3, ffn=ffn or spec.dit.ffn)
    predicted = dit_peak(config, spec.stream, value_bytes=dtype.itemsize)
    assert predicted == pytest.approx(live_bytes_of_a_call(config, spec.stream, dtype), rel=0.05)


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("wan2.1-t2v-14b", torch.bfloat16),
        ("wan2.2-ti2v-5b", torch.bfloat16),
        ("wan2.2-ti2v-5b", torch.float32),
        ("brook", torch.float32),
    ],
)
def test_a_vae_holds_and_keeps_what_is_predicted(name: str, dtype: torch.dtype, frames: int) -> None:
    spec = MODELS[name]
    size = dtype.itemsize
    stream = spec.stream
    with torch.device("meta"), torch.no_grad():
        vae = (BrookVAE if isinstance(spec.vae, BrookVAEConfig) else WanVAE)(spec.vae).to(dtype)
        latents = torch.zeros(1, frames, spec.vae.channels, *stream.latent_size, dtype=dtype)
        pixels = torch.zeros(1, 4 * frames, 3, stream.height, stream.width, dtype=dtype)
        _, decoder_tails = vae.decode(latents[:, :1])
        _, encoder_tails = vae.encode(pixels[:, :1])
        with LiveBytes() as decoding:
            vae.decode(latents, decoder_tails)
        with LiveBytes() as encoding:
            vae.encode(pixels, encoder_tails)
    assert decode_peak(spec.vae, stream, frames=frames, value_bytes=size) == pytest.approx(
        decoding.peak, rel=0.02
    )
    assert encode_peak(spec.vae, stream, frames=frames, value_bytes=size) == pytest.approx(
        encoding.peak, rel=0.02
    )
    kept = sum(tail.numel() * size for tail in decoder_tails)
    assert vae_state_bytes(spec.vae, stream, value_bytes=size) == kept
    both = kept + sum(tail.numel() * size for tail in encoder_tails)
    assert vae_state_bytes(spec.vae, stream, value_bytes=size, encodes=True) == both


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize(("name", "tile"), [("wan2.1-t2v-14b", 256), ("brook", 128)])
def test_decoding_by_tiles_holds_one_of_them_and_all_pictures(name: str, tile: int, frames: int) -> None:
    spec = MODELS[name]
    size = 4
    stream = spec.stream
    with torch.device("meta"), torch.no_grad():
        vae = (BrookVAE if isinstance(spec.vae, BrookVAEConfig) else WanVAE)(spec.vae).float()
        latents = torch.zeros(1, frames, spec.vae.channels, tile // 8, tile // 8)
        _, tails = vae.decode(latents[:, :1])
        with LiveBytes() as live:
            pictures = torch.zeros(1, 4 * frames, 3, stream.height, stream.width)
            pictures[..., :tile, :tile] = vae.decode(latents, tails)[0]
    predicted = tiled_decode_peak(spec.vae, stream, frames=frames, value_bytes=size, tile=tile)
    assert predicted == pytest.approx(live.peak, rel=0.03)
    assert predicted < decode_peak(spec.vae, stream, frames=frames, value_bytes=size)


def test_one_rank_of_one_holds_the_whole_model_and_two_hold_half_of_all_but_cross_attention() -> None:
    dit = MODELS["wan2.1-t2v-14b"].dit
    assert sum(rank_parameters(dit, Topology())) == dit_parameters(dit)
    products, rest = rank_parameters(dit, Topology())
    cross = dit.layers * 2 * dit.width**2
    assert rank_parameters(dit, Topology.parse("front+tp2")) == ((products - cross) // 2 + cross, rest)
    assert rank_parameters(dit, Topology.parse("front+pp2"))[0] == products // 2
    assert rank_parameters(dit, Topology.parse("sp2")) == (products, rest)


def test_a_local_device_holds_the_sum_of_its_parts() -> None:
    spec = MODELS["wan2.1-t2v-14b"]
    device = find_device("H200")
    (need,) = device_needs(Workload(spec=spec, stream=spec.stream), device, Topology())
    lasting = memory_need(spec, spec.stream, value_bytes=2)
    held = need.fixed["DiT weights"] + need.fixed["text encoder"] + need.fixed["VAE weights"]
    assert held == lasting.weight_bytes
    filled_up = need.per_session["window"] - lasting.window_bytes
    assert 0 <= filled_up < KEY_MULTIPLE * 2 * spec.dit.layers * spec.dit.width * 2
    assert need.per_session["prompt"] == lasting.prompt_bytes
    assert need.bytes_for(3) - need.bytes_for(2) == sum(need.per_session.values())
    assert need.fixed["text encoder"] / GIB == pytest.approx(10.6, abs=0.1)


def test_sessions_that_fit_do_fit_and_one_more_does_not() -> None:
    spec = MODELS["wan2.1-t2v-1.3b"]
    device = find_device("H100")
    (need,) = device_needs(Workload(spec=spec, stream=spec.stream), device, Topology())
    most = need.sessions_in(device.memory_bytes)
    assert need.bytes_for(most) <= device.memory_bytes < need.bytes_for(most + 1)


def test_keys_are_counted_in_the_multiples_that_rings_are_made_for() -> None:
    assert KEY_MULTIPLE == kv.KEY_MULTIPLE


def test_canvases_grow_with_the_picture_and_are_none_without_the_fast_decoder() -> None:
    spec = MODELS["wan2.1-t2v-1.3b"]
    device = find_device("H200")
    size = dict(frames=3, value_bytes=2, encodes=False)
    small, large = (
        canvas_bytes(spec.vae, replace(spec.stream, height=side, width=side), **size)  # type: ignore[arg-type]
        for side in (256, 512)
    )
    assert 3.8 < large / small < 4.0, "but for the rims"
    plain, fast = (
        device_needs(Workload(spec=spec, stream=spec.stream, software=SOFTWARE[name]), device, Topology())[0]
        for name in ("eager", "fast")
    )
    assert "canvases" not in plain.fixed
    assert {"canvases", "recordings", "graph pool"} <= set(fast.fixed)
    assert canvas_bytes(MODELS["brook"].vae, spec.stream, **size) == 0  # type: ignore[arg-type]


def test_the_fast_decoder_works_in_less_than_the_plain_one() -> None:
    spec = MODELS["wan2.1-t2v-1.3b"]
    assert isinstance(spec.vae, VAEConfig)
    fast = fast_decode_peak(spec.vae, spec.stream, frames=3, value_bytes=2)
    plain, turned = (
        decode_peak(spec.vae, spec.stream, frames=3, value_bytes=2, turned=each) for each in (False, True)
    )
    assert fast < plain < turned


def test_a_model_in_fp8_needs_room_for_all_of_it_in_bf16_while_it_is_loaded() -> None:
    spec = MODELS["wan2.1-t2v-14b"]
    device = find_device("H200")
    work = Workload(spec=spec, stream=spec.stream, software=SOFTWARE["fast"])
    (native,), (fp8,) = (
        device_needs(each, device, Topology()) for each in (work, replace(work, precision="fp8"))
    )
    assert fp8.fixed["DiT weights"] < 0.6 * native.fixed["DiT weights"]
    assert fp8.loading >= 2 * dit_parameters(spec.dit) + rounding_bytes(spec.dit)
    assert fp8.sessions_in(fp8.loading - 1) == 0
    assert native.loading == 0
