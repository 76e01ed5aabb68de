"""`millstream train decoder`: the thin decoder that shows Brook's pictures on CPUs, distilled from its
own."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from millstream.commands.progress import counting_bar
from millstream.commands.train.run_folder import say_stopping, writing_to
from millstream.commands.train.stage_progress import StageProgress
from millstream.core.errors import ConfigError
from millstream.engine.engine import Engine
from millstream.models.brook.files import thin_decoder_path
from millstream.models.brook.thin import THIN, save_thin_decoder
from millstream.models.brook.vae import BrookDecoder, BrookVAE
from millstream.models.carry import Carry
from millstream.train.data.captions import canonical_captions
from millstream.train.data.scene import sample_scenes
from millstream.train.evaluate.streams import latent_ticks, stream_latents
from millstream.train.loop import TurnTraining, train_stage
from millstream.train.methods.thin_decoder import ThinDecoderMethod
from millstream.train.methods.vae import psnr
from millstream.train.plan import StagePlan

SEED = 626262
"""Seed of the scenes whose captions are streamed: neither those used in training nor those that are
judged."""
CHUNKS = 16
"""Chunks of each stream that is learnt from: long enough for what a stream forgets to be forgotten."""
HELD_OUT = 8
"""Streams that are only compared."""


def run_train_decoder(
    weights: str, out: Path, *, streams: int, steps: int, batch: int, device: str
) -> Path | None:
    """The file that was written; None if it was stopped before its end. One that was begun goes on."""
    if streams <= HELD_OUT or min(steps, batch) < 1:
        raise ConfigError(
            f"give more than {HELD_OUT} streams, and 1 or more steps and batch, got {streams}, {steps}, "
            f"{batch}"
        )
    engine = Engine("brook", weights=weights, device=device)
    model = engine.model
    config = engine.stream_config()
    assert isinstance(model.vae, BrookVAE)
    prompts = canonical_captions(sample_scenes(streams, seed=SEED, held_out=False, device=engine.device))
    with counting_bar("streams", latent_ticks(streams, CHUNKS, engine.device)) as tick:
        latents = stream_latents(model, prompts, CHUNKS, config=config, tick=tick)
    vae = model.vae.float()
    raw_RFCYX = latents.float() * vae.latent_std.view(-1, 1, 1) + vae.latent_mean.view(-1, 1, 1)
    torch.manual_seed(0)
    thin = BrookDecoder(THIN).to(engine.device)
    nn.utils.convert_conv2d_weight_memory_format(thin, torch.channels_last)
    stage = StagePlan(name="decoder", method="vae", steps=steps, batch=batch, lr=2e-3)
    method = ThinDecoderMethod(thin, vae.decoder, raw_RFCYX[HELD_OUT:].clone(), batch=batch)
    console = Console(stderr=True)
    with writing_to(out):
        with StageProgress(console) as progress:
            learnt = train_stage(
                stage,
                TurnTraining(method, stage, seed=0, device=engine.device),
                out,
                device=engine.device,
                report=lambda said: progress.add(stage.name, said),
                on_asked=say_stopping,
            )
        assert isinstance(learnt, BrookDecoder)
        path = out / thin_decoder_path(weights).name
        save_thin_decoder(path, learnt)
        console.print(
            f"{_likeness(learnt, vae.decoder, raw_RFCYX[:HELD_OUT]):.1f} dB to the whole decoder's pictures"
        )
        return path
    return None


@torch.inference_mode()
def _likeness(thin: BrookDecoder, thick: BrookDecoder, raw_RFCYX: torch.Tensor) -> float:
    pictures = [
        torch.cat([decoder(one, Carry(())).clamp(-1, 1) for one in raw_RFCYX.split(1)])
        for decoder in (thin, thick)
    ]
    return psnr(*pictures)
