"""Other projects' code for the same models, run here with random weights: their modules, cache and decoder.

Each gives a reason where it cannot run. Attention is the kernel that each of them picks on this machine.
Shapes: F frames a chunk, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import DiTConfig, ModelSpec, StreamConfig, VAEConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Model, stream and device to run."""

    spec: ModelSpec
    stream: StreamConfig
    device: torch.device
    dtype: torch.dtype
    chunks: int

    @property
    def calls(self) -> int:
        """Model calls of a chunk: its steps and the commit."""
        return len(self.stream.steps) + 1

    def latents(self, frames: int) -> Tensor:
        """[1, C, F, Y, X]"""
        return self.random(1, self.spec.dit.channels, frames, *self.stream.latent_size)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype)


class Peer(Protocol):
    name: str

    def why_not(self) -> str:
        """Why it cannot run here; empty if it can."""

    def measure(self, stage: Stage) -> dict[str, Any]:
        """Milliseconds of a chunk with the window full: `calls_ms`, `decode_ms`; and what must be known to
        judge them."""


class Diffusers:
    name = "diffusers"

    def why_not(self) -> str:
        return _missing("diffusers")

    @torch.inference_mode()
    def measure(self, stage: Stage) -> dict[str, Any]:
        return {
            "calls_ms": _timed(_diffusers_call(stage), stage) * stage.calls,
            "decode_ms": _timed(_diffusers_decode(stage, 7), stage)
            - _timed(_diffusers_decode(stage, 4), stage),
            "replaced": "its self-attention over a chunk's own keys, by the same function over the window's",
            "note": "WanTransformer3DModel with the window's keys put under its attention; AutoencoderKLWan, "
            "three latents in the middle of a sequence; it reads the prompt in every call",
            "version": importlib.metadata.version("diffusers"),
        }


class StreamDiffusionV2:
    name = "streamdiffusionv2"

    def why_not(self) -> str:
        return _missing("streamdiffusionv2") or _unimportable(
            "models.wan.causal_model", "models.wan.wan_base.modules.vae"
        )

    @torch.inference_mode()
    def measure(self, stage: Stage) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no flash_attn, in every layer of every call
            calls_ms = _timed(_stream_diffusion_chunk(stage), stage, warm_up=_chunks_to_fill(stage))
        return {
            "calls_ms": calls_ms,
            "decode_ms": _timed(_stream_diffusion_decode(stage), stage, warm_up=2),
            "replaced": "",
            "note": "CausalWanModel over its own cache; its VAE's stream_decode",
            "flash_attn": not _missing("flash_attn") or not _missing("flash_attn_3"),
            "version": importlib.metadata.version("streamdiffusionv2"),
        }


PEERS: tuple[Peer, ...] = (Diffusers(), StreamDiffusionV2())


def _diffusers_call(stage: Stage) -> Callable[[], object]:
    from diffusers import WanTransformer3DModel

    dit = stage.spec.dit
    with torch.device(stage.device):
        model = WanTransformer3DModel(
            num_attention_heads=dit.heads,
            attention_head_dim=dit.head_width,
            in_channels=dit.channels,
            out_channels=dit.channels,
            text_dim=dit.text_width,
            freq_dim=dit.time_features,
            ffn_dim=dit.ffn,
            num_layers=dit.layers,
        )
    model = model.to(stage.dtype).eval()
    latents = stage.latents(stage.stream.frames_per_chunk)
    text = stage.random(1, dit.text_tokens, dit.text_width)
    level = torch.full((1,), 500.0, device=stage.device)
    window = _window(stage)

    def call() -> None:
        with _attending_to(window):
            model(latents, level, text)

    return call


@contextmanager
def _attending_to(window: tuple[Tensor, Tensor]) -> Iterator[None]:
    """Their self-attention over the keys and values of a window, the last of which are the chunk's own."""
    from diffusers.models.transformers import transformer_wan

    theirs: Callable[..., Tensor] = transformer_wan.dispatch_attention_fn
    k_ring, v_ring = window

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if key.shape[1] != query.shape[1]:
            return theirs(query, key, value, **options)
        k_ring[:, -key.shape[1] :] = key
        v_ring[:, -key.shape[1] :] = value
        return theirs(query, k_ring, v_ring, **options)

    transformer_wan.dispatch_attention_fn = attend
    try:
        yield
    finally:
        transformer_wan.dispatch_attention_fn = theirs


