"""Models by name and schedules by name: figures only, so the planner can read them without torch."""

from __future__ import annotations

from dataclasses import replace

from millstream.core.config import (
    ActionsConfig,
    BrookTextConfig,
    BrookVAEConfig,
    ConditionsConfig,
    DiTConfig,
    ModelSpec,
    StreamConfig,
    TextConfig,
    VAEConfig,
)
from millstream.core.errors import ConfigError, UnknownModel

# fmt: off
WAN_LATENT_MEAN = (-0.7571, -0.7089, -0.9113,  0.1075, -0.1745,  0.9653, -0.1517,  1.5508,
                    0.4134, -0.0715,  0.5517, -0.3632, -0.1922, -0.9497,  0.2503, -0.2921)
WAN_LATENT_STD  = ( 2.8184,  1.4541,  2.3275,  2.6558,  1.2196,  1.7708,  2.6052,  2.0743,
                    3.2687,  2.1526,  2.8652,  1.5579,  1.6382,  1.1253,  2.8251,  1.9160)
WAN22_LATENT_MEAN = (
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891,
    0.1570, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502,
    -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313, -0.1649, 0.0117, 0.0723,
    -0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667,
)
WAN22_LATENT_STD = (
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744,
)
# fmt: on

WAN_VAE = VAEConfig(mean=WAN_LATENT_MEAN, std=WAN_LATENT_STD)
WAN22_VAE = VAEConfig(
    width=160,
    decoder_width=256,
    channels=48,
    pixel_patch=2,
    residual=True,
    mean=WAN22_LATENT_MEAN,
    std=WAN22_LATENT_STD,
)
_TINY_TEXT = TextConfig(width=32, layers=2, heads=2, head_width=16, ffn=64, vocabulary=384)
_TINY_STREAM = StreamConfig(height=32, width=32, steps=(1000, 500), window=9)
_TINY_DIT = DiTConfig(
    layers=2, width=48, heads=2, ffn=96, channels=4, text_width=32, text_tokens=8, time_features=32
)
_TINY_VAE = VAEConfig(width=4, res_blocks=1, channels=4, mean=(0.1, -0.2, 0.3, 0.0), std=(1.5, 0.5, 1.0, 2.0))

MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec(
            name="wan2.1-t2v-1.3b",
            dit=DiTConfig(layers=30, width=1536, heads=12, ffn=8960),
            vae=WAN_VAE,
            stream=StreamConfig(window=21),
        ),
        ModelSpec(
            name="wan2.1-t2v-14b",
            dit=DiTConfig(layers=40, width=5120, heads=40, ffn=13824),
            vae=WAN_VAE,
            stream=StreamConfig(height=320, width=576, window=6),
        ),
        ModelSpec(  # its picture is the first latent frame of the first chunk, clean from the beginning
            name="wan2.2-ti2v-5b",
            dit=DiTConfig(layers=30, width=3072, heads=24, ffn=14336, channels=48),
            vae=WAN22_VAE,
            stream=StreamConfig(height=704, width=1280, stride=16, fps=24.0, window=21),
            conditions=ConditionsConfig(image_entry="within"),
        ),
        ModelSpec(  # comes with the package, trained by `millstream train brook`
            name="brook",
            dit=DiTConfig(layers=6, width=256, heads=4, ffn=768, channels=8, text_width=128, text_tokens=28),
            vae=BrookVAEConfig(),
            text=BrookTextConfig(),
            stream=StreamConfig(height=256, width=256, steps=(1000, 500), shift=3.0, window=9),
            default_prompt="a large white boat drifting slowly on the sea at dawn in clear weather",
        ),
        ModelSpec(  # about 5M parameters: what two CPU cores can stream
            name="wan-mini",
            dit=DiTConfig(layers=6, width=256, heads=4, ffn=768, text_width=64, text_tokens=32),
            vae=VAEConfig(width=8),
            text=TextConfig(width=64, layers=2, heads=4, head_width=16, ffn=128, vocabulary=384),
            stream=StreamConfig(height=256, width=256, steps=(1000, 500), window=9),
        ),
        ModelSpec(  # for tests: every part there, nothing larger than it must be
            name="wan-tiny",
            dit=_TINY_DIT,
            vae=_TINY_VAE,
            text=_TINY_TEXT,
            stream=_TINY_STREAM,
        ),
        ModelSpec(  # the same with a VAE as Wan 2.2's, begun from a picture as it is
            name="wan22-tiny",
            dit=replace(_TINY_DIT, channels=6),
            vae=VAEConfig(
                width=4,
                decoder_width=8,
                res_blocks=1,
                channels=6,
                mean=(0.1, -0.2, 0.3, 0.0, 0.2, -0.1),
                std=(1.5, 0.5, 1.0, 2.0, 0.8, 1.2),
                pixel_patch=2,
                residual=True,
            ),
            text=_TINY_TEXT,
            stream=replace(_TINY_STREAM, height=64, width=64, stride=16),
            conditions=ConditionsConfig(image_entry="within"),
        ),
        ModelSpec(  # wan-tiny, steered by keys, a mouse, a gamepad's axis and a camera
            name="wan-tiny-world",
            dit=_TINY_DIT,
            vae=_TINY_VAE,
            text=_TINY_TEXT,
            stream=_TINY_STREAM,
            conditions=ConditionsConfig(
                actions=ActionsConfig(keys=("a", "d", "s", "w"), look=True, axes=1), camera=True
            ),
        ),
    )
}

