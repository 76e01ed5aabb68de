"""Streams in batches: row i of a batch shows what a session with its prompt and its seed would.

The same sampler, ring, noise and decoder as serving, one prompt and one seed a row. Knows no judge and no
control but one prompt switch and keys. Nothing grows with the stream: the ring and the clean latents of the window,
and the newest pictures as bytes.
Shapes: B rows, F latent frames, T pixel frames, C channels, Y and X rows and columns, A numbers of an action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from millstream.core.config import TEMPORAL_STRIDE, StreamConfig
from millstream.core.controls import Switch, WeightedPrompt, normalise
from millstream.core.errors import ConfigError
from millstream.models import sampler
from millstream.models.carry import VAEState
from millstream.models.dit import CrossKV
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.kv import KVRing
from millstream.models.registry import LoadedModel
from millstream.models.ring_shape import RingShape
from millstream.ops.noise import COMMIT_STEP, CONTEXT_STEP, gaussian_rows
from millstream.ops.pixels import to_bytes
from millstream.train.evaluate.classifier import FRAMES

ROWS = {"cpu": 16, "cuda": 256}
"""Streams run at once, by kind of device."""
DECODED = 16
"""Rows decoded at once: pictures are what takes memory."""
Tick = Callable[[], None]
"""Called after each chunk of a batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptSwitch:
    """Switch to another prompt for every row, from chunk `at` on."""

    prompts: Sequence[str]
    mode: Switch
    at: int
    chunks: int = 4
    """Chunks that a blend takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Pictures of every row up to a moment."""

    second: float
    start: int
    """Number of the first frame."""
    pixels_BTCYX: Tensor
    """uint8"""


class BatchStream:
    """Streams of one model side by side; `advance` makes the next chunk of all of them."""

    def __init__(
        self,
        model: LoadedModel,
        prompts: Sequence[str],
        seeds: Sequence[int],
        *,
        config: StreamConfig,
        switch: PromptSwitch | None = None,
        actions_BFA: Tensor | None = None,
    ) -> None:
        """`actions` are what each row holds in each frame; after their end nothing is held."""
        assert switch is None or actions_BFA is None, "keys are not held over a switch here"
        assert len(prompts) == len(seeds), f"{len(prompts)} prompts for {len(seeds)} seeds"
        if config.anchor != "off":
            raise ConfigError(f"streams in batches have no anchors, got {config.anchor!r}; use anchor off")
        self.config = config
        self._model = model
        self._prompts = list(prompts)
        self._switch = switch
        self._actions_BFA = actions_BFA
        self._seeds_B = torch.tensor(list(seeds), dtype=torch.int64, device=model.device)
        shape = RingShape.of(model.spec.dit, config, batch=len(seeds))
        self._ring = KVRing(shape, device=model.device, dtype=model.dtype)
        self._cross = self._read(self._prompts)
        self._epoch = self._chunk = self._start = 0
        self._begin_epoch()

    @torch.inference_mode()
    def advance(self) -> Tensor:
        """Make the next chunk of every row as bytes, [B, T, 3, Y, X]."""
        return self._decode(self.advance_latents())

    @torch.inference_mode()
    def advance_latents(self) -> Tensor:
        """Make the next chunk of every row as latents, [B, F, C, Y, X]."""
        if self._switch is not None and self._chunk >= self._switch.at:
            self._apply(self._switch)
        config = self.config
        dit = self._model.dit
        ring = self._ring
        cross = self._cross
        frames = list(range(self._start, self._end))
        noise = partial(self._noise, config.frames_per_chunk)
        entries = self._entries(frames)
        ring.place(frames, kv_bias=config.kv_bias)
        levels = config.noise_levels(config.opening_steps if self._start == 0 else config.steps)
        start = noise(0).to(self._model.dtype)
        clean = sampler.denoise(dit, start, levels, ring, cross, noise, entries, sampler=config.sampler)
        settled = sampler.add_noise(clean, config.context_noise, lambda: noise(COMMIT_STEP))
        sampler.commit(dit, settled, config.context_noise, ring, cross, entries)
        self._remember(frames, clean)
        self._chunk += 1
        self._start = self._end
        return clean

    def _entries(self, frames: list[int]) -> Entries:
        """Return the entries of the actions in these frames."""
        if self._actions_BFA is None or frames[-1] >= self._actions_BFA.shape[1]:
            return NO_ENTRIES
        weight = next(self._model.injectors.parameters())
        entered: Entries = self._model.injectors(self._actions_BFA[:, frames].to(weight))
        return entered

    @property
    def _end(self) -> int:
        return self._start + self.config.frames_per_chunk

    def _begin_epoch(self) -> None:
        """Begin with a ring, a window and decoders that have seen nothing."""
        self._start = 0
        self._ring.reset()
        self._window: dict[int, Tensor] = {}
        self._decoders: list[VAEState] = [()] * math.ceil(len(self._prompts) / DECODED)

    def _apply(self, switch: PromptSwitch) -> None:
        """Apply a switch as a timeline does: a blend goes a share further each chunk, the other modes change
        once."""
        done = self._chunk - switch.at + 1
        if switch.mode == "blend":
            if done <= switch.chunks:
                self._cross = self._read(switch.prompts, share=done / switch.chunks)
            return
        if done > 1:
            return
        self._cross = self._read(switch.prompts)
        if switch.mode == "cut":
            self._epoch += 1
            self._begin_epoch()
        elif switch.mode == "recompute":
            self._recompute()

    def _recompute(self) -> None:
        """Rebuild the window from clean latents under the prompt in force."""
        config = self.config
        held = _first_and_last(
            sorted(self._window), config.sink, config.window - config.sink - config.frames_per_chunk
        )
        if not held:
            return
        context = torch.stack([self._window[frame] for frame in held], dim=1)
        settled = sampler.add_noise(
            context, config.context_noise, lambda: self._noise(len(held), CONTEXT_STEP)
        )
        self._ring.reset()
        for i in range(0, len(held), config.frames_per_chunk):
            group = slice(i, i + config.frames_per_chunk)
            self._ring.place(held[group], end_frame=self._end)
            sampler.commit(self._model.dit, settled[:, group], config.context_noise, self._ring, self._cross)

    def _remember(self, frames: list[int], clean_BFCYX: Tensor) -> None:
        """Keep the clean latents of the sink and the newest ones, as many as the window."""
        self._window.update(zip(frames, clean_BFCYX.unbind(1), strict=True))
        kept = _first_and_last(sorted(self._window), self.config.sink, self.config.window - self.config.sink)
        self._window = {frame: self._window[frame] for frame in kept}

    def _noise(self, frames: int, step: int) -> Tensor:
        """Draw noise [B, F, C, Y, X] in float32, each row from its own seed."""
        shape = frames, self._model.spec.dit.channels, *self.config.latent_size
        return gaussian_rows(shape, self._seeds_B, epoch=self._epoch, chunk=self._chunk, step=step)

    @torch.inference_mode()
    def _read(self, prompts: Sequence[str], share: float = 1.0) -> CrossKV:
        """Return keys and values of every row's prompt, or of the mix on the way from its first one."""
        rows = [
            self._model.text(_mix(old, new, share)) for old, new in zip(self._prompts, prompts, strict=True)
        ]
        return self._model.dit.read_prompt(torch.cat(rows).to(self._model.device, self._model.dtype))

    def _decode(self, clean_BFCYX: Tensor) -> Tensor:
        parts = []
        for i, latents in enumerate(clean_BFCYX.split(DECODED)):
            pixels, self._decoders[i] = self._model.vae.decode(latents, self._decoders[i])
            parts.append(to_bytes(pixels))
        return torch.cat(parts)


