"""Rollouts by the generator that serves: the same DiT, sampler, ring, noise and decoder, many streams at
once.

A group is several streams of one prompt. From the start they share nothing; forked, they share one past,
which is made once. What was sampled is recorded, so that its density can be computed again under other
weights.
Shapes: P prompts, B = P * group rows, F latent frames, T pixel frames, C channels, Y and X rows and columns,
S text tokens, E text width, L learnt steps of a chunk.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from millstream.core.config import StreamConfig
from millstream.core.controls import WeightedPrompt
from millstream.core.errors import WeightsError
from millstream.core.files import Staging
from millstream.models import sampler
from millstream.models.carry import VAEState
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.fast.apply import quicken
from millstream.models.fast.follow import plain_weights
from millstream.models.kv import KVRing
from millstream.models.registry import LoadedModel
from millstream.models.ring_shape import RingShape
from millstream.ops.noise import gaussian_rows
from millstream.ops.pixels import to_bytes
from millstream.train.evaluate.streams import DECODED
from millstream.train.loop import keyed_generator
from millstream.train.rl.steps import SampledChunk, StepNoise, sample_chunk
from millstream.train.rollout import FAST, recommit

VERSION = "version"
BEING_WRITTEN = -1
"""Version while weights are being written, with which no rollout begins or ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutPlan:
    """Plan of what is streamed in one step of training."""

    prompts: tuple[str, ...]
    group: int
    """Number of streams of each prompt."""
    chunks: int
    """Chunks of each stream that are learnt from."""
    fork_at: int = 0
    """Chunks of the past that a group shares; 0 where streams begin apart."""
    before: tuple[str, ...] = ()
    """Prompts of that past, where the prompt is switched at the fork."""
    shared_start: bool = False
    """Start each chunk of a group's streams from the same noise, so that they differ by their learnt steps
    alone."""
    seed: int
    """Seed of all noise."""

    def __post_init__(self) -> None:
        assert self.fork_at > 0 or not self.before, "a prompt is switched after a past"
        assert len(self.before) in (0, len(self.prompts)), (
            f"{len(self.before)} prompts before {len(self.prompts)}"
        )

    @property
    def row_prompts(self) -> tuple[str, ...]:
        return tuple(prompt for prompt in self.prompts for _ in range(self.group))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectories:
    """Sampled streams, row by row, and the version of the weights that sampled them."""

    version: int
    text_BSE: Tensor
    past_BFCYX: Tensor
    """Clean frames that the ring holds, or has held, before the first learnt chunk; they are numbered from
    0."""
    clean_BFCYX: Tensor
    """Chunks that are learnt from."""
    starts: tuple[Tensor, ...]
    """Latents that each step starts from, for all chunks: [B, F, C, Y, X]."""
    ends: tuple[Tensor, ...]
    """Latents that each learnt step ends with."""
    log_density_BLK: Tensor
    """Log-densities of the learnt steps, as the rollout computed them."""
    shown_before_PFCYX: Tensor
    """All latent frames of each past that were shown before the first learnt chunk: a decoder begins
    there."""
    prompts: tuple[str, ...]
    """Prompt of each row."""

    def __len__(self) -> int:
        return len(self.text_BSE)

    @property
    def group(self) -> int:
        """Number of streams of each past."""
        return len(self) // len(self.shown_before_PFCYX)

    def of_pasts(self, places: Tensor) -> Trajectories:
        """Return the streams of these pasts alone."""
        rows = (places[:, None] * self.group + torch.arange(self.group, device=places.device)).flatten()
        return Trajectories(
            version=self.version,
            text_BSE=self.text_BSE[rows],
            past_BFCYX=self.past_BFCYX[rows],
            clean_BFCYX=self.clean_BFCYX[rows],
            starts=tuple(start[rows] for start in self.starts),
            ends=tuple(end[rows] for end in self.ends),
            log_density_BLK=self.log_density_BLK[rows],
            shown_before_PFCYX=self.shown_before_PFCYX[places],
            prompts=tuple(self.prompts[row] for row in rows.tolist()),
        )


