"""A VAE's decoder split over several devices of one process: each has a strip of rows, and neighbours trade their edges.

A convolution needs the row above and the row below its strip, so it is given them; attention within a frame needs all rows, so
they are gathered there, where pictures are smallest. Everything else is done pixel by pixel. Nothing is blended: the pictures
are those of the whole decoder up to rounding. Every strip is decoded by a thread of its own, and all make the same trades in
the same order; a strip that fails fails all. Encoding stays whole, on the first device.
Shapes: B batch, C channels, T frames, Y and X rows and columns.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from queue import Empty, SimpleQueue

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.errors import ConfigError, DeviceError
from millstream.core.undo import undone_by
from millstream.models.carry import Carry, VAEState
from millstream.models.wan.vae import CausalConv, FrameAttention, Upsample, WanDecoder, WanVAE

PATIENCE_S = 60.0
"""How long a strip waits for another's rows."""


class StripLost(DeviceError):
    """Another strip's rows that do not come."""


class Strip:
    """One of several strips, top to bottom, and how it speaks to the others.

    A box holds what one strip gave another, at most two trades' rows: nobody is further ahead than one trade.
    """

    def __init__(self, place: int, boxes: Sequence[Sequence[SimpleQueue[Tensor | None]]]) -> None:
        self.place, self.count, self._boxes = place, len(boxes), boxes

    def with_edges(self, x: Tensor) -> Tensor:
        """x, its rows second to last, with a row more at top and bottom: the neighbours', or zeros where the picture ends."""
        self._give(self.place - 1, x[..., :1, :])
        self._give(self.place + 1, x[..., -1:, :])
        outside = torch.zeros_like(x[..., :1, :])
        above = self._take(self.place - 1, x) if self.place > 0 else outside
        below = self._take(self.place + 1, x) if self.place + 1 < self.count else outside
        return torch.cat([above, x, below], dim=-2)

    def gathered(self, x: Tensor) -> Tensor:
        """All strips' rows."""
        others = [place for place in range(self.count) if place != self.place]
        for place in others:
            self._give(place, x)
        rows = {self.place: x} | {place: self._take(place, x) for place in others}
        return torch.cat([rows[place] for place in range(self.count)], dim=-2)

    def give_up(self) -> None:
        """Let nobody wait for this strip."""
        for box in self._boxes[self.place]:
            box.put(None)

    def forget(self) -> None:
        """Drop what it was sent and has not taken."""
        for boxes in self._boxes:
            while not boxes[self.place].empty():
                boxes[self.place].get()

    def _give(self, place: int, rows: Tensor) -> None:
        if 0 <= place < self.count:
            self._boxes[self.place][place].put(rows)

    def _take(self, place: int, like: Tensor) -> Tensor:
        try:
            rows = self._boxes[place][self.place].get(timeout=PATIENCE_S)
        except Empty:
            raise StripLost(f"strip {self.place} waited {PATIENCE_S:.0f} s for strip {place}; is its device alive?") from None
        if rows is None:
            raise StripLost(f"strip {place} failed, so strip {self.place} cannot go on")
        return rows.to(like.device)


