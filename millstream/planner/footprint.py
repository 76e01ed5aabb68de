"""Memory that each device of a replica holds: weights, windows, prompts, tails, working sets, and what a
process takes by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.core.config import GIB, DiTConfig, VAEConfig
from millstream.core.topology import Topology
from millstream.core.vae_layers import Conv, tiny_decoder_convs
from millstream.planner.cards.weights import weight_bytes
from millstream.planner.fast_memory import (
    canvas_bytes,
    earlier_canvas_bytes,
    fast_decode_peak,
    fast_dit_peak,
    recording_bytes,
    rounding_bytes,
)
from millstream.planner.hardware import Device
from millstream.planner.memory import (
    dit_parameters,
    injector_parameters,
    packed_bytes,
    text_parameters,
    vae_parameters,
    window_bytes,
)
from millstream.planner.peaks import decode_peak, dit_peak, encode_peak, vae_state_bytes
from millstream.planner.workload import Workload

PROCESS_BYTES = int(0.75 * GIB)
"""A CUDA context, library handles and their workspaces, per process; nothing on a CPU."""
VISITOR = "text encoder, working set"
"""A text encoder that visits the device for a prompt: there while no other part works."""
KEY_MULTIPLE = 128
"""A ring on a GPU has room for a number of keys that is a multiple of this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceNeed:
    """The fullest device of one kind: `mesh`, `front`, or `all` where one plays both."""

    role: str
    fixed: Mapping[str, int]
    """Bytes by name, however many sessions there are."""
    per_session: Mapping[str, int]
    loading: int = 0
    """Bytes while weights are taken over, before there is any session; where that may be more than is held
    later."""

    def bytes_for(self, sessions: int) -> int:
        """At the fullest moment."""
        assert sessions >= 0, f"{sessions} sessions on a device"
        return max(self.loading, sum(self.fixed.values()) + sessions * sum(self.per_session.values()))

    def sessions_in(self, memory_bytes: int) -> int:
        if self.loading > memory_bytes:
            return 0
        return max(0, (memory_bytes - sum(self.fixed.values())) // max(1, sum(self.per_session.values())))


def device_needs(work: Workload, device: Device, layout: Topology) -> tuple[DeviceNeed, ...]:
    process = 0 if device.processor else PROCESS_BYTES
    mesh = _mesh(work, device, layout)
    front = _front(work, device)
    if layout.front_apart:
        return tuple(
            replace(need, fixed={**_one_at_a_time(need.fixed), "process": process}) for need in (mesh, front)
        )
    # They take turns, so of the two working sets only the larger is there.
    visitor = front.fixed.get(VISITOR, 0)
    working = max(mesh.fixed["DiT working set"], front.fixed["VAE working set"], visitor)
    fixed = {
        name: size for name, size in {**mesh.fixed, **front.fixed}.items() if not name.endswith("working set")
    }
    fixed |= {"working set": working, "process": process}
    role = "all" if layout.mesh_size == 1 else "mesh and front"
    beside = front.fixed.get("text encoder", 0) + front.fixed["VAE weights"] + process
    loading = mesh.loading + beside if mesh.loading else 0
    return (
        DeviceNeed(
            role=role, fixed=fixed, per_session={**mesh.per_session, **front.per_session}, loading=loading
        ),
    )


def rank_parameters(dit: DiTConfig, layout: Topology) -> tuple[int, int]:
    """Count the parameters of the fullest rank: those in the matmuls of every call, and all others. SP
    repeats all weights on every rank. TP repeats those of cross-attention, whose keys and values are computed
    once a prompt, so that their weights are not among the first."""
    split = 4 * dit.width**2 + 2 * dit.width * dit.ffn
    whole = 2 * dit.width**2
    layers = math.ceil(dit.layers / layout.pp)
    rest = dit_parameters(dit) - dit.layers * (split + 2 * whole)
    assert rest >= 0, f"blocks have {-rest} parameters more than the model"
    return layers * (split // layout.tp + whole), layers * whole + rest


def _mesh(work: Workload, device: Device, layout: Topology) -> DeviceNeed:
    dit = work.spec.dit
    value = device.value_bytes
    products, rest = rank_parameters(dit, layout)
    split = layout.tp * layout.sp
    layers = math.ceil(dit.layers / layout.pp) / dit.layers
    round_to = 1 if device.processor else KEY_MULTIPLE
    window = window_bytes(dit, work.stream, value_bytes=value, key_multiple=round_to) * layers / split
    window *= 0 if work.whole_clip else 1
    packed = {"packed window": packed_bytes(dit, work.stream)} if work.software.packs_window else {}
    prompt = 2 * dit.layers * dit.width * dit.text_tokens * value * layers
    fp8 = work.precision == "fp8"
    packed_value = weight_bytes(
        work.weights, value
    )  # files pack all of a model, fp8 is of the matmuls in every call
    fixed = {"DiT weights": products + rest * value if fp8 else int((products + rest) * packed_value)}
    if injectors := injector_parameters(work.spec):
        fixed["injectors"] = injectors * value
    if work.software.fast_blocks:
        peak = fast_dit_peak(dit, work.stream, value_bytes=value, batch=work.batch, fp8=fp8)
    else:
        peak = dit_peak(dit, work.stream, value_bytes=value, batch=work.batch, tp=layout.tp, sp=layout.sp)
    if work.software.graphs:
        fixed |= {"recordings": recording_bytes(dit, work.stream, value_bytes=value), "graph pool": peak}
    return DeviceNeed(
        role="mesh",
        fixed={**fixed, "DiT working set": peak},
        per_session={"window": int(window), **packed, "prompt": int(prompt)},
        loading=(products + rest) * value + rounding_bytes(dit) if fp8 else 0,
    )


def _front(work: Workload, device: Device) -> DeviceNeed:
    spec = work.spec
    stream = work.stream
    value = device.value_bytes
    encodes, height, width = work.encodes, *stream.latent_size
    fixed = {"VAE weights": _vae_weights(work) * value}
    if work.text_place != "cpu":
        held = "text encoder" if work.text_place == "device" else VISITOR
        fixed[held] = text_parameters(spec.text) * value
    if work.vae_software.canvases and work.decoder == "full":
        frames = stream.frames_per_chunk
        fixed["canvases"] = canvas_bytes(spec.vae, stream, frames=frames, value_bytes=value, encodes=encodes)
    return DeviceNeed(
        role="front",
        fixed={**fixed, "VAE working set": _vae_peak(work, device, encodes)},
        per_session={
            "VAE tails": 0
            if work.whole_clip
            else vae_state_bytes(spec.vae, stream, value_bytes=value, encodes=encodes),
            "clean latents": stream.window * spec.dit.channels * height * width * value,
        },
    )


def _one_at_a_time(fixed: Mapping[str, int]) -> dict[str, int]:
    """Drop all working sets but the largest."""
    working = {name: size for name, size in fixed.items() if name.endswith("working set")}
    largest = max(working, key=lambda name: working[name])
    return {name: size for name, size in fixed.items() if name not in working or name == largest}


def _vae_weights(work: Workload) -> int:
    """Parameters; the tiny decoder's take the place of the model's own, unless that has to encode."""
    own = vae_parameters(work.spec.vae)
    if work.decoder == "full":
        return own
    tiny = sum(conv.inner * conv.outer * conv.taps for conv in _tiny(work))
    return tiny + (own if work.encodes else 0)


def _tiny(work: Workload) -> Sequence[Conv]:
    stream = work.stream
    return tiny_decoder_convs(work.spec.dit.channels, stream.frames_per_chunk, stream.height, stream.width)


def _vae_peak(work: Workload, device: Device, encodes: bool) -> int:
    vae = work.spec.vae
    stream = work.stream
    size = dict(frames=stream.frames_per_chunk, value_bytes=device.value_bytes)
    turned = not device.processor
    if work.decoder == "tiny":
        decoding = (
            3
            * max(conv.outer * conv.frames * conv.rows * conv.columns for conv in _tiny(work))
            * device.value_bytes
        )
    elif work.vae_software.canvases and isinstance(vae, VAEConfig):
        earlier = earlier_canvas_bytes(vae, stream, value_bytes=device.value_bytes)
        decoding = fast_decode_peak(vae, stream, **size) + earlier
    else:
        decoding = decode_peak(vae, stream, **size, turned=turned)
    return max(decoding, encode_peak(vae, stream, **size, turned=turned)) if encodes else decoding
