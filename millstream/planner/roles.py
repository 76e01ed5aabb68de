"""Distilling a causal student: which role goes where, what each device holds, how long a step takes, what
syncing costs.

Roles: the student learns from its own rollouts; a frozen teacher and a learning critic score them; text
encoder and VAE are frozen. Placements: `together` (every device holds a shard of every role), `scores apart`
(teacher and critic on devices of their own: latents travel), `rollouts apart` (rollouts on devices of their
own: the student's weights travel).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import get_args

from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import ModelSpec, Recompute, StreamConfig
from millstream.core.errors import ConfigError
from millstream.planner.communication import all_gather, broadcast, point_to_point
from millstream.planner.footprint import PROCESS_BYTES
from millstream.planner.hardware import PCIE5, Fleet
from millstream.planner.memory import dit_parameters, text_parameters, vae_parameters, window_bytes
from millstream.planner.training import (
    LearningTime,
    LearningWork,
    Sharding,
    learning_time,
    lora_parameters,
    saved_bytes,
    training_state,
    unsharded_bytes,
)

MEMORY_SHARE = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainAsk:
    student: ModelSpec
    teacher: ModelSpec
    critic: ModelSpec
    fleet: Fleet
    stream: StreamConfig
    frames: int = 21
    """Latent frames of a rollout."""
    batch: int = 1
    """Rollouts per device and step."""
    sharding: Sharding = field(default_factory=Sharding)
    hybrid: int = 0
    """Devices that share one copy, repeated over the others (hybrid sharding); 0 shares it over all of a
    group."""
    recompute: Recompute = "full"
    ema: bool = True
    lora_rank: int = 0
    """Rank of the student's adapters; 0 trains all of it."""
    critic_updates: int = 5
    """Critic updates per update of the student."""

    def __post_init__(self) -> None:
        if not (1 <= self.frames <= 1024 and 1 <= self.batch <= 4096 and 0 <= self.critic_updates <= 100):
            raise ConfigError("need 1 to 1024 frames, a batch of 1 to 4096 and 0 to 100 critic updates")
        if not 0 <= self.lora_rank <= self.student.dit.width:
            raise ConfigError(f"--lora must be a rank of 0 to {self.student.dit.width}, got {self.lora_rank}")
        for name, other in (("teacher", self.teacher), ("critic", self.critic)):
            if (other.dit.channels, other.vae) != (self.student.dit.channels, self.student.vae):
                raise ConfigError(
                    f"the {name} {other.name} sees other latents than the student {self.student.name}; both "
                    "need one VAE"
                )
        if self.fleet.open:
            raise ConfigError(
                f"training needs a number of devices, such as --gpus 8x{self.fleet.device.name}"
            )
        if not 0 <= self.hybrid <= self.fleet.count:
            raise ConfigError(
                f"--hybrid must be 0 to {self.fleet.count}, the devices there are, got {self.hybrid}"
            )
        if self.recompute not in get_args(Recompute):
            raise ConfigError(
                f"--recompute must be one of {', '.join(get_args(Recompute))}, got {self.recompute!r}"
            )

    def shards(self, devices: int) -> int:
        """Count the shards of one copy, in a group of that many devices."""
        return min(devices, self.hybrid or devices)

    @property
    def tokens(self) -> int:
        return self.batch * self.frames * tokens_per_frame(self.student.dit, self.stream)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceGroup:
    """Devices that hold the same roles: bytes of one of them by what they are for."""

    name: str
    devices: int
    parts: dict[str, float]
    host_bytes: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class RolePlacement:
    name: str
    groups: tuple[DeviceGroup, ...]
    step_ms: float
    """An update of the student and the critic's updates that go with it."""
    sync_ms: float
    """Part of the step that moves weights or latents between groups."""
    missing: str
    """Text that names what does not fit; empty if all does."""


