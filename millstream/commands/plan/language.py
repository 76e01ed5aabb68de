"""`millstream plan train` of a language model: by itself, or tuned by reward with four models. Loads no torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import cast

from rich.console import Console

from millstream.commands.plan.run import profile_path
from millstream.commands.plan.train import TrainRequest, placements_table
from millstream.core.config import Recompute
from millstream.core.errors import ConfigError
from millstream.planner.hardware import parse_fleet
from millstream.planner.language.decoders import find_decoder, is_decoder
from millstream.planner.language.learning import DecoderWork, decoder_flops, decoder_layouts
from millstream.planner.language.rewards import RewardAsk, learn_ms, reward_placements, write_ms
from millstream.planner.profile import read_profile
from millstream.planner.roles import RolePlacement
from millstream.planner.training import Sharding


def run_plan_language(request: TrainRequest, *, as_json: bool) -> bool:
    """Print the placements, best first; whether one fits."""
    work = _work(request)
    if request.reward is None:
        found = decoder_layouts(work)
        said, reached = f"{work.decoder.name}, {work.decoder.parameters / 1e9:.4g} billion parameters", _reached(work, found[0])
    else:
        critic = find_decoder(request.critic) if is_decoder(request.critic) else work.decoder
        ask = RewardAsk(work=work, critic=critic, reward=find_decoder(request.reward), answer=request.answer)
        found, said, reached = reward_placements(ask), _tuned(ask), ""
    if as_json:
        print(json.dumps([{**asdict(each), "fits": not each.missing} for each in found], indent=2))
    else:
        texts = f"{work.batch} x {work.context} tokens a device, ZeRO-{request.zero}, {work.recompute} recompute"
        console = Console()
        console.print(f"{said} on {work.fleet.name}: {texts}", highlight=False)
        placements_table(found, console)
        console.print(f"{reached}lower bounds: a program's own pauses are not in them", highlight=False)
    return not found[0].missing


def _work(request: TrainRequest) -> DecoderWork:
    if request.lora or request.hybrid:
        raise ConfigError("--lora and --hybrid are not planned for language models; leave them out")
    return DecoderWork(
        decoder=find_decoder(request.student),
        fleet=parse_fleet(request.gpus, here=read_profile(profile_path())),
        context=request.context,
        batch=request.batch,
        sharding=Sharding(zero=request.zero, offload=request.offload),
        recompute=cast(Recompute, request.recompute),
    )


def _reached(work: DecoderWork, best: RolePlacement) -> str:
    rate = work.tokens * work.fleet.count / best.step_ms * 1e3
    reached = 3 * sum(decoder_flops(work.decoder, work.tokens, work.context)) / best.step_ms / 1e9
    return f"{best.name}: {rate:,.0f} tokens a second, {reached:.0f} TFLOP/s a device (what is made again does not count); "


def _tuned(ask: RewardAsk) -> str:
    times = f"{write_ms(ask) / 1e3:.3g} s to write {ask.answer} tokens of each, {learn_ms(ask) / 1e3:.3g} s to read and learn"
    return f"{ask.work.decoder.name} with critic {ask.critic.name} and reward {ask.reward.name}, {times}"