def _diffusers_decode(stage: Stage, frames: int) -> Callable[[], object]:
    from diffusers import AutoencoderKLWan

    vae = _vae_config(stage)
    with torch.device(stage.device):
        model = AutoencoderKLWan(base_dim=vae.width, z_dim=vae.channels, num_res_blocks=vae.res_blocks)
    model = model.to(stage.dtype).eval()
    latents = stage.latents(frames)
    return lambda: model.decode(latents)


def _stream_diffusion_chunk(stage: Stage) -> Callable[[], object]:
    from models.wan.causal_model import CausalWanModel  # type: ignore[import-not-found]  # of their checkout

    dit = stage.spec.dit
    frames = stage.stream.frames_per_chunk
    with torch.device(stage.device):
        model: Any = CausalWanModel(
            dim=dit.width,
            ffn_dim=dit.ffn,
            num_heads=dit.heads,
            num_layers=dit.layers,
            text_dim=dit.text_width,
        )
    model = model.to(stage.dtype).eval()
    for block in model.blocks:
        block.self_attn.sink_size = 0
        block.self_attn.adapt_sink_thr = -1
    latents = stage.latents(frames)
    text = stage.random(1, dit.text_tokens, dit.text_width)
    level = torch.full((1, frames), 500.0, device=stage.device)
    caches = _their_caches(stage, dit)
    prompts = [_their_prompt(stage, dit) for _ in range(dit.layers)]
    tokens = frames * tokens_per_frame(dit, stage.stream)
    start = [0]

    def chunk() -> None:
        place = torch.tensor([start[0]], device=stage.device)
        for _ in range(stage.calls):
            model(
                latents,
                t=level,
                context=text,
                seq_len=tokens,
                kv_cache=caches,
                crossattn_cache=prompts,
                current_start=place,
                current_end=place + tokens,
            )
        start[0] += tokens

    return chunk


def _their_caches(stage: Stage, dit: DiTConfig) -> list[dict[str, Any]]:
    def cache() -> dict[str, Any]:
        k, v = _window(stage)
        ends = {
            name: torch.zeros(1, dtype=torch.long, device=stage.device)
            for name in ("global_end_index", "local_end_index")
        }
        return {"k": k, "v": v, **ends, "total_steps": stage.calls, "current_step": stage.calls}

    return [cache() for _ in range(dit.layers)]


def _their_prompt(stage: Stage, dit: DiTConfig) -> dict[str, Any]:
    k, v = (stage.random(1, 512, dit.heads, dit.head_width) for _ in range(2))
    return {"k": k, "v": v, "is_init": False}


def _stream_diffusion_decode(stage: Stage) -> Callable[[], object]:
    from models.wan.wan_base.modules.vae import WanVAE_  # type: ignore[import-not-found]

    vae = _vae_config(stage)
    with torch.device(stage.device):
        model = WanVAE_(
            dim=vae.width,
            z_dim=vae.channels,
            dim_mult=list(vae.multipliers),
            num_res_blocks=vae.res_blocks,
            attn_scales=[],
            temperal_downsample=list(vae.downsample_time),
        )
    model = model.to(stage.dtype).eval()
    model.first_decode = True
    latents = stage.latents(stage.stream.frames_per_chunk)
    return lambda: model.stream_decode(latents, [0.0, 1.0])


def _window(stage: Stage) -> tuple[Tensor, Tensor]:
    dit = stage.spec.dit
    keys = stage.stream.window * tokens_per_frame(dit, stage.stream)
    return stage.random(1, keys, dit.heads, dit.head_width), stage.random(1, keys, dit.heads, dit.head_width)


def _vae_config(stage: Stage) -> VAEConfig:
    assert isinstance(stage.spec.vae, VAEConfig), "peers have Wan's VAE"
    return stage.spec.vae


def _chunks_to_fill(stage: Stage) -> int:
    return -(-stage.stream.window // stage.stream.frames_per_chunk) + 1


def _timed(work: Callable[[], object], stage: Stage, warm_up: int = 2) -> float:
    """Median milliseconds."""
    for _ in range(warm_up):
        work()
    found = []
    for _ in range(stage.chunks):
        _wait(stage.device)
        begun = time.perf_counter()
        work()
        _wait(stage.device)
        found.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(found)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _missing(package: str) -> str:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"the package {package} is not installed"
    return ""


def _unimportable(*modules: str) -> str:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            return f"{module} does not import here: {error}"
    return ""
