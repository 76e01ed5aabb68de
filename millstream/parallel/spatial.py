"""A VAE split over several devices of one process: each has a tile of every frame, and neighbours trade
their edges.

Convolutions and attention are done over a tile with what they need of the others (`parallel/tiles.py`);
everything else is done pixel by pixel. Nothing is blended: frames and latents are those of the whole VAE up
to rounding, on the plain path and on the fast one. What a tile remembers between calls is its part of what
the whole VAE would.
Shapes: B batch, C channels, T frames, P pixels of a tile, Y and X rows and columns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.errors import ConfigError
from millstream.core.undo import undone_by
from millstream.models.carry import Carry, VAEState
from millstream.models.empty import empty_modules
from millstream.models.typed_modules import TypedModuleList
from millstream.models.wan.fast_vae import FastVAE
from millstream.models.wan.vae import CausalConv, Downsample, FrameAttention, Upsample, WanVAE
from millstream.parallel.tiles import Boxes, Tile, TileLost, choose_grid

Pass = Callable[[Tensor, VAEState], tuple[Tensor, VAEState]]
_PLANES = (-2, -1)
"""Dimensions of rows and columns in the plain layers."""


class TileCausalConv(nn.Module):
    """A causal convolution over a tile."""

    def __init__(self, whole: CausalConv, tile: Tile) -> None:
        super().__init__()
        self.whole = whole
        self._tile = tile

    def stream(self, x_BCTYX: Tensor, carry: Carry) -> Tensor:
        conv = self.whole
        canvas = F.pad(carry.extend(x_BCTYX, conv.kernel_size[0] - 1), (1, 1, 1, 1))
        self._tile.fill(canvas, 1, 1, _PLANES)
        return F.conv3d(canvas, conv.weight, conv.bias, conv.stride)


class TileConv(nn.Module):
    """A convolution of single frames over a tile: as large as they are, or half as large and given an edge
    already."""

    def __init__(self, whole: nn.Conv2d, tile: Tile) -> None:
        super().__init__()
        self.whole = whole
        self._tile = tile

    def forward(self, x_BCYX: Tensor) -> Tensor:
        conv = self.whole
        before = int(self.whole.padding[0])
        canvas = F.pad(x_BCYX, (before,) * 4) if before else x_BCYX
        self._tile.fill(canvas, before, 1, _PLANES)
        return F.conv2d(canvas, conv.weight, conv.bias, conv.stride)


class TileFrameAttention(nn.Module):
    """This tile's pixels attend to those of the whole frame."""

    def __init__(self, whole: FrameAttention, tile: Tile) -> None:
        super().__init__()
        self.whole = whole
        self._tile = tile

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        frames = x.transpose(1, 2).flatten(0, 1)
        channels = frames.shape[1]
        q_TPC, kv_TPC = (
            self.whole.qkv(self.whole.norm(frames))
            .flatten(2)
            .transpose(1, 2)
            .split((channels, 2 * channels), -1)
        )
        k_TPC, v_TPC = self._tile.everywhere(kv_TPC).chunk(2, dim=-1)
        attended = F.scaled_dot_product_attention(q_TPC[:, None], k_TPC[:, None], v_TPC[:, None])
        attended = attended.squeeze(1).transpose(1, 2).view_as(frames)
        return x + self.whole.proj(attended).unflatten(0, (x.shape[0], -1)).transpose(1, 2)