_FIRST = (1000, 750, 500, 250)
"""Steps of an epoch's first chunk where later ones have fewer: `denoising_step_list_first_chunk` of
thu-ml/Causal-Forcing."""

SCHEDULES: dict[str, dict[str, object]] = {
    "self-forcing": dict(
        steps=(1000, 750, 500, 250), shift=5.0, warp=True, frames_per_chunk=3, window=21, sink=0
    ),
    "krea": dict(steps=(1000, 937, 833, 625), shift=5.0, warp=False, frames_per_chunk=3, window=6, sink=0),
    "streamdiffusion-v2": dict(
        steps=(700, 500, 400, 200), shift=8.0, warp=False, frames_per_chunk=1, window=6, sink=3
    ),
    "longlive": dict(
        steps=(1000, 750, 500, 250), shift=5.0, warp=True, frames_per_chunk=3, window=12, sink=3
    ),
    # Trained on 21 latent frames. Published as `generator_ema` in Self-Forcing's layout
    # (zhuhz22/Causal-Forcing); `chunkwise/longvideo.pt` wants Rolling Forcing's window, which is not here.
    "causal-forcing": dict(
        steps=(1000, 750, 500, 250), shift=5.0, warp=True, frames_per_chunk=3, window=21, sink=0
    ),
    "causal-forcing-framewise": dict(
        steps=(1000, 750, 500, 250), shift=5.0, warp=True, frames_per_chunk=1, window=21, sink=0
    ),
    "causal-forcing-pp-2": dict(
        steps=(1000, 500), first_steps=_FIRST, shift=5.0, warp=True, frames_per_chunk=1, window=21, sink=0
    ),
    "causal-forcing-pp-1": dict(
        steps=(1000,), first_steps=_FIRST, shift=5.0, warp=True, frames_per_chunk=1, window=21, sink=0
    ),
    # One step from the first frame on, as its config.yaml trains; its window is taken to be Causal Forcing's.
    # Its variant `ffe_config.yaml` makes the first four frames in four steps and goes on in one, which no chunk
    # size here says; first_steps of four come nearest.
    "one-forcing": dict(steps=(1000,), shift=5.0, warp=True, frames_per_chunk=1, window=21, sink=0),
    # Self Gradient Forcing: window and sink as its README gives them for long videos. The steps are those of
    # Causal Forcing, which it is trained from: unsure, its own configuration decides.
    "sgf": dict(steps=(1000, 750, 500, 250), shift=5.0, warp=True, frames_per_chunk=3, window=12, sink=3),
    "sgf-framewise": dict(
        steps=(1000, 750, 500, 250), shift=5.0, warp=True, frames_per_chunk=1, window=21, sink=4
    ),
    # LongLive 2 in four steps (it has two as well). Levels as Wan's UniPC scheduler numbers them: even from
    # 0.999 down to 0, then shifted. That scheduler truncates what the model is told to whole numbers (999, 937,
    # 833, 624); here it is told 999.8, 937.3, 833.1 and 624.7. Unsure: not compared with its own program.
    "longlive2": dict(
        steps=(999, 749.25, 499.5, 249.75),
        sampler="unipc",
        shift=5.0,
        warp=True,
        frames_per_chunk=8,
        window=32,
        sink=8,
    ),
}
"""Published sampling schedules: what checkpoints of that name were distilled for."""


def find_model(name: str) -> ModelSpec:
    if name not in MODELS:
        raise UnknownModel(f"{name!r} is not registered; known: {', '.join(sorted(MODELS))}")
    return MODELS[name]


def apply_schedule(stream: StreamConfig, name: str) -> StreamConfig:
    if name not in SCHEDULES:
        raise ConfigError(f"schedule {name!r} is unknown; known: {', '.join(sorted(SCHEDULES))}")
    # what it does not name is as in most, and never what another schedule has left
    whole = {"first_steps": None, "sampler": "renoise", **SCHEDULES[name]}
    return replace(stream, **whole)  # type: ignore[arg-type]  # keys are StreamConfig's own