def placements(ask: TrainAsk) -> tuple[RolePlacement, ...]:
    """Return the placements: those that fit first, quickest first."""
    count = ask.fleet.count
    found = [_together(ask)]
    if count >= 2:
        found += [_scores_apart(ask, _halves(ask, count)), _rollouts_apart(ask, max(1, count // 2))]
    return tuple(sorted(found, key=lambda placement: (bool(placement.missing), placement.step_ms)))


def _together(ask: TrainAsk) -> RolePlacement:
    group = _group(ask, "all", ask.fleet.count, student=True, scores=True)
    rollout, update, score, critic = _phases(ask)
    step = rollout + update + score + ask.critic_updates * (rollout + critic)
    return _placement(ask, "together", (group,), step, 0.0)


def _scores_apart(ask: TrainAsk, scorers: int) -> RolePlacement:
    """Each half works `count / half` times as long; the halves take turns on one batch and overlap over
    two."""
    count = ask.fleet.count
    students = count - scorers
    groups = (
        _group(ask, "student", students, student=True, scores=False),
        _group(ask, "teacher and critic", scorers, student=False, scores=True),
    )
    rollout, update, score, critic = _phases(ask)
    mine = (rollout * (1 + ask.critic_updates) + update) * count / students
    theirs = (score + ask.critic_updates * critic) * count / scorers
    height, width = ask.stream.latent_size
    latents = 2 * ask.batch * ask.frames * ask.student.dit.channels * height * width
    sync = (2 + ask.critic_updates) * point_to_point(latents, ask.fleet.link_between(count))
    return _placement(ask, "scores apart", groups, max(mine, theirs) + sync, sync)


def _rollouts_apart(ask: TrainAsk, makers: int) -> RolePlacement:
    count = ask.fleet.count
    trainers = count - makers
    maker = DeviceGroup(name="rollouts", devices=makers, parts=_rollout_parts(ask), host_bytes=0.0)
    groups = (_group(ask, "training", trainers, student=True, scores=True), maker)
    rollout, update, score, critic = _phases(ask)
    made = rollout * (1 + ask.critic_updates) * count / makers
    learnt = (update + score + ask.critic_updates * critic) * count / trainers
    sync = broadcast(2 * dit_parameters(ask.student.dit), makers + 1, ask.fleet.link_between(count))
    return _placement(ask, "rollouts apart", groups, max(made, learnt) + sync, sync)


def _halves(ask: TrainAsk, count: int) -> int:
    """Devices for the scores, by their share of the work."""
    rollout, update, score, critic = _phases(ask)
    theirs = score + ask.critic_updates * critic
    share = theirs / (theirs + update + rollout * (1 + ask.critic_updates))
    return min(count - 1, max(1, round(share * count)))


def _phases(ask: TrainAsk) -> tuple[float, float, float, float]:
    """Milliseconds on all devices together: a rollout, the student's update, its scores, an update of the
    critic."""
    student, teacher, critic = (_passes(ask, spec) for spec in (ask.student, ask.teacher, ask.critic))
    rollout = (len(ask.stream.steps) + 1) * student.forward
    update = student.backward + _offload_ms(ask, ask.student)
    return rollout, update, 2 * teacher.forward + critic.forward, critic.total + _offload_ms(ask, ask.critic)


def _offload_ms(ask: TrainAsk, spec: ModelSpec) -> float:
    """Gradients to the host and new weights back, each rank its shard over its own bus."""
    if not ask.sharding.offload:
        return 0.0
    shards = ask.shards(ask.fleet.count) if ask.sharding.zero >= 1 else 1
    return 2 * point_to_point(2 * dit_parameters(spec.dit) / shards, PCIE5)


def _passes(ask: TrainAsk, spec: ModelSpec) -> LearningTime:
    """Over a rollout, there and back, with the gathering of weights where that is longer than the
    computing."""
    keys = ask.tokens / ask.batch  # the length of a rollout: what is causal sees less
    is_frozen = spec is ask.student and ask.lora_rank > 0
    work = LearningWork(
        dit=spec.dit, tokens=ask.tokens, keys=keys, recompute=ask.recompute, is_frozen=is_frozen
    )
    computed = learning_time(work, ask.fleet.device)
    shards = ask.shards(ask.fleet.count)
    gather = (
        all_gather(2 * dit_parameters(spec.dit), shards, ask.fleet.link_between(shards))
        if ask.sharding.zero >= 3
        else 0.0
    )
    return LearningTime(forward=max(computed.forward, gather), backward=max(computed.backward, gather))


def _group(ask: TrainAsk, name: str, devices: int, *, student: bool, scores: bool) -> DeviceGroup:
    sharding = replace(ask.sharding, shards=ask.shards(devices))
    parts: dict[str, float] = {"process": float(PROCESS_BYTES)}
    host = 0.0
    if student:
        learns = lora_parameters(ask.student.dit, ask.lora_rank) if ask.lora_rank else None
        extra = learns or 0
        state = training_state(dit_parameters(ask.student.dit) + extra, sharding, trained=learns, ema=ask.ema)
        parts["student"] = state.total + unsharded_bytes(ask.student.dit, sharding)
        parts["window"] = _window(ask)
        parts["activations"] = saved_bytes(ask.student.dit, ask.tokens, ask.recompute)
        frozen = text_parameters(ask.student.text) + vae_parameters(ask.student.vae)
        parts["text encoder and VAE"] = training_state(frozen, sharding, trained=0).total
        host += state.host
    if scores:
        critic = training_state(dit_parameters(ask.critic.dit), sharding)
        parts["critic"] = critic.total + unsharded_bytes(ask.critic.dit, sharding)
        teacher = training_state(dit_parameters(ask.teacher.dit), sharding, trained=0)
        parts["teacher"] = teacher.total + unsharded_bytes(ask.teacher.dit, sharding)
        saved = saved_bytes(ask.critic.dit, ask.tokens, ask.recompute)
        parts["activations"] = max(parts.get("activations", 0.0), saved)  # the roles learn in turn
        host += critic.host
    return DeviceGroup(name=name, devices=devices, parts=parts, host_bytes=host)


def _rollout_parts(ask: TrainAsk) -> dict[str, float]:
    student = ask.student
    weights = 2.0 * (
        dit_parameters(student.dit) + text_parameters(student.text) + vae_parameters(student.vae)
    )
    return {"process": float(PROCESS_BYTES), "weights": weights, "window": _window(ask)}


def _window(ask: TrainAsk) -> float:
    stream = replace(ask.stream, window=max(ask.frames, ask.stream.frames_per_chunk + ask.stream.sink))
    return float(ask.batch * window_bytes(ask.student.dit, stream, value_bytes=2))


def _placement(
    ask: TrainAsk, name: str, groups: tuple[DeviceGroup, ...], step_ms: float, sync_ms: float
) -> RolePlacement:
    room = MEMORY_SHARE * ask.fleet.device.memory_bytes
    tight = [group for group in groups if group.total > room]
    said = "; ".join(f"{group.name}: {group.total / 2**30:.1f} of {room / 2**30:.1f} GiB" for group in tight)
    return RolePlacement(name=name, groups=groups, step_ms=step_ms, sync_ms=sync_ms, missing=said)
