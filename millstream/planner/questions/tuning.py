"""Tuning by reward: where rollouts and learning go, what each device holds, and how long a step takes.

Roles: the actor learns (float32 weights, gradients and two moments), the reference is frozen, PPO has a
critic; a copy of the actor in serving's precision streams with the VAE, the text encoder and a window for
each row; a classifier rewards. Placements: `together` on one device; `hybrid` on it in turns, with what
learns in host memory while streams are made; `apart` on two, weights by broadcast. Pictures and rewards take
as long everywhere and are not in a step's time.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import ModelSpec, StreamConfig
from millstream.planner.communication import broadcast, point_to_point
from millstream.planner.footprint import PROCESS_BYTES
from millstream.planner.hardware import PCIE5, Device, Fleet
from millstream.planner.memory import dit_parameters, text_parameters, vae_parameters, window_bytes
from millstream.planner.roles import MEMORY_SHARE, DeviceGroup, RolePlacement
from millstream.planner.training import LearningWork, learning_time, lora_parameters, saved_bytes

REWARD_BYTES = 16 * 2**20
"""Bytes of a classifier that judges clips, and of the clips it judges."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneAsk:
    spec: ModelSpec
    stream: StreamConfig
    fleet: Fleet
    prompts: int
    group: int
    chunks: int
    past: float = 0.0
    """Chunks before them, in the mean, which a group shares."""
    tried: int = 1
    learnt_steps: int = 1
    rows_at_once: int = 8
    lora_rank: int = 0
    has_critic: bool = False
    has_average: bool = False
    value_bytes: int = 2
    """Bytes of a value in the copy that streams."""
    is_asynchronous: bool = False

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def chunk_tokens(self) -> int:
        return self.stream.frames_per_chunk * tokens_per_frame(self.spec.dit, self.stream)


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneTime:
    """Milliseconds of a step, but for pictures and rewards."""

    rollout: float
    update: float


def tune_time(ask: TuneAsk) -> TuneTime:
    """A rollout is a pass for every step of every chunk and one that keeps it, over what is tried, pasts and
    futures. An update is a pass of the actor and one of the reference, then one there and back, over the
    clean chunks and the noisy ones of each learnt step."""
    device = ask.fleet.device
    window = ask.stream.window * tokens_per_frame(ask.spec.dit, ask.stream)
    tried = ask.prompts * ask.tried * ask.chunks if ask.tried > 1 else 0
    streamed = tried + ask.prompts * ask.past + ask.rows * ask.chunks
    passes = (len(ask.stream.steps) + 1) * streamed
    rollout = passes / ask.rows * _forward(ask, device, ask.rows * ask.chunk_tokens, window)
    tokens = round(ask.rows * ask.chunk_tokens * (ask.past + ask.chunks * (1 + ask.learnt_steps)))
    learnt = LearningWork(
        dit=ask.spec.dit, tokens=tokens, keys=window, recompute="none", is_frozen=ask.lora_rank > 0
    )
    return TuneTime(
        rollout=rollout,
        update=2 * _forward(ask, device, tokens, window) + learning_time(learnt, device).total,
    )


def tune_placements(ask: TuneAsk) -> tuple[RolePlacement, ...]:
    """Return the placements: those that fit first, quickest first; `apart` only with two devices or more."""
    time = tune_time(ask)
    count = ask.fleet.count
    learns = _learning_parts(ask)
    streams = _streaming_parts(ask)
    process = {"process": float(PROCESS_BYTES)}
    both = DeviceGroup(name="all", devices=1, parts=process | learns | streams, host_bytes=0.0)
    found = [_placed(ask, "together", (both,), time.rollout + time.update, 0.0)]
    state = sum(size for name, size in learns.items() if name != "activations")
    turn = {
        "weights that stream": streams["weights that stream"]
    } | learns  # the window is gone when it is learnt
    larger = max((process | turn, process | streams), key=lambda parts: sum(parts.values()))
    moves = 2 * point_to_point(state, PCIE5)
    in_turns = DeviceGroup(name="in turns", devices=1, parts=larger, host_bytes=state)
    found.append(_placed(ask, "hybrid", (in_turns,), time.rollout + time.update + moves, moves))
    if count >= 2:
        sync = broadcast(ask.value_bytes * dit_parameters(ask.spec.dit), 2, ask.fleet.link_between(2))
        step = max(time.rollout, time.update) if ask.is_asynchronous else time.rollout + time.update
        groups = tuple(
            DeviceGroup(name=name, devices=1, parts=process | parts, host_bytes=0.0)
            for name, parts in (("learning", learns), ("streaming", streams))
        )
        found.append(_placed(ask, "apart", groups, step + sync, sync))
    return tuple(sorted(found, key=lambda placement: (bool(placement.missing), placement.step_ms)))


def _forward(ask: TuneAsk, device: Device, tokens: int, keys: int) -> float:
    return learning_time(
        LearningWork(dit=ask.spec.dit, tokens=tokens, keys=keys, recompute="none"), device
    ).forward


def _learning_parts(ask: TuneAsk) -> dict[str, float]:
    whole = dit_parameters(ask.spec.dit)
    text = ask.spec.dit.text_width
    learns = lora_parameters(ask.spec.dit, ask.lora_rank) if ask.lora_rank else whole
    tokens = round(ask.rows_at_once * ask.chunk_tokens * (ask.past + ask.chunks * (1 + ask.learnt_steps)))
    found = {
        "actor": 4.0 * (whole + (learns if ask.lora_rank else 0)),
        "optimiser": 12.0 * learns,
        "reference": 4.0 * whole,
        "activations": saved_bytes(ask.spec.dit, tokens, "none"),
    }
    if ask.has_average:
        found["average"] = found["actor"]
    if ask.has_critic:  # two convolutions of 64 channels, and four small matmuls
        seen = 2 * ask.stream.frames_per_chunk * ask.spec.dit.channels
        found["critic"] = 16.0 * (9 * 64 * (seen + 64) + 64 * (text + 2 * 64 + 3))
    return found


def _streaming_parts(ask: TuneAsk) -> dict[str, float]:
    spec = ask.spec
    rows = ask.prompts * max(ask.group, ask.tried)
    weights = dit_parameters(spec.dit) + text_parameters(spec.text) + vae_parameters(spec.vae)
    pictures = rows * ask.chunks * 4 * ask.stream.frames_per_chunk * 3 * ask.stream.height * ask.stream.width
    return {
        "weights that stream": float(ask.value_bytes * weights),
        "windows": float(rows * window_bytes(spec.dit, ask.stream, value_bytes=ask.value_bytes)),
        "pictures": float(pictures),
        "reward": float(REWARD_BYTES),
    }


def _placed(
    ask: TuneAsk, name: str, groups: tuple[DeviceGroup, ...], step_ms: float, sync_ms: float
) -> RolePlacement:
    room = MEMORY_SHARE * ask.fleet.device.memory_bytes
    tight = [
        f"{each.name}: {each.total / 2**30:.1f} of {room / 2**30:.1f} GiB"
        for each in groups
        if each.total > room
    ]
    return RolePlacement(name=name, groups=groups, step_ms=step_ms, sync_ms=sync_ms, missing="; ".join(tight))