class SplitVAE(nn.Module):
    """A Wan VAE that works on several devices at once. Called as the whole one is, whose weights it shares
    where they are."""

    def __init__(self, vae: WanVAE, devices: Sequence[torch.device]) -> None:
        super().__init__()
        if len(devices) < 2:
            raise ConfigError(
                f"a VAE is split over 2 devices or more, got {len(devices)}; use it whole on one"
            )
        self.config = vae.config
        self.devices = tuple(
            torch.empty(0, device=device).device for device in devices
        )  # "cuda" says another on each thread
        boxes: Boxes = [[SimpleQueue() for _ in devices] for _ in devices]
        self._tiles = [Tile(place, boxes) for place in range(len(devices))]
        self.parts = TypedModuleList(
            _over_tile(vae, *each) for each in zip(self.devices, self._tiles, strict=True)
        )
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="tile")
        self._one_at_a_time = threading.Lock()

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        """Latents [B, F, C, Y/8, X/8], and the tiles' states one after the other."""
        return self._together(
            [part.encode for part in self.parts], pixels_BTCYX, state, self.config.spatial_stride
        )

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        """Pixels [B, T, 3, 8Y, 8X], clamped, and the tiles' states one after the other."""
        return self._together([part.decode for part in self.parts], latents_BFCYX, state, 1)

    def _together(
        self, passes: Sequence[Pass], x: Tensor, state: VAEState, unit: int
    ) -> tuple[Tensor, VAEState]:
        count = len(self.devices)
        grid = choose_grid((x.shape[-2] // unit, x.shape[-1] // unit), count)
        assert len(state) % count == 0, f"a past of {len(state)} layers is not that of {count} tiles"
        each = len(state) // count
        states = [state[place * each : (place + 1) * each] for place in range(count)]
        # Tiles go on where the caller's work is queued, on every device, so that no kernel reads what is not
        # written yet.
        streams = [
            torch.cuda.current_stream(device) for device in {x.device, *self.devices} if device.type == "cuda"
        ]
        inference = torch.is_inference_mode_enabled()
        with self._one_at_a_time:
            for tile in self._tiles:
                tile.grid = grid
            jobs = [
                self._threads.submit(self._work, *job, streams, inference)
                for job in zip(self._tiles, self.devices, passes, grid.cut(x, unit), states, strict=True)
            ]
            wait(jobs)
            self._raise_first([job.exception() for job in jobs])
        answers, ends = zip(*(job.result() for job in jobs), strict=True)
        return grid.joined([answer.to(x.device) for answer in answers]), tuple(
            tail for end in ends for tail in end
        )

    def _raise_first(self, errors: Sequence[BaseException | None]) -> None:
        """Raise the failure that made the others fail, if there was one; afterwards no tile finds pixels of
        this pass."""
        failed = sorted(
            (error for error in errors if error is not None), key=lambda error: isinstance(error, TileLost)
        )
        if failed:
            for tile in self._tiles:
                tile.forget()
            raise failed[0]

    @staticmethod
    def _work(
        tile: Tile,
        device: torch.device,
        run: Pass,
        x: Tensor,
        state: VAEState,
        streams: Sequence[torch.cuda.Stream],
        inference: bool,
    ) -> tuple[Tensor, VAEState]:
        with (
            undone_by(tile.give_up),
            torch.inference_mode(inference),
            torch.set_grad_enabled(False),
            _on(device, streams),
        ):
            near = tuple(tail.to(device) for tail in state)  # a session that stood still had them elsewhere
            return run(x.to(device), near)


@contextmanager
def _on(device: torch.device, streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """This thread's work goes to these streams. Kernels of our own start on the current device, wherever
    their tensors are."""
    for stream in streams:
        torch.cuda.set_stream(stream)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield


def _over_tile(vae: WanVAE, device: torch.device, tile: Tile) -> WanVAE:
    """Return the VAE on this device, for a tile of its frames."""
    with empty_modules():
        here = WanVAE(vae.config)
    here.load_state_dict({name: weight.to(device) for name, weight in vae.state_dict().items()}, assign=True)
    if isinstance(vae, FastVAE):
        return FastVAE(here, vae.own if device.type == "cuda" else None, tile)
    for parent in list(here.requires_grad_(False).modules()):
        for name, child in parent.named_children():
            if isinstance(child, CausalConv) and child.kernel_size[1] > 1:
                setattr(parent, name, TileCausalConv(child, tile))
            elif isinstance(parent, (Upsample, Downsample)) and isinstance(child, nn.Conv2d):
                setattr(parent, name, TileConv(child, tile))
            elif isinstance(child, FrameAttention):
                setattr(parent, name, TileFrameAttention(child, tile))
    return here