def stream_latents(
    model: LoadedModel,
    prompts: Sequence[str],
    chunks: int,
    *,
    config: StreamConfig,
    tick: Tick = lambda: None,
) -> Tensor:
    """Return this many chunks of each prompt's stream before they are decoded, [B, F, C, Y, X]; ticks
    `latent_ticks` times."""
    streams = []
    for rows in row_groups(len(prompts), model.device):
        stream = BatchStream(model, prompts[rows], range(rows.start, rows.stop), config=config)
        parts = []
        for _ in range(chunks):
            parts.append(stream.advance_latents())
            tick()
        streams.append(torch.cat(parts, dim=1))
    return torch.cat(streams)


def latent_ticks(count: int, chunks: int, device: torch.device) -> int:
    return len(row_groups(count, device)) * chunks


def moments(stream: BatchStream, seconds: Sequence[float], tick: Tick = lambda: None) -> Iterator[Moment]:
    """Yield the first chunk as second 0, then the last two seconds and a frame up to each of `seconds`, which
    must rise."""
    recent = stream.advance()
    tick()
    shown = recent.shape[1]
    yield Moment(second=0.0, start=0, pixels_BTCYX=recent)
    for second in seconds:
        while shown < max(FRAMES, second * stream.config.fps):
            chunk = stream.advance()
            tick()
            shown += chunk.shape[1]
            recent = torch.cat([recent, chunk], dim=1)[:, -FRAMES:]
        yield Moment(second=second, start=shown - FRAMES, pixels_BTCYX=recent)


def row_groups(count: int, device: torch.device) -> list[slice]:
    """Divide `count` rows into groups that are streamed at once."""
    rows = ROWS[device.type]
    return [slice(first, min(first + rows, count)) for first in range(0, count, rows)]


def chunks_until(second: float, config: StreamConfig) -> int:
    """Return the number of chunks that `moments` takes until `second`."""
    first = TEMPORAL_STRIDE - 1  # pictures that the first chunk lacks
    return math.ceil((max(FRAMES, second * config.fps) + first) / (TEMPORAL_STRIDE * config.frames_per_chunk))


def _mix(old: str, new: str, share: float) -> tuple[WeightedPrompt, ...]:
    if share >= 1.0:
        return (WeightedPrompt(new),)
    return normalise((WeightedPrompt(old, 1.0 - share), WeightedPrompt(new, share)))


def _first_and_last(frames: list[int], first: int, last: int) -> list[int]:
    return frames[:first] + frames[max(first, len(frames) - last) :]
