"""`millstream plan train` of a language model: by itself, or tuned by reward with four models. Loads no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import cast

from rich.console import Console

from millstream.commands.plan.run import profile_path
from millstream.commands.plan.train import placements_table
from millstream.core.config import Recompute
from millstream.planner.hardware import parse_fleet
from millstream.planner.language.decoders import find_decoder
from millstream.planner.language.learning import DecoderWork, decoder_flops, decoder_layouts
from millstream.planner.language.rewards import RewardAsk, learn_ms, reward_placements, write_ms
from millstream.planner.profile import read_profile
from millstream.planner.roles import RolePlacement
from millstream.planner.training import Sharding


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageRequest:
    """What a person asks, as they spell it."""

    student: str
    critic: str
    reward: str | None
    gpus: str
    context: int
    answer: int
    batch: int
    zero: int
    offload: bool
    recompute: str

    def work(self) -> DecoderWork:
        return DecoderWork(
            decoder=find_decoder(self.student),
            fleet=parse_fleet(self.gpus, here=read_profile(profile_path())),
            context=self.context,
            batch=self.batch,
            sharding=Sharding(zero=self.zero, offload=self.offload),
            recompute=cast(Recompute, self.recompute),
        )


def run_plan_language(request: LanguageRequest, *, as_json: bool) -> bool:
    """Print the placements, best first; whether one fits."""
    work = request.work()
    if request.reward is None:
        found = decoder_layouts(work)
        said, reached = f"{work.decoder.name}, {work.decoder.parameters / 1e9:.4g} billion parameters", _reached(work, found[0])
    else:
        ask = RewardAsk(
            work=work, critic=find_decoder(request.critic), reward=find_decoder(request.reward), answer=request.answer
        )
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


def _reached(work: DecoderWork, best: RolePlacement) -> str:
    rate = work.tokens * work.fleet.count / best.step_ms * 1e3
    reached = 3 * sum(decoder_flops(work.decoder, work.tokens, work.context)) / best.step_ms / 1e9
    return f"{best.name}: {rate:,.0f} tokens a second, {reached:.0f} TFLOP/s a device (what is made again does not count); "


def _tuned(ask: RewardAsk) -> str:
    times = f"{write_ms(ask) / 1e3:.3g} s to write {ask.answer} tokens of each, {learn_ms(ask) / 1e3:.3g} s to read and learn"
    return f"{ask.work.decoder.name} with critic {ask.critic.name} and reward {ask.reward.name}, {times}"
