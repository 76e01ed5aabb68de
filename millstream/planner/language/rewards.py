"""Tuning a decoder by reward with four models: where they go, what each device holds, how long a step takes
at least.

The actor writes answers; it, its frozen reference, the critic and the frozen reward model read them; actor
and critic learn. `together`: every device has a share of all, and whole weights that write beside. `in
turns`: the same, with what learns in host memory while answers are written. `apart`: some devices write, the
others read and learn, a step behind; weights are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millstream.core.errors import ConfigError
from millstream.planner.communication import all_gather, broadcast, point_to_point
from millstream.planner.footprint import PROCESS_BYTES
from millstream.planner.hardware import PCIE5, Fleet
from millstream.planner.language.decoders import DecoderConfig
from millstream.planner.language.learning import (
    DecoderWork,
    activations,
    best_first,
    decoder_learning_time,
    decoder_state,
    gathered_bytes,
    placed,
    step_ms,
)
from millstream.planner.language.serving import ServingAsk, decode_time, prefill_time
from millstream.planner.roles import DeviceGroup, RolePlacement


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardAsk:
    work: DecoderWork
    """Work of the actor, over whole texts: prompt and answer."""
    critic: DecoderConfig
    reward: DecoderConfig
    answer: int
    """Tokens of a text that the actor writes."""

    def __post_init__(self) -> None:
        if not 1 <= self.answer < self.work.context:
            raise ConfigError(
                f"--answer must be 1 to {self.work.context - 1}, less than the context, got {self.answer}"
            )

    def role(self, decoder: DecoderConfig) -> DecoderWork:
        return replace(self.work, decoder=decoder)


def reward_placements(ask: RewardAsk) -> tuple[RolePlacement, ...]:
    """Return the placements: those that fit first, quickest first; `apart` only with two devices or more."""
    fleet = ask.work.fleet
    writing = write_ms(ask)
    learning = learn_ms(ask)
    learns = _learning_parts(ask)
    writes = _writing_parts(ask, fleet)
    sync = all_gather(2 * ask.work.decoder.parameters, fleet.count, fleet.link_between(fleet.count))
    process = {"process": float(PROCESS_BYTES)}
    both = DeviceGroup(
        name="all", devices=fleet.count, parts=process | learns | writes, host_bytes=_host(ask)
    )
    found = [placed(fleet, "together", (both,), writing + learning + sync, sync)]
    state = sum(size for name, size in learns.items() if name != "activations")
    fuller = max((process | learns, process | writes), key=lambda parts: sum(parts.values()))
    moves = sync + 2 * point_to_point(state, PCIE5)
    turns = DeviceGroup(name="in turns", devices=fleet.count, parts=fuller, host_bytes=state + _host(ask))
    found.append(placed(fleet, "in turns", (turns,), writing + learning + moves, moves))
    if fleet.count >= 2:
        found.append(_apart(ask, writing, learning))
    return best_first(found)


def write_ms(ask: RewardAsk) -> float:
    """All answers on all devices: each machine, or what there is of one, holds a copy and writes for its
    devices."""
    serving = _writer(ask, ask.work.fleet)
    prompt = prefill_time(replace(serving, context=ask.work.context - ask.answer)).total
    return (
        prompt + ask.answer * decode_time(replace(serving, context=ask.work.context - ask.answer // 2)).total
    )


def learn_ms(ask: RewardAsk) -> float:
    """Actor and critic read what was written to know where they stood, and so do reference and reward; then
    both learn."""
    actor = ask.work
    critic = ask.role(ask.critic)
    reading = sum(
        decoder_learning_time(each).forward for each in (actor, actor, critic, ask.role(ask.reward))
    )
    return reading + step_ms(actor) + step_ms(critic)


def _writer(ask: RewardAsk, fleet: Fleet) -> ServingAsk:
    group = 1 << min(fleet.count, fleet.device.devices_per_node, ask.work.decoder.heads).bit_length() - 1
    texts = group * max(1, round(ask.work.batch * ask.work.fleet.count / fleet.count))
    copy = replace(fleet, count=group)
    return ServingAsk(decoder=ask.work.decoder, fleet=copy, context=ask.work.context, batch=texts)


def _learning_parts(ask: RewardAsk) -> dict[str, float]:
    actor = ask.work
    critic = ask.role(ask.critic)
    reward = ask.role(ask.reward)
    return {
        "actor": decoder_state(actor).total + gathered_bytes(actor),
        "critic": decoder_state(critic).total + gathered_bytes(critic),
        "reference": decoder_state(actor, learns=False).total,
        "reward": decoder_state(reward, learns=False).total,
        "activations": max(activations(actor), activations(critic)),  # they learn in turn
    }


def _host(ask: RewardAsk) -> float:
    """Count the bytes that offload keeps in host memory at all times."""
    return decoder_state(ask.work).host + decoder_state(ask.role(ask.critic)).host


def _writing_parts(ask: RewardAsk, fleet: Fleet) -> dict[str, float]:
    serving = _writer(ask, fleet)
    cached = serving.batch * serving.decoder.kv_bytes(serving.context) * serving.kv_share
    return {
        "weights that write": 2.0 * serving.decoder.parameters / serving.fleet.count,
        "keys and values": cached,
    }


def _apart(ask: RewardAsk, writing: float, learning: float) -> RolePlacement:
    """Devices by the work they have; a side with fewer takes as much longer."""
    fleet = ask.work.fleet
    writers = min(fleet.count - 1, max(1, round(fleet.count * writing / (writing + learning))))
    learners = replace(ask, work=replace(ask.work, fleet=replace(fleet, count=fleet.count - writers)))
    process = {"process": float(PROCESS_BYTES)}
    groups = (
        DeviceGroup(
            name="learning",
            devices=fleet.count - writers,
            parts=process | _learning_parts(learners),
            host_bytes=_host(learners),
        ),
        DeviceGroup(
            name="writing",
            devices=writers,
            parts=process | _writing_parts(ask, replace(fleet, count=writers)),
            host_bytes=0.0,
        ),
    )
    sync = broadcast(2 * ask.work.decoder.parameters, writers + 1, fleet.link_between(fleet.count))
    longer = max(writing * fleet.count / writers, learning * fleet.count / (fleet.count - writers))
    return placed(fleet, "apart, a step behind", groups, longer + sync, sync)
