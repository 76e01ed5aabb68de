"""What each device of a replica holds: weights, windows, prompts, tails, working sets, and what a process takes by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.core.config import DiTConfig
from millstream.core.topology import Topology
from millstream.planner.hardware import GIB, Device
from millstream.planner.memory import dit_parameters, text_parameters, vae_parameters, window_bytes
from millstream.planner.peaks import decode_peak, dit_peak, encode_peak, vae_state_bytes
from millstream.planner.workload import Workload

PROCESS_BYTES = int(0.75 * GIB)
"""A CUDA context, library handles and their workspaces, per process; nothing on a CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceNeed:
    """The fullest device of one kind: `mesh`, `front`, or `all` where one plays both."""

    role: str
    fixed: Mapping[str, int]
    """Bytes by name, however many sessions there are."""
    per_session: Mapping[str, int]

    def bytes_for(self, sessions: int) -> int:
        return sum(self.fixed.values()) + sessions * sum(self.per_session.values())

    def sessions_in(self, memory_bytes: int) -> int:
        return max(0, (memory_bytes - sum(self.fixed.values())) // max(1, sum(self.per_session.values())))


def device_needs(work: Workload, device: Device, layout: Topology) -> tuple[DeviceNeed, ...]:
    process = 0 if device.processor else PROCESS_BYTES
    mesh, front = _mesh(work, device, layout), _front(work, device)
    if layout.front_apart:
        return tuple(
            DeviceNeed(role=need.role, fixed={**need.fixed, "process": process}, per_session=need.per_session)
            for need in (mesh, front)
        )
    # They take turns, so of the two working sets only the larger is there.
    working = max(mesh.fixed["DiT working set"], front.fixed["VAE working set"])
    fixed = {name: size for name, size in {**mesh.fixed, **front.fixed}.items() if not name.endswith("working set")}
    fixed |= {"working set": working, "process": process}
    role = "all" if layout.mesh_size == 1 else "mesh and front"
    return (DeviceNeed(role=role, fixed=fixed, per_session={**mesh.per_session, **front.per_session}),)


def rank_parameters(dit: DiTConfig, layout: Topology) -> tuple[int, int]:
    """Of the fullest rank: those in the blocks' products, and all others. SP repeats weights on every rank, TP those of
    cross-attention."""
    split, whole = 4 * dit.width**2 + 2 * dit.width * dit.ffn, 4 * dit.width**2
    layers = math.ceil(dit.layers / layout.pp)
    rest = dit_parameters(dit) - dit.layers * (split + whole)
    return layers * (split // layout.tp + whole), rest


def _mesh(work: Workload, device: Device, layout: Topology) -> DeviceNeed:
    dit, value = work.spec.dit, device.value_bytes
    products, rest = rank_parameters(dit, layout)
    split = layout.tp * layout.sp
    layers = math.ceil(dit.layers / layout.pp) / dit.layers
    window = window_bytes(dit, work.stream, value_bytes=value) * layers / split
    prompt = 2 * dit.layers * dit.width * dit.text_tokens * value * layers
    peak = dit_peak(dit, work.stream, value_bytes=value, batch=work.batch, tp=layout.tp, sp=layout.sp)
    weights = products * (1 if work.precision == "fp8" else value) + rest * value
    return DeviceNeed(
        role="mesh",
        fixed={"DiT weights": weights, "DiT working set": peak},
        per_session={"window": int(window), "prompt": int(prompt)},
    )


def _front(work: Workload, device: Device) -> DeviceNeed:
    spec, stream, value = work.spec, work.stream, device.value_bytes
    encodes = work.video_in or stream.anchor == "decoded"
    peak = decode_peak(spec.vae, stream, frames=stream.frames_per_chunk, value_bytes=value)
    if encodes:
        peak = max(peak, encode_peak(spec.vae, stream, frames=stream.frames_per_chunk, value_bytes=value))
    height, width = stream.latent_size
    return DeviceNeed(
        role="front",
        fixed={
            "text encoder": text_parameters(spec.text) * value,
            "VAE weights": vae_parameters(spec.vae) * value,
            "VAE working set": peak,
        },
        per_session={
            "VAE tails": vae_state_bytes(spec.vae, stream, value_bytes=value, encodes=encodes),
            "clean latents": stream.window * spec.dit.channels * height * width * value,
        },
    )
