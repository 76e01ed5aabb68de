"""Models of toy size, with every part there."""

from __future__ import annotations

from dataclasses import replace

import torch

from millstream.core.config import BrookTextConfig, BrookVAEConfig, DiTConfig, VAEConfig
from millstream.core.presets import find_model
from millstream.models.brook.text import BrookText
from millstream.models.dit import CausalDiT
from millstream.models.wan.vae import WanVAE
from millstream.train.methods.flow import TextAndDiT
from millstream.train.pool import LatentPool

BROOK = find_model("brook")
SMALL_BROOK = replace(
    BROOK,
    dit=replace(BROOK.dit, layers=2, width=64, heads=2, ffn=96, text_width=32),
    vae=BrookVAEConfig(widths=(32, 16, 8), blocks=(1, 1, 1)),
    text=BrookTextConfig(width=32, layers=1, heads=2),
    stream=replace(BROOK.stream, height=64, width=64),
)
TEXT = BrookTextConfig(vocabulary=9, tokens=5, width=16, layers=1, heads=2)
DIT = DiTConfig(
    layers=2, width=32, heads=2, ffn=48, channels=2, text_width=16, text_tokens=5, time_features=16
)
VAE = VAEConfig(width=4, channels=4, mean=(0.1, -0.2, 0.3, 0.0), std=(1.5, 0.5, 1.0, 2.0))


def pair() -> TextAndDiT:
    torch.manual_seed(0)
    return TextAndDiT(BrookText(TEXT), CausalDiT(DIT))


def pool(clips: int = 8) -> LatentPool:
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(clips, 6, 2, 4, 4, generator=generator).cumsum(1)
    ids = torch.randint(1, 9, (clips, 2, 5), generator=generator)
    return LatentPool(latents_KFCYX=latents, ids_KWS=ids, true_from_K=torch.arange(clips) % 2 * 3)


def vae() -> WanVAE:
    """Return a VAE whose parameters are all away from zero and one, so that no mistake hides behind them."""
    torch.manual_seed(0)
    network = WanVAE(VAE)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            scale = 0.3 / max(1, parameter[0].numel()) ** 0.5
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return network.eval().requires_grad_(False)
