"""Shapes and types that the tensors of a saved session must have: checked against a file's table of contents,
before anything is read.

Nothing is written down twice: the ring says what a ring holds, and the VAE's networks are walked on the meta
device, where a tensor has a shape and no memory. Knows no files.
Shapes: H height, W width of the picture; C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from millstream.core.config import TEMPORAL_STRIDE, ModelSpec, StreamConfig
from millstream.core.errors import SnapshotError
from millstream.engine.engine import Engine
from millstream.engine.vae_place import place_vae
from millstream.models.carry import VAEState
from millstream.models.kv import KVRing
from millstream.models.registry import empty_vae
from millstream.models.ring_shape import RingShape
from millstream.models.wan.tiny_decoder import PreviewVAE, TinyDecoder, TinyDecoderConfig
from millstream.session.history import has_anchor
from millstream.session.timeline import TimelineState, shaped_by
from millstream.session.video_input import SMALLER

META = torch.device("meta")
Side = Literal["decoder", "encoder"]
FRAME = re.compile(r"history\.(latents|pixels)\.([0-9]{1,12})", re.ASCII)


class Look(NamedTuple):
    """All that can be known of a tensor without reading it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> Look:
        return Look(tuple(tensor.shape), tensor.dtype)


def check_parts(
    found: Mapping[str, Look],
    config: StreamConfig,
    timeline: TimelineState,
    engine: Engine,
    *,
    has_ring: bool,
) -> None:
    """Raise at the first tensor that is missing, unknown, or not what this model gives a session like
    this."""
    if shaped_by(config, timeline) != config:
        raise SnapshotError("its configuration and its timeline differ in steps, window or sink")
    history = _check_history(
        {name: look for name, look in found.items() if name.startswith("history.")}, config, engine
    )
    if any(frame >= timeline.start_frame for frame in history):
        raise SnapshotError(f"it holds frame {max(history)} before that was made")
    _check_context(history, config, timeline)
    rest = {name: look for name, look in found.items() if not name.startswith("history.")}
    expected = _ring_and_prompt(config, engine) if has_ring else {}
    _check_same(rest, expected | _vae_states(rest, config, timeline, engine))


def _check_same(found: Mapping[str, Look], expected: Mapping[str, Look]) -> None:
    for name in sorted(set(expected) | set(found)):
        if name not in found:
            raise SnapshotError(f"{name} is missing")
        if name not in expected:
            raise SnapshotError(f"{name[:60]} has no place in this session")
        if found[name] != expected[name]:
            raise SnapshotError(f"{name} is {_told(found[name])}, not {_told(expected[name])}")


def _check_history(found: Mapping[str, Look], config: StreamConfig, engine: Engine) -> set[int]:
    """The frames it holds: as many as the window at most."""
    right = {
        "latents": Look((1, engine.spec.dit.channels, *config.latent_size), engine.dtype),
        "pixels": Look((1, 3, config.height, config.width), engine.dtype),
    }
    frames: dict[str, set[int]] = {"latents": set(), "pixels": set()}
    for name, look in found.items():
        match = FRAME.fullmatch(name)
        if match is None:
            raise SnapshotError(f"{name[:60]} names no frame")
        if look != right[match[1]]:
            raise SnapshotError(f"{name} is {_told(look)}, not {_told(right[match[1]])}")
        frames[match[1]].add(int(match[2]))
    if len(frames["latents"]) > config.window or not frames["pixels"] <= frames["latents"]:
        raise SnapshotError(
            f"it holds {len(frames['latents'])} frames and {len(frames['pixels'])} pictures of a window of "
            f"{config.window}"
        )
    needed = (
        {frame for frame in frames["latents"] if has_anchor(frame)} if config.anchor == "decoded" else set()
    )
    if not needed <= frames["pixels"]:
        missing = min(needed - frames["pixels"])
        raise SnapshotError(
            f"history.pixels.{missing} is missing: with decoded anchors each frame keeps its picture"
        )
    return frames["latents"]


def _check_context(history: set[int], config: StreamConfig, timeline: TimelineState) -> None:
    """The next chunk builds on the newest frames, so these must be there once an epoch has begun."""
    newest = set(range(max(0, timeline.start_frame - config.frames_per_chunk), timeline.start_frame))
    if not newest <= history:
        raise SnapshotError(f"frame {min(newest - history)}, of the newest chunk, is missing")


def _ring_and_prompt(config: StreamConfig, engine: Engine) -> dict[str, Look]:
    dit = engine.spec.dit
    ring = KVRing(RingShape.of(dit, config), device=META, dtype=engine.dtype)
    prompt = Look((1, dit.text_tokens, dit.heads, dit.head_width), engine.dtype)
    return {f"ring.{name}": Look.of(tensor) for name, tensor in ring.state().items()} | {
        f"cross.{part}.{layer}": prompt for part in "kv" for layer in range(dit.layers)
    }


def _vae_states(
    found: Mapping[str, Look], config: StreamConfig, timeline: TimelineState, engine: Engine
) -> dict[str, Look]:
    """Return the expected states of the VAE, of those that are there at all: a session that has not begun has
    none, and only one with an input encodes."""
    expected: dict[str, Look] = {}
    decodes, encodes = (any(name.startswith(side) for name in found) for side in ("decoder.", "encoder."))
    if decodes or timeline.start_frame > 0:
        expected |= _carried("decoder", config, engine)
    if encodes and timeline.has_input:
        expected |= _carried("encoder", config, engine)
    if "motion.last" in found and timeline.has_input:
        small = (-(-config.height // SMALLER), -(-config.width // SMALLER), 3)
        expected["motion.last"] = Look(small, torch.float32)
    return expected


def prepare(config: StreamConfig, engine: Engine) -> None:
    """Walk the VAE before a client waits for a session like this: the first walk loads much of torch, which
    takes seconds."""
    _carried("decoder", config, engine)


def _carried(side: Side, config: StreamConfig, engine: Engine) -> Mapping[str, Look]:
    """Return the tensors that one side of the VAE hands from chunk to chunk."""
    latents = (1, engine.spec.dit.channels, *config.latent_size)
    pixels = (1 + TEMPORAL_STRIDE, 3, config.height, config.width)
    preview = engine.preview_for(config)
    settings = None if preview is None else preview.config
    return _walked(
        side,
        (1, *(latents if side == "decoder" else pixels)),
        engine.spec,
        engine.dtype,
        len(engine.vae_devices),
        settings,
    )


@lru_cache(maxsize=32)
def _walked(
    side: Side,
    shape: tuple[int, ...],
    spec: ModelSpec,
    dtype: torch.dtype,
    num_strips: int,
    preview: TinyDecoderConfig | None,
) -> Mapping[str, Look]:
    """Once for each shape: a walk takes as long as a chunk of a small model."""
    with META:
        vae = place_vae(empty_vae(spec).to(dtype), [META] * num_strips, META)
        if preview is not None:
            vae = PreviewVAE(vae, TinyDecoder(preview).to(dtype))
        given = torch.empty(shape, dtype=dtype)
        state: VAEState = (vae.decode if side == "decoder" else vae.encode)(given)[1]
    return {f"{side}.{number}": Look.of(tensor) for number, tensor in enumerate(state)}


def _told(look: Look) -> str:
    return f"{str(look.dtype).removeprefix('torch.')} {look.shape}"