class StripCausalConv(nn.Module):
    """A causal convolution over a strip; what it remembers includes the neighbours' rows."""

    def __init__(self, whole: CausalConv, strip: Strip) -> None:
        super().__init__()
        self.whole, self._strip = whole, strip

    def stream(self, x_BCTYX: Tensor, carry: Carry) -> Tensor:
        conv = self.whole
        x = self._strip.with_edges(x_BCTYX) if conv.kernel_size[1] > 1 else x_BCTYX
        longer = carry.extend(x, conv.kernel_size[0] - 1)
        return F.conv3d(longer, conv.weight, conv.bias, conv.stride, (0, 0, conv.kernel_size[2] // 2))


class StripConv(nn.Module):
    """A convolution of single frames over a strip."""

    def __init__(self, whole: nn.Conv2d, strip: Strip) -> None:
        super().__init__()
        self.whole, self._strip = whole, strip

    def forward(self, x_BCYX: Tensor) -> Tensor:
        return F.conv2d(self._strip.with_edges(x_BCYX), self.whole.weight, self.whole.bias, padding=(0, 1))


class StripFrameAttention(nn.Module):
    """This strip's pixels attend to those of the whole frame."""

    def __init__(self, whole: FrameAttention, strip: Strip) -> None:
        super().__init__()
        self.whole, self._strip = whole, strip

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        frames = x.transpose(1, 2).flatten(0, 1)
        q, k, v = self.whole.qkv(self.whole.norm(frames)).chunk(3, dim=1)
        k, v = self._strip.gathered(torch.cat([k, v], dim=1)).chunk(2, dim=1)
        q, k, v = (part.flatten(2).transpose(1, 2).unsqueeze(1) for part in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).view_as(frames)
        return x + self.whole.proj(attended).unflatten(0, (x.shape[0], -1)).transpose(1, 2)


class SplitVAE(nn.Module):
    """A Wan VAE whose decoder works on several devices at once. Called as the whole one is."""

    def __init__(self, vae: WanVAE, devices: Sequence[torch.device]) -> None:
        super().__init__()
        if len(devices) < 2:
            raise ConfigError(f"a VAE is split over 2 devices or more, got {len(devices)}; use it whole on one")
        self.config, self.vae, self.devices = vae.config, vae, tuple(devices)
        boxes: list[list[SimpleQueue[Tensor | None]]] = [[SimpleQueue() for _ in devices] for _ in devices]
        self._strips = [Strip(place, boxes) for place in range(len(devices))]
        self.decoders = nn.ModuleList(
            _over_strip(copy.deepcopy(vae.decoder).to(device), strip)
            for device, strip in zip(devices, self._strips, strict=True)
        )
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="strip")

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        return self.vae.encode(pixels_BTCYX, state)

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        """Pixels [B, T, 3, 8Y, 8X], clamped, and the strips' states one after the other."""
        count = len(self.devices)
        check_rows(latents_BFCYX.shape[-2], count)
        strips = self.vae.unquantised(latents_BFCYX).tensor_split(count, dim=-2)
        assert len(state) % count == 0, f"a past of {len(state)} layers is not that of {count} strips"
        each = len(state) // count
        states = [state[place * each : (place + 1) * each] for place in range(count)]
        inference = torch.is_inference_mode_enabled()
        jobs = [
            self._threads.submit(self._decode_strip, *job, inference) for job in zip(range(count), strips, states, strict=True)
        ]
        wait(jobs)
        self._raise_first([job.exception() for job in jobs])
        pixels, ends = zip(*(job.result() for job in jobs), strict=True)
        whole = torch.cat([part.to(latents_BFCYX.device) for part in pixels], dim=-2)
        return whole.clamp(-1, 1).transpose(1, 2), tuple(tail for end in ends for tail in end)

    def _raise_first(self, errors: Sequence[BaseException | None]) -> None:
        """The failure that made the others fail, if there was one; afterwards no strip finds rows of this pass."""
        failed = sorted((error for error in errors if error is not None), key=lambda error: isinstance(error, StripLost))
        if failed:
            for strip in self._strips:
                strip.forget()
            raise failed[0]

    def _decode_strip(self, place: int, z_BCTYX: Tensor, state: VAEState, inference: bool) -> tuple[Tensor, VAEState]:
        device = self.devices[place]
        carry = Carry(tuple(tail.to(device) for tail in state))  # a session that stood still had them elsewhere
        with undone_by(self._strips[place].give_up), torch.inference_mode(inference), torch.set_grad_enabled(False):
            pixels = self.decoders[place](z_BCTYX.to(device), carry)
        return pixels, carry.finish()


def check_rows(latent_rows: int, strips: int) -> None:
    if latent_rows < strips:
        raise ConfigError(f"{latent_rows} latent rows do not make {strips} strips; split the VAE over fewer devices")


def _over_strip(decoder: WanDecoder, strip: Strip) -> WanDecoder:
    """The decoder with its convolutions and attention over a strip."""
    for parent in list(decoder.modules()):
        for name, child in parent.named_children():
            if isinstance(child, CausalConv):
                setattr(parent, name, StripCausalConv(child, strip))
            elif isinstance(parent, Upsample) and isinstance(child, nn.Conv2d):
                setattr(parent, name, StripConv(child, strip))
            elif isinstance(child, FrameAttention):
                setattr(parent, name, StripFrameAttention(child, strip))
    return decoder