class RolloutEngine:
    """Copy of the actor as it is served, with weights of one version at a time."""

    def __init__(
        self,
        actor: CausalDiT,
        model: LoadedModel,
        config: StreamConfig,
        noise: StepNoise,
        dtype: torch.dtype,
        *,
        is_fast: bool = False,
    ) -> None:
        """With `is_fast` on the fast path of serving, which adapters cannot use."""
        dit = copy.deepcopy(actor).to(dtype).requires_grad_(requires_grad=False).eval()
        self.dit = quicken(dit, FAST) if is_fast else dit
        self._weights = plain_weights(self.dit)
        self.model = model
        self.config = config
        self.noise = noise
        self.dtype = dtype
        self.version = 0

    def load_weights(self, actor: CausalDiT, version: int) -> None:
        """Take the actor's weights over, in place."""
        self.load_weights_by(partial(_copy_over, dict(actor.named_parameters()), version))

    def load_weights_file(self, path: Path) -> None:
        """Take weights over from a file that `write_version` wrote, perhaps in another process. It is read
        whole before anything changes, and not at all if it holds the current version."""
        try:
            with safe_open(path, framework="pt") as file:
                version = int((file.metadata() or {})[VERSION])
                if version == self.version:
                    return
                if set(file.keys()) != set(self._weights):
                    raise WeightsError(
                        f"{path} holds another model's weights; write it from the model that is tuned"
                    )
                theirs = {name: file.get_tensor(name) for name in self._weights}
        except (OSError, SafetensorError, KeyError) as error:
            raise WeightsError(f"{path} holds no weights to roll out with ({type(error).__name__})") from None
        self.load_weights_by(partial(_copy_over, theirs, version))

    @torch.no_grad()
    def load_weights_by(self, write: Callable[[Mapping[str, Tensor]], int]) -> None:
        """Take weights over by `write`, which writes over the weights that it is given and returns their
        version. If it fails half-way, rollouts are refused until a later call succeeds."""
        self.version = BEING_WRITTEN
        self.version = write(self._weights)

    @torch.no_grad()
    def roll(self, plan: RolloutPlan) -> Trajectories:
        """Stream and record. Weights must not change meanwhile."""
        version = self.version
        frames = self.config.frames_per_chunk
        assert version != BEING_WRITTEN, "a rollout while weights are being written"
        text_PSE, seeds_P, seeds_B = self.read(plan.prompts), *self._seeds(plan)
        ring, past, shown = self._past(plan, text_PSE, seeds_P)
        ring = fork_stream(ring, plan.group)
        text = text_PSE.repeat_interleave(plan.group, dim=0)
        first = past.shape[1] // frames
        cross = self._cross(text)
        made = []
        starts_B = seeds_P.repeat_interleave(plan.group) if plan.shared_start else seeds_B
        for chunk in range(first, first + plan.chunks):
            made.append(self._chunk(ring, cross, seeds_B, chunk, starts_B))
        assert self.version == version, f"weights of version {version} became {self.version} within a rollout"
        clean = torch.cat([each.clean_BFCYX for each in made], dim=1)
        steps = range(len(self.noise.learnt))
        return Trajectories(
            version=version,
            text_BSE=text,
            past_BFCYX=past.repeat_interleave(plan.group, dim=0),
            clean_BFCYX=clean,
            starts=tuple(
                torch.cat(parts, dim=1) for parts in zip(*(each.starts for each in made), strict=True)
            ),
            ends=tuple(torch.cat([each.ends[i] for each in made], dim=1) for i in steps),
            log_density_BLK=torch.stack(
                [torch.stack([each.log_density_B[i] for each in made], dim=1) for i in steps], dim=1
            ),
            shown_before_PFCYX=shown,
            prompts=plan.row_prompts,
        )

    @torch.no_grad()
    def show(self, made: Trajectories) -> Tensor:
        """Return the learnt chunks as pictures, [B, T, 3, Y, X] in uint8. They are decoded for some pasts at
        a time, and some of their streams: pictures and the decoder's state take much memory."""
        group = made.group
        parts = list[Tensor]()
        for first in range(0, len(made.shown_before_PFCYX), DECODED):
            state = self._remembered(made.shown_before_PFCYX[first : first + DECODED])
            rows = torch.arange(
                first * group, min((first + DECODED) * group, len(made)), device=made.clean_BFCYX.device
            )
            for some in rows.split(DECODED):
                tails = tuple(tail[some // group - first] for tail in state)
                parts.append(
                    to_bytes(self.model.vae.decode(made.clean_BFCYX[some].to(self.model.dtype), tails)[0])
                )
        return torch.cat(parts)

    def paint(self, made: Trajectories, clean_BFCYX: Tensor, rows: Tensor) -> Tensor:
        """Return finished chunks of these rows as pictures [B, T, 3, Y, X] in [-1, 1]; gradients flow back to
        them."""
        pasts, place = (rows // made.group).unique(return_inverse=True)
        with torch.no_grad():
            tails = tuple(tail[place] for tail in self._remembered(made.shown_before_PFCYX[pasts]))
        pixels: Tensor = self.model.vae.decode(clean_BFCYX.to(self.model.dtype), tails)[0]
        return pixels.float()

    def read(self, prompts: Sequence[str]) -> Tensor:
        """Encode prompts [P, S, E], in float32."""
        text = self.model.text
        rows = [text(text.read((WeightedPrompt(prompt),))) for prompt in prompts]
        return torch.cat(rows).to(self.model.device, torch.float32)

    def _past(self, plan: RolloutPlan, text_PSE: Tensor, seeds_P: Tensor) -> tuple[KVRing, Tensor, Tensor]:
        """Return a ring with the past that a group shares, the clean frames behind it, and all frames that
        were shown."""
        ring = self._ring(len(plan.prompts))
        frames = self.config.frames_per_chunk
        cross = self._cross(self.read(plan.before) if plan.before else text_PSE)
        parts = []
        for chunk in range(plan.fork_at):
            parts.append(self._chunk(ring, cross, seeds_P, chunk).clean_BFCYX)
        shape = (len(plan.prompts), 0, self.model.spec.dit.channels, *self.config.latent_size)
        past = (
            torch.cat(parts, dim=1)
            if parts
            else torch.zeros(shape, device=self.model.device, dtype=self.dtype)
        )
        shown = past
        if plan.before:  # as `recompute` does: the window once more under the new prompt
            past = past[:, -(self.config.window - frames) :]
            ring = self._ring(len(plan.prompts))
            recommit(
                self.dit,
                ring,
                self._cross(text_PSE),
                past,
                chunks=range(past.shape[1] // frames),
                frames=frames,
            )
        return ring, past, shown

    def _chunk(
        self, ring: KVRing, cross: CrossKV, seeds_B: Tensor, chunk: int, starts_B: Tensor | None = None
    ) -> SampledChunk:
        """Make one chunk. `starts_B` are the seeds of the noise that it starts from, if they are others."""
        frames = self.config.frames_per_chunk
        shape = frames, self.model.spec.dit.channels, *self.config.latent_size

        def draw(step: int) -> Tensor:
            seeds = starts_B if starts_B is not None and step == 0 else seeds_B
            return gaussian_rows(shape, seeds, epoch=0, chunk=chunk, step=step)

        ring.place(list(range(chunk * frames, (chunk + 1) * frames)))
        made = sample_chunk(self.dit, draw(0).to(self.dtype), self.noise, ring, cross, draw)
        sampler.commit(self.dit, made.clean_BFCYX, 0.0, ring, cross)
        return made

    def _cross(self, text_BSE: Tensor) -> CrossKV:
        return self.dit.read_prompt(text_BSE.to(self.dtype))

    def _ring(self, rows: int) -> KVRing:
        return KVRing(
            RingShape.of(self.model.spec.dit, self.config, batch=rows),
            device=self.model.device,
            dtype=self.dtype,
        )

    def _seeds(self, plan: RolloutPlan) -> tuple[Tensor, Tensor]:
        """Return the seeds of the pasts and those of the streams."""
        prompts, rows = len(plan.prompts), len(plan.prompts) * plan.group
        generator = keyed_generator(torch.device("cpu"), "rollout", plan.seed)
        drawn = torch.randint(2**62, (prompts + rows,), generator=generator).to(self.model.device)
        return drawn[:prompts], drawn[prompts:]

    def _remembered(self, shown_BFCYX: Tensor) -> VAEState:
        """Return the state of a decoder that has just shown these frames."""
        return self.model.vae.decode(shown_BFCYX.to(self.model.dtype), ())[1] if shown_BFCYX.shape[1] else ()


def fork_stream(ring: KVRing, count: int) -> KVRing:
    """Return a ring in which every row is repeated `count` times in a row: one past for several futures."""
    shape = replace(ring.shape, batch=ring.shape.batch * count)
    forked = KVRing(shape, device=ring.k.device, dtype=ring.k.dtype, key_multiple=ring.key_multiple)
    state = {name: tensor.repeat_interleave(count, dim=1) for name, tensor in ring.state().items()}
    forked.resume(state, ring.slots.frames, ring.slots.written)
    return forked


def _copy_over(theirs: Mapping[str, Tensor], version: int, mine: Mapping[str, Tensor]) -> int:
    torch._foreach_copy_(list(mine.values()), [theirs[name] for name in mine])
    return version


def write_version(path: Path, actor: CausalDiT, version: int) -> None:
    """Write the actor's weights for rollouts in another process. The file appears by rename."""
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in actor.named_parameters()}
    with Staging(path.parent) as staging:
        save_file(tensors, staging.path(path.name), metadata={VERSION: str(version)})
