"""Training a decoder on several devices: what each holds, and how long a step takes at least.

Devices in groups of `tp` share every matmul (and, by sequence parallelism, every activation); the groups
share state as ZeRO does. Kernels run at the rates that they reach and nothing is between them, so a step of a
real program takes longer; gathering weights and summing gradients hide behind computing, sums between the
devices of a group do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import get_args

from millstream.core.chunk_work import attention_flops
from millstream.core.config import Recompute
from millstream.core.errors import ConfigError
from millstream.planner.communication import all_gather, all_reduce, point_to_point
from millstream.planner.footprint import PROCESS_BYTES
from millstream.planner.hardware import PCIE5, Fleet
from millstream.planner.language.decoders import DecoderConfig
from millstream.planner.roles import MEMORY_SHARE, DeviceGroup, RolePlacement
from millstream.planner.training import (
    ATTENTION_SHARE,
    BACK_OVER_FORWARD,
    VALUE_BYTES,
    LearningTime,
    Sharding,
    TrainingState,
    training_state,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderWork:
    """Training step of a decoder: what each device learns from, and how."""

    decoder: DecoderConfig
    fleet: Fleet
    context: int
    batch: int
    """Texts for each device, all of them at once."""
    sharding: Sharding = field(default_factory=Sharding)
    recompute: Recompute = "full"
    tp: int = 1

    def __post_init__(self) -> None:
        if self.fleet.open:
            raise ConfigError(
                f"training needs a number of devices, such as --gpus 8x{self.fleet.device.name}"
            )
        if not (1 <= self.context <= 1 << 24 and 1 <= self.batch <= 1 << 20):
            raise ConfigError(f"need a context of 1 to {1 << 24} tokens and a batch of 1 to {1 << 20}")
        if self.recompute not in get_args(Recompute):
            raise ConfigError(
                f"--recompute must be one of {', '.join(get_args(Recompute))}, got {self.recompute!r}"
            )

    @property
    def tokens(self) -> int:
        return self.batch * self.context

    @property
    def shared_out(self) -> Sharding:
        return replace(self.sharding, shards=max(1, self.fleet.count // self.tp))


def decoder_flops(decoder: DecoderConfig, tokens: int, context: int) -> tuple[float, float]:
    """Count the operations of a forward pass: those of matmuls, and those of causal attention."""
    return (
        2.0 * decoder.multiplied_parameters * tokens,
        decoder.layers * attention_flops(tokens, context, decoder.width) / 2,
    )


def decoder_learning_time(work: DecoderWork) -> LearningTime:
    """Computing alone, forward and back; as in `training.py`."""
    rates = work.fleet.device.rates
    products, attention = decoder_flops(work.decoder, work.tokens, work.context)
    products /= 1e9 * rates.matmul_tflops
    attention /= 1e9 * ATTENTION_SHARE * rates.attention_tflops
    again = {"products": products, "full": products + attention}.get(work.recompute, 0.0)
    return LearningTime(
        forward=products + attention, backward=again + 2 * products + BACK_OVER_FORWARD * attention
    )


def tensor_talk(work: DecoderWork) -> float:
    """Two sums a block and pass, of what the whole group works on: forward, back, and where it is made
    again."""
    passes = 3 if work.recompute in ("products", "full") else 2
    size = work.tp * work.tokens * work.decoder.width * VALUE_BYTES
    return passes * 2 * work.decoder.layers * all_reduce(size, work.tp, work.fleet.link_between(work.tp))


def data_talk(work: DecoderWork) -> float:
    """ZeRO-3 gathers weights forward and back and scatters gradients; else gradients are summed."""
    sharding = work.shared_out
    link = work.fleet.link_between(work.fleet.count)
    mine = work.decoder.parameters / work.tp
    if sharding.zero < 3:
        return all_reduce(sharding.gradient_bytes * mine, sharding.shards, link)
    gathers = 2 * all_gather(VALUE_BYTES * mine, sharding.shards, link)
    return gathers + all_gather(sharding.gradient_bytes * mine, sharding.shards, link)


def offload_ms(work: DecoderWork) -> float:
    """Gradients to the host and new weights back, each rank its share over its own bus."""
    sharding = work.shared_out
    if not sharding.offload:
        return 0.0
    mine = work.decoder.parameters / work.tp / (sharding.shards if sharding.zero >= 1 else 1)
    return 2 * point_to_point(VALUE_BYTES * mine, PCIE5)


def step_ms(work: DecoderWork) -> float:
    found = max(decoder_learning_time(work).total, data_talk(work)) + tensor_talk(work) + offload_ms(work)
    assert found > 0, f"a step of {work.tokens} tokens takes {found} ms"
    return found


def block_activations(decoder: DecoderConfig, tokens: int, recompute: Recompute) -> float:
    """Bytes that one block keeps for its way back, in bf16, attention fused: residuals and norms, queries and
    what attention answers, keys and values, the MLPs' hidden layers. `selective` makes norms and the gated
    matmul again, `products` all but what attention answers."""
    cached = 2 * decoder.kv_heads * decoder.head_width
    hidden = decoder.active * decoder.ffn
    gated = decoder.gated
    how = {
        "none": (4, 2, 2 + gated),
        "selective": (2, 2, 1 + gated),
        "products": (2, 0, 0),
        "full": (1, 0, 0),
    }
    wide, heads, mlp = how[recompute]
    kept = wide * decoder.width + mlp * hidden + (heads * decoder.width + cached if heads else 0)
    return VALUE_BYTES * tokens * kept


def activations(work: DecoderWork) -> float:
    """All blocks, one of them whole where it is made again, and the logits in float32."""
    again = 0.0 if work.recompute == "none" else block_activations(work.decoder, work.tokens, "none")
    blocks = work.decoder.layers * block_activations(work.decoder, work.tokens, work.recompute)
    return blocks + again + 4.0 * work.tokens * work.decoder.vocabulary


def decoder_state(work: DecoderWork, *, learns: bool = True) -> TrainingState:
    return training_state(work.decoder.parameters // work.tp, work.shared_out, trained=None if learns else 0)


def gathered_bytes(work: DecoderWork) -> float:
    """Blocks whose whole weights are there at once under ZeRO-3."""
    sharding = work.shared_out
    if sharding.zero < 3 or sharding.shards == 1:
        return 0.0
    return VALUE_BYTES * sharding.prefetch * work.decoder.block_parameters(work.decoder.experts) / work.tp


def decoder_layouts(work: DecoderWork) -> tuple[RolePlacement, ...]:
    """Groups of 1, 2, 4 and more devices of one machine; those that fit first, quickest first."""
    machine = min(work.fleet.count, work.fleet.device.devices_per_node)
    count = work.fleet.count
    sizes = [
        tp for tp in (1, 2, 4, 8, 16) if tp <= machine and count % tp == 0 and work.decoder.heads % tp == 0
    ]
    return best_first([_layout(replace(work, tp=tp)) for tp in sizes])


def _layout(work: DecoderWork) -> RolePlacement:
    state = decoder_state(work)
    sharding = work.shared_out
    parts = {
        "process": float(PROCESS_BYTES),
        "weights": state.weights + gathered_bytes(work),
        "gradients": state.gradients,
        "optimizer": state.optimizer,
        "activations": activations(work),
    }
    name = f"ZeRO-{sharding.zero} over {sharding.shards}"
    name = name if work.tp == 1 else f"tp{work.tp}, {name}"
    group = DeviceGroup(name="all", devices=work.fleet.count, parts=parts, host_bytes=state.host)
    return placed(work.fleet, name, (group,), step_ms(work), data_talk(work) + tensor_talk(work))


def placed(
    fleet: Fleet, name: str, groups: tuple[DeviceGroup, ...], step: float, sync: float
) -> RolePlacement:
    room = MEMORY_SHARE * fleet.device.memory_bytes
    tight = [
        f"{each.name}: {each.total / 2**30:.1f} of {room / 2**30:.1f} GiB"
        for each in groups
        if each.total > room
    ]
    return RolePlacement(name=name, groups=groups, step_ms=step, sync_ms=sync, missing="; ".join(tight))


def best_first(found: list[RolePlacement]) -> tuple[RolePlacement, ...]:
    return tuple(sorted(found, key=lambda placement: (bool(placement.missing), placement.step_ms)))
