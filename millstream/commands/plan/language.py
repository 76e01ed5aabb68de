"""`millstream plan train` of a language model: by itself, or tuned by reward with four models. Loads no
torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import cast

from rich.console import Console

from millstream.commands.paths import profile_path
from millstream.commands.plan.options import PlanTrainOptions
from millstream.commands.plan.train import placements_table
from millstream.core.config import Recompute
from millstream.core.errors import ConfigError
from millstream.planner.hardware import parse_fleet
from millstream.planner.language.decoders import find_decoder, is_decoder
from millstream.planner.language.learning import DecoderWork, decoder_flops, decoder_layouts
from millstream.planner.language.rewards import RewardAsk, learn_ms, reward_placements, write_ms
from millstream.planner.profile import read_profile
from millstream.planner.roles import RolePlacement
from millstream.planner.training import Sharding


def run_plan_language(options: PlanTrainOptions) -> bool:
    """Print the placements, best first; return whether one fits."""
    work = _work(options)
    if options.reward is None:
        found = decoder_layouts(work)
        said = f"{work.decoder.name}, {work.decoder.parameters / 1e9:.4g} billion parameters"
        reached = _reached(work, found[0])
    else:
        critic = find_decoder(options.critic) if is_decoder(options.critic) else work.decoder
        ask = RewardAsk(work=work, critic=critic, reward=find_decoder(options.reward), answer=options.answer)
        found = reward_placements(ask)
        said = _tuned(ask)
        reached = ""
    if options.as_json:
        print(json.dumps([{**asdict(each), "fits": not each.missing} for each in found], indent=2))
    else:
        texts = (
            f"{work.batch} x {work.context} tokens a device, ZeRO-{options.zero}, {work.recompute} recompute"
        )
        console = Console()
        console.print(f"{said} on {work.fleet.name}: {texts}", highlight=False)
        placements_table(found, console)
        console.print(f"{reached}lower bounds: a program's own pauses are not in them", highlight=False)
    return not found[0].missing


def _work(options: PlanTrainOptions) -> DecoderWork:
    if options.lora or options.hybrid:
        raise ConfigError("--lora and --hybrid are not planned for language models; leave them out")
    return DecoderWork(
        decoder=find_decoder(options.student),
        fleet=parse_fleet(options.gpus, here=read_profile(profile_path())),
        context=options.context,
        batch=options.batch,
        sharding=Sharding(zero=options.zero, offload=options.offload),
        recompute=cast(Recompute, options.recompute),
    )


def _reached(work: DecoderWork, best: RolePlacement) -> str:
    rate = work.tokens * work.fleet.count / best.step_ms * 1e3
    reached = 3 * sum(decoder_flops(work.decoder, work.tokens, work.context)) / best.step_ms / 1e9
    return (
        f"{best.name}: {rate:,.0f} tokens a second, {reached:.0f} TFLOP/s a device (what is made again "
        "does not count); "
    )


def _tuned(ask: RewardAsk) -> str:
    times = (
        f"{write_ms(ask) / 1e3:.3g} s to write {ask.answer} tokens of each, {learn_ms(ask) / 1e3:.3g} s "
        "to read and learn"
    )
    return f"{ask.work.decoder.name} with critic {ask.critic.name} and reward {ask.reward.name}, {times}"
