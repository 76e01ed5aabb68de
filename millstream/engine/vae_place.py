"""A VAE on devices of its own: whole on one, or a tile of every picture on each of several.

Sessions do not notice: what they hand over comes from the engine's device, and what they get back is there.
The state in their hands stays where the VAE left it, and may come from anywhere.
Shapes: B batch, F latent frames, T pixel frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from millstream.core.config import ModelSpec
from millstream.core.errors import ConfigError
from millstream.models.carry import VAE, VAEState
from millstream.models.wan.vae import WanVAE
from millstream.parallel.spatial import SplitVAE


class PlacedVAE:
    """Called as a VAE on `home`, does its work on `device`."""

    def __init__(self, vae: VAE, device: torch.device, home: torch.device) -> None:
        self._vae = vae
        self._device = device
        self._home = home

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        with self._at_work():
            latents, state = self._vae.encode(pixels_BTCYX.to(self._device), self._near(state))
        return latents.to(self._home), state

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        with self._at_work():
            pixels, state = self._vae.decode(latents_BFCYX.to(self._device), self._near(state))
        return pixels.to(self._home), state

    def _near(self, state: VAEState) -> VAEState:
        if isinstance(self._vae, SplitVAE):  # tiles fetch their own
            return state
        return tuple(tail.to(self._device) for tail in state)

    def _at_work(self) -> AbstractContextManager[object]:
        """Kernels of our own start on the current device, wherever their tensors are."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


def place_vae(vae: VAE, devices: Sequence[torch.device], home: torch.device) -> VAE:
    """Return the VAE that sessions on `home` use instead of `vae`, which is on the first of `devices`; `vae`
    itself where there are none."""
    if not devices:
        return vae
    if len(devices) == 1:
        return PlacedVAE(vae, devices[0], home)
    assert isinstance(vae, WanVAE), f"{type(vae).__name__} has no tiles"
    assert vae.config.has_fast_path, "a VAE with shortcuts has no tiles"
    return PlacedVAE(SplitVAE(vae, devices), devices[0], home)


def refuse_split(spec: ModelSpec) -> None:
    """Raise where a VAE cannot be taken apart."""
    if not spec.vae.has_fast_path:
        raise ConfigError(f"the VAE of {spec.name} is not split; give it one device with --vae-devices")
